"""`orchestry tasks generate`: a model writes new problems for a task."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

import typer

from orchestry.cli.options import (
    MODEL,
    OUTPUT,
    RUN,
    AllowUnsafe,
    Budget,
    Config,
    DryRun,
    Json,
    Model,
    Patience,
    Seed,
    Sets,
    TaskPath,
    Trusted,
    config_from,
    flag,
    option,
    spread,
    task_names,
)
from orchestry.core.choices import ProviderName

if TYPE_CHECKING:
    from orchestry.cli.console import Notes
    from orchestry.ext.writing.writing import WritingReport


class _Flags(TypedDict):
    """The flags that change the run's config."""

    seed: Seed
    task_path: TaskPath
    file: Config
    sets: Sets
    provider: Annotated[ProviderName | None, option(MODEL, "Who writes.  [auto]")]
    model: Model
    budget: Budget
    patience: Patience
    allow_unsafe_code: AllowUnsafe
    trust: Trusted


@spread
def generate(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="code_review, code_collaboration, or another task with problems of code.",
            autocompletion=task_names,
        ),
    ],
    count: Annotated[int, option(RUN, "Problems to keep.", min=1, max=10_000, metavar="N")] = 20,
    grade: Annotated[
        int | None,
        option(RUN, "Difficulty, 1 (easy) to 5.  [1 to 4 in turn]", min=1, max=5, metavar="G"),
    ] = None,
    solver: Annotated[
        list[str] | None,
        option(
            MODEL,
            "A model that solves each problem; may be given twice; may name its provider, as in "
            "openai/NAME.  [--model]",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        option(OUTPUT, "The file of problems.  [runs/problems--TASK.jsonl]", metavar="FILE"),
    ] = None,
    dry_run: DryRun = False,
    verbose: Annotated[bool, flag(OUTPUT, "Also a line per dropped problem.", "--verbose")] = False,
    as_json: Json = False,
    **flags: Unpack[_Flags],
) -> int:
    """Have a model write problems with gold and tests, and keep the good ones.

    Kept is a problem whose gold passes its own tests in two runs, which repeats no other problem,
    and of which two solvers pass different tests. The same command again goes on. Exit codes: 0
    done, 1 failed or none kept, 2 bad usage, 3 stopped at the budget, 4 the server stayed away, 130
    interrupted.
    """
    from orchestry.cli.console import Notes
    from orchestry.cli.dry_run import show
    from orchestry.cli.screen import console
    from orchestry.cli.show import EXIT_CODES
    from orchestry.ext.writing.writing import Asked, forecast, write_problems

    config, asked = config_from(task=name, **flags), Asked(count, tuple(solver or ()), grade)
    file = into or Path("runs") / f"problems--{name}.jsonl"
    if dry_run:
        show(config, file, as_json=as_json, foretell=partial(forecast, asked=asked), noun="problem")
        return 0
    watch = _Watch(Notes(console(stderr=True)), count, verbose)
    try:
        report = write_problems(config, asked, file, watch)
    finally:
        watch.note.close()
    typer.echo(report.model_dump_json() if as_json else _told(report))
    none = report.stopped == "done" and not report.kept
    return 1 if none else EXIT_CODES[report.stopped]


class _Watch:
    """A line per problem that is kept."""

    def __init__(self, note: Notes, count: int, verbose: bool) -> None:
        self.note, self._count, self._verbose = note, count, verbose

    def tried(self, attempt: int, kept: int, why: str) -> None:
        if not why:
            self.note(f"kept {kept} of {self._count} after {attempt} attempts")
        elif self._verbose:
            self.note(f"attempt {attempt} dropped: {why}")


def _told(report: WritingReport) -> str:
    cost = f"{report.calls} calls, ${report.cost_usd:.4f}"
    lines = [f"Kept {report.kept} of {report.asked} problems ({report.attempts} attempts, {cost})."]
    lines += [f"  {count} dropped: {why}" for why, count in report.dropped.items()]
    if report.kept:
        lines.append(f"Use them: --set options.bank={report.file}")
    lines.append(f"How they were made: {Path(report.folder) / 'README.md'}")
    return "\n".join(lines)
