"""A loopback server that speaks vLLM's protocol, over real weights: the tiny model, real adapters.

It imitates what vLLM 0.33.0's sources say: `GET /v1/models` (cards of base and adapters, with root,
parent and max_model_len), `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter` (statuses and
messages of serving.py, peft_helper.py and FastAPI's 404 where updates are off), and
`POST /v1/completions` (token ids in and out, the end token among them; finish_reason and
stop_reason; log-probabilities raw, or after temperature and top-p). Adapters are read from the very
folder that a request names, so that only a reload can change an answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Literal
from urllib.parse import unquote

import pytest
import torch

from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.model import Base
from orchestry.backends.local.sampler import Drawn, Prompt, Sampler
from orchestry.core.errors import OrchestryError
from orchestry.ext.vllm.vllm import VllmSampler
from tests.backends.local.teams import plain_logits, some_ids
from tests.backends.local.tiny import CONTEXT, tiny_model, tiny_tokenizer

SERVED = "tiny-served"
_BUILDING = Lock()
"""A model is built from torch's one global seed."""


class Fault(Exception):
    """An answer of vLLM's with a status of 400 or more."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Vllm:
    """The server's settings and state; a test may change either between two requests."""

    seed: int = 0
    """Of the tiny base that it serves."""
    root: str = "/models/tiny"
    updates: bool = True
    """VLLM_ALLOW_RUNTIME_LORA_UPDATING."""
    lora: bool = True
    """--enable-lora."""
    max_rank: int = 16
    context: int = CONTEXT
    mode: Literal["raw_logprobs", "processed_logprobs"] = "processed_logprobs"
    key: str | None = None
    spoil: Callable[[dict[str, Any]], None] = lambda answer: None
    """Changes an answer of /v1/completions before it is sent, or raises a Fault."""
    says: Callable[[str], str] | None = None
    """From the prompt's text, what is answered in place of what the weights draw."""
    drop: int = 0
    """Requests to come whose connection is closed without an answer."""
    kill: Callable[[], None] = lambda: None
    """Ends the server: no request is answered from now on, and its port is closed."""
    url: str = ""
    adapters: dict[str, tuple[str, Base, Adapters]] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        base = self._base()
        self._bare = base, Adapters(base, ["none"], dropout=0)

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for found, body in self.requests if found == path]

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any] | str:
        if path == "/v1/models":
            return self._models()
        if path == "/v1/completions":
            return self._complete(body)
        if path.endswith("_lora_adapter") and self.updates:
            return self._load(body) if "/load" in path else self._unload(body)
        raise Fault(404, "Not Found")

    def _models(self) -> dict[str, Any]:
        base = {"id": SERVED, "root": self.root, "parent": None, "max_model_len": self.context}
        cards = [
            {"id": name, "root": path, "parent": SERVED, "max_model_len": None}
            for name, (path, _, _) in self.adapters.items()
        ]
        return {"object": "list", "data": [base, *cards]}

    def _load(self, body: dict[str, Any]) -> str:
        name, path = body["lora_name"], Path(body["lora_path"])
        if name in self.adapters:
            raise Fault(400, f"The lora adapter '{name}' has already been loaded.")
        if not self.lora:
            raise Fault(500, "LoRA is not enabled. Use --enable-lora to enable LoRA.")
        try:
            config = json.loads((path / "adapter_config.json").read_text())
        except FileNotFoundError:
            raise Fault(404, f"Loading lora {name} failed: No adapter found for <path>") from None
        if config["r"] > self.max_rank:
            raise Fault(
                500, f"LoRA rank {config['r']} is greater than max_lora_rank {self.max_rank}."
            )
        self.adapters[name] = (str(path), *self._worn(path, config))
        return f"Success: LoRA adapter '{name}' added successfully."

    def _unload(self, body: dict[str, Any]) -> str:
        if self.adapters.pop(body["lora_name"], None) is None:
            raise Fault(404, f"The lora adapter '{body['lora_name']}' cannot be found.")
        return f"Success: LoRA adapter '{body['lora_name']}' removed successfully."

    def _worn(self, path: Path, config: dict[str, Any]) -> tuple[Base, Adapters]:
        with _BUILDING:
            base = self._base(config["base_model_name_or_path"])
            worn = Adapters(
                base,
                [unquote(path.name)],
                rank=config["r"],
                alpha=config["lora_alpha"],
                dropout=0,
                targets=config["target_modules"],
                rslora=config["use_rslora"],
            )
        worn.load(path.parent)
        return base, worn

    def _base(self, name: str = SERVED) -> Base:
        return Base(tiny_model(seed=self.seed), tiny_tokenizer(), name)

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        model, ids = body["model"], tuple(body["prompt"])
        if model == SERVED:
            base, worn = self._bare
        elif model in self.adapters:
            _, base, worn = self.adapters[model]
        else:
            raise Fault(404, f"The model `{model}` does not exist. Valid aliases: {SERVED}.")
        if len(ids) > self.context:
            raise Fault(400, f"This model's maximum context length is {self.context} tokens.")
        assert set(body["stop_token_ids"]) == base.eos_ids
        assert body["repetition_penalty"] == 1.0
        prompt = Prompt(
            agent_index=0,
            prompt_ids=ids,
            max_tokens=min(body["max_tokens"], self.context - len(ids)),
            temperature=body["temperature"],
            top_p=body["top_p"],
            stop=tuple(body["stop"]),
            seeds=(body["seed"],),
            top_k=body["top_k"] or None,
        )
        drawn = self._said(prompt, base) or Sampler(base, worn).draw([prompt], 1)[0][0]
        answer = self._written(prompt, drawn, base, worn)
        self.spoil(answer)
        return answer

    def _said(self, prompt: Prompt, base: Base) -> Drawn | None:
        if self.says is None:
            return None
        asked = base.tokenizer.decode(list(prompt.prompt_ids))
        assert isinstance(asked, str)
        text = self.says(asked)
        ids = (*base.tokenizer(text)["input_ids"], *base.eos_ids)
        return Drawn(ids, (), text, "end")

    def _written(self, prompt: Prompt, drawn: Drawn, base: Base, worn: Adapters) -> dict[str, Any]:
        reasons: dict[str, tuple[str, str | None]] = {
            "end": ("stop", None),
            "stop": ("stop", next((s for s in prompt.stop if s in _text(base, drawn)), None)),
            "length": ("length", None),
        }
        finish, stop = reasons[drawn.stop]
        choice = {
            "index": 0,
            "text": drawn.text,
            "finish_reason": finish,
            "stop_reason": stop,
            "logprobs": {"token_logprobs": self.logprobs(prompt, drawn, base, worn)},
            "token_ids": list(drawn.ids),
            "prompt_token_ids": list(prompt.prompt_ids),
        }
        usage = {"prompt_tokens": len(prompt.prompt_ids), "completion_tokens": len(drawn.ids)}
        return {"object": "text_completion", "choices": [choice], "usage": usage}

    def logprobs(self, prompt: Prompt, drawn: Drawn, base: Base, worn: Adapters) -> list[float]:
        """As --logprobs-mode says."""
        ids = prompt.prompt_ids + drawn.ids
        with torch.no_grad():
            logits_TV = plain_logits(base, worn, 0, ids)[len(prompt.prompt_ids) - 1 : -1]
        if self.mode == "processed_logprobs" and prompt.temperature > 0:
            logits_TV = logits_TV / prompt.temperature
            chance = logits_TV.softmax(-1).sort(descending=True)
            top_k = prompt.top_k or chance.values.shape[-1]
            chance.values[:, top_k:] = 0.0
            chance.values.div_(chance.values.sum(-1, keepdim=True))
            outside = chance.values.cumsum(-1) - chance.values >= prompt.top_p
            cut = outside.scatter(-1, chance.indices, outside)
            logits_TV = logits_TV.masked_fill(cut, -torch.inf)
        found: list[float] = (
            logits_TV.log_softmax(-1).gather(-1, torch.tensor(drawn.ids)[:, None])[:, 0].tolist()
        )
        return [max(logprob, -9999.0) for logprob in found]


def _text(base: Base, drawn: Drawn) -> str:
    text = base.tokenizer.decode(list(drawn.ids), skip_special_tokens=True)
    assert isinstance(text, str)
    return text


@contextmanager
def vllm(port: int = 0, **settings: Any) -> Iterator[Vllm]:
    """Serves until the context ends, or the server is killed."""
    state = Vllm(**settings)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _reply(self, body: dict[str, Any]) -> None:
            self.close_connection = True
            state.requests.append((self.path, body))
            with state.lock:
                if state.drop > 0:
                    state.drop -= 1
                    return
                status, found = self._found(body)
                if state.drop > 0:  # it was killed meanwhile
                    return
            data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _found(self, body: dict[str, Any]) -> tuple[int, dict[str, Any] | str]:
            if state.key and self.headers["authorization"] != f"Bearer {state.key}":
                return 401, {"error": "Unauthorized"}
            try:
                return 200, state.answer(self.path, body)
            except Fault as fault:
                error = {"message": str(fault), "type": "x", "param": None, "code": fault.status}
                return fault.status, {"error": error}

        def log_message(self, format: str, *args: object) -> None: ...

    def kill() -> None:
        state.drop = sys.maxsize
        server.shutdown()
        server.server_close()

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        state.kill = kill
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


# --- what asks it ---------------------------------------------------------------------------------


class Waits(list[float]):
    """Seconds that were to be slept."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def sampler(
    two: tuple[Base, Adapters], states: Vllm | Sequence[Vllm], **options: Any
) -> VllmSampler:
    """At one server or several; no wait between attempts takes time."""
    every = [states] if isinstance(states, Vllm) else states
    urls = [state.url for state in every]
    return VllmSampler(*two, urls, environ={}, sleep=Waits(), **options)


def published(
    two: tuple[Base, Adapters], states: Vllm | Sequence[Vllm], folder: Path, **options: Any
) -> VllmSampler:
    """With what the adapters are at this moment."""
    made = sampler(two, states, **options)
    two[1].save(folder)
    made.publish(folder)
    return made


def ask(agent: int = 0, length: int = 9, seeds: tuple[int, ...] = (1,), **options: Any) -> Prompt:
    plain = Prompt(agent, some_ids(length, seed=length), 12, 0.8, 0.95, (), seeds)
    return replace(plain, **options)


def assert_same(found: list[list[Drawn]], expected: list[list[Drawn]]) -> None:
    for one, other in zip(chain(*found), chain(*expected), strict=True):
        assert (one.ids, one.text, one.stop) == (other.ids, other.text, other.stop)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def assert_one_line(kind: type[OrchestryError], message: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
