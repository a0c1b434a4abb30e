"""Runs of backend ppo in a report: curves over steps, sentences, settings and tables.

Returns are raw: an agent's mean over a game, in the game's own unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import floor, log10
from statistics import fmean
from typing import Any, TypeVar

from orchestry.core.config import RunConfig
from orchestry.core.files import to_json
from orchestry.core.resolve import Mark, leaves, marks
from orchestry.report.curves import QUARTER, Curve
from orchestry.report.runs import Arm, Experiment, Salvaged, in_words, place_name
from orchestry.report.text import counted, duration, inline, short, table
from orchestry.store.games import Evaluation, Mean
from orchestry.store.journal import Learned
from orchestry.store.progress import MEAN, PACE, Row
from orchestry.store.summary import end_of

T = TypeVar("T")
RETURN, EVALUATION, GAMES = "episode/reward", "evaluation/reward", "train/total_episodes"
_LENGTH = "episode/length"
FIGURES = {
    _LENGTH: "steps per game",
    "learn/entropy": "entropy, nats",
    "learn/kl": "KL per update",
    "learn/clip_fraction": "share of ratios clipped",
    "learn/explained_variance": "explained variance",
    "learn/value_loss": "value loss",
    "learn/gradient_norm": "gradient norm",
    PACE: "steps per second",
}
"""What is shown beside the return, by its name in progress.jsonl."""
_SMOOTH = 20
"""A point is the mean over this part of the shortest run's batches."""
MOST_POINTS = 400
"""Of a curve; of longer ones evenly spread points are kept."""


def window(runs: Sequence[Salvaged]) -> int:
    """How many batches a point is the mean of."""
    return max(1, min((len(run.batches) for run in runs), default=0) // _SMOOTH)


def line(rows: Sequence[Row], name: str, smooth: int) -> dict[int, float]:
    """By steps, the mean of a figure over the last `smooth` batches, from the first full window on.

    Returns and lengths are means over games, so a batch weighs as many as ended in it.
    """
    games = [row.get(GAMES, 0) for row in rows]
    ended = [now - before for before, now in zip([0, *games], games, strict=False)]
    of_games = name in (RETURN, _LENGTH)
    weights = [
        (count if of_games else 1) if name in row else 0
        for row, count in zip(rows, ended, strict=True)
    ]
    if smooth == 1:  # the figures as they are
        pairs = zip(rows, weights, strict=True)
        return {int(row["steps"]): row[name] for row, weight in pairs if weight > 0}
    whole = [0.0, *accumulate(weights)]
    sums = accumulate(row.get(name, 0) * w for row, w in zip(rows, weights, strict=True))
    total = [0.0, *sums]
    return {
        int(rows[end - 1]["steps"]): (total[end] - total[end - smooth]) / count
        for end in range(smooth, len(rows) + 1)
        if (count := whole[end] - whole[end - smooth]) > 0
    }


def spread(rows: Sequence[Row], smooth: int) -> dict[int, tuple[float, float]]:
    """By steps, the lowest and the highest return of the batches that `line` has the mean of."""
    found: dict[int, tuple[float, float]] = {}
    for end in range(smooth, len(rows) + 1):
        if seen := [row[RETURN] for row in rows[end - smooth : end] if RETURN in row]:
            found[int(rows[end - 1]["steps"])] = min(seen), max(seen)
    return found


def over(arms: Sequence[Sequence[Salvaged]]) -> str:
    """What a point of the arms' curves is the mean of, in words."""
    found = sorted({window(runs) for runs in arms})
    ends = " to ".join(f"{one:,}" for one in dict.fromkeys((found[0], found[-1])))
    return "a batch" if ends == "1" else f"the last {ends} batches"


def curve(runs: Sequence[Salvaged], name: str) -> Curve | None:
    """The mean over runs, at the steps that all of them have; None if there are none. The band goes
    from the lowest to the highest run. Evaluations are not smoothed."""
    smooth = 1 if name == EVALUATION else window(runs)
    found = [line(run.batches, name, smooth) for run in runs]
    at = thinned(sorted(set.intersection(*map(set, found)))) if found else []
    if not at:
        return None
    seeds = tuple(tuple(one[steps] for steps in at) for one in found)
    columns = list(zip(*seeds, strict=True))
    return Curve(
        x=tuple(at),
        mean=tuple(map(fmean, columns)),
        low=tuple(map(min, columns)),
        high=tuple(map(max, columns)),
        seeds=seeds,
    )


def thinned(points: Sequence[T]) -> list[T]:
    """At most MOST_POINTS of them, evenly spread, with the last."""
    step = -(-len(points) // MOST_POINTS) or 1
    return [*points[(len(points) - 1) % step :: step]]


# --- in sentences ---------------------------------------------------------------------------------


def headline(experiment: Experiment) -> Iterator[str]:
    """What a run played, and what its team came to."""
    run = experiment.run
    rows, options = run.batches, game(run)
    last = rows[-1] if rows else Row()
    kept = [there for _, there in saved(run)]
    yield (
        f"Task {run.config['task']}{f' ({options})' if options else ''}, backend ppo "
        f"({_team(run)}), seed {run.config.get('seed')}: {played_steps(run)} steps, "
        f"{counted(int(last.get(GAMES, 0)), 'game')}, {counted(len(kept), 'checkpoint')} written "
        f"({sum(kept)} kept), {duration(run.took)}."
    )
    if opponents := _opponents(run):
        yield f"Agents that don't learn: {opponents}."
    if found := curve([run], RETURN):
        top = _top(found)
        yield (
            f"Return of a game, mean over the agents: first {short(found.mean[0])}, best "
            f"{short(found.mean[top])} (at step {found.x[top]:,}), last {short(found.mean[-1])}; "
            f"means over the games of {over([[run]])}."
        )
    if tests := line(rows, EVALUATION, 1):
        first, end = min(tests), max(tests)
        yield (
            f"Evaluations on games of their own: {short(tests[first])} at step {first:,}, "
            f"{short(tests[end])} at step {end:,}."
        )
    if not run.measured:
        yield (
            "Nothing was measured beside other teams, so no gain is claimed: orchestry evaluate "
            f"{run.folder} plays new games, the untrained team too."
        )
    for one in lasts(run):
        teams = (f"{team} {ends_of(own.returns)}" for team, own in one.teams.items())
        yield f"Evaluated after step {one.steps:,}, {played(one)}: {', '.join(teams)}."


def over_seeds(arm: Arm) -> Iterator[str]:
    """On an arm with several seeds; nothing for a single one."""
    runs = arm.learners
    for name, what in ((RETURN, "return"), (EVALUATION, "return in evaluations")):
        found = curve(runs, name) if len(runs) > 1 else None
        if found:
            ends = [
                f"{short(found.mean[n])} ({short(found.low[n])} to {short(found.high[n])}) at step "
                f"{found.x[n]:,}"
                for n in (0, -1)
            ]
            yield (
                f"Mean of {counted(len(runs), 'seed')}, and the lowest to the highest: {what} "
                f"{', '.join(ends)}."
            )


def game(run: Salvaged) -> str:
    """The task's options that are given, such as its scenario: returns of different games can't be
    compared."""
    return _game(run.config.get("options") or {})


def _game(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(leaves(options)))


def played(one: Evaluation) -> str:
    """What an evaluation's teams played, and how often."""
    return f"{_setting(one)}, {counted(one.games, 'game')}"


def _setting(one: Evaluation) -> str:
    others = (in_words(key, value) for key, value in one.changes.items())
    return ", ".join((_game(one.options) or "the task's own game", *others))


def lasts(run: Salvaged) -> list[Evaluation]:
    """The last evaluation per game and checkpoint, by game and steps."""
    asked = (to_json({"": [one.options, one.changes]}) for one in run.measured)
    found = {(key, one.checkpoint): one for key, one in zip(asked, run.measured, strict=True)}
    return sorted(found.values(), key=lambda one: (_setting(one), one.steps))


LEARNED, UNTRAINED = "learned", "untrained"
_OWN = (LEARNED, "likeliest")
"""What an evaluation calls the run's own team, drawing its moves and taking the likeliest ones."""


def beside(one: Evaluation) -> dict[str, int]:
    """By other team of an evaluation: 1 if the learned team's interval lies above its interval, -1
    if below, 0 if they overlap."""
    if _OWN[0] not in one.teams:
        return {}
    own = one.teams[_OWN[0]].returns
    others = {name: team.returns for name, team in one.teams.items() if name not in _OWN}
    return {name: (own.low > other.high) - (own.high < other.low) for name, other in others.items()}


def scripted(one: Evaluation) -> dict[str, Mean]:
    """The returns of an evaluation's scripted players."""
    others = (*_OWN, UNTRAINED)
    return {name: team.returns for name, team in one.teams.items() if name not in others}


def ends_of(own: Mean) -> str:
    """A mean with its interval, to two digits of the interval's width: teams are told apart by it.

    >>> ends_of(Mean(mean=1300.42, low=1300.1, high=1300.7))
    '1,300.42 (1,300.10 to 1,300.70)'
    """
    width = own.high - own.low
    digits = min(4, max(0, 1 - floor(log10(width)))) if width > 0 else 4
    return f"{own.mean:,.{digits}f} ({own.low:,.{digits}f} to {own.high:,.{digits}f})"


def by_game(arms: Sequence[Arm]) -> dict[str, list[Arm]]:
    """The arms with a curve, by their game."""
    found: dict[str, list[Arm]] = {}
    for arm in arms:
        if any(RETURN in row for run in arm.learners for row in run.batches):
            found.setdefault(game(arm.learners[0]), []).append(arm)
    return found


def _team(run: Salvaged) -> str:
    """Whose policies, how large, and from what they learn."""
    ppo = run.config["ppo"]
    size = "x".join(map(str, ppo["hidden"]))
    whose = "one policy for all" if ppo["policies"] == "shared" else "a policy per agent"
    return f"{whose}, {size}, {ppo['reward']} reward, {ppo['critic']} critic"


def _opponents(run: Salvaged) -> str:
    found = {role: own.get("plays") for role, own in run.config.get("agents", {}).items()}
    return ", ".join(
        f"{role} is {' or '.join(map(place_name, names))}" for role, names in found.items() if names
    )


def played_steps(run: Salvaged) -> str:
    """Also of how many, while some are left: a run plays whole batches, so it may play more."""
    played, asked = run.batches[-1]["steps"] if run.batches else 0, run.config["ppo"]["steps"]
    return f"{played:,} of {asked:,}" if played < asked else f"{played:,}"


def ended(run: Salvaged) -> str:
    """How its last process ended."""
    end = end_of(run.events)
    return end.reason if end else "it still runs, or was cut off"


def saved(run: Salvaged) -> list[tuple[Learned, bool]]:
    """The checkpoints that were written, oldest first, and whether each is kept."""
    found = [event for event in run.events if isinstance(event, Learned)]
    return [(one, (run.folder / str(one.state["checkpoint"])).is_file()) for one in found]


def _top(found: Curve) -> int:
    return max(range(len(found.x)), key=lambda at: (found.mean[at], -at))


# --- in tables ------------------------------------------------------------------------------------


def setup(run: Salvaged) -> dict[str, str]:
    """The settings that decide the run, by name, in order."""
    ppo = run.config["ppo"]
    falls = ", falling to 0" if ppo["anneal"] else ""
    return {
        "run": str(run.folder),
        "task": str(run.config["task"]),
        "game": game(run) or "the task's own",
        "backend": "ppo",
        "policies": _team(run),
        "agents that don't learn": _opponents(run) or "none",
        "environment steps": f"{played_steps(run)}",
        "seed": str(run.config.get("seed")),
        "a batch": f"{ppo['games']:,} games x {ppo['horizon']:,} steps, {ppo['passes']} passes in "
        f"minibatches of {ppo['minibatch']:,}",
        "learning rate": f"{ppo['learning_rate']:g}{falls}",
        "weight of the entropy": f"{ppo['entropy']:g}{falls}",
        "other than the defaults": ", ".join(changed(run)) or "nothing",
    }


_TOLD = "ppo.steps"
"""A key that has a place of its own."""


def changed(run: Salvaged) -> list[str]:
    """The settings of ppo that differ from today's defaults, and may affect results."""
    usual = dict(leaves(RunConfig().model_dump(mode="json")))
    return [
        f"{key}={value}"
        for key, value in leaves(run.config)
        if key.startswith("ppo.")
        and key != _TOLD
        and value != usual.get(key)
        and Mark.OPERATIONAL not in marks(RunConfig, key)
    ]


def costs(run: Salvaged) -> dict[str, str]:
    """What the run took, by name."""
    last = run.batches[-1] if run.batches else Row()
    return {
        "dollars": "nothing: no model is asked",
        "wall time": duration(run.took),
        "environment steps": f"{last.get('steps', 0):,.0f}",
        "games that ended": f"{last.get(GAMES, 0):,.0f}",
        "steps per second": f"{last.get(PACE, 0):,.0f}",
    }


def points(arms: Sequence[Arm]) -> str:
    """Return and evaluations at the first, the best and the last point of each curve."""
    rows = []
    names = {RETURN: "**return**", EVALUATION: "evaluations"}
    for arm in arms:
        for name, what in names.items():
            if found := curve(arm.learners, name):
                at = (0, _top(found), len(found.x) - 1)
                said = (f"{short(found.mean[n])} ({found.x[n]:,})" for n in at)
                rows.append([f"{_who(arm, arms)}{what}", *said, f"{len(found.x)}"])
    return table(["", *(f"{one} (at step)" for one in ("first", "best", "last")), "points"], rows)


def figures(arms: Sequence[Arm]) -> str:
    """Each figure's mean over batches and runs, in their first quarter and in the last."""
    rows = []
    for arm in arms:
        for name, meaning in FIGURES.items():
            quarters = [_quarters(run.batches, name) for run in arm.learners]
            if all(quarters):
                means = (fmean(column) for column in zip(*quarters, strict=True))
                rows.append([f"{_who(arm, arms)}{meaning}", *map(short, means)])
    return table(["", "first quarter of the batches", "last quarter"], rows)


def _quarters(rows: Sequence[Row], name: str) -> tuple[float, ...]:
    """Means over batches; empty where a quarter lacks the figure."""
    size = max(1, len(rows) // QUARTER)
    found = [[row[name] for row in part if name in row] for part in (rows[:size], rows[-size:])]
    return tuple(map(fmean, found)) if all(found) else ()


def _who(arm: Arm, arms: Sequence[Arm]) -> str:
    seeds = f", {len(arm.learners)} seeds" if len(arm.learners) > 1 else ""
    return f"{inline(arm.label)}{seeds}: " if len(arms) > 1 else ""


def measured(experiments: Sequence[Experiment]) -> str:
    """What each team earned in new games, by game; '' where nothing was measured."""
    rows = [
        [
            *(inline(each.label), inline(_setting(one)), f"{one.steps:,}", inline(team)),
            *(ends_of(own.returns), f"{one.games:,}"),
        ]
        for each in experiments
        for one in lasts(each.run)
        for team, own in one.teams.items()
    ]
    heads = ["", "game", "at step", "team", "return (95 % interval)", "games"]
    return table(heads, rows) if rows else ""


_ENDS: Mapping[str, str] = {
    MEAN: "return, last 100 games",
    EVALUATION: "last evaluation",
    "learn/entropy": "entropy",
    "learn/explained_variance": "explained variance",
    PACE: "steps per second",
}


def ends(experiments: Sequence[Experiment]) -> str:
    """What each run came to: its last figures."""
    rows = []
    for one in experiments:
        batches = one.run.batches
        last = {name: row[name] for row in batches for name in _ENDS if name in row}
        steps, games = (int(batches[-1][name]) if batches else 0 for name in ("steps", GAMES))
        said = (short(last[name]) if name in last else "-" for name in _ENDS)
        rows.append([inline(one.label), f"{steps:,}", f"{games:,}", *said])
    return table(["", "steps", "games", *_ENDS.values()], rows)


def checkpoints(experiments: Sequence[Experiment]) -> str:
    """The checkpoints that are kept."""
    rows = []
    for one in experiments:
        found = saved(one.run)
        for event in (event for event, kept in found if kept):
            said = inline(str(event.state["checkpoint"]))
            rows.append([inline(one.label), said, f"{event.state['steps']:,}", f"{len(found)}"])
    if not rows:
        return "There is no checkpoint."
    return table(["", "kept", "at step", "written in all"], rows)
