"""Runs of backend ppo in the page's data: curves over steps, settings, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestry.report import neural
from orchestry.report.runs import Arm, Salvaged, by_task
from orchestry.store.games import Evaluation

Pairs = list[tuple[int, float]]
"""Steps, and a figure there."""
_TOLD = ("run", "environment steps")
"""Facts that stand elsewhere on the page."""


def steps(run: Salvaged) -> dict[str, Any] | None:
    """A run's curves and facts; None for one of another backend. All curves have the same steps."""
    if not run.neural:
        return None
    rows, smooth = run.batches, neural.window([run])
    tests = neural.line(rows, neural.EVALUATION, 1)
    spread = neural.spread(rows, smooth) if smooth > 1 else {}
    at = neural.thinned([int(row["steps"]) for row in rows])
    lines = {
        meaning: _pairs(neural.line(rows, name, smooth), at)
        for name, meaning in neural.FIGURES.items()
    }
    return {
        "over": neural.over([[run]]),
        "ended": neural.ended(run),
        "asked": run.config["ppo"]["steps"],
        "last": {name: _short(row[name]) for row in rows for name in row if name != "at"},
        "return": _pairs(neural.line(rows, neural.RETURN, smooth), at),
        "band": [[one, *map(_short, spread[one])] for one in at if one in spread],
        "batches": _pairs(neural.line(rows, neural.RETURN, 1), at),
        "evaluations": _pairs(tests, neural.thinned([*tests])),
        "figures": [{"name": name, "points": points} for name, points in lines.items() if points],
        "facts": [[name, said] for name, said in neural.setup(run).items() if name not in _TOLD],
        "measured": [
            {"game": neural.played(one), "steps": one.steps, "teams": _teams(one)}
            for one in neural.lasts(run)
        ],
        "checkpoints": [
            {"name": event.state["checkpoint"], "steps": event.state["steps"], "kept": kept}
            for event, kept in neural.saved(run)
        ],
    }


def compared(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """By game, each arm's curve: the mean over its runs, and the band that its figure has."""
    found = []
    for task, of_task in by_task(arms).items():
        for game, of_game in neural.by_game(of_task).items():
            over = neural.over([arm.learners for arm in of_game])
            curves = [one for arm in of_game if (one := _curve(arm))]
            name = ", ".join(filter(None, (task, game)))
            found.append({"game": name, "over": over, "arms": curves})
    return [one for one in found if one["arms"]]


def _curve(arm: Arm) -> dict[str, Any] | None:
    """None before a game has ended."""
    found = neural.curve(arm.learners, neural.RETURN)
    if found is None:
        return None
    tests = neural.curve(arm.learners, neural.EVALUATION)
    band = zip(found.x, map(_short, found.low), map(_short, found.high), strict=True)
    return {
        "label": arm.label,
        "seeds": len(arm.learners),
        "points": _pairs(dict(zip(found.x, found.mean, strict=True)), found.x),
        "band": list(band) if len(arm.learners) > 1 else None,
        "evaluations": _pairs(dict(zip(tests.x, tests.mean, strict=True)), tests.x)
        if tests
        else [],
    }


def _teams(one: Evaluation) -> list[dict[str, Any]]:
    return [
        {"team": team, **{name: _short(value) for name, value in own.returns}}
        for team, own in one.teams.items()
    ]


def _pairs(line: Mapping[int, float], at: Iterable[int]) -> Pairs:
    return [(one, _short(line[one])) for one in at if one in line]


def _short(value: float) -> float:
    """Six significant digits; whole numbers stay whole."""
    return value if isinstance(value, int) else float(f"{value:.6g}")
