"""`orchestry run --dry-run`: the estimate, as a table or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from orchestry.cli.console import Notes
from orchestry.cli.screen import console
from orchestry.core.config import RunConfig
from orchestry.engine.estimate import Estimate, estimate
from orchestry.report.text import counted

RUNS = Path("runs")
"""Where runs lie that nobody gave a folder."""


def show(config: RunConfig, run_dir: Path | None, *, as_json: bool) -> None:
    """Prints what the run would cost; makes no call and writes nothing.

    Earlier runs are looked for where runs lie, and beside the folder of this one.
    """
    notes = Notes(console(stderr=True))
    folders = [RUNS, *([run_dir.parent] if run_dir else [])]
    found = estimate(config, note=notes, runs=folders)
    notes.close()
    if as_json:
        typer.echo(json.dumps(_plain(found)))
        return
    where = console()
    where.print(table(found))
    usd = found.cost_usd
    top = "none" if usd.max is None else f"{usd.max:.4f}"
    where.print(
        f"\ndollars: p5 {usd.p5:.4f}   expected {usd.expected:.4f}   p95 {usd.p95:.4f}   "
        f"hard maximum {top}"
    )
    where.print(f"{_kind(usd.max, config.budget.usd)} {_known(found)}", style="dim")


def _plain(found: Estimate) -> dict[str, Any]:
    """As JSON takes it; sums of shares without the noise in their last digits."""
    plain = found.model_dump(mode="json")
    for row in plain["usage"]:
        row |= {key: round(row[key], 2) for key in ("calls", "input_tokens", "output_tokens")}
    return plain


def _kind(top: float | None, cap: float | None) -> str:
    """What makes the maximum one."""
    if top is None:
        return (
            "There is no maximum without a budget: the run learns, or its answers may decide how "
            "many calls it makes, or it is too wide to count. Set one with --budget."
        )
    if top == cap:
        return "The maximum is the budget: no call is sent that could pass it."
    return "The maximum takes every answer at its longest and every retry as billed."


def _known(found: Estimate) -> str:
    """Where the lengths of answers are from."""
    if not found.earlier_runs:
        return (
            f"No earlier run of {found.model} tells how long its answers are, so the range is wide."
        )
    return f"Lengths of answers are from {counted(found.earlier_runs, 'earlier run')} of the model."


def table(found: Estimate) -> Table:
    """Expected calls, tokens and dollars by agent and purpose."""
    title = f"{found.task}, {counted(found.episodes, 'episode')} on {found.provider}/{found.model}"
    out = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("agent", "purpose"):
        out.add_column(heading, overflow="fold")
    for heading in ("calls", "tokens in", "tokens out", "dollars"):
        out.add_column(heading, justify="right", no_wrap=True)
    for row in found.usage:
        out.add_row(
            row.agent,
            row.purpose,
            f"{row.calls:,.0f}",
            f"{row.input_tokens:,.0f}",
            f"{row.output_tokens:,.0f}",
            f"{row.usd:.4f}",
        )
    out.add_section()
    out.add_row(
        "all",
        "",
        f"{found.calls:,}",
        f"{found.input_tokens:,}",
        f"{found.output_tokens:,}",
        f"{found.cost_usd.expected:.4f}",
    )
    return out
