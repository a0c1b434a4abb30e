"""A provider without a model: scripted or filler answers, seeded, with latency, usage and faults.

For tests of tasks and schedules, and for load tests. Hashes of the seed and the request decide
everything, so a run repeats in whatever order its calls arrive. Answer lengths are lognormal, with
the median at a fixed share of `max_tokens`, and cut there.

If a request has a JSON schema, the answer is a random instance of it. An agent with tools calls one
in half of its answers, unless there is a script; the arguments are an instance of the tool's
schema. Supported: objects, all of whose properties are given, arrays, strings, integers, numbers,
booleans, null, enum, const, anyOf, lists of types, `true`, and references to `$defs`. Not
supported: patterns, formats, multiples and exclusive bounds.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from orchestry.core.config import FakeConfig
from orchestry.core.errors import ConfigError, ProviderError
from orchestry.core.extras import packed
from orchestry.core.files import json_lines
from orchestry.core.tools import ToolCall
from orchestry.core.types import Completion, Frozen, Request
from orchestry.models.request_key import request_digest

DEFAULT_MODEL = "fake-1"
MEDIAN_SHARE = 0.35
"""Median length of an answer, as a share of max_tokens."""
SIGMA = 0.6
"""Standard deviation of the log of the length."""
CALLS_SHARE = 0.5
"""Share of the answers that call a tool, of an agent that has some and may."""
WORDS = ("the", "and", "but", "for", "run", "set", "map", "key", "sum", "let", "try", "end")
_RETRY_AFTER_S = 0.05
_BYTES_PER_TOKEN = 4
_FAULTS: dict[
    str, tuple[str, bool]
] = {  # the message, and whether the attempt may have been billed
    "429": ("answered 429: rate limit", False),
    "529": ("answered 529: overloaded", False),
    "500": ("answered 500: internal error", True),
    "timeout": ("gave no answer in time", True),
    "drop": ("dropped the connection", True),
}


def output_prior(max_tokens: int) -> tuple[float, float]:
    """(mu, sigma) of the lognormal over output tokens; a draw is clipped to [1, max_tokens].

    >>> mu, sigma = output_prior(100)
    >>> round(math.exp(mu)), sigma
    (35, 0.6)
    """
    return math.log(MEDIAN_SHARE * max_tokens), SIGMA


def clip_tokens(length: float, max_tokens: int) -> int:
    """A drawn length as a whole number of tokens in [1, max_tokens]."""
    return max(1, min(max_tokens, round(length)))


def filler(tokens: int, rng: random.Random) -> str:
    """Filler text of `tokens` tokens: each word with its space has four bytes."""
    return " ".join(rng.choices(WORDS, k=tokens))


class _Line(Frozen):
    """One line of a script."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    agent: str
    """The role it answers for; `*` is any."""
    text: str
    match: str | None = None
    """If given, must occur in the last user message."""
    output_tokens: int | None = Field(None, ge=1)
    """Billed output tokens; None: the number of words."""


class FakeProvider:
    """See the module. `sleep` waits for its latency."""

    name = "fake"
    base_url = "fake:"
    deterministic = True
    cacheable = False  # its answers cost nothing, and cached ones would hide a changed script
    bills_unanswered = False
    embeds = True
    slots: int | None = None

    def __init__(
        self,
        config: FakeConfig,
        seed: int,
        model: str = DEFAULT_MODEL,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.model = model
        self._config = config
        self._seed = seed
        self._sleep = sleep
        self._script = None if config.script is None else read_script(config.script)
        self._attempts: Counter[str] = Counter()

    async def __aenter__(self) -> FakeProvider:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Holds nothing open."""

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """One attempt; see Provider. A fault is drawn anew for each attempt at a request."""
        digest = request_digest(request)
        rng = random.Random(f"{self._seed} {digest}")
        latency = self._latency(rng)
        if latency > 0:
            await self._sleep(latency)
        self._fail(digest)
        if started is not None:
            started()
        if request.purpose == "embed":
            return _embedding(request)
        may = self._script is None and request.may_call
        if may and (request.must_call or rng.random() < CALLS_SHARE):
            return self._calling(request, rng)
        text, tokens = self._answer(request, rng)
        stop: Literal["end", "length"] = "end" if tokens < request.max_tokens else "length"
        return Completion(
            text=text,
            model=request.model,
            input_tokens=self.input_bound(request),
            output_tokens=min(tokens, request.max_tokens),
            stop=stop,
        )

    def input_bound(self, request: Request) -> int:
        """Exactly what is billed: one token per four bytes begun, schema included."""
        size = sum(len(m.content.encode("utf-8")) for m in request.messages)
        size += sum(len(call.arguments.encode()) for m in request.messages for call in m.calls)
        size += sum(len(json.dumps(one)) for one in request.schemas)
        return math.ceil(size / _BYTES_PER_TOKEN)

    def leads(self, request: Request) -> bool:
        """Always False: it has no prompt cache."""
        return False

    def _latency(self, rng: random.Random) -> float:
        median, sigma = self._config.latency_s, self._config.latency_sigma
        return median * math.exp(rng.gauss(0.0, sigma)) if sigma else median

    def _fail(self, digest: str) -> None:
        if not self._config.fault_rate or not self._config.faults:
            return
        self._attempts[digest] += 1
        rng = random.Random(f"{self._seed} {digest} {self._attempts[digest]}")
        if rng.random() >= self._config.fault_rate:
            return
        fault = rng.choice(self._config.faults)
        what, billed = _FAULTS[fault]
        raise ProviderError(
            f"the fake provider {what} (attempt {self._attempts[digest]}; drawn by "
            "provider.fake.fault_rate)",
            transient=True,
            billed=billed,
            retry_after=None if billed else _RETRY_AFTER_S,
        )

    def _calling(self, request: Request, rng: random.Random) -> Completion:
        """A call of one of the tools, with arguments that its schema allows."""
        spec = rng.choice(request.offered)
        try:
            given = json.dumps(instance(spec.parameters, rng))
        except ProviderError:  # what it can't make is no fault of the schema
            given = "{}"
        call = ToolCall(id=f"call_{rng.getrandbits(32):08x}", name=spec.name, arguments=given)
        return Completion(
            text="",
            model=request.model,
            input_tokens=self.input_bound(request),
            output_tokens=min(math.ceil(len(given) / _BYTES_PER_TOKEN), request.max_tokens),
            stop="calls",
            calls=(call,),
        )

    def _answer(self, request: Request, rng: random.Random) -> tuple[str, int]:
        """The text and its billed tokens, before the cut at max_tokens."""
        if self._script:
            return self._scripted(request, rng)
        if request.response_schema is not None:
            return _structured(request.response_schema, request.max_tokens, rng)
        return self._filler(request, rng)

    def _scripted(self, request: Request, rng: random.Random) -> tuple[str, int]:
        said = next((m.content for m in reversed(request.messages) if m.role == "user"), "")
        fitting = [line for line in self._script or () if _fits(line, request.agent, said)]
        if not fitting:
            raise ProviderError(
                f"{self._config.script} has no line for agent '{request.agent}' and its last "
                'message: add one, or one with "agent": "*" and no "match"',
                transient=False,
                billed=False,
            )
        line = rng.choice(fitting)
        return line.text, line.output_tokens or max(1, len(line.text.split()))

    def _filler(self, request: Request, rng: random.Random) -> tuple[str, int]:
        mu, sigma = output_prior(request.max_tokens)
        if self._config.output_tokens is not None:  # the mean of a lognormal is exp(mu + s^2 / 2)
            mu, sigma = math.log(self._config.output_tokens) - SIGMA**2 / 2, SIGMA
        tokens = clip_tokens(rng.lognormvariate(mu, sigma), request.max_tokens)
        return filler(tokens, rng), tokens


def _embedding(request: Request) -> Completion:
    """Directions drawn from the texts alone: equal ones have equal embeddings."""
    told = json.loads(request.messages[-1].content)
    given = told["input"]
    several = isinstance(given, list) and not isinstance(given[0], int)
    data = []
    for place, one in enumerate(given if several else [given]):
        rng = random.Random(json.dumps(one))
        found = [rng.gauss(0.0, 1.0) for _ in range(told.get("dimensions", _DIMENSIONS))]
        size = math.hypot(*found)
        vector = [round(number / size, 6) for number in found]
        data.append({"object": "embedding", "index": place, "embedding": vector})
    tokens = math.ceil(len(request.messages[-1].content) / _BYTES_PER_TOKEN)
    return Completion(
        text="", model=request.model, input_tokens=tokens, extra=packed({"data": data})
    )


def _structured(schema: Mapping[str, Any], max_tokens: int, rng: random.Random) -> tuple[str, int]:
    """An instance of the schema; if it needs more than `max_tokens` it is cut and is not valid
    JSON."""
    text = json.dumps(instance(schema, rng))
    return text[: _BYTES_PER_TOKEN * max_tokens], math.ceil(len(text) / _BYTES_PER_TOKEN)


def read_script(path: Path) -> tuple[_Line, ...]:
    """The lines of a script; raises ConfigError naming a wrong line."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"the script {path} is not a file: correct provider.fake.script")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the script {path} can't be read ({error}): correct provider.fake.script"
        ) from None
    lines = tuple(_parse(path, number, line) for number, line in json_lines(data))
    if not lines:
        raise ConfigError(f'the script {path} is empty: add {{"agent": "*", "text": "..."}}')
    return lines


def _parse(path: Path, number: int, line: bytes) -> _Line:
    try:
        return _Line.model_validate(json.loads(line.decode("utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"
    except ValueError as error:
        why = str(error)
    raise ConfigError(
        f'{path}, line {number} is no line of a script ({why}): it takes {{"agent": ..., '
        '"text": ...}} and may have "match" and "output_tokens"'
    )


def _fits(line: _Line, agent: str, said: str) -> bool:
    return line.agent in ("*", agent) and (line.match is None or line.match in said)


_TEXT = "the answer does what was asked and says why it works so one case is still missing"
_WORDS = _TEXT.split()
_DIMENSIONS = 1536
_MOST_ITEMS = 4
_MOST_WORDS = 12
_SPREAD = 100
_KNOWN = {
    *("type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("minLength", "maxLength", "minimum", "maximum", "enum", "const", "anyOf", "$ref", "$defs"),
    *("title", "description", "default", "examples", "$schema"),
}


def instance(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """A JSON value that the schema allows, drawn from `rng`.

    Raises a ProviderError that refuses the request for an unsupported schema.
    """
    try:
        return _draw(schema, schema, rng)
    except ProviderError:
        raise
    except Exception as error:  # a program's schema may be anything, also one without an end
        raise _unknown(f"a part that can't be read ({type(error).__name__}: {error})") from None


def _draw(schema: Any, root: Mapping[str, Any], rng: random.Random) -> Any:
    if schema is True:  # anything
        return _text({}, rng)
    if strange := sorted(set(schema) - _KNOWN):
        raise _unknown(f"keyword '{strange[0]}'")
    if "$ref" in schema:
        return _draw(_find(str(schema["$ref"]), root), root, rng)
    if "const" in schema:
        return schema["const"]
    for choices in ("enum", "anyOf"):
        if choices in schema:
            chosen = rng.choice(list(schema[choices]))
            return chosen if choices == "enum" else _draw(chosen, root, rng)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        named = schema.get("properties", {})
        return {name: _draw(part, root, rng) for name, part in named.items()}
    if kind == "array":
        least, most = _span(schema, "Items", _MOST_ITEMS)
        part = schema.get("items", True)
        return [_draw(part, root, rng) for _ in range(rng.randint(least, most))]
    return _plain(kind, schema, rng)


def _plain(kind: object, schema: Mapping[str, Any], rng: random.Random) -> Any:
    if kind == "string":
        return _text(schema, rng)
    if kind == "integer":
        return rng.randint(*_range(schema))
    if kind == "number":
        return rng.uniform(*_range(schema))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    raise _unknown(f"type {kind!r}")


def _text(schema: Mapping[str, Any], rng: random.Random) -> str:
    least, most = _span(schema, "Length", 1 << 20)
    words = rng.choices(_WORDS, k=rng.randint(1, _MOST_WORDS))
    text = " ".join(words)[:most]
    return text.ljust(least, ".")


def _span(schema: Mapping[str, Any], what: str, most: int) -> tuple[int, int]:
    """The least and the most of `minItems`, `maxItems` or the lengths; `most` where unbounded."""
    least = int(schema.get(f"min{what}", 0))
    return least, max(least, int(schema.get(f"max{what}", most)))


def _range(schema: Mapping[str, Any]) -> tuple[Any, Any]:
    """`minimum` and `maximum`; where one is missing, _SPREAD from the other, from 0 on."""
    low = schema.get("minimum", min(0, schema.get("maximum", 0) - _SPREAD))
    return low, schema.get("maximum", max(0, low) + _SPREAD)


def _find(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    name = reference.removeprefix("#/$defs/")
    found = root.get("$defs", {}).get(name)
    if not isinstance(found, Mapping):
        raise _unknown(f"reference '{reference}'")
    return found


def _unknown(what: str) -> ProviderError:
    return ProviderError(
        f"the fake provider can't make an answer of a JSON schema with {what}: it knows "
        f"{', '.join(sorted(_KNOWN))}; give the answer in a script (provider.fake.script)",
        transient=False,
        refused=True,
        billed=False,
    )
