"""The embedded model, SmolLM2-135M or another GGUF file: llama.cpp in this process, served on
loopback and called like any OpenAI-compatible server, so that free and paid calls use the same
code."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any

from orchestry.core.errors import Interrupted, ProviderError, unknown
from orchestry.core.fetch import progress_bar
from orchestry.core.machine import cores
from orchestry.core.types import Completion, Request
from orchestry.models.gguf import MODEL, Gguf, gguf
from orchestry.models.hermes import call_schema, plain, read_calls
from orchestry.models.http import Endpoint, request_bound, schema_bound
from orchestry.models.openai import OpenAIProvider

SLOTS = 8
"""Requests decoded together; others wait here, and their time limit starts when it is their
turn."""
CONTEXT = 4096
"""Tokens of a request, including its answer."""
PROMPTS_MIB = 512
"""Keys and values of earlier prompts, for the next one that begins alike: an agent's rules and
examples are read less often (python -m benchmarks.guarantees.turns). Of the default model that is
22,000 tokens."""
_GREET_S = 30.0
_PATIENCE_S = 1800.0
"""A minimum time limit: on a busy machine this model is slow, not broken."""
_MOST_THREADS = 8  # more threads don't help a model this small


class EmbeddedProvider:
    """Starts the server on entry and stops it on exit; downloads missing weights."""

    name = "embedded"
    deterministic = False  # the other requests of a batch change the last bits
    cacheable = True
    bills_unanswered = False
    slots: int | None = SLOTS

    def __init__(self, timeout_s: float, weights: Gguf | None = None) -> None:
        """`weights`: by default the pinned ones of the default model."""
        self._timeout_s, self._weights = timeout_s, weights or gguf(MODEL)
        self.model = self._weights.name
        self.base_url = self._weights.address  # the port changes from run to run, they don't
        self._server: Any = None
        self._inner: OpenAIProvider | None = None
        self._slots = asyncio.Semaphore(SLOTS)
        self.key = secrets.token_hex(16)
        """The server's key; without one, any web page open on this machine could use its port."""

    @property
    def sha256(self) -> str | None:
        """Of the weights; None before they were downloaded."""
        return self._weights.sha256

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
            timeout_s=max(self._timeout_s, _PATIENCE_S),
            key=self.key,
        )
        self._inner = await OpenAIProvider(endpoint, self.model).__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._inner is not None:
            await self._inner.__aexit__(*exc)
        await asyncio.to_thread(self._stop)

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """One attempt; see Provider. Raises ProviderError, permanent, for any other model."""
        if request.model != self.model:
            raise ProviderError(
                unknown("embedded model", request.model, [self.model]),
                transient=False,
                billed=False,
            )
        assert self._inner is not None, "enter the provider before asking it"
        async with self._slots:
            asked = _in_text(request)
            said = await self._inner.complete(asked, shared=shared, started=started)
        if not request.tools:
            return said
        whole = f"<tool_call>{said.text}" if request.must_call else said.text
        text, calls = read_calls(whole, request.messages)
        return said.model_copy(update={"text": text, "calls": calls})

    def input_bound(self, request: Request) -> int:
        """The bytes of everything that is sent, at most the context; a longer prompt is refused."""
        asked = _in_text(request)
        return min(CONTEXT, request_bound(asked) + schema_bound(asked.response_schema))

    def leads(self, request: Request) -> bool:
        """Always False: nothing is billed, and all samples of a prompt are decoded together."""
        return False

    async def _start(self) -> Any:
        """Loads weights and server in a thread; a cancelled start ends its download."""
        cancelled = threading.Event()
        task = asyncio.create_task(asyncio.to_thread(_load, cancelled, self.key, self._weights))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([task])
            task.exception()  # ignored: the cancellation is raised instead
            raise

    def _stop(self) -> None:
        self._server = None  # its destructor joins the threads


def _in_text(request: Request) -> Request:
    """With tools in the prompt's text: the template of the default model knows none, and the server
    then leaves them out without a word. A call that must be made is asked for by its schema."""
    if not request.tools:
        return request
    changes: dict[str, Any] = {"tools": (), "must_answer": False, "must_call": ""}
    changes["messages"] = tuple(plain(request.messages, request.offered))
    if request.must_call:
        changes["response_schema"] = call_schema(request.offered)
    return request.model_copy(update=changes)


def _load(cancelled: threading.Event, key: str, weights: Gguf) -> Any:
    # Its threads meet hundreds of times per token. One that spins while it waits keeps the one it
    # waits for off the core as soon as others use the machine, and answers all but stop; so they
    # soon sleep. OpenMP reads this once, when the library is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    xllamacpp: Any = import_module("xllamacpp")  # its types are not published

    path = fetched(weights, cancelled)
    params = xllamacpp.CommonParams()
    params.verbosity = -1  # the C++ side writes to stderr from its own threads
    params.model.path = str(path)
    params.model_alias = {weights.name}
    params.api_keys = [key]
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * CONTEXT
    params.cache_ram_mib = PROMPTS_MIB
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = min(cores(), _MOST_THREADS)
    try:
        server = xllamacpp.Server(params)
        _greet(server.listening_address)
        return server
    except (RuntimeError, OSError, HTTPException) as error:
        raise ProviderError(
            f"the embedded model {path} did not start ({error}): it needs a whole file (this one "
            f"has {path.stat().st_size:,} bytes), 1 GiB of free memory or more if it is large, and "
            "a free port on 127.0.0.1",
            transient=False,
            billed=False,
        ) from None


def fetched(weights: Gguf, cancelled: threading.Event) -> Path:
    """The weights on disk, downloaded first if they are missing, with a bar on stderr."""
    with progress_bar(weights.title) as draw:

        def progress(done: int, total: int) -> None:
            if cancelled.is_set():
                raise Interrupted("stopped while the weights were being fetched")
            draw(done, total)

        return weights.fetch(progress)


def _greet(url: str) -> None:
    """Waits until the server answers, because destroying it earlier would hang forever."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=_GREET_S)
    connection.request("GET", "/health")
    connection.getresponse().read()
    connection.close()
