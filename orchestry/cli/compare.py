"""Measurements side by side: baselines, and a team beside itself as its run began."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import click
from rich.table import Table
from rich.text import Text

from orchestry.cli.screen import console
from orchestry.cli.show import EXIT_CODES, finish
from orchestry.report.measures import Measures, gain, measured
from orchestry.report.stats import FEWEST, Interval
from orchestry.store.run import Run

Part = list[tuple[str, list[str]]]
"""Columns that stay beside each other: a heading, and a cell for each name."""


def beside(found: Run, began: Run, *, show_best: bool, as_json: bool) -> int:
    """Shows an evaluation, and the same of the team as its run began; returns the exit code."""
    ends = EXIT_CODES[found.summary.stopped], EXIT_CODES[began.summary.stopped]
    difference = gain(found, began)
    both = len({e.problem for e in found.episodes} & {e.problem for e in began.episodes})
    if as_json:
        plain = {
            **found.summary.model_dump(mode="json"),
            "untrained": began.summary.model_dump(mode="json"),
            "difference": difference and {**difference.plain(), "problems": both},
        }
        click.echo(json.dumps(plain))
        return max(ends)
    finish(found, show_best=show_best, as_json=False)
    name = found.folder.name.partition("--")[2].partition("--")[0].replace("-", " ")
    rows = {name: measured(found), "as the run began": measured(began)}
    shown(rows, f"{found.summary.task}, {len(found.episodes)} problems, equal seeds")
    if difference:
        console().print(Text(said(difference, both)))
    return max(ends)


def shown(found: Mapping[str, Measures | None], title: str) -> None:
    """A row each; None is one without a finished episode."""
    where = console()
    where.print(Text(f"\n{title}", style="bold"))
    for parts in ((*rewards(found),), passes(found)):
        for table in _tables([*found], parts, where.width):
            where.print(table, Text())
    where.print(
        Text("best: of a problem's trajectories; calls: for each problem", style="dim"),
    )


def rewards(found: Mapping[str, Measures | None]) -> tuple[Part, Part]:
    """Of one trajectory and of the best, with 95 % intervals over problems; and the cost."""
    rows = [_figures(one) if one else ["none played", "", "", "", ""] for one in found.values()]
    heads = (f"reward{'95 %':>10}", f"best{'95 %':>10}", "calls", "tokens/s", "dollars")
    columns = [(head, [row[place] for row in rows]) for place, head in enumerate(heads)]
    return columns[:2], columns[2:]


def passes(found: Mapping[str, Measures | None]) -> list[Part]:
    """pass@k with intervals, where the task says what solved is."""
    ats = [one.pass_at if one else {} for one in found.values()]
    ks = sorted({k for at in ats for k in at})
    cells = {k: [_ends(at[k]) if k in at else "-" for at in ats] for k in ks}
    return [[(f"pass@{k}{'95 %':>10}", column)] for k, column in cells.items()]


def _tables(names: Sequence[str], parts: Sequence[Part], width: int) -> Iterator[Table]:
    """As many tables below each other as it takes for none to be wider than that."""
    left, first = list(parts), max(map(len, names), default=0)
    while left:
        columns = left.pop(0)
        while left and first + _width(columns) + _width(left[0]) <= width:
            columns = [*columns, *left.pop(0)]
        out = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        out.add_column("", no_wrap=True)
        for head, _ in columns:
            out.add_column(head, justify="right", no_wrap=True)
        for name, *row in zip(names, *(cells for _, cells in columns), strict=True):
            out.add_row(name, *row)
        yield out


def _width(part: Part) -> int:
    """With the space before each column."""
    return sum(1 + max(len(text) for text in (head, *cells)) for head, cells in part)


def _figures(one: Measures) -> list[str]:
    speed = "cached" if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}"
    cost = [f"{one.calls_a_problem:.1f}", speed, f"{one.usd:.4f}"]
    return [_ends(one.reward), _ends(one.best), *cost]


def _ends(one: Interval) -> str:
    return f"{one.mean:.3f} {one.low:.2f}-{one.high:.2f}"


def said(difference: Interval, problems: int) -> str:
    """A paired difference in words, which say so where there is none to be seen."""
    seen = difference.low > 0 or difference.high < 0
    doubt = "" if seen else "; it may be none: the interval holds 0"
    if problems < FEWEST:
        doubt = f"; it may be none: fewer than {FEWEST} problems show no difference"
    ends = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"difference {difference.mean:+.3f}, 95 % interval over problems {ends}{doubt}"
