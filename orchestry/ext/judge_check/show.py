"""The output of `orchestry judge check`: a bar while it asks, and a table at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from orchestry.backends.base import Backend
from orchestry.cli.console import Console, Notes, say
from orchestry.cli.screen import console, facts, print_framed
from orchestry.cli.show import ENDINGS, EXIT_CODES
from orchestry.cli.watch import OPENING, Lines, spent, traffic
from orchestry.engine.plan import Plan
from orchestry.ext.judge_check.check import CheckReport, Watcher
from orchestry.ext.judge_check.measures import JudgeMeasures, Share, Sheet, measure

_STYLES = {"trustworthy": "bold green", "usable": "green", "unsure": "yellow"}
"""Colours by level of advice; other levels are red."""


class Spending(ProgressColumn):
    """Dollars spent of the cap, answers from the cache, and calls in flight."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend

    def render(self, task: Task) -> Text:
        return Text(" ".join((spent(self.backend), *traffic(self.backend))), style="cyan")


@dataclass(frozen=True, slots=True)
class Stage:
    """The line for a file: stage, progress and cost."""

    progress: Progress
    backend: Backend
    answered: bool = True
    """The check has something to show once it has begun."""

    def parts(self) -> list[str]:
        tasks = self.progress.tasks
        stage = [f"{one.description} {one.completed:.0f}/{one.total:.0f}" for one in tasks]
        return [*stage, spent(self.backend), *traffic(self.backend)]


class _Watch:
    """A Watcher that draws on stderr: a bar on a terminal, a line from time to time in a file."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self.console, self.verbose = console, verbose
        self.note = Notes(console)
        self.progress: Progress | None = None
        self._bar = TaskID(0)
        self._lines: Lines | None = None

    def started(self, folder: Path, plan: Plan) -> None:
        provider, config = plan.backend.provider, plan.config
        self.note(f"judge {provider.name}/{provider.model} on {config.task} -> {folder}")
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            Spending(plan.backend),
            TextColumn("eta"),
            TimeRemainingColumn(compact=True),
            console=self.console,
        )
        self._bar = self.progress.add_task("scoring answers", total=config.episodes)
        if self.console.is_terminal:
            self.progress.start()
        else:
            self._lines = Lines(self.console, Stage(self.progress, plan.backend))

    def scored(self) -> None:
        if self.progress:
            self.progress.advance(self._bar)

    def asking(self, problems: int) -> None:
        if self.progress:
            self.progress.remove_task(self._bar)
            self._bar = self.progress.add_task("asking the judge", total=problems)

    def examined(self, sheet: Sheet) -> None:
        if self.progress:
            self.progress.advance(self._bar)
        if self.verbose:
            found = measure([sheet])
            say(
                self.console,
                f"{sheet.problem}  agreement {_percent(found.agreement)}  "
                f"swaps alike {_percent(found.swap_consistency)}",
            )

    def close(self) -> None:
        if self.progress:
            self.progress.stop()
        if self._lines:
            self._lines.stop()
        self.note.close()


@contextmanager
def watching_check(*, verbose: bool) -> Iterator[Watcher]:
    """A live view during a check."""
    watch = _Watch(Console(stderr=True), verbose=verbose)
    watch.note(OPENING)
    try:
        yield watch
    finally:
        watch.close()


def show_check(report: CheckReport, *, as_json: bool) -> int:
    """Shows the results of a check; returns the exit code."""
    if as_json:
        typer.echo(report.model_dump_json())
    else:
        title = f"judge {report.provider}/{report.model} on {report.task}"
        print_framed(console(), _table(report), f"{escape(title)}: {ENDINGS[report.stopped]}")
    return EXIT_CODES[report.stopped]


def _table(report: CheckReport) -> Group:
    """Every figure with its meaning, then the advice."""
    advice = report.advice
    verdict = Text(advice.text, style=_STYLES.get(advice.level, "red"))
    return Group(_figures(report.measures), Text(), _costs(report), Text(), verdict)


def _figures(found: JudgeMeasures) -> Table:
    table = Table("", "found", "95 % interval", "pairs", box=None, padding=(0, 1))
    rows = (
        ("orders answers of different scores rightly, one call", found.agreement),
        ("the same, two calls in opposite orders", found.agreement_twice),
        ("orders alike when the order shown is reversed", found.swap_consistency),
        ("flips when the same question is asked again", found.repeat_flips),
    )
    for name, share in rows:
        table.add_row(name, _percent(share), _interval(share), str(share.pairs if share else 0))
    table.add_row("a tie between answers of different scores", _bare(found.tied))
    table.add_row("rank correlation with the scores, one call", _number(found.rank_correlation))
    table.add_row("rank correlation, two calls", _number(found.rank_correlation_twice))
    effect = found.position_effect
    points = "-" if effect is None else f"{effect:+.2f}"
    table.add_row("points (of 10) gained by standing first, not last", points)
    return table


def _costs(report: CheckReport) -> RenderableType:
    cap = "no cap" if report.budget_usd is None else f"of ${report.budget_usd:g}"
    verdicts = "  ".join(f"{name} {n}" for name, n in report.measures.verdicts.items()) or "none"
    tokens = f"{report.input_tokens:,} in, {report.output_tokens:,} out"
    return facts(
        ("problems", f"{report.problems} of {report.problems_asked}"),
        ("answers", f"{report.candidates}"),
        ("verdicts", verdicts),
        ("calls", f"{report.calls}, and {report.cache_hits} from the cache"),
        ("tokens", tokens),
        ("cost", f"${report.cost_usd:.4f} {cap}"),
        ("time", f"{report.seconds:.1f} s"),
        ("results", report.run_dir),
    )


def _percent(share: Share | None) -> str:
    return _bare(share.value if share else None)


def _interval(share: Share | None) -> str:
    return f"{share.low:.1%} to {share.high:.1%}" if share else "-"


def _bare(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
