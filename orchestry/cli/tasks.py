"""`orchestry tasks`: list, check and create tasks."""

from __future__ import annotations

import asyncio
import json
import keyword
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestry.cli.groups import Group
from orchestry.cli.options import task_path_option
from orchestry.cli.screen import console, fitted

if TYPE_CHECKING:
    from orchestry.task.base import BaseTask
    from orchestry.task.check import Finding
    from orchestry.task.registry import TaskLocation

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


CASES = 5
"""Cases against a rule that are shown without --verbose."""
ANY = "any answer"
COSTS = (
    "In a run, an answer that the task raises on costs its trajectory (it scores 0, tag "
    "task_error), not the run. --verbose shows the traceback."
)


@click.group(cls=Group)
def command() -> None:
    """List, check and create tasks."""


@command.command("list")
@task_path_option
@json_option
def list_tasks(task_path: Sequence[Path], as_json: bool) -> None:
    """Show every task that can be run from here. Imports none of them."""
    from orchestry.task.registry import find_tasks

    tasks = list(find_tasks(task_path, Path.cwd()).values())
    if as_json:
        click.echo(json.dumps({"tasks": [_plain(task) for task in tasks]}))
    else:
        _print_table(tasks)


@command.command("check")
@click.argument("name")
@task_path_option
@json_option
@click.option("--verbose", is_flag=True, help="Show tracebacks, and all cases.")
@click.option(
    "--allow-unsafe-code", is_flag=True, help="Check it even where code can't be confined."
)
def check(
    name: str, task_path: Sequence[Path], as_json: bool, verbose: bool, allow_unsafe_code: bool
) -> int:
    """Play a task with odd, empty and gold answers; exit 1 if it breaks a rule.

    Odd answers are long, deep, cut off, in other bytes, of other agents. In a run, one that the
    task raises on costs its trajectory (0, tag task_error) and not the run.
    """
    from orchestry.cli.notes import say
    from orchestry.task.registry import load_task

    errors = console(stderr=True)
    say(errors, f"loading task {name}, then playing it with odd, empty and gold answers")
    task = load_task(name, task_path, warn=lambda text: say(errors, f"warning: {text}"))
    findings = asyncio.run(_findings(task, allow_unsafe_code))
    ok = all(finding.ok for finding in findings)
    if as_json:
        rules = [
            {"rule": each.rule, "ok": each.ok, "detail": each.detail, "cases": each.cases}
            for each in findings
        ]
        click.echo(json.dumps({"task": name, "ok": ok, "findings": rules}))
    else:
        _print_checklist(name, findings, verbose)
    return 0 if ok else 1


@command.command("new")
@click.argument("name")
@click.option(
    "--dir",
    "parent",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("tasks"),
    show_default=True,
    help="The folder that gets the task's folder.",
)
@click.option("--force", is_flag=True, help="Even if it hides another task of that name.")
def new(name: str, parent: Path, force: bool) -> None:
    """Write a small task that works: change its problems, then its reward."""
    from orchestry.cli.skeleton import write_task
    from orchestry.core.errors import ConfigError
    from orchestry.task.registry import find_tasks

    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"'{name}' can't name a task: use letters, digits and _, as in my_task")
    folder = parent / name
    if folder.exists():
        raise ConfigError(f"{folder} exists: choose another name, or remove that folder first")
    if not force and (hidden := find_tasks((), Path.cwd()).get(name)):
        raise ConfigError(
            f"there is a task '{name}' ({hidden.source}: {hidden.place}), which the new one would "
            "hide: choose another name, or add --force"
        )
    write_task(folder, name)
    where = "" if parent == Path("tasks") else f" --task-path {parent}"
    click.echo(f"Wrote {folder}. Next:")
    click.echo(f"  orchestry tasks check {name}{where}")
    click.echo(f"  orchestry run --task {name}{where} --episodes 5")


async def _findings(task: BaseTask[Any], unsafe: bool) -> list[Finding]:
    from orchestry.core.types import Limits
    from orchestry.sandbox import open_sandbox
    from orchestry.task.check import check_task

    async with open_sandbox(Limits(), allow_unsafe=unsafe) as sandbox:
        return await check_task(task, sandbox)


def _plain(task: TaskLocation) -> dict[str, object]:
    return {
        "name": task.name,
        "source": task.source,
        "place": task.place,
        "description": task.description,
        "shadows": list(task.shadows),
    }


def _print_table(tasks: Sequence[TaskLocation]) -> None:
    from rich.table import Table
    from rich.text import Text

    where = console()
    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True, style="bold")
    table.add_column("what it is, and where", overflow="fold")
    for task in tasks:
        place = f"{task.source}: {task.folder or task.place}"
        between = "\n" if where.is_terminal else "  "  # a line a task in a file
        table.add_row(task.name, Text.assemble(task.description, between, (place, "dim")))
    where.print(table)


def _print_checklist(name: str, findings: Sequence[Finding], verbose: bool) -> None:
    from rich.text import Text

    where = console()
    for finding in findings:
        mark, colour = ("ok  ", "green") if finding.ok else ("FAIL", "red")
        line = fitted(f"{mark}  {finding.rule}: {finding.detail}", hang=6)
        coloured = Text.assemble((mark, colour), line.removeprefix(mark))
        where.print(coloured, soft_wrap=True)
        most = len(finding.cases) if verbose else CASES
        for case in finding.cases[1:most]:
            click.echo(fitted(f"      {case}", hang=8))
        if verbose and finding.trace:
            click.echo(finding.trace)
    broken = sum(not finding.ok for finding in findings)
    verdict = f"breaks {broken} of {len(findings)} rules" if broken else "keeps every rule"
    click.echo(f"Task {name} {verdict}.")
    if any(finding.rule == ANY and finding.trace for finding in findings):
        click.echo(COSTS)
