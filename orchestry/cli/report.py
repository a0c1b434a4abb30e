"""`orchestry report`: writes a report of one or more runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import OUTPUT, Json, flag, option, run_argument
from orchestry.cli.screen import console, fitted

if TYPE_CHECKING:
    from orchestry.report.document import Report
    from orchestry.report.recipes import Brought
    from orchestry.report.runs import Experiment


app = App()


@app.command("report")
def _command(
    runs: Annotated[list[Path], run_argument("RUN")],
    out: Annotated[
        Path | None, option(OUTPUT, "Folder to write to.  [RUN/report]", metavar="DIR")
    ] = None,
    checked: Annotated[
        bool,
        flag(OUTPUT, "Say too which criteria of success each run meets.", "--criteria"),
    ] = False,
    as_json: Json = False,
) -> int:
    """Write RESULTS.md, summary.txt, figures and a page from run directories.

    Evaluations and baselines stored in a run are included. Several runs are compared side by side
    and need `--out`; runs that differ only in their seed are also pooled. Of a recipe, what each
    stage brought is shown. Nothing is played or asked. A run may be unfinished or partly damaged:
    the report says what is missing. A second call overwrites the report.

    `--criteria` says, for each run, which criteria are met, not met, or can't be told, and by which
    figures: 500 episodes without a crash, a rising cooperation rate, pass rates, baselines, and
    more. The exit code does not depend on them.
    """
    from orchestry.report.recipes import brought, stages_said

    experiments, report = written(runs, out, checked=checked)
    stages = [one for run in runs for one in stages_said(brought(run))]
    if as_json:
        found = {"criteria": _criteria(experiments)} if checked else {}
        typer.echo(json.dumps({**_plain(experiments, report), "stages": stages, **found}))
    else:
        _show(experiments, report, stages, checked=checked)
    return 0


def _criteria(experiments: Sequence[Experiment]) -> list[dict[str, str]]:
    from orchestry.report.criteria import criteria

    return [one.plain() for experiment in experiments for one in criteria(experiment)]


def written(
    runs: Sequence[Path], out: Path | None, *, checked: bool = False
) -> tuple[tuple[Experiment, ...], Report]:
    """Writes the report, with notes on stderr."""
    from orchestry.cli.console import say
    from orchestry.report.document import write_report
    from orchestry.report.recipes import brought, stages_table
    from orchestry.report.runs import read_experiments
    from orchestry.report.text import counted

    folder, errors = _folder(runs, out), console(stderr=True)
    say(errors, f"reading {counted(len(runs), 'run')}, writing the report to {folder}")
    recipes = {run: brought(run) for run in runs}
    experiments = read_experiments([one for run in runs for one in _played(run, recipes[run])])
    given = [*map(str, runs), *(["--out", str(out)] if out else []), *["--criteria"] * checked]
    command = shlex.join(["orchestry", "report", *given])
    tables = [stages_table(found) for found in recipes.values() if found]
    report = write_report(experiments, folder, command, "\n\n".join(tables), checked)
    if report.undrawn:
        say(errors, report.undrawn)
    return experiments, report


def _played(run: Path, stages: Sequence[Brought]) -> list[Path]:
    """The run, or the stages of a recipe that have begun."""
    return [one.stage.folder for one in stages if one.stage.begun] if stages else [run]


def _folder(runs: Sequence[Path], out: Path | None) -> Path:
    """The report's folder; raises ConfigError."""
    from orchestry.core.errors import ConfigError

    if out is None and len(runs) > 1:
        raise ConfigError(
            f"a report of {len(runs)} runs needs a folder: give one with --out DIR "
            "(in Python: out=DIR)"
        )
    folder = out or runs[0] / "report"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a directory: choose another --out (in Python: out)")
    return folder


def _show(
    experiments: tuple[Experiment, ...], report: Report, stages: Sequence[str], *, checked: bool
) -> None:
    """What the stages of recipes brought, the report's headlines, the criteria, and its path."""
    from orchestry.report.criteria import sentences as met
    from orchestry.report.headline import summary
    from orchestry.report.text import plain

    for sentence in stages:
        typer.echo(fitted(plain(sentence), hang=2))
    if stages:
        typer.echo()
    for name, sentences in summary(experiments):
        typer.echo(plain(name))
        for sentence in sentences:
            typer.echo(fitted(f"  {plain(sentence)}", hang=2))
        typer.echo()
    for experiment in experiments if checked else ():
        typer.echo(plain(f"{experiment.label}: criteria of success"))
        for sentence in met(experiment):
            typer.echo(fitted(f"  {plain(sentence)}", hang=16))
        typer.echo()
    for path in report.files:
        typer.echo(str(path))


def _plain(experiments: tuple[Experiment, ...], report: Report) -> dict[str, object]:
    from orchestry.report.headline import summary

    return {
        "folder": str(report.folder),
        "files": [str(path) for path in report.files],
        "runs": [
            {
                "label": one.label,
                "run_dir": str(one.run.folder),
                "evaluations": list(one.evaluations),
                "baselines": list(one.baselines),
                "missing": list(one.missing),
            }
            for one in experiments
        ],
        "summary": [{"of": name, "says": said} for name, said in summary(experiments)],
    }
