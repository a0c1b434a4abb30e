"""A running vLLM server over HTTP: what it serves, adapters in and out, and one answer a request.

Of vLLM's protocol this is written against the sources and pages of 0.33.0: `docs/features/lora.md`,
`docs/usage/v1_guide.md` (log-probabilities), `entrypoints/openai/completion/protocol.py`,
`entrypoints/openai/models/serving.py`. It has never met a real vLLM: no GPU was at hand.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

from pydantic import BaseModel, ConfigDict, ValidationError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from orchestry.core.errors import ConfigError, ProviderError, reason

ATTEMPTS = 5
"""With 0.5, 1, 2 and 4 seconds between them."""
PATIENCE_S = 600.0
"""The longest silence: a request may wait behind all others of its batch."""
KEY = "VLLM_API_KEY"
"""The environment variable that vLLM itself reads its key from."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NO_SUCH_PATH = "Not Found"
"""FastAPI's words for an address that isn't there; of an adapter or model vLLM says more."""
_TRANSIENT = {408, 425, 429, 502, 503, 504}
T = TypeVar("T", bound=BaseModel)


class _Read(BaseModel):
    """Part of an answer; what it holds besides is nobody's business here."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Logprobs(_Read):
    """Of the tokens drawn."""

    token_logprobs: tuple[float, ...]
    """Nats, one a token, in the server's `--logprobs-mode`."""


class Choice(_Read):
    """One answer as the server gives it."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """With the end token, and the token that completed a stop string."""
    logprobs: Logprobs
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """The stop string or token id that ended it; None for the tokenizer's own end token."""


class _Answer(_Read):
    choices: tuple[Choice, ...]


class _Card(_Read):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Cards(_Read):
    data: tuple[_Card, ...]


@dataclass(frozen=True, slots=True)
class Served:
    """What the server has at this moment."""

    base: str
    """The name under which it answers without adapter."""
    root: str
    """Where its weights come from."""
    context: int | None
    """Tokens that prompt and answer may have together."""
    adapters: frozenset[str]


class Refused(ProviderError):
    """The server answered, with an HTTP status of 400 or more."""

    def __init__(self, message: str, status: int, says: str) -> None:
        super().__init__(message, transient=status in _TRANSIENT, billed=False)
        self.status, self.says = status, says


class VllmServer:
    """The HTTP side. Safe to use from many threads at once; holds no connection between calls."""

    def __init__(
        self,
        url: str,
        command: str,
        environ: Mapping[str, str] = os.environ,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`command` starts such a server: errors name it. `sleep` waits between attempts."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self.command = command
        self._key = environ.get(KEY, "")
        self._sleep = sleep
        # A proxy can't reach this machine's own loopback.
        local = urlsplit(url).hostname in _LOOPBACK
        self._opener: OpenerDirector = build_opener(*([ProxyHandler({})] if local else []))

    def served(self) -> Served:
        """Raises ProviderError where no server answers, or another one than vLLM."""
        cards = self._read(_Cards, self._send("/v1/models")).data
        bases = [card for card in cards if card.parent is None]
        if not bases:
            raise self.odd("it serves no model")
        base = bases[0]
        adapters = frozenset(card.id for card in cards if card.parent is not None)
        return Served(base.id, base.root or base.id, base.max_model_len, adapters)

    def load(self, name: str, folder: Path) -> None:
        """Has it read an adapter in peft's format; names stand for contents, so twice is once.

        Raises ProviderError where it can't: LoRA is off, its rank is too small, or it doesn't see
        the folder.
        """
        try:
            self._send("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except Refused as error:
            if "already been loaded" in error.says:
                return
            if error.status != 404 or error.says == _NO_SUCH_PATH:
                raise
            raise ProviderError(
                f"the vLLM server at {self.url} can't read the adapter {folder} ({error.says}): "
                "the run's folder must be on a disk that it sees too, under the same path; then "
                "resume the run",
                transient=False,
                billed=False,
            ) from None

    def unload(self, name: str) -> None:
        """Has it forget an adapter; one that it doesn't know is no error.

        Raises ConfigError where it takes no adapters while it runs.
        """
        try:
            self._send("/v1/unload_lora_adapter", {"lora_name": name})
        except Refused as error:
            if error.says == _NO_SUCH_PATH:
                raise ConfigError(
                    f"the vLLM server at {self.url} takes no adapters while it runs: start it with "
                    f"`{self.command}`"
                ) from None
            if error.status != 404:
                raise

    def complete(self, body: Mapping[str, Any]) -> Choice:
        """One answer to one request of /v1/completions."""
        choices = self._read(_Answer, self._send("/v1/completions", body)).choices
        if len(choices) != 1:
            raise self.odd(f"{len(choices)} answers for one request")
        return choices[0]

    def odd(self, found: str) -> ProviderError:
        """For an answer that arrived and can't be one."""
        return ProviderError(
            f"the vLLM server at {self.url} answered what can't be ({found}): check that it is "
            f"vLLM 0.11 or newer, started with `{self.command}`; then resume the run",
            transient=False,
            billed=False,
        )

    def _read(self, shape: type[T], body: bytes) -> T:
        try:
            return shape.model_validate_json(body)
        except ValidationError as error:
            raise self.odd(reason(error)) from None

    def _send(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """GET, or POST where there is a body; attempts again what may pass."""
        policy = Retrying(
            sleep=self._sleep,
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=0.5, max=30),
            retry=retry_if_exception(lambda e: isinstance(e, ProviderError) and e.transient),
            reraise=True,
        )
        return policy(self._attempt, path, body)

    def _attempt(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, headers)
        try:
            with self._opener.open(request, timeout=PATIENCE_S) as response:
                found: bytes = response.read()
                return found
        except HTTPError as error:
            with error:
                says = _says(error.read())
            raise self._refused(error.code, says) from None
        except (OSError, HTTPException) as error:
            raise ProviderError(
                f"no vLLM server answers at {self.url} ({_why(error)}): start it with "
                f"`{self.command}`, or correct learn.vllm_url",
                transient=True,
                billed=False,
            ) from None

    def _refused(self, status: int, says: str) -> Refused:
        if status == 401:
            fix = f"set {KEY} to the key that it was started with"
        elif status in _TRANSIENT:
            fix = "resume the run when it is free again"
        else:
            fix = f"start it with `{self.command}`, then resume the run"
        message = f"the vLLM server at {self.url} answered {status} ({says}): {fix}"
        return Refused(message, status, says)


def _why(error: Exception) -> str:
    """What the network did, without urllib's wrapping and the error's number."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return reason(cause) if isinstance(cause, BaseException) else cause


def _says(body: bytes) -> str:
    """The message in an error, of vLLM's shape or FastAPI's, on one line."""
    text = body.decode("utf-8", "replace")
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        found = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        text = str(found or text)
    return " ".join(text.split())[:300] or "no message"
