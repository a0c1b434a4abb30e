"""What worked in a run and what did not, in sentences that follow from its figures alone.

A change is said to be one only if its 95 % interval excludes zero and there are enough problems.
Each figure has an interval of its own, so of twenty that did not move one may seem to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from orchestry.report import neural
from orchestry.report.curves import Portion
from orchestry.report.held_out import (
    ahead,
    baselines,
    common_problems,
    held_evaluations,
    lead,
    shows_gain,
    team_on,
    untrained,
)
from orchestry.report.outcomes import (
    Change,
    between,
    cooperates,
    credits,
    figures,
    over_time,
    rates,
    solved_tag,
)
from orchestry.report.runs import Experiment, Salvaged, behaviors
from orchestry.report.stats import FEWEST_PROBLEMS
from orchestry.report.tables import skipped
from orchestry.report.text import counted
from orchestry.store.journal import Learned

_LONGEST = 100  # characters of a behaviour


def lessons(experiment: Experiment) -> list[str]:
    """Sentences in plain text; at least one."""
    run = experiment.run
    if run.neural:
        return [*_in_games(run)] or [_NOTHING]
    found = [
        *_moved(experiment),
        *_beside(experiment),
        *_behaviors(run),
        *_credits(run),
        *_with_cooperation(run),
        *_silent(run),
    ]
    return found or [_NOTHING]


_NOTHING = "Nothing can be said yet: too little was played."


def _in_games(run: Salvaged) -> Iterator[str]:
    """Of backend ppo: the learned team beside others in new games."""
    words = {1: "higher", -1: "lower", 0: "no difference is shown: the intervals overlap"}
    for one in neural.lasts(run):
        for name, sign in neural.beside(one).items():
            returns = (neural.ends_of(one.teams[team].returns) for team in ("learned", name))
            own, other = returns
            yield (
                f"After step {one.steps:,}, {neural.played(one)}: the learned team's return {own}, "
                f"{name} {other}: {words[sign]}."
            )


def _moved(experiment: Experiment) -> Iterator[str]:
    """What rose and what did not: on held-out problems where both teams played them, else from the
    first quarter of the run to the last."""
    found = held_evaluations(experiment)
    pairs = [(one, before) for one in found if (before := untrained(one, found))]
    lasts = {(one.split, one.samples): (one, before) for one, before in pairs}
    for team, before in lasts.values():
        changes = [between(before.run, team.run, figure) for figure in figures([team.run])]
        kept = [change for change in changes if change]
        if kept:
            where = f"On {counted(kept[0].counts[0], f'{team.split} problem')}, from the untrained "
            yield from _sorted(f"{where}team to the team after update {team.update}", kept)
    if not lasts and _changed(experiment.run):
        run = experiment.run
        changes = [over_time(run, figure) for figure in figures([run])]
        kept = [change for change in changes if change]
        if kept:
            first, last = kept[0].counts
            yield from _sorted(
                f"From the first {counted(first, 'episode')} to the last {last}, whose problems "
                "may differ",
                kept,
            )


def _changed(run: Salvaged) -> bool:
    """Whether the team changed while it played."""
    return any(isinstance(event, Learned) for event in run.events)


def _sorted(where: str, changes: Sequence[Change]) -> Iterator[str]:
    if min(changes[0].counts) < FEWEST_PROBLEMS:
        yield f"{where}: fewer than {FEWEST_PROBLEMS} on a side show no difference."
        return
    rose = [one for one in changes if one.difference.low > 0]
    fell = [one for one in changes if one.difference.high < 0]
    same = [one for one in changes if one not in rose and one not in fell]
    still = [one for one in same if one.difference.low == one.difference.high]
    unsure = [one for one in same if one not in still]
    for word, group in (("rose", rose), ("fell", fell), ("no difference is shown in", unsure)):
        if group:
            yield f"{where}, {word}: {'; '.join(map(str, group))}."
    if still:
        said = (f"{one.figure.name} {one.figure.words(one.last)}" for one in still)
        yield f"{where}, did not move: {', '.join(said)}."


def _beside(experiment: Experiment) -> Iterator[str]:
    """The baselines that the team beats, and those that it does not."""
    found: dict[str, list[str]] = {}
    for held in baselines(experiment):
        team = team_on(experiment, held)
        gap = ahead(team, held) if team else None
        if team and gap:
            word = shows_gain(gap, common_problems(team, held)).partition(":")[0]
            found.setdefault(word, []).append(f"{held.words} ({gap.mean:+.3f}{lead(team, held)})")
    for word, names in found.items():
        yield f"Beside baselines, the team's reward, {word}: {', '.join(names)}."


def _behaviors(run: Salvaged) -> Iterator[str]:
    """Each behaviour that stands in the prompts, with its evidence; how many do not."""
    library = behaviors(run.folder)
    for one in library:
        if one.get("status") == "accepted":
            text = " ".join(str(one.get("text", "")).split())
            short = text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} …"
            yield f"Accepted for {one.get('agent')}: “{short}” ({_evidence(one)})."
    others = [str(one.get("status")) for one in library if one.get("status") != "accepted"]
    if others:
        each = ", ".join(f"{others.count(word)} {word}" for word in dict.fromkeys(others))
        yield f"Behaviours that are not in the prompts: {each}."


def _evidence(one: Mapping[str, Any]) -> str:
    proof = one.get("evidence") or {}
    if not proof.get("pairs"):
        return "without a trial"
    lift, low, high = (100 * float(proof.get(name, 0.0)) for name in ("lift", "low", "high"))
    return f"{lift:+.1f} points [{low:+.1f}, {high:+.1f}] on {counted(proof['pairs'], 'pair')}"


def _credits(run: Salvaged) -> Iterator[str]:
    """Whose answers made the best trajectories good."""
    for agent, (mean, count) in credits(run).items():
        if mean.low == mean.high == 0:  # every other answer would have earned the same
            continue
        sign = "above 0" if mean.low > 0 else "below 0" if mean.high < 0 else "not told from 0"
        yield (
            f"Credit of {agent} (what its answers in the best trajectories earn beyond others in "
            f"their place): {mean} over {counted(count, 'episode')}: "
            f"{sign if count >= FEWEST_PROBLEMS else 'too few to say'}."
        )


def _with_cooperation(run: Salvaged) -> Iterator[str]:
    """Whether trajectories whose agents work together are the good ones: an association."""
    leaves = [leaf for record in run.episodes for leaf in record.trajectories()]
    solved = solved_tag(run)
    sides = [[leaf for leaf in leaves if cooperates(leaf) is side] for side in (True, False)]
    if not rates([run]) or not all(sides):
        return
    words = []
    for side in sides:
        passed = Portion(sum(solved in leaf.score.tags for leaf in side), len(side))
        tests = f"{passed} solve their problem" if solved else f"{len(side):,} in all"
        words.append(f"mean reward {fmean(leaf.score.total for leaf in side):.3f}, {tests}")
    yield f"Trajectories whose agents cooperate: {words[0]}; the others: {words[1]}."


def _silent(run: Salvaged) -> Iterator[str]:
    """The samples that taught nothing: actions of a run whose weights learn, which are compared
    over the chains of a problem; of a search its sets of samples, if it had no others."""
    if run.config.get("backend") == "local":
        if _changed(run):
            share = skipped(run.events)
            yield f"Actions whose rewards did not differ, which taught nothing: {share}."
        return
    groups = [group for record in run.episodes for group in record.groups]
    compared = [group for group in groups if len(group.advantages) > 1]
    if compared and not any(any(group.advantages) for group in compared):
        yield (
            f"In each of {counted(len(compared), 'sample group')} all samples earned the same: "
            "nothing could be learned from them."
        )
