"""`orchestry runs`: the runs in a folder, one row each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import Json, option

if TYPE_CHECKING:
    from rich.table import Table

    from orchestry.report.listing import Row

CHOICE = "Which runs"
WIDE = 110
"""Columns of a terminal that has room for all columns of the table."""
_STYLES = {"done": "green", "running": "cyan", "failed": "red", "damaged": "red"}
"""Colours by state; others are yellow."""
app = App()


@app.command("runs")
def _command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDER", help="Folders of runs, or runs.  [./runs]"),
    ] = None,
    where: Annotated[
        list[str] | None,
        option(
            CHOICE,
            "Only runs that fit, such as `task=code_*` or `state=done`; may be repeated.",
            metavar="KEY=PATTERN",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        option(
            CHOICE,
            "The highest first: `reward`, `best_of_k`, `usd` and others.  [begun]",
            metavar="KEY",
        ),
    ] = None,
    first: Annotated[
        int | None, option(CHOICE, "Only so many.", "--first", "-n", metavar="N", min=1)
    ] = None,
    as_json: Json = False,
) -> None:
    """List runs: what they are, how far they came, what they earned and cost.

    Runs are read, never changed; a run may still be going. Of a recipe each stage is a row.
    `--where` and `--sort` take the keys that `--json` shows.
    """
    from orchestry.cli.screen import console
    from orchestry.report.listing import chosen, rows_in

    rows = chosen(rows_in(folders or _default()), where or (), sort or "begun")[:first]
    if as_json:
        total = sum(row.usd for row in rows)
        typer.echo(json.dumps({"runs": [row.plain() for row in rows], "usd": total}))
        return
    where_to = console()
    where_to.print(_table(rows, where_to.width >= WIDE))
    errors = console(stderr=True)
    for row in rows:
        if row.error:
            errors.print(f"{row.run}: {row.error}", markup=False, soft_wrap=True)


def _default() -> list[Path]:
    from orchestry.core.errors import ConfigError

    if not Path("runs").is_dir():
        raise ConfigError("there is no folder ./runs here: give a folder of runs")
    return [Path("runs")]


def _table(rows: Sequence[Row], wide: bool) -> Table:
    """One row per run, and the sum of dollars; `wide`: with backend, model and time."""
    from rich.table import Table
    from rich.text import Text

    from orchestry.report.text import counted, plain

    table = Table(box=None, header_style="bold", pad_edge=False, show_footer=True)
    table.add_column("run", counted(len(rows), "run"), overflow="fold", footer_style="dim")
    for name in ("state", "task", *(("backend", "model") if wide else ())):
        table.add_column(name, overflow="fold")
    for name in (*(("begun, UTC",) if wide else ()), "played", "reward", "best of k"):
        table.add_column(name, justify="right", no_wrap=name != "begun, UTC")
    total = f"{sum(row.usd for row in rows):.4f}"
    table.add_column("dollars", total, justify="right", no_wrap=True, footer_style="dim")
    for row in rows:
        state = Text(row.state, _STYLES.get(row.state, "yellow"))
        more = (row.backend, row.model) if wide else ()
        named = [Text(plain(text)) for text in (row.run, row.task, *more)]
        figures = (
            *((row.begun[:16].replace("T", " "),) if wide else ()),
            _played(row),
            _reward(row.reward),
            _reward(row.best_of_k),
            f"{row.usd:.4f}",
        )
        table.add_row(named[0], state, *named[1:], *figures)
    return table


def _played(row: Row) -> str:
    """How much of what was asked."""
    from orchestry.report.text import tick

    if row.steps is not None:
        return f"{min(1.0, row.steps / row.asked):.0%} of {tick(row.asked)} steps"
    return f"{row.episodes:,} of {row.asked:,}"


def _reward(value: float | None) -> str:
    from orchestry.report.text import short

    return "-" if value is None else f"{value:.3f}" if abs(value) <= 1 else short(value)
