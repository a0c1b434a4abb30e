"""Criteria of success for a training run, each computed from its run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from orchestry.report import neural
from orchestry.report.convergence import settled
from orchestry.report.curves import Portion, first_and_last
from orchestry.report.held_out import (
    Held,
    ahead,
    baselines,
    common_problems,
    held_evaluations,
    lead,
    team_on,
    untrained,
)
from orchestry.report.outcomes import (
    Change,
    Figure,
    between,
    credits,
    known_schemes,
    novel,
    over_problems,
    over_time,
    rates,
    schemes,
    solved_tag,
)
from orchestry.report.runs import Experiment, Salvaged
from orchestry.report.stats import FEWEST_PROBLEMS
from orchestry.report.text import counted, dollars, inline, table
from orchestry.store.games import Evaluation
from orchestry.store.journal import Opened, Stopped

Level = Literal["minimum", "target", "stretch"]
Verdict = Literal["met", "not met", "can't tell"]
_Answer = tuple[Verdict, str]
EPISODES = 500
PASSES = (0.3, 0.5)
"""Pass rates that are asked for, one after the other."""
SCENARIOS = 3
"""Of backend ppo: in how many games it is to be level with the best scripted player."""
EMERGED = 0.05
"""A scheme or a new way has emerged if this share of the last quarter's trajectories cooperates by
it."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion of one run."""

    of: str
    """The run's label."""
    level: Level
    name: str
    verdict: Verdict
    why: str
    """The figures that it follows from."""

    def plain(self) -> dict[str, str]:
        """As JSON data."""
        return asdict(self)


def criteria(experiment: Experiment) -> list[Criterion]:
    """All of them, in order."""
    return [
        Criterion(experiment.label, level, name, *check(experiment))
        for level, name, check in (_OF_GAMES if experiment.run.neural else _CRITERIA)
    ]


def _without_a_crash(experiment: Experiment) -> _Answer:
    run = experiment.run
    played, unit = len(run.episodes), "episode"
    if run.neural:
        played, unit = int(run.batches[-1].get(neural.GAMES, 0)) if run.batches else 0, "game"
    ends = [event.reason for event in run.events if isinstance(event, Stopped)]
    cut = sum(isinstance(event, Opened) for event in run.events) - len(ends)
    crashed = ends.count("failed") + max(0, cut - (not run.ended))
    said = f"{counted(played, unit)}; processes that failed or were cut off: {crashed}"
    if not run.ended and not crashed:
        return "can't tell", f"{said}; its last process still runs, or was cut off"
    return "met" if played >= EPISODES and not crashed else "not met", said


def _rate(run: Salvaged, name: str) -> Figure | None:
    return next((one for one in rates([run]) if one.name == name), None)


def _rises(experiment: Experiment) -> _Answer:
    run = experiment.run
    figure = _rate(run, "cooperation rate")
    if figure is None:
        return "can't tell", "its trajectories tell nothing of cooperation"
    change, where = _change(experiment, figure)
    few = min(change.counts) if change else len(run.episodes)
    if change is None or few < FEWEST_PROBLEMS:
        return "can't tell", f"{few} {where}, and {FEWEST_PROBLEMS} are needed"
    return "met" if change.difference.low > 0 else "not met", f"{change}, on {few} {where}"


def _change(experiment: Experiment, figure: Figure) -> tuple[Change | None, str]:
    """On held-out problems if both teams played them, else from the first quarter to the last."""
    found = held_evaluations(experiment)
    pairs = [(one, before) for one in found if (before := untrained(one, found))]
    if not pairs:
        return over_time(experiment.run, figure), "episodes in a quarter of the run"
    last, before = max(pairs, key=lambda pair: _latest(pair[0]))
    return between(before.run, last.run, figure), f"{last.split} problems"


def _latest(held: Held) -> tuple[bool, int]:
    return held.split == "test", held.update or 0


def _emerged(run: Salvaged) -> dict[str, Portion]:
    found = schemes(run, first_and_last(run.episodes)[1])
    return {name: share for name, share in found.items() if share.share >= EMERGED}


def _one_scheme(experiment: Experiment) -> _Answer:
    run = experiment.run
    found = _emerged(run)
    if not _names_schemes(run):
        return "can't tell", "its trajectories name no scheme of cooperation"
    said = ", ".join(f"{name} {share}" for name, share in found.items()) or "none"
    return "met" if found else "not met", f"{said} in the last quarter; {_SHARE} is asked for"


def _every_scheme(experiment: Experiment) -> _Answer:
    run = experiment.run
    known, found = known_schemes(run), _emerged(run)
    if not known:
        return "can't tell", "its task names no schemes, or the run has not ended"
    lacking = [name for name in known if name not in found]
    said = f"{len(known) - len(lacking)} of {len(known)} in the last quarter"
    return ("not met", f"{said}; not {', '.join(lacking)}") if lacking else ("met", said)


def _names_schemes(run: Salvaged) -> bool:
    tags = (tag for record in run.episodes for tag in record.tags())
    return bool(known_schemes(run)) or any(tag.startswith("scheme_") for tag in tags)


def _passes(least: float) -> Callable[[Experiment], _Answer]:
    def check(experiment: Experiment) -> _Answer:
        figure = _rate(experiment.run, "pass rate")
        if figure is None or not solved_tag(experiment.run):
            return "can't tell", "its task has no clear solved, or the run has not ended"
        found = held_evaluations(experiment)
        if not found:
            change = over_time(experiment.run, figure)
            if change is None:
                return "can't tell", "fewer than two episodes are finished"
            said = f"{figure.words(change.last)} in the last quarter of its own problems"
            return "met" if change.last >= least else "not met", said
        last = max(found, key=_latest)
        mean = over_problems(last.run, figure)
        said = f"{figure.words(mean.mean)} [{figure.words(mean.low)}, {figure.words(mean.high)}]"
        where = f"of {counted(last.measures.problems, f'{last.split} problem')}"
        return "met" if mean.mean >= least else "not met", f"{said} {where}"

    return check


_SETTLED = (1_000_000, 2_000_000)
"""Steps after which a return is to have settled."""
_NO_GAMES = "no new games were played: orchestry evaluate RUN"


def _stable(experiment: Experiment) -> _Answer:
    """Whether the return moves no more from one of these steps on."""
    trends = [trend for after in _SETTLED if (trend := settled(experiment.run, after))]
    known = [trend for trend in trends if trend.change is not None]
    flat = next((trend for trend in known if trend.verdict == "flat"), None)
    if flat or not known:
        few = f"fewer than 10 batches are played after {_SETTLED[0]:,} steps"
        return ("met", str(flat)) if flat else ("can't tell", few)
    moves = all(trend.verdict.startswith("still") for trend in known)
    return "not met" if moves else "can't tell", "; ".join(map(str, known))


def _latest_games(run: Salvaged) -> list[Evaluation]:
    """The last policy's evaluations, one per game."""
    last = max((one.steps for one in run.measured), default=0)
    return [one for one in neural.lasts(run) if one.steps == last]


def _beside_scripts(one: Evaluation) -> tuple[str, bool] | None:
    """The game, the returns of the learned team and of the best scripted player, and whether the
    former is level: at least as high, or with an interval that overlaps. None: none played."""
    scripts = neural.scripted(one)
    if not scripts or neural.LEARNED not in one.teams:
        return None
    name, best = max(scripts.items(), key=lambda each: each[1].mean)
    own = one.teams[neural.LEARNED].returns
    said = f"{neural.ends_of(own)}, {name} {neural.ends_of(best)} ({neural.played(one)})"
    return said, own.high >= best.low


def _level(games: int) -> Callable[[Experiment], _Answer]:
    """Level with the best scripted player in its own game, or in so many games."""

    def check(experiment: Experiment) -> _Answer:
        own = experiment.run.config.get("options") or {}
        latest = [
            one
            for one in _latest_games(experiment.run)
            if games > 1 or (one.options, one.changes) == (own, {})
        ]
        found = [pair for one in latest if (pair := _beside_scripts(one))]
        if not found:
            return "can't tell", _NO_GAMES
        level = sum(is_level for _, is_level in found)
        each = "; ".join(said for said, _ in found)
        said = f"level in {level} of {counted(len(found), 'game')}: {each}"
        if len(found) < games:
            more = f"{games} scenarios are needed: orchestry evaluate RUN --set options.scenario="
            return "can't tell", f"{said}; {more}"
        return "met" if level >= games else "not met", said

    return check


def _ahead_in_games(run: Salvaged) -> _Answer:
    """Of backend ppo: beside the teams of its last evaluation in each game."""
    found = [
        (f"{name} ({neural.played(one)})", sign)
        for one in _latest_games(run)
        for name, sign in neural.beside(one).items()
    ]
    if not found:
        return "can't tell", _NO_GAMES
    behind = ", ".join(name for name, sign in found if sign < 1)
    ahead_of = ", ".join(name for name, _ in found)
    if behind:
        return "not met", f"not shown to be ahead of {behind}"
    return "met", f"ahead of {ahead_of}"


def _ahead_of_all(experiment: Experiment) -> _Answer:
    if experiment.run.neural:
        return _ahead_in_games(experiment.run)
    found, behind, few = baselines(experiment), list[str](), list[str]()
    if not found:
        return "can't tell", "no baseline was played: orchestry baselines run all --of RUN"
    for held in found:
        team = team_on(experiment, held)
        gap = ahead(team, held) if team else None
        if not team or not gap or common_problems(team, held) < FEWEST_PROBLEMS:
            few.append(held.words)
        elif gap.low <= 0:
            said = f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]{lead(team, held)}"
            behind.append(f"{held.words} ({said})")
    if behind:
        return "not met", f"not shown to be ahead of {', '.join(behind)}"
    if few:
        said = f"fewer than {FEWEST_PROBLEMS} common problems with {', '.join(few)}"
        return "can't tell", f"{said}: orchestry evaluate RUN"
    return "met", f"ahead of {', '.join(held.words for held in found)}"


def _new_ways(experiment: Experiment) -> _Answer:
    run = experiment.run
    if not _names_schemes(run):
        return "can't tell", "its trajectories name no scheme of cooperation"
    shares = novel(run, first_and_last(run.episodes)[1])
    found = {name: share for name, share in shares.items() if share.share >= EMERGED}
    said = ", ".join(f"{name} {share}" for name, share in found.items()) or "none"
    return "met" if found else "not met", f"{said} in the last quarter; {_SHARE} is asked for"


def _explained(experiment: Experiment) -> _Answer:
    found = credits(experiment.run)
    if not found:
        return "can't tell", "no credit was measured: set credit.share above 0"
    said = ", ".join(f"{agent} {mean}" for agent, (mean, _) in found.items())
    if min(count for _, count in found.values()) < FEWEST_PROBLEMS:
        return "can't tell", f"credit {said}; {FEWEST_PROBLEMS} episodes are needed"
    shown = all(mean.low > 0 for mean, _ in found.values())
    return "met" if shown else "not met", f"credit {said}"


def _under_budget(experiment: Experiment) -> _Answer:
    run = experiment.run
    spent, cap = run.summary.cost_usd, run.config.get("budget", {}).get("usd")
    if cap is None:
        return "can't tell", f"{dollars(spent)} without a cap"
    stopped = run.summary.stopped == "budget"
    said = f"{dollars(spent)} of {dollars(cap)}{', where it stopped' if stopped else ''}"
    return "met" if spent <= cap and not stopped else "not met", said


_SHARE = f"{100 * EMERGED:.0f} %"
_CRITERIA: tuple[tuple[Level, str, Callable[[Experiment], _Answer]], ...] = (
    ("minimum", f"{EPISODES} episodes without a crash", _without_a_crash),
    ("minimum", "cooperation rises", _rises),
    ("minimum", "at least one scheme of cooperation emerges", _one_scheme),
    ("minimum", "under its budget", _under_budget),
    ("target", f"pass rate of {100 * PASSES[0]:.0f} %", _passes(PASSES[0])),
    ("target", f"pass rate of {100 * PASSES[1]:.0f} %", _passes(PASSES[1])),
    ("target", "all schemes of cooperation emerge", _every_scheme),
    ("target", "ahead of all baselines", _ahead_of_all),
    ("stretch", "new ways of working together", _new_ways),
    ("stretch", "each agent is shown to contribute", _explained),
)
_OF_GAMES: tuple[tuple[Level, str, Callable[[Experiment], _Answer]], ...] = (
    ("minimum", f"{EPISODES} games without a crash", _without_a_crash),
    ("minimum", "stable after 1 to 2 M steps", _stable),
    ("target", "level with the best scripted player", _level(1)),
    ("target", f"level with it in {SCENARIOS} scenarios", _level(SCENARIOS)),
    ("stretch", "ahead of all baselines", _ahead_of_all),
)
"""Those of backend ppo."""


def criteria_table(experiments: Sequence[Experiment]) -> str:
    """One row per criterion of each run."""
    rows = [
        [*([one.of] * (len(experiments) > 1)), one.level, one.name, f"**{one.verdict}**", one.why]
        for experiment in experiments
        for one in criteria(experiment)
    ]
    heads = [*(["run"] * (len(experiments) > 1)), "level", "criterion", "verdict", "by"]
    cells = [[cell if cell.startswith("**") else inline(cell, 400) for cell in row] for row in rows]
    return table(heads, cells, figures=False)


def sentences(experiment: Experiment) -> Iterator[str]:
    """One line per criterion, under the name of each level."""
    level = ""
    for one in criteria(experiment):
        if one.level != level:
            level = one.level
            yield f"{level}:"
        yield f"  {one.verdict + ':':<12}{one.name}: {one.why}"
