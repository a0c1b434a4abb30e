"""Draws answers from the base with its adapters: many prompts, agents and samples in one batch.

It replaces transformers' generate: each distinct prompt is computed once for all its samples, and
what an agent's prompts begin with once for all of them; rows with different adapters, temperatures
and lengths share a batch and leave it when they end; every sample has its own seed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from orchestry.backends.local.beginnings import shared_tokens
from orchestry.backends.local.decode import (
    Ending,
    Endings,
    additive,
    aligned,
    check_attention,
    copied,
    joined,
    next_logits,
    pick,
    roomy_cache,
)
from orchestry.backends.local.memory import out_of_memory, release
from orchestry.backends.local.sizes import JOINED_ON_A_CPU, MAX_ROWS, PREFILL_TOKENS
from orchestry.backends.local.steps import Fixed, Growing, Recorder, Rows
from orchestry.core.errors import LearnError, reason

if TYPE_CHECKING:
    from transformers.cache_utils import Cache

    from orchestry.backends.local.adapters import Adapters
    from orchestry.backends.local.model import Base


WASTE = 8
"""Ended rows are dropped as soon as one row in this many has ended."""
RECORDED_WASTE = 2
"""The same where steps are recorded, and a new recording costs as much as many steps."""


_Key = tuple[int, tuple[int, ...]]
"""A prompt: its agent and its tokens."""
Beat = Callable[[int], None]
"""Called between two computations with the number of new tokens; an exception ends the work."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One agent's prompt, and how to draw its answers."""

    agent_index: int
    """The row's adapter; -1: the bare base."""
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    """0: the likeliest token each time."""
    top_p: float
    stop: tuple[str, ...]
    """Non-empty strings."""
    seeds: tuple[int, ...]
    """One per sample."""
    top_k: int | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """One answer. `ids` go up to the end token or the token that completed a stop string."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Nats, one per token, of softmax(logits / temperature) before top-k and top-p; 0 at
    temperature 0."""
    text: str
    """Without special tokens, cut before the stop string."""
    stop: Ending
    served: tuple[float, ...] = ()
    """As the server gave them that drew the answer; (): it was drawn here."""


def still(tokens: int) -> None:
    """A Beat that counts nothing and never interrupts."""


class Draws(Protocol):
    """One that draws answers, with the adapters of a trainer."""

    def draw(self, prompts: Sequence[Prompt], n: int) -> list[list[Drawn]]:
        """See Sampler.draw."""
        ...

    def publish(self, folder: Path, names: Sequence[str | None] = ()) -> None:
        """Names the folder of the current adapters, for one that reads them there. `names`: as in
        Adapters.load."""
        ...


class Sampler:
    """The team's policy as weights: a base, its adapters, and the decode loop.

    The model must attend by sdpa or eager. At most `max_rows` samples are decoded at a time.
    """

    def __init__(
        self,
        base: Base,
        adapters: Adapters,
        max_rows: int = MAX_ROWS,
        warn: Callable[[str], None] = lambda text: None,
        beat: Beat = still,
        prefill_tokens: int | None = None,
    ) -> None:
        """`warn` is told when memory runs out; fewer rows are decoded from then on.
        `prefill_tokens`: most tokens of a pass over several prompts, padding included (None: as
        suits the device); a longer prompt gets its own pass."""
        self._warn, self._beat = warn, beat
        self._model: Any = base.model
        self._adapters = adapters
        self._endings = Endings(base.tokenizer, base.eos_ids)
        self._max_rows = max_rows
        device = base.model.device
        usual = JOINED_ON_A_CPU if device.type == "cpu" else PREFILL_TOKENS
        self._prefill_tokens = prefill_tokens or usual
        self.recorder = Recorder(device, warn) if device.type == "cuda" else None
        """None: steps are not recorded, which pays on a GPU only."""

    def publish(self, folder: Path, names: Sequence[str | None] = ()) -> None:
        """Nothing: it draws with the trainer's own adapters."""

    def draw(self, prompts: Sequence[Prompt], n: int) -> list[list[Drawn]]:
        """`n` answers per prompt, in order; sample j is drawn by `seeds[j]`.

        An answer depends on its prompt, adapter and seed, not on the rest of the batch, up to
        rounding. Dropout is off. Raises ConfigError for a model without full attention,
        NotFiniteError for non-finite logits, ValueError if a prompt has no tokens or not n seeds.
        """
        rows = [[_row(prompt, seed) for seed in prompt.seeds] for prompt in prompts]
        if any(len(prompt.seeds) != n or not prompt.prompt_ids for prompt in prompts):
            raise ValueError(f"every prompt needs tokens, and a seed for each of its {n} samples")
        # Like lengths together: a shorter prompt is padded to the longest of its batch.
        flat = sorted((row for group in rows for row in group), key=lambda row: -row.length)
        with torch.inference_mode(), evaluating(self._model):
            while flat:
                flat = flat[self._decoded(flat) :]
        return [[self._drawn(row) for row in group] for group in rows]

    def _decoded(self, flat: list[_Row]) -> int:
        """How many of the first rows fit now."""
        rows = flat[: self._max_rows]
        try:
            self._decode(rows)
        except Exception as error:
            if not out_of_memory(error):
                raise
            why = reason(error)
        else:
            return len(rows)
        for row in rows:
            row.restart()
        self._halve(len(rows), why)  # out here, since the error holds on to all that was computed
        return 0

    def _halve(self, rows: int, why: str) -> None:
        """Raises LearnError if even one row does not fit."""
        if rows == 1:
            raise LearnError(
                f"one answer does not fit into memory ({why}): free some and resume, or begin "
                "another run with less sampling.max_tokens, a smaller base or learn.quantize=nf4"
            )
        self._max_rows = rows // 2
        self._warn(f"out of memory: from now on {self._max_rows} answers are drawn at a time")
        release()

    def _decode(self, rows: list[_Row]) -> None:
        """Draws all of the rows' tokens."""
        # One agent's rows side by side, so that adapters meet runs of rows.
        rows = sorted(rows, key=lambda row: row.prompt.agent_index)
        check_attention(self._model, max(row.length + row.prompt.max_tokens for row in rows))
        prefix = _Prefix.of(rows, self._model, self._adapters, self._prefill_tokens)
        batch = _Batch(rows, prefix, self._model, self.recorder)
        ids = batch.record(prefix.logits_BV[prefix.owner_R], self._endings)
        while (kept_R := batch.compact()) is not None:
            ids = ids[kept_R]
            with self._adapters.rows([row.prompt.agent_index for row in batch.rows]):
                while not batch.wasteful():
                    self._beat(len(batch.rows))
                    ids = batch.record(batch.forward(ids), self._endings)

    def _drawn(self, row: _Row) -> Drawn:
        assert row.ending is not None
        text = self._endings.text(row.ids, row.prompt.stop)
        return Drawn(tuple(row.ids), tuple(row.logprobs), text, row.ending)


@dataclass(slots=True, eq=False)
class _Row:
    """One sample as it grows."""

    prompt: Prompt
    uniforms: list[float]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ending: Ending | None = None

    @property
    def length(self) -> int:
        return len(self.prompt.prompt_ids)

    def restart(self) -> None:
        """Discards the drawn tokens; the same random numbers draw them again."""
        self.ids, self.logprobs, self.ending = [], [], None


def _row(prompt: Prompt, seed: int) -> _Row:
    stream = random.Random(seed)
    return _Row(prompt, [stream.random() for _ in range(prompt.max_tokens)])


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The B distinct prompts of a batch, and each row's prompt."""

    lengths_B: torch.Tensor
    owner_R: torch.Tensor
    logits_BV: torch.Tensor
    """After each prompt."""
    width: int
    """Of the cache: the longest prompt's."""
    cache: Any
    """Filled, left-padded to that width."""

    @classmethod
    def of(cls, rows: list[_Row], model: Any, adapters: Adapters, most: int) -> _Prefix:
        """Computes the prompts in passes of at most `most` tokens (padding included), or of one
        prompt."""
        keys = [(row.prompt.agent_index, row.prompt.prompt_ids) for row in rows]
        distinct = dict.fromkeys(keys)
        begun = _begun(distinct, model)
        prompts = sorted(distinct, key=lambda key: key[0] in begun)
        place = {key: number for number, key in enumerate(prompts)}
        whole = [key for key in prompts if key[0] not in begun]
        parts = [*_filled(whole, model, adapters, most)]
        if begun:
            parts += _continued(prompts[len(whole) :], begun, model, adapters, most)
        caches, logits = zip(*parts, strict=True)
        width = max(len(ids) for _, ids in prompts)
        return cls(
            torch.tensor([len(ids) for _, ids in prompts], device=model.device),
            torch.tensor([place[key] for key in keys], device=model.device),
            torch.cat(logits),
            width,
            joined(caches, width) if len(caches) > 1 else caches[0],
        )


def _begun(keys: Iterable[_Key], model: Any) -> dict[int, tuple[int, ...]]:
    """By agent: what all its prompts begin with, where it pays to compute it once."""
    prompts = defaultdict[int, list[tuple[int, ...]]](list)
    for agent, ids in keys:
        prompts[agent].append(ids)
    shared = {agent: mine[0][: shared_tokens(mine, model)] for agent, mine in prompts.items()}
    return {agent: ids for agent, ids in shared.items() if ids}


def _filled(
    prompts: list[_Key], model: Any, adapters: Adapters, most: int
) -> Iterator[tuple[Cache, torch.Tensor]]:
    """Passes over whole prompts: keys and values, and the logits (B, V) after each prompt."""
    for part in _passes(prompts, most):
        cache = roomy_cache()
        with adapters.rows([agent for agent, _ in part]):
            yield cache, _prefill([ids for _, ids in part], model, cache)


def _continued(
    prompts: list[_Key],
    begun: Mapping[int, tuple[int, ...]],
    model: Any,
    adapters: Adapters,
    most: int,
) -> Iterator[tuple[Cache, torch.Tensor]]:
    """The same behind beginnings, which are computed first."""
    starts = list(begun.items())
    caches = [cache for cache, _ in _filled(starts, model, adapters, most)]
    width = max(len(ids) for _, ids in starts)
    first = joined(caches, width) if len(caches) > 1 else caches[0]
    row = {agent: number for number, agent in enumerate(begun)}
    tails = [(agent, ids[len(begun[agent]) :]) for agent, ids in prompts]
    widest = width + max(len(ids) for _, ids in tails)
    for part in _passes(tails, min(most, PREFILL_TOKENS**2 // (2 * widest))):  # the mask's numbers
        before = [len(begun[agent]) for agent, _ in part]
        rows_B = torch.tensor([row[agent] for agent, _ in part], device=model.device)
        cache = copied(first, rows_B, max(before))
        with adapters.rows([agent for agent, _ in part]):
            logits = _prefill([ids for _, ids in part], model, cache, before)
        yield cache, logits


def _passes(prompts: list[_Key], most: int) -> Iterator[list[_Key]]:
    """Neighbours that, padded to the longest of them, hold at most `most` tokens together."""
    part, width = list[_Key](), 0
    for prompt in prompts:
        wider = max(width, len(prompt[1]))
        if part and (len(part) + 1) * wider > most:
            yield part
            part, wider = [], len(prompt[1])
        part.append(prompt)
        width = wider
    if part:
        yield part


def _prefill(
    prompts: list[tuple[int, ...]], model: Any, cache: Any, before: Sequence[int] = ()
) -> torch.Tensor:
    """Fills a cache in one pass; the logits (B, V) after each prompt. It is empty, or has the
    beginning of each prompt, `before` tokens, left-padded; then it holds both, left-padded."""
    width, device = max(map(len, prompts)), model.device
    padded = [[ids[0]] * (width - len(ids)) + list(ids) for ids in prompts]
    pad_B = torch.tensor([width - len(ids) for ids in prompts], device=device)
    before_B = torch.tensor(before or [0] * len(prompts), device=device)
    column_P = torch.arange(width, device=device)
    real_BP = column_P >= pad_B[:, None]
    begun_BQ = torch.arange(-max(before, default=0), 0, device=device) >= -before_B[:, None]
    plain = bool(real_BP.all()) and not before
    mask = None if plain else _causal(real_BP, begun_BQ, model.dtype)
    positions_BP = (column_P - pad_B[:, None]).clamp(min=0) + before_B[:, None]
    logits = next_logits(model, cache, torch.tensor(padded, device=device), positions_BP, mask)
    if before:
        # A stable sort: padding first, then the tokens as they came.
        order = torch.cat((begun_BQ, real_BP), 1).to(torch.uint8).argsort(stable=True)
        longest = int((before_B + width - pad_B).max())
        for layer in cache.layers:
            layer.rearrange(order[:, -longest:])
    return logits


def _causal(real_BP: torch.Tensor, begun_BQ: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(B, 1, P, Q + P): each token sees the row's beginning and what came before it; padding sees
    padding, so that no row of scores is empty, and nothing sees it."""
    width = real_BP.shape[1]
    causal_PP = torch.ones(width, width, dtype=torch.bool, device=real_BP.device).tril()
    seen = causal_PP & (real_BP[:, None, :] | ~real_BP[:, :, None])
    begun = begun_BQ[:, None, :].expand(-1, width, -1)
    return aligned(additive(torch.cat((begun, seen), 2), dtype))[:, None]


class _Batch:
    """The rows that are still decoded, with one line per row in every tensor."""

    def __init__(
        self, rows: list[_Row], prefix: _Prefix, model: Any, recorder: Recorder | None
    ) -> None:
        self.rows = rows
        self._model, self._recorder = model, recorder
        self._cache = prefix.cache
        self._line_R = prefix.owner_R
        """Each row's line in the cache: its prompt's, until the first compaction."""
        self._width = prefix.width
        self._forward: Growing | Fixed | None = None
        self._ended = 0
        self._step = 0
        options = [(row.prompt.temperature, row.prompt.top_p) for row in rows]
        steps = max(len(row.uniforms) for row in rows)
        uniforms = [row.uniforms + [0.0] * (steps - len(row.uniforms)) for row in rows]
        # At least float32: over a vocabulary, probabilities in half precision do not add up.
        self._dtype = torch.promote_types(model.dtype, torch.float32)
        self._temperature_R, self._top_p_R = self._tensor(options).unbind(-1)
        self._uniform_RT = self._tensor(uniforms)
        tops = [row.prompt.top_k for row in rows]
        everything = int(model.config.vocab_size)
        self._top_k_R = (
            torch.tensor([top or everything for top in tops], device=model.device)
            if any(tops)
            else None
        )

    def _tensor(self, numbers: Sequence[Sequence[float]]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=self._dtype, device=self._model.device)

    def record(self, logits_RV: torch.Tensor, endings: Endings) -> torch.Tensor:
        """Draws and keeps one token per row; returns their ids (R,), meaningless for ended rows."""
        uniform_R = self._uniform_RT[:, self._step]
        ids_R, logprobs_R = pick(
            logits_RV.to(self._dtype),
            self._temperature_R,
            self._top_p_R,
            uniform_R,
            self._top_k_R,
        )
        self._step += 1
        # All that a step brings over, beside `pick`'s look at whether its head sufficed.
        drawn = torch.stack((ids_R.to(logprobs_R.dtype), logprobs_R)).tolist()
        for row, token, logprob in zip(self.rows, *drawn, strict=True):
            if row.ending is None:
                row.ids.append(int(token))
                row.logprobs.append(logprob)
                row.ending = endings.of(row.ids, row.prompt.max_tokens, row.prompt.stop)
                self._ended += row.ending is not None
        return ids_R

    def forward(self, ids_R: torch.Tensor) -> torch.Tensor:
        """The logits (R, V) after one more token per row."""
        assert self._forward is not None
        self._width += 1
        return self._forward(ids_R)

    def wasteful(self) -> bool:
        """Whether dropping ended rows is worth copying the others' keys and values."""
        recorded = self._recorder is not None and self._recorder.on
        return self._ended * (RECORDED_WASTE if recorded else WASTE) >= len(self.rows)

    def compact(self) -> torch.Tensor | None:
        """Drops ended rows, and the padding that no other row needs.

        The places of the rows that are left, among those before; None where all have ended.
        """
        alive = [place for place, row in enumerate(self.rows) if row.ending is None]
        if not alive:
            return None
        index_R = torch.tensor(alive, device=self._line_R.device)
        self.rows = [self.rows[place] for place in alive]
        self._ended = 0
        self._temperature_R = self._temperature_R[index_R]
        self._top_p_R = self._top_p_R[index_R]
        if self._top_k_R is not None:
            self._top_k_R = self._top_k_R[index_R]
        self._uniform_RT = self._uniform_RT[index_R]
        self._restart(index_R)
        return index_R

    def _restart(self, index_R: torch.Tensor) -> None:
        """Begins to grow the keys and values of these rows."""
        lengths = [row.length + len(row.ids) - 1 for row in self.rows]  # the last id is not in yet
        start = self._width - max(lengths)
        for layer in self._cache.layers:
            layer.select(self._line_R[index_R], start, self._width)
        self._line_R = torch.arange(len(index_R), device=index_R.device)
        self._width -= start
        rows = Rows(
            torch.tensor(lengths, device=index_R.device),
            self._width,
            to_come=max(row.prompt.max_tokens - len(row.ids) for row in self.rows),
            last=max(row.length + row.prompt.max_tokens for row in self.rows) - 1,
        )
        if self._recorder is not None and self._recorder.on:
            self._forward = Fixed(self._model, self._cache, rows, self._recorder)
        else:
            self._forward = Growing(self._model, self._cache, rows)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switches dropout off; afterwards the model is in the mode that it was in."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
