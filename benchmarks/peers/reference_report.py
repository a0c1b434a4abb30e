"""The reference benchmark's figures, and what they say about its goals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import load
from benchmarks.peers.reference_work import ALPHA, MICRO_TOKENS, RANK, TEMPERATURE, TOP_P, Step
from benchmarks.stats import columns, ranged

MODELS = {
    "tiny": "a Llama of 2 layers and hidden size 256, random weights",
    "135M": "SmolLM2-135M-Instruct, the embedded model",
}
"""Both with SmolLM2's vocabulary of 49,152."""
WAYS = {
    "ours": "Orchestry, `learn.comlrl_compat`",
    "lora": "CoMLRL, LoRA agents made by peft",
    "full": "CoMLRL as it comes: full copies",
}
CPU_GOAL, MEMORY_GOAL = 3.0, 2.0
"""How many times as much the reference is to take."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One contestant's steps, and its process's memory."""

    steps: list[Step]
    peak_bytes: int
    imports_bytes: int
    """The peak before any model was loaded."""
    prompt_tokens: list[int]
    others: float
    """The share of the machine that other processes took meanwhile."""


Setting = tuple[str, int]
"""A model and a number of torch threads."""


@dataclass
class Results:
    """All that one run of the benchmark measured."""

    samples: int
    tokens: int
    gradients: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: dict[Setting, dict[str, list[Measured]]] = field(default_factory=dict)
    """By setting and way, one a round."""

    def add(self, setting: Setting, way: str, measured: Measured) -> None:
        self.rows.setdefault(setting, {}).setdefault(way, []).append(measured)


def costs(results: Results, names: Mapping[str, str] = WAYS) -> str:
    """A table of medians over rounds, and ranges of what is compared."""
    rows = [
        {"model, threads": f"{model}, {threads}", "way": names[way], **_cells(found)}
        for (model, threads), ways in results.rows.items()
        for way, found in ways.items()
    ]
    return columns(rows, figures=False)


def _cells(found: Sequence[Measured]) -> dict[str, str]:
    steps = [step for one in found for step in one.steps]
    peak = statistics.median(one.peak_bytes for one in found)
    rate = statistics.median(step.tokens / step.generate_s for step in steps)
    before = statistics.median(one.imports_bytes for one in found)
    return {
        "CPU s per step (range)": ranged([step.cpu_s for step in steps], ".1f"),
        "generation": f"{statistics.median(step.generate_s for step in steps):.1f}",
        "update": f"{statistics.median(step.update_s for step in steps):.1f}",
        "tokens per CPU s": f"{rate:.0f}",
        "wall s": f"{statistics.median(step.wall_s for step in steps):.1f}",
        "peak GiB (before the model)": f"**{peak / 2**30:.2f}** ({before / 2**30:.2f})",
    }


# --- goals --------------------------------------------------------------------------------------


def cpu_s(one: Measured) -> float:
    """A step's, in the mean of the process's steps."""
    return statistics.fmean(step.cpu_s for step in one.steps)


def ratios(
    ways: dict[str, list[Measured]], way: str, figure: Callable[[Measured], float]
) -> list[float]:
    """What that way took over what ours took, round by round."""
    pairs = zip(ways[way], ways["ours"], strict=True)
    return [figure(theirs) / figure(ours) for theirs, ours in pairs]


def verdicts(results: Results, names: Mapping[str, str] = WAYS) -> str:
    """A line a setting and way: both goals by the median of the rounds, with its range."""
    lines = []
    for (model, threads), ways in results.rows.items():
        for way in ways:
            if way == "ours":
                continue
            cpu = _judged(ratios(ways, way, cpu_s), CPU_GOAL)
            memory = _judged(ratios(ways, way, lambda one: one.peak_bytes), MEMORY_GOAL)
            lines.append(
                f"- {model}, {threads} threads, {names[way]}: CPU time {cpu}; peak memory {memory}."
            )
    return "\n".join(lines)


def _judged(found: Sequence[float], goal: float) -> str:
    """The median decides, and the range says how surely."""
    middle = statistics.median(found)
    word = "met" if middle >= goal else "missed"
    return (
        f"**{middle:.2f}** times ours ({min(found):.2f} to {max(found):.2f}), goal {goal:g}: {word}"
    )


def equality(results: Results) -> str:
    """How equal the gradients are, model by model."""
    lines = []
    for model, found in results.gradients.items():
        lines.append(
            f"- {model}: gradients on the same adapters and actions, of unequal lengths, differ by "
            f"{found['compat']:.1e} of their norm with `comlrl_compat`, and by "
            f"{found['own']:.2f} with our own loss (cosine {found['own_cosine']:.3f})."
        )
    return "\n".join(lines)


def _same_work(results: Results, prompts: Sequence[int], pins: str) -> str:
    """What every contestant did."""
    models = "; ".join(f"{name}, {text}" for name, text in MODELS.items())
    return (
        f"{pins} in an environment of its own. A step of a team of two: {len(prompts)} prompts (of "
        f"`tldr`'s first two problems, {min(prompts)} to {max(prompts)} tokens, the same for all), "
        f"{results.samples} answers to each of {results.tokens} tokens, then one update an agent. "
        "The models' end token is put beyond their vocabulary, so that every answer is full "
        f"length. Temperature {TEMPERATURE}, top-p {TOP_P}, no top-k, float32; LoRA of rank "
        f"{RANK}, alpha {ALPHA}, no dropout, on q, k, v and o; in one pass of an "
        f"update one prompt with its answers (ours by `learn.micro_tokens={MICRO_TOKENS}`). "
        f"Models: {models}; both have SmolLM2's vocabulary of 49,152."
    )


_RULES = (
    "CoMLRL makes no adapters itself but trains agents that it is handed, so its LoRA row does "
    "what ours does: same trained weights, same loss, same gradients. As it comes it trains all "
    "weights of a full copy an agent. Its own loop, its optimizer and its batch of two problems "
    "stay in both."
)


def report(results: Results) -> str:
    """The section's text; raises ValueError where the contestants did not see the same prompts."""
    ways = next(iter(results.rows.values()))
    every = [one for each in results.rows.values() for found in each.values() for one in found]
    lengths = {tuple(one.prompt_tokens) for one in every}
    if len(lengths) != 1:
        raise ValueError(f"the contestants saw other prompts: {sorted(lengths)}")
    pins = Path(__file__).with_name("requirements-comlrl.txt").read_text(encoding="utf-8")
    disturbed = sum(one.others > load.QUIET for one in every)
    return (
        f"{_same_work(results, *lengths, ', '.join(pins.split()))}\n\n{_RULES}\n\n"
        f"{len(ways['ours'])} rounds, ways in turn, a process each, whose first step (of two "
        "tokens) is not counted. CPU time is user and system of all threads; beside generation "
        "and update a step has reward and bookkeeping. Peak memory is the process's, imports "
        "included. Ratios are taken round by round.\n\n"
        f"{costs(results)}\n\n{verdicts(results)}\n{equality(results)}\n"
        f"- {disturbed} of {len(every)} processes ran while others took more than "
        f"{load.QUIET:.0%} of the machine (median {statistics.median(o.others for o in every):.0%}"
        ")."
    )
