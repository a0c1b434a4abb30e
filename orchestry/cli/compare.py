"""Measurements side by side: baselines, and a team beside itself as its run began."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestry.analysis.measures import Measures, gain, measured
from orchestry.analysis.stats import FEWEST, Interval
from orchestry.cli.show import EXIT_CODES, finish
from orchestry.store import Run


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
        Console().print(Text(said(difference, both)))
    return max(ends)


def shown(found: Mapping[str, Measures | None], title: str) -> None:
    """A row each; None is one without a finished episode."""
    console = Console()
    console.print(Text(f"\n{title}", style="bold"))
    for table in (rewards(found), passes(found)):
        if table:
            console.print(table, Text())
    console.print(
        Text("best: of a problem's trajectories; calls: for each problem", style="dim"),
    )


def rewards(found: Mapping[str, Measures | None]) -> Table:
    """Of one trajectory and of the best, with 95 % intervals over problems, and the cost."""
    out = _table("reward", "95 %", "best", "95 %", "calls", "tokens/s", "dollars")
    for name, one in found.items():
        out.add_row(name, *(_cells(one) if one else ["none played"]))
    return out


def passes(found: Mapping[str, Measures | None]) -> Table | None:
    """pass@k with intervals, where the task says what solved is."""
    ks = sorted({k for one in found.values() if one for k in one.pass_at})
    if not ks:
        return None
    out = _table(*(cell for k in ks for cell in (f"pass@{k}", "95 %")))
    for name, one in found.items():
        at = one.pass_at if one else {}
        out.add_row(name, *(cell for k in ks for cell in (_ends(at[k]) if k in at else ("-", ""))))
    return out


def _table(*headings: str) -> Table:
    out = Table("", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        dim = "dim" if heading == "95 %" else ""
        out.add_column(heading, justify="right", style=dim, no_wrap=True)
    return out


def _cells(one: Measures) -> list[str]:
    speed = "cached" if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}"
    cost = [f"{one.calls_a_problem:.1f}", speed, f"{one.usd:.4f}"]
    return [*_ends(one.reward), *_ends(one.best), *cost]


def _ends(one: Interval) -> tuple[str, str]:
    return f"{one.mean:.3f}", f"{one.low:.2f}-{one.high:.2f}"


def said(difference: Interval, problems: int) -> str:
    """A paired difference in words, which say so where there is none to be seen."""
    seen = difference.low > 0 or difference.high < 0
    doubt = "" if seen else "; it may be none: the interval holds 0"
    if problems < FEWEST:
        doubt = f"; it may be none: fewer than {FEWEST} problems show no difference"
    ends = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"difference {difference.mean:+.3f}, 95 % interval over problems {ends}{doubt}"
