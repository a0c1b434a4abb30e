"""What benchmarks.gradients found, as text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.acceptance_report import wilson
from benchmarks.gradients_bandit import CONTROL, EPISODES, RATE, SOLVED, TRAP, UPDATES, Played
from benchmarks.gradients_faults import Apart, Planted
from benchmarks.gradients_world import TEMPERATURE
from benchmarks.stats import bounds

GOAL = 1e-6
"""The largest relative difference of a gradient that counts as equal."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Gradients of one kind of episode beside the written-out ones, over all seeds."""

    joint: str
    agents: int
    turns: int
    one: float
    """The largest relative difference of a tensor, an agent's actions in one micro-batch."""
    many: float
    answers: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """What drawing recorded, in one precision; largest differences in nats."""

    dtype: str
    answers: int
    learner: float
    """From what the learner computes of the same tokens."""
    same: int
    """Answers that are the same tokens drawn alone."""
    batch: float
    """From the log-probabilities recorded there."""


@dataclass(frozen=True, slots=True)
class Found:
    """All figures of one run of the benchmark."""

    seeds: int
    cells: Sequence[Cell]
    faults: Sequence[Planted]
    rest: Apart
    learning: Sequence[Played]
    control: Sequence[Played]
    drawn: Sequence[Drawn]
    seconds: float


def _path_table(found: Found) -> str:
    lines = [
        "| joint actions | agents | turns | answers | one micro-batch | many |",
        "|---" * 6 + "|",
        *(
            f"| {cell.joint} | {cell.agents} | {cell.turns} | {cell.answers:,} | {cell.one:.1e} "
            f"| {cell.many:.1e} |"
            for cell in found.cells
        ),
    ]
    largest = max(max(cell.one, cell.many) for cell in found.cells)
    met = "met" if largest <= GOAL else "**missed**"
    lines += ["", f"Goal, {GOAL:g} at most everywhere: {met} ({largest:.1e})."]
    return "\n".join(lines)


def _fault_table(found: Found) -> str:
    lines = [
        "| fault, planted | gradient off by, median (least to most) | ours off by, at most |",
        "|---" * 3 + "|",
    ]
    for fault in found.faults:
        median = statistics.median(fault.faulty)
        lines.append(
            f"| {fault.clause} | {median:.1%} ({min(fault.faulty):.1%} to {max(fault.faulty):.1%})"
            f" | {fault.ours:.1e} |"
        )
    return "\n".join(lines)


def _rest(found: Found) -> str:
    rest, (less, more) = found.rest, found.rest.tokens
    return (
        "- Four algorithms in one: once advantages are centred and divided by their standard "
        "deviation, REINFORCE, MAGRPO, RLOO and ReMax weigh every answer alike (largest "
        f"difference {rest.normalised:.0e}). Ours does not normalise unless asked, and its two "
        f"baselines give gradients {rest.baselines:.0%} apart.\n"
        "- Groups without variance: where two of four episodes score always the same, leaving "
        f"them out takes {less:,} tokens through the model in place of {more:,}, padding included, "
        f"and changes the gradient by {rest.skipping:.0e}.\n"
        "- An advantage that is NaN: refused, with every weight as it was to the last bit, in "
        f"{rest.stopped} of {found.seeds} cases."
    )


def _bandit_table(found: Found) -> str:
    lines = [
        "| | seeds | solved, share [95 %] | chance of the best joint action, start to end |",
        "|---" * 4 + "|",
    ]
    for label, runs in (("learning", found.learning), ("rate 0", found.control)):
        solved = sum(one.end >= SOLVED for one in runs)
        low, high = wilson(solved, len(runs))
        start, end = statistics.fmean(r.start for r in runs), statistics.fmean(r.end for r in runs)
        lines.append(
            f"| {label} | {len(runs)} | {solved / len(runs):.2f} [{low:.2f}, {high:.2f}] "
            f"| {start:.3f} to {end:.3f} |"
        )
    return "\n".join(lines)


def _updates(found: Found) -> str:
    needed = {str(i): [float(r.updates)] for i, r in enumerate(found.learning) if r.end >= SOLVED}
    if not needed:
        return "No seed solved it."
    counts = [row[0] for row in needed.values()]
    low, high = bounds(needed)
    others = [run for run in found.learning if run.end < SOLVED]
    held = sum(run.likeliest == TRAP for run in others)
    return (
        f"Updates to a chance of {SOLVED:g}, where it was reached: {statistics.fmean(counts):.0f} "
        f"in the mean [{low:.0f}, {high:.0f}], {min(counts):.0f} to {max(counts):.0f}. "
        f"Of the {len(others)} other seeds {held} ended on the joint action that is worth 0.5, an "
        "equilibrium from which neither agent gains by leaving alone."
    )


def _drawn_table(found: Found) -> str:
    lines = [
        "| precision | answers | recorded against the learner's, nats | same answer drawn alone "
        "| its log-probabilities, nats |",
        "|---" * 5 + "|",
        *(
            f"| {one.dtype} | {one.answers} | {one.learner:.1e} | {one.same} of {one.answers} "
            f"| {one.batch:.1e} |"
            for one in found.drawn
        ),
    ]
    return "\n".join(lines)


def report(found: Found) -> str:
    """The section's text."""
    return f"""\
Tiny models with random weights (two layers, 16 tokens; Llama and Qwen2 in turn), one LoRA adapter \
an agent, answers drawn by the sampler at temperature {TEMPERATURE:g} in real episodes, many of \
which end by themselves.

**The whole path.** Episodes, groups, packed log-probabilities, loss and backward pass of \
`orchestry.backends.local`, beside autograd of equations 1 and 2 of MAGRPO (arXiv 2508.04652) \
written out: transformers' own model with B A multiplied into its weights, one sample at a time, \
log_softmax over all logits. float64, {found.seeds} seeds; the largest relative difference of any \
tensor of an adapter.

{_path_table(found)}

**Faults.** What was found by running CoMLRL 1.4.3, planted in the written-out formula: by how \
much the gradient of the team is then off (two agents, two turns, {found.seeds} seeds), and ours \
on the same episodes.

{_fault_table(found)}

{_rest(found)}

**A bandit.** Two agents with three arms each act at once; one joint action is worth 1, another is \
worth 0.5 and holds who comes near it. {EPISODES} episodes an update, group 4, rate {RATE:g}, \
float32, at most {UPDATES} updates ({CONTROL} at rate 0); solved where the best joint action has a \
chance of {SOLVED:g}.

{_bandit_table(found)}

{_updates(found)}

**Drawing.** Each token's log-probability as it was recorded when it was drawn, in a batch of two \
agents with prompts of 3 and 40 tokens, beside the learner's, and beside the same answer drawn \
alone.

{_drawn_table(found)}

{found.seconds:.0f} CPU seconds.
"""
