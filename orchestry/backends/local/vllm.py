"""Draws answers from a running vLLM server instead of from the weights of this process.

One request per sample, because vLLM seeds the samples of one request with consecutive numbers; its
prefix cache still computes a prompt only once. Prompts and answers are sent as token ids, end token
included, so no text is tokenized twice. A repeated run draws the same only with vLLM's batch
invariance, on the same GPU and version (its docs/usage/reproducibility.md).

Adapter names are made from their contents. Before each draw, missing ones are loaded, for instance
after the server restarted. New contents need a new name, because vLLM caches keys and values by
adapter name and would use stale ones (vllm-project/vllm#42125).

The protocol follows vLLM 0.33.0's sources; it was not tested with a real server yet.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from orchestry.backends.local.batch import Packed
from orchestry.backends.local.decode import Ending, Endings
from orchestry.backends.local.logprobs import completion_logprobs, micro_batches
from orchestry.backends.local.memory import MicroBatches
from orchestry.backends.local.sampler import MAX_ROWS, Drawn, Prompt, evaluating
from orchestry.core.errors import ConfigError, LearnError, ProviderError, StoreError, reason
from orchestry.models.http import LOOPBACK, server_says

if TYPE_CHECKING:
    from orchestry.backends.local.adapters import Adapters
    from orchestry.backends.local.model import Base


RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM's --max-lora-rank accepts."""
TOLERANCE = 0.2
"""Allowed mean difference of the server's log-probabilities, in nats per token. bfloat16 causes
about a tenth of it; a base that is quantized only here causes more."""
ATTEMPTS = 5
"""With 0.5, 1, 2 and 4 seconds between them."""
PATIENCE_S = 600.0
"""The longest wait for one request, which may queue behind its whole batch."""
KEY = "VLLM_API_KEY"
"""The environment variable that vLLM itself reads its key from."""
_NO_SUCH_PATH = "Not Found"
"""FastAPI's words for an address that isn't there; of an adapter or model vLLM says more."""
_TRANSIENT = {408, 425, 429, 502, 503, 504}
T = TypeVar("T", bound=BaseModel)


class VllmSampler:
    """A Sampler whose answers a server draws, with the last published adapters."""

    def __init__(
        self,
        base: Base,
        adapters: Adapters,
        url: str,
        *,
        micro_tokens: int = 4096,
        warn: Callable[[str], None] = lambda text: None,
        in_flight: int = MAX_ROWS,
        environ: Mapping[str, str] = os.environ,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connects to the server; errors name the command that starts one.

        `in_flight`: requests at a time. `micro_tokens`: most tokens in one forward pass here; if
        memory runs out, fewer are used and `warn` is told. Raises ProviderError if no server
        answers, ConfigError if it accepts no adapters.
        """
        self._base, self._adapters = base, adapters
        self._endings = Endings(base.tokenizer, base.eos_ids)
        self._micro, self._in_flight = MicroBatches(micro_tokens, warn), in_flight
        self._server = VllmServer(url, serve_command(base, adapters), environ, sleep)
        self._folders: dict[str, Path] = {}
        """The adapters to draw with, by name at the server."""
        self._names: list[str] = []
        """Each agent's adapter; empty while all are untrained and change nothing."""
        self._stale = set[str]()
        """Adapters of ours that the server may still hold."""
        self._server.served()
        self._server.unload("orchestry-is-here")  # this shows whether it accepts adapters

    def publish(self, folder: Path) -> None:
        """From now on the adapters saved in `folder` are used; before, the bare base.

        The next draw loads them and unloads the previous ones. The server must see the folder under
        the same path. Raises StoreError if it can't be read here.
        """
        paths = [folder.absolute() / name for name in self._adapters.folders]
        self._stale |= set(self._folders)
        self._names = [_name(path) for path in paths]
        self._folders = dict(zip(self._names, paths, strict=True))
        self._stale -= set(self._folders)

    def draw(self, prompts: Sequence[Prompt], n: int) -> list[list[Drawn]]:
        """See Sampler.draw. Log-probabilities are this process's own, not the server's.

        Raises LearnError if the two differ, because another base, other adapters or a truncated
        distribution would make the team learn from actions that it did not take. Raises
        ProviderError if the server is gone, can't load the adapters, has too short a context, or
        gives an invalid answer.
        """
        if any(len(prompt.seeds) != n or not prompt.prompt_ids for prompt in prompts):
            raise ValueError(f"every prompt needs tokens, and a seed for each of its {n} samples")
        if not prompts or n == 0:
            return [[] for _ in prompts]
        served = self._ready()
        self._check_room(prompts, served)
        asked = [(prompt, seed) for prompt in prompts for seed in prompt.seeds]
        bodies = [self._body(prompt, seed, served) for prompt, seed in asked]
        choices = self._answers(bodies)
        ended = [self._ended(prompt, c) for (prompt, _), c in zip(asked, choices, strict=True)]
        logprobs = self._logprobs(prompts, [ids for ids, _ in ended])
        self._check_policy([prompt for prompt, _ in asked], choices, logprobs, served)
        drawn = iter(
            Drawn(
                ids,
                own,
                self._endings.text(ids, prompt.stop),
                ending,
                choice.logprobs.token_logprobs[: len(ids)],
            )
            for (prompt, _), (ids, ending), own, choice in zip(
                asked, ended, logprobs, choices, strict=True
            )
        )
        return [[next(drawn) for _ in prompt.seeds] for prompt in prompts]

    def _ready(self) -> Served:
        """The server's model, after loading the needed adapters and unloading older ones."""
        served = self._server.served()
        for name in sorted(self._stale & served.adapters):
            self._server.unload(name)
        self._stale.clear()
        for name in sorted(set(self._folders) - served.adapters):
            self._server.load(name, self._folders[name])
        return served

    def _check_room(self, prompts: Sequence[Prompt], served: Served) -> None:
        """Raises if prompt and answer don't fit, because vLLM would shorten the answer silently."""
        longest = max(len(prompt.prompt_ids) + prompt.max_tokens for prompt in prompts)
        if served.context is not None and longest > served.context:
            raise ProviderError(
                f"the vLLM server at {self._server.url} takes {served.context:,} tokens, and a "
                f"prompt with its answer may have {longest:,}: start it with --max-model-len "
                f"{longest} or more, then resume the run",
                transient=False,
                billed=False,
            )

    def _body(self, prompt: Prompt, seed: int, served: Served) -> dict[str, Any]:
        """Sets everything that shapes the distribution, because defaults may come from the model's
        authors."""
        agent = prompt.agent_index
        return {
            "model": self._names[agent] if self._names and agent >= 0 else served.base,
            "prompt": list(prompt.prompt_ids),
            "max_tokens": prompt.max_tokens,
            "temperature": prompt.temperature,
            "top_p": prompt.top_p,
            "top_k": prompt.top_k or 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seed,
            "stop": list(prompt.stop),
            "stop_token_ids": sorted(self._base.eos_ids),
            "logprobs": 0,  # of the token drawn alone
            "return_token_ids": True,
        }

    def _answers(self, bodies: Sequence[dict[str, Any]]) -> list[Choice]:
        """In order; the first failure drops those not yet sent."""
        pool = ThreadPoolExecutor(min(self._in_flight, len(bodies)), "vllm")
        try:
            futures = [pool.submit(self._server.complete, body) for body in bodies]
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)

    def _ended(self, prompt: Prompt, choice: Choice) -> tuple[tuple[int, ...], Ending]:
        """The answer up to its end by this backend's rules, and why it ends there.

        Both sides find the same end, except after incomplete characters: there the server may
        continue past a stop string. The text before the cut is not affected.
        """
        if choice.prompt_token_ids != prompt.prompt_ids:
            raise self._server.odd("it read other prompt tokens than it was sent")
        if not all(0 <= token < self._vocabulary for token in choice.token_ids):
            raise self._server.odd(f"token ids that {self._base.name} doesn't have")
        if len(choice.logprobs.token_logprobs) != len(choice.token_ids):
            raise self._server.odd("log-probabilities that are not one per token")
        ids: list[int] = []
        for token in choice.token_ids:
            ids.append(token)
            if ending := self._endings.of(ids, prompt.max_tokens, prompt.stop):
                return tuple(ids), ending
        if ids and choice.finish_reason == "stop" and choice.stop_reason in prompt.stop:
            return tuple(ids), "stop"
        raise self._server.odd(
            f"an answer of {len(ids)} tokens out of {prompt.max_tokens} that ends at no end token "
            f"and no stop string, by '{choice.finish_reason}'"
        )

    @property
    def _vocabulary(self) -> int:
        embeddings: Any = self._base.model.get_input_embeddings()
        return int(embeddings.weight.shape[0])

    def _logprobs(
        self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]
    ) -> list[tuple[float, ...]]:
        """Nats of each answer's tokens by the weights here, as Drawn has them."""
        left, found = iter(answers), dict[int, list[tuple[float, ...]]]()
        packed = [
            Packed(p.agent_index, p.prompt_ids, tuple(next(left) for _ in p.seeds)) for p in prompts
        ]
        for temperature in {prompt.temperature for prompt in prompts}:
            places = [i for i, prompt in enumerate(prompts) if prompt.temperature == temperature]
            scored = iter(self._scored([packed[place] for place in places], temperature))
            for place in places:
                found[place] = [next(scored) for _ in packed[place].completions]
        return [one for place in range(len(prompts)) for one in found[place]]

    def _scored(self, packed: Sequence[Packed], temperature: float) -> list[tuple[float, ...]]:
        if temperature == 0:
            return [(0.0,) * len(ids) for group in packed for ids in group.completions]

        def scored(micro_tokens: int) -> list[tuple[float, ...]]:
            return [
                tuple(logprobs_T.tolist())
                for micro in micro_batches(packed, micro_tokens)
                for logprobs_T in completion_logprobs(
                    self._base, self._adapters, micro, temperature
                )
            ]

        with torch.no_grad(), evaluating(self._base.model):
            return self._micro.run(scored)

    def _check_policy(
        self,
        prompts: Sequence[Prompt],
        choices: Sequence[Choice],
        logprobs: Sequence[tuple[float, ...]],
        served: Served,
    ) -> None:
        """The server's are after top-p, whose cut adds between 0 and -log(top_p) to each, and after
        top-k, whose cut adds what is not known here."""
        excess = [
            max(0.0, own - theirs, 0 if prompt.top_k else theirs - own + math.log(prompt.top_p))
            for prompt, choice, owns in zip(prompts, choices, logprobs, strict=True)
            if prompt.temperature > 0
            # What `_ended` cut off is not compared.
            for theirs, own in zip(choice.logprobs.token_logprobs, owns, strict=False)
        ]
        mean = sum(excess) / max(1, len(excess))
        if not mean <= TOLERANCE:  # not a number fails too
            raise LearnError(
                f"the vLLM server at {self._server.url} serves {served.root}, and its answers are "
                f"not drawn by {self._base.name} with this run's adapters: log-probabilities are "
                f"off by {mean:.2f} nats per token, at most {TOLERANCE} is rounding; start it with "
                f"`{self._server.command}`, then resume the run"
            )


def serve_command(base: Base, adapters: Adapters) -> str:
    """Starts a server for this team; ranks are rounded up to one that vLLM knows."""
    rank = next((rank for rank in RANKS if rank >= adapters.rank), adapters.rank)
    dtype = str(base.model.dtype).removeprefix("torch.")
    return (
        f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {base.model.name_or_path or base.name} "
        f"--dtype {dtype} --enable-lora --max-lora-rank {rank} "
        f"--max-loras {len(set(adapters.folders))} --logprobs-mode processed_logprobs"
    )


def _name(folder: Path) -> str:
    """An adapter's name at the server; other contents or another folder have another name."""
    digest = hashlib.sha256(str(folder).encode())
    try:
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            digest.update(file.read_bytes())
    except OSError as error:
        raise StoreError(
            f"the adapter in {folder} can't be read ({reason(error)}): restore it from a copy"
        ) from None
    return f"{folder.name}-{digest.hexdigest()[:16]}"


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
        local = urlsplit(url).hostname in LOOPBACK
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

    def _send(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """GET, or POST if there is a body; retries temporary failures."""
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
                says = " ".join(server_says(error.read())[0].split())[:300]
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
    """The network's error, without urllib's wrapper and the error number."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return reason(cause) if isinstance(cause, BaseException) else cause
