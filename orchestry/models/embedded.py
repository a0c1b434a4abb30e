"""The embedded SmolLM2-135M: llama.cpp in this process, served on loopback, reached like any
OpenAI-compatible server, so that the free path and the paid one are the same code.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from typing import Any

from orchestry.core.errors import Interrupted, ProviderError, unknown
from orchestry.core.machine import cores
from orchestry.core.types import Completion, Request
from orchestry.models.http import Endpoint, bytes_bound, schema_bound
from orchestry.models.openai import OpenAIProvider
from orchestry.models.weights import MODEL, SHA256, fetch_weights, progress_bar

SLOTS = 8
"""Requests decoded together; more wait here, so that their time limit starts with their turn."""
CONTEXT = 4096
"""Tokens a request may have, its answer included."""
_GREET_S = 30.0
PATIENCE_S = 1800.0
"""A busy machine is slow, not broken: an answer of this model is not given up before."""
_MOST_THREADS = 8  # a model this small gains nothing from more


class EmbeddedProvider:
    """Starts the server on entry and stops it on exit; weights are fetched if they are missing."""

    name = "embedded"
    base_url = f"embedded:{SHA256[:12]}"  # the port changes from run to run, the weights don't
    model = MODEL
    sha256 = SHA256
    deterministic = False  # what else is in the batch changes the last bits
    cacheable = True
    bills_unanswered = False
    slots: int | None = SLOTS

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._server: Any = None
        self._inner: OpenAIProvider | None = None
        self._slots = asyncio.Semaphore(SLOTS)
        self.key = secrets.token_hex(16)
        """What the server asks for, since any web page open on this machine can reach its port."""

    @property
    def url(self) -> str:
        """The server's address while it runs; it speaks both vendors' APIs below /v1."""
        return str(self._server.listening_address)

    async def __aenter__(self) -> EmbeddedProvider:
        self._server = await self._start()
        endpoint = Endpoint(
            vendor="embedded",
            url=f"{self.url}/v1",
            key_variable="no variable: the key is made at each start",
            url_variable="no variable: the server is this process's own",
            timeout_s=max(self._timeout_s, PATIENCE_S),
            key=self.key,
        )
        self._inner = await OpenAIProvider(endpoint, MODEL).__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._inner is not None:
            await self._inner.__aexit__(*exc)
        await asyncio.to_thread(self._stop)

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """One attempt; see Provider. Raises ProviderError, permanent, for any other model."""
        if request.model != MODEL:
            raise ProviderError(
                unknown("embedded model", request.model, [MODEL]), transient=False, billed=False
            )
        assert self._inner is not None, "enter the provider before asking it"
        async with self._slots:
            return await self._inner.complete(request, shared=shared, started=started)

    def input_bound(self, request: Request) -> int:
        """All that is sent, in bytes, up to the context: a longer prompt is refused."""
        sent = bytes_bound(*(m.content for m in request.messages))
        return min(CONTEXT, sent + schema_bound(request.response_schema))

    def leads(self, request: Request) -> bool:
        """Never: nothing is billed, and all samples of a prompt are decoded together."""
        return False

    async def _start(self) -> Any:
        """Loads weights and server in a thread; a cancelled start ends its download."""
        cancelled = threading.Event()
        task = asyncio.create_task(asyncio.to_thread(_load, cancelled, self.key))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([task])
            task.exception()  # seen: the cancellation is what is raised
            raise

    def _stop(self) -> None:
        self._server = None  # its destructor joins the threads


def _load(cancelled: threading.Event, key: str) -> Any:
    # Its threads meet hundreds of times per token. One that spins while it waits keeps the one it
    # waits for off the core as soon as others use the machine, and answers all but stop; so they
    # soon sleep. OpenMP reads this once, when the library is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    xllamacpp: Any = import_module("xllamacpp")  # its types are not published

    with progress_bar() as draw:

        def progress(done: int, total: int) -> None:
            if cancelled.is_set():
                raise Interrupted("stopped while the weights were being fetched")
            draw(done, total)

        path = fetch_weights(progress)
    params = xllamacpp.CommonParams()
    params.verbosity = -1  # the C++ side writes to stderr from its own threads
    params.model.path = str(path)
    params.model_alias = {MODEL}
    params.api_keys = [key]
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * CONTEXT
    params.cache_ram_mib = 0  # its default keeps up to 8 GiB of old prompts
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = min(cores(), _MOST_THREADS)
    try:
        server = xllamacpp.Server(params)
        _greet(server.listening_address)
        return server
    except (RuntimeError, OSError, HTTPException) as error:
        raise ProviderError(
            f"the embedded model did not start ({error}): it needs 1 GiB of free memory and a "
            "free port on 127.0.0.1",
            transient=False,
            billed=False,
        ) from None


def _greet(url: str) -> None:
    """Waits until the server answers: destroying one that does not listen yet hangs for ever."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=_GREET_S)
    connection.request("GET", "/health")
    connection.getresponse().read()
    connection.close()
