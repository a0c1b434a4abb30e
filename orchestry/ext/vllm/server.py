"""The HTTP side of one vLLM server: its model, its adapters, and answers to single requests.

The protocol follows vLLM 0.33.0's sources; it was not tested with a real server yet.
"""

from __future__ import annotations

import errno
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
from orchestry.models.http import LOOPBACK, server_says

ATTEMPTS = 5
"""With 0.5, 1, 2 and 4 seconds between them."""
PATIENCE_S = 600.0
"""The longest wait for one request, which may queue behind its whole batch."""
GLANCE_S = 10.0
"""The longest wait for a server that was taken out, whether it answers again."""
KEY = "VLLM_API_KEY"
"""The environment variable that vLLM itself reads its key from."""
_NO_SUCH_PATH = "Not Found"
"""FastAPI's words for an address that isn't there; of an adapter or model vLLM says more."""
_AWAY = {502, 503, 504}
"""Also what a proxy answers while nothing runs behind it."""
_TRANSIENT = {408, 425, 429, *_AWAY}
_OUR_LIMIT = (errno.EMFILE, errno.ENFILE)
T = TypeVar("T", bound=BaseModel)


class _Read(BaseModel):
    """Part of an answer; its other fields are not read."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Logprobs(_Read):
    """Of the tokens drawn."""

    token_logprobs: tuple[float, ...]
    """Nats, one per token, in the server's `--logprobs-mode`."""


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
    """What a server has at this moment."""

    url: str
    base: str
    """The name under which it answers without adapter."""
    root: str
    """Where its weights come from."""
    context: int | None
    """Tokens that prompt and answer may have together."""
    adapters: frozenset[str]


class Unanswered(ProviderError):
    """Nothing answered, or only a proxy or a server that is down (HTTP status 502 to 504)."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message, transient=True, billed=False)
        self.why = why


class Refused(ProviderError):
    """The server answered, with another HTTP status of 400 or more."""

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
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`command` starts such a server: errors name it. `sleep` waits between attempts, each of
        which takes `patience_s` at most."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self.command = command
        self._key = environ.get(KEY, "")
        self._sleep, self._patience_s = sleep, patience_s
        # A proxy can't reach this machine's own loopback.
        local = urlsplit(url).hostname in LOOPBACK
        self._opener: OpenerDirector = build_opener(*([ProxyHandler({})] if local else []))

    def served(self, *, brief: bool = False) -> Served:
        """What it has now; `brief`: by one attempt of at most GLANCE_S.

        Raises Unanswered where no server answers, ProviderError where another one than vLLM does.
        """
        cards = self._read(_Cards, self._send("/v1/models", brief=brief)).data
        bases = [card for card in cards if card.parent is None]
        if not bases:
            raise self.odd("it serves no model")
        base = bases[0]
        adapters = frozenset(card.id for card in cards if card.parent is not None)
        return Served(self.url, base.id, base.root or base.id, base.max_model_len, adapters)

    def load(self, name: str, folder: Path) -> None:
        """Loads an adapter in peft's format; loading a name twice is harmless, because names stand
        for contents.

        Raises ProviderError if LoRA is off, its rank is too small, or the server does not see the
        folder.
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
        """Unloads an adapter; an unknown one is no error.

        Raises ConfigError if the server does not allow changing adapters while it runs.
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
        """The error for an invalid answer."""
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

    def _send(
        self, path: str, body: Mapping[str, Any] | None = None, *, brief: bool = False
    ) -> bytes:
        """GET, or POST if there is a body; retries temporary failures, unless `brief`."""
        policy = Retrying(
            sleep=self._sleep,
            stop=stop_after_attempt(1 if brief else ATTEMPTS),
            wait=wait_exponential(multiplier=0.5, max=30),
            retry=retry_if_exception(lambda e: isinstance(e, ProviderError) and e.transient),
            reraise=True,
        )
        patience_s = min(self._patience_s, GLANCE_S) if brief else self._patience_s
        return policy(self._attempt, path, body, patience_s)

    def _attempt(self, path: str, body: Mapping[str, Any] | None, patience_s: float) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, headers)
        try:
            with self._opener.open(request, timeout=patience_s) as response:
                found: bytes = response.read()
                return found
        except HTTPError as error:
            with error:
                says = " ".join(server_says(error.read())[0].split())[:300]
            raise self._refused(error.code, says) from None
        except (OSError, HTTPException) as error:
            raise self._unanswered(_cause(error)) from None

    def _unanswered(self, cause: Exception | str) -> ProviderError:
        why = _why(cause)
        if isinstance(cause, OSError) and cause.errno in _OUR_LIMIT:
            return ProviderError(
                f"too many open files ({why}) for a connection to {self.url}: raise the limit with "
                "`ulimit -n 4096`, then resume the run",
                transient=True,
                billed=False,
            )
        return Unanswered(
            f"no vLLM server answers at {self.url} ({why}): start it with `{self.command}`, or "
            "correct learn.vllm_url",
            why,
        )

    def _refused(self, status: int, says: str) -> Refused | Unanswered:
        if status == 401:
            fix = f"set {KEY} to the key that it was started with"
        elif status in _TRANSIENT:
            fix = "resume the run when it is free again"
        else:
            fix = f"start it with `{self.command}`, then resume the run"
        message = f"the vLLM server at {self.url} answered {status} ({says}): {fix}"
        if status in _AWAY:
            return Unanswered(message, f"{status}, {says}")
        return Refused(message, status, says)


def _cause(error: Exception) -> Exception | str:
    """The network's error, without urllib's wrapper."""
    cause = error.reason if isinstance(error, URLError) else error
    return cause if isinstance(cause, Exception) else str(cause)


def _why(cause: Exception | str) -> str:
    """Its text, without the error number."""
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return reason(cause) if isinstance(cause, Exception) else cause
