"""`orchestry attach`: a task whose episodes are played by a program of the user's own."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from orchestry.cli.bank import ColumnsOf, taken, written
from orchestry.cli.groups import App, Command
from orchestry.cli.options import OUTPUT, NewTaskIn, flag, option
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.files import write_atomic

TASK = Template('''"""A program of yours, started once per rollout."""

from collections.abc import Sequence
from pathlib import Path

from orchestry import AgentSpec, AgentTask, Problem, Split, read_problems

BANK = Path(__file__).with_name("problems.jsonl")


class $class_name(AgentTask):
    name = "$name"
    agents = ($agents,)
    command = $command
$reward    max_turns = 16  # most calls of models in one rollout
    timeout_s = 600.0  # longest time without a call and without an end

    def problems(self, split: Split) -> Sequence[Problem]:
        return read_problems(BANK, split)
''')
_FIRST = TASK.template.partition("\n")[0]
"""By which a task that attach wrote is known."""
HINT = (
    "The command comes after `--`, as in: orchestry attach my_app --problems problems.jsonl "
    "--agents writer,editor -- python app.py"
)
Highest = Annotated[
    float,
    option("The program", "The highest reward that it prints; each is divided by it.", metavar="N"),
]
Replacing = Annotated[
    bool,
    flag(
        OUTPUT,
        "Even if it hides another task of that name. Replaces a task that attach wrote.",
        "--force",
    ),
]
app = App("Make a task of a program that has agents of its own.")


class _Attach(Command):
    """Takes what stands after `--` for the command, and names the task after it if need be."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" not in args and not {"-h", "--help"} & {*args} and not ctx.resilient_parsing:
            ctx.fail(f"There is no `--`. {HINT}")
        if "--" in args:
            place = args.index("--")
            given, *_ = self.make_parser(ctx).parse_args(args[:place])
            if not isinstance(given.get("name"), str):
                named = _named(args[place + 1 :])
                args[place:place] = named or ctx.fail(f"NAME is missing. {HINT}")
        return super().parse_args(ctx, args)


def _named(words: Sequence[str]) -> list[str]:
    """The name of the first Python file among a command's words, as a task's; [] if there is
    none."""
    return [re.sub(r"\W", "_", Path(one).stem) for one in words if one.endswith(".py")][:1]


@app.command("attach", cls=_Attach)
def _attach(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Of the task; without it, that of the command's Python file."
        ),
    ] = "",
    words: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="The program and what it takes.")
    ],
    problems: Annotated[
        Path,
        option(
            "The program",
            "A line of JSON per problem: id, prompt, split, data. If no line has a split, a fifth "
            "is dev and a fifth is test.",
            "--problems",
            metavar="FILE",
        ),
    ],
    columns: ColumnsOf = None,
    reward_max: Highest = 1.0,
    agents: Annotated[
        str,
        option(
            "The program", "Its agents, as it names them in `model`.", "--agents", metavar="A,B"
        ),
    ] = "agent",
    parent: NewTaskIn = Path("tasks"),
    force: Replacing = False,
) -> None:
    """Write a task that starts a program of yours once per rollout.

    The program finds the address and the key of its agents where the clients of OpenAI and
    Anthropic look for them, and its problem in ORCHESTRY_PROBLEM. It prints its reward last, as in
    {"reward": 0.5}. Nothing is started yet.
    """
    from orchestry.cli.tasks import class_name, tell_next

    roles = [role.strip() for role in agents.split(",") if role.strip()]
    if not roles or len(set(roles)) < len(roles):
        raise ConfigError(f"--agents is '{agents}': name each agent once, as in writer,critic")
    command = tuple(map(_absolute, words))
    _check(name, roles, command)
    bank, said = taken(problems, columns)
    values = {
        "name": name,
        "class_name": class_name(name),
        "agents": ", ".join(f"AgentSpec(role={role!r})" for role in roles),
        "command": repr(command),
        "reward": _highest(reward_max),
    }
    folder = _place(parent, name, force)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "task.py", TASK.substitute(values).encode())
    write_atomic(folder / "problems.jsonl", written(bank))
    if said:
        typer.echo(said)
    tell_next(folder, f"tasks check {name}", f"run --task {name} --episodes 4")


def _highest(reward: float) -> str:
    """A line of the task's file, where it is not 1. Raises ConfigError."""
    if not 0 < reward < math.inf:
        raise ConfigError(f"--reward-max is {reward}: give a number above 0")
    line = f"    reward_max = {reward}  # the highest that it prints; each is divided by it\n"
    return "" if reward == 1 else line


def _check(name: str, roles: Sequence[str], command: Sequence[str]) -> None:
    """Raises ConfigError for roles that can't be, and for a command that can't be started."""
    from orchestry.task.programs.agent_task import check_roles
    from orchestry.task.programs.command import check_command

    try:
        check_roles(name, roles)
    except TaskError as error:  # what the user gave, not a task that failed
        raise ConfigError(str(error)) from None
    check_command(command)


def _place(parent: Path, name: str, force: bool) -> Path:
    """The task's folder; with `force` also that of an earlier attach. Raises ConfigError."""
    from orchestry.cli.tasks import new_folder

    folder = parent / name
    earlier = folder / "task.py"
    if not earlier.is_file() or not earlier.read_bytes().startswith(_FIRST.encode()):
        return new_folder(parent, name, force)
    if not force:
        raise ConfigError(
            f"{folder} was written by an earlier attach: choose another name, or replace it with "
            "--force"
        )
    return folder


def _absolute(word: str) -> str:
    """Files by their full path: a run may be resumed from another folder."""
    path = Path(word)
    try:
        return str(path.absolute()) if path.is_file() else word
    except OSError:  # a text too long for a path
        return word
