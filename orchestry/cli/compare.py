"""`orchestry compare`: two runs beside each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import Json, run_argument

if TYPE_CHECKING:
    from rich.table import Table

    from orchestry.report.comparison import Comparison

app = App()


@app.command("compare")
def _command(
    first: Annotated[Path, run_argument("RUN")],
    second: Annotated[Path, run_argument("RUN")],
    as_json: Json = False,
) -> None:
    """Compare two runs: their settings, their figures, and differences with 95 % intervals.

    A difference is the second run less the first, paired over the problems that both played. Where
    both were measured on held-out problems in the same way (`orchestry evaluate`), those come
    first: they alone show a gain. Nothing is played or asked.
    """
    from orchestry.cli.screen import console, fitted
    from orchestry.report.comparison import compared
    from orchestry.report.runs import read_experiments

    one, other = read_experiments([first, second])
    found = compared(one, other)
    if as_json:
        typer.echo(json.dumps({"first": str(first), "second": str(second), **found.plain()}))
        return
    where = console()
    for name, run in (("first", one), ("second", other)):
        where.print(f"{name}: {run.label}", markup=False, highlight=False, soft_wrap=True)
    where.print()
    where.print(_settings(found))
    where.print(_figures(found))
    for sentence in _warnings(found):
        typer.echo(fitted(sentence))


def _settings(found: Comparison) -> Table:
    """One row per setting that differs."""
    table = _table("setting", "first", "second")
    for key, values in found.settings.items():
        table.add_row(*_cells(key, *map(_value, values)))
    if not found.settings:
        table.add_row(*_cells("no setting on which results depend differs", "", ""))
    return table


def _figures(found: Comparison) -> Table:
    """One row per figure; of rewards also what the difference shows."""
    from orchestry.report.headline import signed
    from orchestry.report.held_out import shows_gain

    table = _table("figure", "first", "second", "difference", "problems", "shown", figures=True)
    for one in found.figures:
        row = [one.name, _number(one.first), _number(one.second)]
        if one.ahead:
            shown = shows_gain(one.ahead, one.problems) if one.kind else ""
            row += [signed(one.ahead), str(one.problems), shown.partition(":")[0]]
        table.add_row(*_cells(*row))
    return table


def _warnings(found: Comparison) -> Iterator[str]:
    """What the figures do not show."""
    from orchestry.report.comparison import REWARDED

    kinds = {one.kind for one in found.figures}
    other = [key for key in found.settings if key.partition(".")[0] in REWARDED]
    if other:
        yield (
            f"The runs differ in {', '.join(other)}, so they may play other problems of equal "
            "names or be paid for something else: their rewards are not compared."
        )
    elif "reward" in kinds and "held-out" not in kinds:
        yield (
            "No held-out evaluation is common to both (same split, same samples), so no gain is "
            "claimed: `orchestry evaluate` each."
        )


def _table(*names: str, figures: bool = False) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if figures and place else "left", overflow="fold")
    return table


def _cells(*texts: str) -> Iterator[Any]:
    from rich.text import Text

    from orchestry.report.text import plain

    for text in texts:
        yield Text(plain(text))


def _value(value: Any) -> str:
    return "-" if value is None else str(value)


def _number(value: float | None) -> str:
    from orchestry.report.text import short

    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) and abs(value) > 1 else short(value)
