"""Whole trajectories for a report: the best, the median and the worst, pairs early and late in the
run, and one for each new way of working together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median_low

from orchestry.core.types import Turn
from orchestry.report.curves import first_and_last
from orchestry.report.outcomes import cooperates, novel
from orchestry.report.runs import Experiment
from orchestry.report.text import fenced, inline, table
from orchestry.store.records import UNMEASURED, CreditRecord, EpisodeRecord, NodeRecord
from orchestry.store.run import Run

_FEWEST = 8
"""Episodes for a pair early and late: each quarter then has two."""
_PAIRED = (
    "Early and late: of the problems in both the first and the last quarter of the episodes those "
    "whose mean reward rose most (or fell least), whose change is the median, and whose reward "
    "fell most (or rose least); of each the median trajectory of its first episode and the best of "
    "its last."
)
_UNPAIRED = (
    f"No problem is shown early and late: that takes {_FEWEST} episodes, and a problem that is in "
    "both their first and their last quarter."
)


def trajectories(experiment: Experiment) -> str:
    """The best, the median and the worst trajectory of a run, and pairs early and late."""
    found = examples(experiment.run)
    if not found:
        return f"{inline(experiment.label)}: no episode is finished."
    pairs = evolution(experiment.run)
    said = [_trajectory(one, experiment.label) for one in found]
    later = [_trajectory(one, experiment.label) for one in pairs]
    return "\n\n".join([*said, _PAIRED if pairs else _UNPAIRED, *later])


def _trajectory(one: Example, label: str) -> str:
    parts = ", ".join(f"{inline(part.name)} {part.value:.3f}" for part in one.leaf.score.parts)
    tags = ", ".join(map(inline, one.leaf.score.tags)) or "none"
    pieces = [
        f"### {inline(label)}: {one.place}, reward {one.reward:.3f}",
        f"Episode {one.record.episode}, problem {inline(one.record.problem)}, trajectory "
        f"{inline(one.leaf.id)}. Parts: {parts or 'none'}. Tags: {tags}.",
    ]
    for turn in one.turns:
        said = turn.completion.told
        end = (
            "" if turn.completion.stop == "end" else f" (ended by: {inline(turn.completion.stop)})"
        )
        answer = fenced(said) if said.strip() else "*an empty answer*"
        pieces.append(f"**{inline(turn.agent)}**{end}\n\n{answer}")
    if one.leaf.score.feedback:
        pieces.append(f"Feedback of the task: {inline(one.leaf.score.feedback, longest=600)}")
    return "\n\n".join([*pieces, _credits(one)])


def _credits(one: Example) -> str:
    if not one.credits:
        elsewhere = "No credit was measured on this trajectory."
        return elsewhere if one.record.credits else f"Credit: {UNMEASURED}."
    rows = [
        [inline(credit.agent), f"{credit.credit:+.3f}", f"[{credit.low:+.3f}, {credit.high:+.3f}]"]
        for credit in one.credits
    ]
    return table(["agent", "credit, in units of the reward", "95 %"], rows)


@dataclass(frozen=True, slots=True)
class Example:
    """One trajectory of a run."""

    place: str
    """What it stands for, such as "the best"."""
    record: EpisodeRecord
    leaf: NodeRecord
    reward: float

    @property
    def turns(self) -> list[Turn]:
        """All moves, in order of play."""
        return [turn for node in self.record.path(self.leaf.id) for turn in node.turns]

    @property
    def credits(self) -> list[CreditRecord]:
        """Each agent's credit; empty if none was measured on this trajectory."""
        return [credit for credit in self.record.credits if credit.leaf == self.leaf.id]


def examples(run: Run) -> tuple[Example, ...]:
    """The best, the median and the worst trajectory; fewer if the run has fewer.

    If rewards tie, trajectories with credits come first, then the earliest.
    """
    found = sorted(_all(run), key=_order)
    places = {"best": 0, "median": len(found) // 2, "worst": len(found) - 1}
    last = len(found) - 1
    if found and not found[last].credits:  # also for the worst, one with credits comes first
        worst = [n for n, one in enumerate(found) if one.reward == found[last].reward]
        places["worst"] = next((n for n in worst if found[n].credits), last)
    chosen = {number: place for place, number in reversed([*places.items()]) if found}
    return tuple(
        Example(f"the {place}", found[number].record, found[number].leaf, found[number].reward)
        for number, place in sorted(chosen.items())
    )


def _all(run: Run) -> Iterator[Example]:
    for record in run.episodes:
        for leaf in record.leaves():
            yield Example("", record, leaf, leaf.score.total)


def _order(one: Example) -> tuple[float, bool, int, str]:
    return -one.reward, not one.credits, one.record.episode, one.leaf.id


def evolution(run: Run) -> tuple[Example, ...]:
    """Two trajectories each of up to three problems, early and late in the run: the one that rose
    most (or fell least), the median one, and the one that fell most. A late one whose agents
    cooperate is preferred."""
    early, late = first_and_last(run.episodes)
    first = {record.problem: record for record in reversed(early)}
    last = {record.problem: record for record in late}
    both = [name for name in first if name in last]
    if len(run.episodes) < _FEWEST or not both:
        return ()
    gains = {name: last[name].mean_leaf_reward - first[name].mean_leaf_reward for name in both}
    ranked = sorted(both, key=lambda name: (-gains[name], name))
    named = {ranked[0]: "rose most" if gains[ranked[0]] > 0 else "fell least"}
    named.setdefault(ranked[-1], "fell most" if gains[ranked[-1]] < 0 else "rose least")
    named.setdefault(ranked[len(ranked) // 2], "the median change")
    chosen = sorted(named, key=ranked.index)
    return tuple(e for name in chosen for e in _pair(first[name], last[name], named[name]))


def _pair(before: EpisodeRecord, after: EpisodeRecord, change: str) -> tuple[Example, Example]:
    middle = median_low(leaf.score.total for leaf in before.leaves())
    start = next(leaf for leaf in before.leaves() if leaf.score.total == middle)
    end = max(after.leaves(), key=lambda leaf: (cooperates(leaf), leaf.score.total, leaf.id))
    return (
        Example(f"early ({change})", before, start, start.score.total),
        Example(f"late ({change})", after, end, end.score.total),
    )


def new_ways(experiment: Experiment) -> str:
    """Ways of working together that are none of the task's schemes: how often, and an example of
    each; '' if there are none."""
    run = experiment.run
    found = {tag: (portion, _first(run, tag)) for tag, portion in novel(run).items()}
    rows = [
        [
            inline(tag),
            str(portion),
            f"{one.record.episode}",
            f"{fmean(_rewards(run, tag)):.3f}",
            inline(f"{one.record.problem}, episode {one.record.episode}, {one.leaf.id}"),
        ]
        for tag, (portion, one) in found.items()
    ]
    if not rows:
        return ""
    heads = ["new way", "trajectories", "first seen in episode", "mean reward", "example"]
    shown = (_trajectory(one, experiment.label) for _, one in found.values())
    return "\n\n".join([table(heads, rows), *shown])


def _rewards(run: Run, tag: str) -> list[float]:
    return [one.reward for one in _all(run) if tag in one.leaf.score.tags]


def _first(run: Run, tag: str) -> Example:
    """The best trajectory with a tag in the first episode that has one."""
    with_it = [one for one in _all(run) if tag in one.leaf.score.tags]
    least = min(one.record.episode for one in with_it)
    found = [one for one in with_it if one.record.episode == least]
    best = max(found, key=lambda one: (one.reward, one.leaf.id))
    return Example(f"first with {tag}", best.record, best.leaf, best.reward)
