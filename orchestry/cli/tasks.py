"""`orchestry tasks`: list, check and create tasks."""

from __future__ import annotations

import asyncio
import json
import keyword
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestry.cli.bank import ColumnsOf, gold_of, guessed, taken, written
from orchestry.cli.groups import App
from orchestry.cli.options import (
    OUTPUT,
    SAFETY,
    Hiding,
    Json,
    NewTaskIn,
    Sets,
    TaskPath,
    flag,
    option,
    task_names,
)
from orchestry.cli.screen import console, fitted
from orchestry.core import extensions

if TYPE_CHECKING:
    from orchestry.task.base import BaseTask
    from orchestry.task.check import Finding
    from orchestry.task.registry import TaskLocation

COLOURS = {"ok": "green", "warn": "yellow", "not tried": "yellow", "FAIL": "red"}
CASES = 5
"""Without --verbose, this many cases per rule are shown."""
ANY = "any answer"
COSTS = (
    "In a run, an answer that makes the task raise ends its trajectory (score 0, tag "
    "task_error), not the run. --verbose shows the traceback."
)


app = App("List, check and create tasks.")


@app.command("list")
def _list(task_path: TaskPath = None, as_json: Json = False) -> None:
    """Show every task that can be run from here. Imports none of them."""
    from orchestry.task.registry import find_tasks

    tasks = list(find_tasks(task_path or (), Path.cwd()).values())
    if as_json:
        typer.echo(json.dumps({"tasks": [_plain(task) for task in tasks]}))
    else:
        _print_table(tasks)


@app.command("check")
def _check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="`orchestry tasks list` shows them.", autocompletion=task_names
        ),
    ],
    task_path: TaskPath = None,
    sets: Sets = None,
    as_json: Json = False,
    verbose: Annotated[bool, flag(OUTPUT, "Show tracebacks, and all cases.", "--verbose")] = False,
    allow_unsafe_code: Annotated[
        bool,
        flag(SAFETY, "Check it even if this machine can't confine code.", "--allow-unsafe-code"),
    ] = False,
) -> int:
    """Play a task with odd, empty and gold answers; exit 1 if it breaks a rule.

    Odd answers are very long, deeply nested, cut off, full of strange bytes, or another agent's.
    In a run, an answer that makes the task raise ends its trajectory (score 0, tag task_error), not
    the run. The check prints what empty answers, the prompt, and another problem's gold earn, and
    warns above 0.1. --set checks it as a run with these settings plays it, such as
    options.NAME=VALUE. A program of your own (`orchestry attach`) is started once, and gets made-up
    answers; its reward has to be in [0, 1].
    """
    from orchestry.cli.console import say
    from orchestry.core.config import resolve
    from orchestry.engine.games import seat_policy
    from orchestry.engine.trial import program_tried
    from orchestry.task.programs.agent_task import AgentTask
    from orchestry.task.setup import playable

    errors = console(stderr=True)
    say(errors, f"loading task {name}, then playing it with odd, empty and gold answers")
    config = resolve((), sets or [], {"task": name, "task_path": task_path or ()})
    task = playable(config, lambda text: say(errors, f"warning: {text}"), seat_policy)
    findings = asyncio.run(_findings(task, allow_unsafe_code))
    if isinstance(task, AgentTask):
        say(errors, "starting its program once, with made-up answers")
        config = config.model_copy(update={"allow_unsafe_code": allow_unsafe_code})
        findings.append(program_tried(task, config))
    ok = all(finding.ok for finding in findings)
    if as_json:
        rules = [
            {
                "rule": each.rule,
                "ok": None if each.mark == "not tried" else each.ok,
                "mark": each.mark,
                "detail": each.detail,
                "cases": each.cases,
            }
            for each in findings
        ]
        typer.echo(json.dumps({"task": name, "ok": ok, "findings": rules}))
    else:
        _print_checklist(name, findings, verbose)
    return 0 if ok else 1


for verb_name, verb in extensions.verbs("tasks").items():
    app.command(verb_name, short_help=verb.help)(extensions.load(verb.place))


@app.command("new")
def _new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits and _.")],
    parent: NewTaskIn = Path("tasks"),
    force: Hiding = False,
    source: Annotated[
        Path | None,
        option(
            OUTPUT, "A file of problems (.jsonl, .json, .csv, .parquet).", "--from", metavar="FILE"
        ),
    ] = None,
    columns: ColumnsOf = None,
) -> None:
    """Write a small task that works: change its problems, then its reward.

    With --from, its problems are yours, and the reward is whether the last line of the team's
    answer is that of the right one.
    """
    from orchestry.core.errors import ConfigError

    folder = new_folder(parent, name, force)
    if source is not None:
        write_task_of(folder, name, source, columns)
    elif columns is not None:
        raise ConfigError("--columns are those of a file: name it with --from FILE")
    else:
        write_task(folder, name)
    tell_next(folder, f"tasks check {name}", f"run --task {name} --episodes 5")


def tell_next(folder: Path, *commands: str) -> None:
    """What to do with a new task; `commands` begin after `orchestry`."""
    parent = folder.parent
    where = "" if parent == Path("tasks") else f" --task-path {parent}"
    typer.echo(f"Wrote {folder}. Next:")
    for command in commands:
        typer.echo(f"  orchestry {command}{where}")


def new_folder(parent: Path, name: str, force: bool) -> Path:
    """Where a new task of that name goes. Raises ConfigError for a name that can't be or that is
    taken; `force`: even if it hides another task."""
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
    return folder


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
        between = "\n" if where.is_terminal else "  "  # in a file, one line per task
        table.add_row(task.name, Text.assemble(task.description, between, (place, "dim")))
    where.print(table)


def _print_checklist(name: str, findings: Sequence[Finding], verbose: bool) -> None:
    from rich.text import Text

    where = console()
    for finding in findings:
        mark = finding.mark.ljust(4)
        line = fitted(f"{mark}  {finding.rule}: {finding.detail}", hang=6)
        coloured = Text.assemble((mark, COLOURS[finding.mark]), line.removeprefix(mark))
        where.print(coloured, soft_wrap=True)
        most = len(finding.cases) if verbose else CASES
        for case in finding.cases[1:most]:
            typer.echo(fitted(f"      {case}", hang=8))
        if verbose and finding.trace:
            typer.echo(finding.trace)
    typer.echo(f"Task {name} {_verdict(findings)}.")
    if any(finding.rule == ANY and finding.trace for finding in findings):
        typer.echo(COSTS)


def _verdict(findings: Sequence[Finding]) -> str:
    count = Counter(finding.mark for finding in findings)
    broken, untried, warned = count["FAIL"], count["not tried"], count["warn"]
    said = f"breaks {broken} of {len(findings)} rules" if broken else "keeps every rule"
    more = [f"{untried} not tried"] if untried else []
    more += [f"{warned} {'warning' if warned == 1 else 'warnings'}"] if warned else []
    return f"{said} ({', '.join(more)})" if more else said


# --- what `tasks new` writes: small, whole, and passing its own check -----------------------------

TASK = Template('''"""$title: a drafter writes a sentence, an editor improves it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import orchestry
from orchestry import AgentSpec, Problem, Score, Split, TeamTask, Tools, Transcript, read_problems

BANK = Path(__file__).with_name("problems.jsonl")


class $class_name(TeamTask):
    name = "$name"
    agents = (
        AgentSpec(role="drafter", system_prompt="Answer in one short sentence."),
        AgentSpec(role="editor", system_prompt="Improve the draft. Answer in one short sentence."),
    )
    weights: ClassVar[Mapping[str, float]] = {"coverage": 0.8, "brevity": 0.2}

    def problems(self, split: Split) -> Sequence[Problem]:
        return read_problems(BANK, split)

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        prose = orchestry.prose
        words = prose.words(state.said[-1][1]) if state.said else []
        wanted = state.problem.data["words"]  # none is in the prompt or in another gold answer
        missing = [word for word in wanted if word not in words]
        links = 1 - len(prose.content(words)) / max(1, len(words))  # as `the` and `than`
        coverage = (1 - len(missing) / len(wanted)) * prose.ramp(links, (0.0, 0.12))
        return self.score(
            coverage=coverage,
            brevity=coverage * prose.ramp(len(words), (40, 20)),  # short and wrong earns 0
            feedback=f"{len(words)} words. Missing: {', '.join(missing) or 'none'}.",
        )

    def gold(self, problem: Problem) -> Mapping[str, str]:
        return {"drafter": "", "editor": problem.data["gold"]}
''')

TASK_OF = Template('''"""A solver answers, a checker corrects; the last line decides."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestry import AgentSpec, Problem, Score, Split, TeamTask, Tools, Transcript, read_problems

BANK = Path(__file__).with_name("problems.jsonl")
GOLD = $gold  # the right answer in a problem's data
LINE = "Write the answer alone on the last line."


class $class_name(TeamTask):
    name = "$name"
    agents = (
        AgentSpec(role="solver", system_prompt=f"Solve the problem. {LINE}"),
        AgentSpec(role="checker", system_prompt=f"Correct the solution. {LINE}"),
    )
    solved = "solved"

    def problems(self, split: Split) -> Sequence[Problem]:
        return read_problems(BANK, split)

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        answer = last_line(state.said[-1][1]) if state.said else ""
        right = bool(answer) and answer == last_line(state.problem.data[GOLD])
        return self.score(
            quality=float(right),
            feedback="The last line is right." if right else f"The last line is wrong: {answer}",
            tags=["solved"] if right else [],
        )

    def gold(self, problem: Problem) -> Mapping[str, str]:
        return dict.fromkeys(("solver", "checker"), text(problem.data[GOLD]))


def text(gold: object) -> str:
    return gold if isinstance(gold, str) else json.dumps(gold)


def last_line(said: object) -> str:
    """In small letters, without marks around it: 'Answer: **42.**' is 'answer: 42'."""
    last = text(said).strip().split("\\n")[-1]
    return " ".join(last.lower().strip(" .#*_`$$").split())
''')

README = Template("""# $title: one sentence that covers what matters

`task.py` holds the agents and the reward, `problems.jsonl` the problems. A line is one problem:
`id` (for good), `prompt` (what agents see), `split` (train, dev or test; ids never move) and `data`
(what the reward needs; agents never see it).

- `coverage` (0.8): the share of the wanted words in the last answer. A list of words earns 0: 12 %
  of the words have to be such as `the` or `than`.
- `brevity` (0.2): `coverage`, less from 20 words on, 0 from 40.

A team learns what the reward pays for, and nothing else. So see first what the cheapest answers
earn: `orchestry tasks check $name` says it for empty answers, for the prompt, and for another
problem's gold. Here it is 0, since the wanted words are in no prompt and in one gold answer each,
and since brevity counts only as far as these words are there. The check also plays `gold`, which
must score 1.0.

Not caught: the wanted words in a false sentence, or in one that means nothing. Counting can't tell.
A judge can (`judge.enabled`), or tests that execute the answer (`tools.sandbox`).
""")

_QUESTIONS = (
    ("train", "Why is the sky blue?", "Air scatters blue light more than red light."),
    ("train", "Why do we have seasons?", "The tilt of the axis turns each half to the sun."),
    ("train", "How does a plane stay up?", "Its wing pushes air down, which gives lift."),
    ("dev", "Why does ice float?", "Ice is less dense than water."),
    ("dev", "Why do leaves fall in autumn?", "A tree sheds leaves to live through a dry winter."),
    ("test", "What causes tides?", "The gravity of the moon pulls the ocean."),
    ("test", "Why does bread rise?", "Yeast eats sugar and gives off gas."),
)
_WANTED = (
    ("scatters", "light"),
    ("tilt", "axis", "sun"),
    ("wing", "lift"),
    ("dense", "water"),
    ("sheds", "winter"),
    ("gravity", "moon"),
    ("yeast", "gas"),
)


def write_task(folder: Path, name: str) -> None:
    """Writes task.py, problems.jsonl and README.md into a new folder."""
    title = " ".join(word for word in name.split("_") if word).capitalize() or name
    values = {"name": name, "title": title, "class_name": class_name(name)}
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(TASK.substitute(values), encoding="utf-8")
    (folder / "README.md").write_text(README.substitute(values), encoding="utf-8")
    (folder / "problems.jsonl").write_text(_problems(), encoding="utf-8")


def write_task_of(folder: Path, name: str, source: Path, columns: str | None) -> None:
    """Writes a task over the rows of a file. Raises ConfigError for a file that has no problems, or
    whose right answers can't be told."""
    columns = columns or guessed(source)
    problems, said = taken(source, columns)
    gold = gold_of(source, problems)
    values = {"name": name, "class_name": class_name(name), "gold": json.dumps(gold)}
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(TASK_OF.substitute(values), encoding="utf-8")
    (folder / "problems.jsonl").write_bytes(written(problems))
    typer.echo(f"{said} Taken: {columns}; the right answer is in '{gold}'.".strip())


def class_name(name: str) -> str:
    """Of the task of that name."""
    camel = "".join(word[0].upper() + word[1:] for word in name.split("_") if word)
    return camel if camel.endswith("Task") else f"{camel}Task"


def _problems() -> str:
    lines = [
        {
            "id": f"q{number}",
            "prompt": prompt,
            "split": split,
            "data": {"words": wanted, "gold": gold},
        }
        for number, ((split, prompt, gold), wanted) in enumerate(
            zip(_QUESTIONS, _WANTED, strict=True), start=1
        )
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines)
