"""`orchestry tournament`: players beside each other in the same games."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import hypot
from operator import mul
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from orchestry.cli.groups import App
from orchestry.cli.options import (
    BUDGET,
    EVALUATION,
    Json,
    RunDir,
    Sets,
    Task,
    TaskPath,
    Trusted,
    Verbose,
    option,
    run_folders,
    trusting,
)

if TYPE_CHECKING:
    from rich.table import Table

    from orchestry.core.config import RunConfig
    from orchestry.engine.tournament import Cell, Entry, Results
    from orchestry.report.stats import Interval

app = App()


@app.command("tournament")
def _command(
    players: Annotated[
        list[str],
        typer.Argument(
            metavar="PLAYER...",
            help="Scripted players of the task's, and runs: of backend ppo, api or local.",
            autocompletion=run_folders,
        ),
    ],
    task: Task = None,
    sets: Sets = None,
    games: Annotated[
        int, option(EVALUATION, "Games per pair of players and seat.", min=2, metavar="N")
    ] = 250,
    text_games: Annotated[
        int, option(EVALUATION, "The same with language models.", min=2, max=64, metavar="N")
    ] = 8,
    best_response: Annotated[
        str | None,
        option(EVALUATION, "Also learn a best response to each, such as 2M.", metavar="STEPS"),
    ] = None,
    run_dir: RunDir = None,
    task_path: TaskPath = None,
    trust: Trusted = False,
    budget: Annotated[
        float, option(BUDGET, "Hard cap of all games with language models.", metavar="USD")
    ] = 5.0,
    verbose: Verbose = False,
    as_json: Json = False,
) -> int:
    """Let players meet in one game: each in one seat beside every other in all other seats.

    Task and options come from the first run among the players, or from `--task` and `--set`; a
    player's own run is not changed. Figures are raw returns with 95 % intervals over games;
    players by numbers are dealt the same games. With `--best-response` PPO learns in the first seat
    beside each player: what it earns more than the player there is a lower bound of how exploitable
    that player is. A second call with the same `--run-dir` goes on.
    """
    from orchestry.cli.show import EXIT_CODES
    from orchestry.cli.watch import watching
    from orchestry.engine.run import new_run_folder
    from orchestry.engine.tournament import Tournament, entries

    with watching(verbose=verbose) as observer:
        found = entries(players, trusting(trust), observer)
        ppo = {"steps": best_response} if best_response else None
        given = {"task": task, "task_path": task_path, "ppo": ppo}
        config = _config(found, sets or [], {k: v for k, v in given.items() if v})
        folder = run_dir or new_run_folder(f"{config.task}--tournament")
        asked = Tournament(config, found, games, text_games, bool(ppo), folder, observer)
        results = asked.play(budget)
    _show(results, folder, as_json=as_json)
    return EXIT_CODES[results.stopped]


def _show(results: Results, folder: Path, *, as_json: bool) -> None:
    from orchestry.cli.screen import console
    from orchestry.engine.tournament import FILE

    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **_plain(results)}))
        return
    for table in (_matrix(results), _ratings(results)):
        console().print(table)
        console().print()
    for text in results.missing:
        console().print(f"not played: {text}", style="dim", markup=False)
    told = f"raw returns, ± half a 95 % interval; {folder / FILE} has every game"
    console().print(told, markup=False)


def _config(found: Sequence[Entry], sets: Sequence[str], given: Mapping[str, Any]) -> RunConfig:
    """Of the games: task and options of the first run, and what the user gives."""
    from orchestry.core.config import validate
    from orchestry.core.errors import ConfigError
    from orchestry.core.resolve import merge, settings_of
    from orchestry.store.run import read_config

    run = next((one.folder for one in found if one.folder), None)
    if run is None and "task" not in given:
        raise ConfigError("no run is among the players: say which game with --task")
    own: Mapping[str, Any] = read_config(run) if run is not None else {}
    same = given.get("task") in (None, own.get("task"))
    keys = ("task", "task_path", "options")
    kept: dict[str, Any] = {key: own[key] for key in keys if same and key in own}
    asked = settings_of(sets)
    if "agents" in asked:
        raise ConfigError("--set agents.*: who plays is named by the players: leave it out")
    return validate(merge(merge(kept, given), {**asked, "backend": "ppo"}))


# --- figures --------------------------------------------------------------------------------------


def _cells(found: Results) -> dict[tuple[str, str], Cell]:
    return {(cell.one, cell.other): cell for cell in found.cells}


def rating(found: Results, label: str) -> Interval | None:
    """What the player earns beside all others and itself, each counted once: its focal return per
    capita (Leibo et al., Melting Pot, arXiv 2107.06857)."""
    own = [cell.earned_D for cell in found.cells if cell.one == label]
    if len(own) < len(found.labels):  # beside other partners it would not compare
        return None
    return _combined([(1 / len(own), earned) for earned in own])


def best_reply(found: Results, label: str) -> tuple[str, Interval] | None:
    """The other player that earns most beside this one, and how much more than this one does beside
    itself: above 0, no equilibrium. It is chosen on every second deal and measured on the others,
    since the best of several looks too good where it was chosen."""
    itself = _cells(found).get((label, label))
    beside = [c for c in found.cells if c.other == label and c.one != label]
    if itself is None or not beside:
        return None
    best = max(beside, key=lambda cell: fmean(cell.earned_D[::2]))
    gain = _combined([(1.0, best.earned_D[1::2]), (-1.0, itself.earned_D[1::2])])
    return (best.one, gain) if gain else None


def _combined(parts: Sequence[tuple[float, Sequence[float]]]) -> Interval | None:
    """The weighted sum of means over deals: paired where all have the same deals, else as if the
    parts were independent. None of no parts, or of one with a single deal."""
    from orchestry.report.stats import Interval

    if not parts or min(len(figures) for _, figures in parts) < 2:
        return None
    if len({len(figures) for _, figures in parts}) == 1:
        deals = zip(*(figures for _, figures in parts), strict=True)
        weights = [weight for weight, _ in parts]
        return _interval([sum(map(mul, weights, deal)) for deal in deals])
    found = [(weight, _interval(figures)) for weight, figures in parts]
    mean = sum(weight * one.mean for weight, one in found)
    half = hypot(*(weight * (one.high - one.low) / 2 for weight, one in found))
    return Interval(mean, mean - half, mean + half)


def _interval(figures: Sequence[float]) -> Interval:
    """The mean, with Student's 95 % interval: of few games, a bootstrap's is too narrow."""
    from orchestry.core.intervals import student_95
    from orchestry.report.stats import Interval

    mean = fmean(figures)
    half = student_95(len(figures) - 1) * stdev(figures) / len(figures) ** 0.5
    return Interval(mean, mean - half, mean + half)


def exploited(found: Results) -> dict[str, Interval]:
    """By player: what a best response by PPO earns more in the first seat."""
    gains = {
        one.to: _combined([(1.0, one.earned_G), (-1.0, one.itself_G)]) for one in found.responses
    }
    return {label: gain for label, gain in gains.items() if gain}


def _plain(found: Results) -> dict[str, Any]:
    ratings = {label: rating(found, label) for label in found.labels}
    return {
        "cells": [
            {
                "player": cell.one,
                "beside": cell.other,
                "earned": _figures(cell.earned_D),
                "others": _figures(cell.others_D),
                "games_per_seat": len(cell.earned_D),
            }
            for cell in found.cells
        ],
        "ratings": {label: one.plain() for label, one in ratings.items() if one},
        "exploited": {label: one.plain() for label, one in exploited(found).items()},
        "missing": found.missing,
    }


def _figures(earned_D: Sequence[float]) -> dict[str, float] | None:
    one = _combined([(1.0, earned_D)])
    return one.plain() if one else None


def _said(one: Interval | None, signed: bool = False) -> str:
    if one is None:
        return "-"
    return f"{one.mean:{'+' if signed else ''}.1f} ± {(one.high - one.low) / 2:.1f}"


def _found(gain: Interval | None) -> str:
    """A best response's gain: one that earns no more than the player bounds nothing."""
    return "none found" if gain and gain.mean <= 0 else _said(gain, signed=True)


def _table(heads: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    return table


def _matrix(found: Results) -> Table:
    cells = _cells(found)
    table = _table(["earns, beside:", *map(escape, found.labels)])
    for one in found.labels:
        row = (cells.get((one, other)) for other in found.labels)
        table.add_row(
            escape(one),
            *(_said(_combined([(1.0, cell.earned_D)]) if cell else None) for cell in row),
        )
    return table


def _ratings(found: Results) -> Table:
    gains = exploited(found)
    heads = ["player", "rating", "others beside it", "best reply here", "gain"]
    table = _table([*heads, *(["PPO's gain"] if gains else [])])
    rated = {label: rating(found, label) for label in found.labels}
    for label in sorted(rated, key=lambda label: -(one.mean if (one := rated[label]) else 0.0)):
        others = [c.others_D for c in found.cells if c.one == label and c.other != label]
        given = _combined([(1 / len(others), each) for each in others])
        reply = best_reply(found, label)
        name, gain = reply or ("-", None)
        row = [_said(rated[label]), _said(given), name, _said(gain, signed=True)]
        own = [_found(gains.get(label))] if gains else []
        table.add_row(*map(escape, (label, *row, *own)))
    return table
