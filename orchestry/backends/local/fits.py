"""An estimate of the memory that backend local needs, from sizes and settings alone.

It counts what is held at the two moments that need most: while answers are drawn (keys and values,
logits), and when the backward pass of the largest micro-batch begins (what each layer keeps for
it). Checked by `python -m benchmarks.guarantees.memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestry.backends.local.sizes import (
    ATTENTION,
    CHUNK,
    JOINED_ON_A_CPU,
    MAX_ROWS,
    ON_A_CPU,
    ON_A_GPU,
    PREFILL_TOKENS,
    Shape,
)
from orchestry.core.learning import LearnConfig

_BITS = {"nf4": 0.5 + 4 / 64, "int8": 1.0}
"""Bytes of a quantized number: nf4 has a scale of 4 bytes for 64 numbers."""
_TRAINED = 16
"""Bytes of a trained number: itself, its gradient and AdamW's two moments, in float32."""
_EXACT = 4
"""Bytes of what is computed in float32 whatever the base's precision: norms, logits."""
_PICKED = 40
"""Bytes per logit while a token is picked, beside the logits themselves, if every row's vocabulary
has to be sorted: answers that are far from sure need that."""
_LOGIT = 8
"""Bytes per logit of a chunk while answers are learned from."""
_PROCESS_CPU, _PROCESS_GPU = 0.3e9, 0.6e9
"""Bytes of a process with torch; of a CUDA context with its libraries' workspaces, as a rule of
thumb."""
_SLACK_GPU = 0.1
"""Share that CUDA's allocator keeps in pieces which nothing fits into, as a rule of thumb."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one update draws and learns from."""

    prompt: int
    """Tokens of a prompt."""
    answer: int
    """Most tokens of an answer."""
    rows: int
    """Answers that are drawn at once."""
    samples: int
    """Answers to one prompt."""
    groups: int
    """Prompts of one agent in an update."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Agents on one copy of a base."""

    shape: Shape
    agents: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what they are for."""

    weights: float
    trained: float
    """Adapters, or whole weights, with gradients and the optimizer's state."""
    drawing: float
    """What drawing answers needs beside these."""
    learning: float
    """What learning from them needs; the two don't overlap."""
    process: float
    """The process itself, or CUDA's context and what its allocator can't use."""

    @property
    def held(self) -> float:
        """Most bytes of numbers at any time."""
        return self.weights + self.trained + max(self.drawing, self.learning)

    @property
    def total(self) -> float:
        """Most bytes in all."""
        return self.held + self.process


def on_gpu_without_bfloat16(learn: LearnConfig) -> LearnConfig:
    """The settings as such a GPU takes them: there `dtype=auto` is float32."""
    exact = "float32" if learn.dtype == "auto" else learn.dtype
    return learn.model_copy(update={"dtype": exact})


def memory(
    crews: Sequence[Crew], learn: LearnConfig, works: Sequence[Work], on_gpu: bool
) -> Memory:
    """What a run needs at most, if every answer is as long as it may be; `works`: of its stages."""
    exact = learn.method == "full" or learn.dtype == "float32"
    size = 4 if exact or (learn.dtype == "auto" and not on_gpu) else 2
    weights = sum(_weights(crew.shape, learn, size) for crew in crews)
    trained = sum(_trained(crew, learn) for crew in crews)
    if learn.learns_values and crews:
        trained += _trained(Crew(crews[0].shape, 1), learn)
    drawing = max(_drawing(crew.shape, size, work, on_gpu) for crew in crews for work in works)
    if learn.vllm_url:
        drawing = 0.0
    learning = max(
        _learning(crew.shape, learn, size, work, on_gpu) for crew in crews for work in works
    )
    if not learn.enabled:
        trained, learning = trained * _EXACT / _TRAINED, 0.0
    held = weights + trained + max(drawing, learning)
    process = _PROCESS_GPU + _SLACK_GPU * held if on_gpu else _PROCESS_CPU
    return Memory(weights, trained, drawing, learning, process)


def in_gb(needed: Memory) -> dict[str, float]:
    """An estimate's parts and total, in units of 1e9 bytes."""
    names = ("weights", "trained", "drawing", "learning", "process", "total")
    return {name: round(getattr(needed, name) / 1e9, 3) for name in names}


def _weights(shape: Shape, learn: LearnConfig, size: int) -> float:
    """Of the frozen base; the copies of learn.method=full count as trained."""
    if learn.method == "full":
        return 0.0
    return shape.computing * _BITS.get(learn.quantize or "", size) + shape.embedding * size


def _trained(crew: Crew, learn: LearnConfig) -> float:
    if learn.method == "full":
        return float(_TRAINED * (crew.shape.computing + crew.shape.embedding))
    each = sum(learn.rank * sum(crew.shape.linears[name]) for name in _targets(crew.shape, learn))
    return float(_TRAINED * crew.shape.layers * each * (1 if learn.shared else crew.agents))


def _targets(shape: Shape, learn: LearnConfig) -> list[str]:
    """The linear layers with adapters; those of another name are not counted."""
    if learn.targets == "all-linear":
        return [*shape.linears]
    return [name for name in learn.targets or ATTENTION if name in shape.linears]


def _drawing(shape: Shape, size: int, work: Work, on_gpu: bool) -> float:
    """While the last tokens are drawn: keys and values of all rows, and logits. Or while the
    prompts are computed, which are fewer, but many tokens at a time."""
    rows = min(MAX_ROWS, work.rows)
    prompts = max(1, rows // work.samples)
    each = 2 * shape.keys * shape.layers * size
    cache = rows * (work.prompt + work.answer) * each * (1 + 1 / shape.layers)
    logits = (rows + prompts) * shape.vocab * size + rows * shape.vocab * _PICKED
    passed = PREFILL_TOKENS if on_gpu else JOINED_ON_A_CPU
    at_once = min(prompts, max(1, passed // work.prompt))
    filled = prompts * work.prompt * each + at_once * _passing(shape, size, work.prompt)
    return float(max(cache + logits, filled))


def _passing(shape: Shape, size: int, width: int) -> float:
    """One layer's numbers in a pass without gradient, for a row of that many tokens, and the mask
    as it is made."""
    ahead = width * (3 * shape.hidden + 4 * max(shape.inner, shape.queries))
    return float(ahead * size + width * width * (size + 3))


def largest_pass(learn: LearnConfig, work: Work, on_gpu: bool) -> tuple[int, int, int]:
    """Rows of the largest micro-batch of an update, tokens of each, and answers in it: what
    `logprobs.micro_batches` makes of answers that are all at their longest."""
    most = learn.micro_tokens or (ON_A_GPU if on_gpu else ON_A_CPU)
    joined = most if on_gpu else min(most, JOINED_ON_A_CPU)
    fit = max(1, min(work.samples, (most - work.prompt) // max(1, work.answer - 1)))
    width = work.prompt + fit * (work.answer - 1)
    rows = max(1, min(work.groups, joined // width))
    return rows, width, rows * fit


def _learning(shape: Shape, learn: LearnConfig, size: int, work: Work, on_gpu: bool) -> float:
    """When the backward pass of the largest micro-batch begins."""
    rows, width, answers = largest_pass(learn, work, on_gpu)
    layer = _kept(shape, learn, size)
    each = shape.layers * layer
    if learn.gradient_checkpointing:
        each = shape.layers * shape.hidden * size + layer
    logits = min(CHUNK, answers * work.answer * shape.vocab) * _LOGIT
    back = rows * width * (2 * shape.hidden + 4 * shape.inner) * size
    whole = shape.vocab * shape.hidden * _EXACT if learn.method == "full" else 0
    return float(rows * (width * each + width * width * size) + max(logits, back) + whole)


def _kept(shape: Shape, learn: LearnConfig, size: int) -> float:
    """Bytes that a layer keeps of each token for its backward pass."""
    full = learn.method == "full"
    targets = {*shape.linears} if full else {*_targets(shape, learn)}
    inputs = {"q_proj": "a", "k_proj": "a", "v_proj": "a", "gate_proj": "m", "up_proj": "m"}
    # An adapter's gradient needs the layer's input; attention keeps that of o_proj anyway.
    read = {inputs.get(name, name): shape.linears[name][0] for name in targets - {"o_proj"}}
    kept = sum(read.values()) + 4 * shape.queries + 2 * shape.inner
    if learn.dropout:
        kept += 2 * sum(shape.linears[name][0] for name in targets)
    norms = 2 * shape.hidden * (2 if full else 1)
    norms += shape.queries + shape.keys if shape.normed else 0
    return kept * size + (norms + shape.heads) * _EXACT
