"""`orchestry attach`: a task whose episodes are played by a program of the user's own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from orchestry.cli.bank import ColumnsOf, taken, written
from orchestry.cli.groups import App, Command
from orchestry.cli.options import Hiding, NewTaskIn, option
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
$models    command = $command
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
_Agents = Annotated[
    str,
    option(
        "The program",
        "Its agents, as it names them in `model`; with ROLE=MODEL, the name that it asks for.",
        "--agents",
        metavar="A,B",
    ),
]
_Highest = Annotated[
    float,
    option("The program", "The highest reward that it prints; each is divided by it.", metavar="N"),
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
            "A line of JSON per problem: id, prompt, split, data; or a .csv whose first line names "
            "its columns. If none has a split, a fifth is dev and a fifth is test.",
            "--problems",
            metavar="FILE",
        ),
    ],
    columns: ColumnsOf = None,
    reward_max: _Highest = 1.0,
    agents: _Agents = "agent",
    parent: NewTaskIn = Path("tasks"),
    force: Hiding = False,
) -> None:
    """Write a task that starts a program of yours once per rollout.

    The program finds the address and the key of its agents where the clients of OpenAI and
    Anthropic look for them, and its problem in ORCHESTRY_PROBLEM. It prints its reward last, as in
    {"reward": 0.5}. Nothing is started yet.
    """
    from orchestry.cli.tasks import tell_next

    roles, models = _team(agents)
    command = tuple(map(_absolute, words))
    _check(name, roles, command)
    bank, said = taken(problems, columns)
    text = _task(name, roles, models, command, reward_max)
    folder = _place(parent, name, force)
    folder.mkdir(parents=True, exist_ok=True)
    files = {"task.py": text.encode(), "problems.jsonl": written(bank)}
    kept = [_replaced(folder / file, content) for file, content in files.items()]
    for line in filter(None, (said, *kept, _shared(roles, models))):
        typer.echo(line)
    tell_next(folder, f"tasks check {name}", f"run --task {name} --episodes 4")


def _task(
    name: str,
    roles: Sequence[str],
    models: Mapping[str, str],
    command: Sequence[str],
    reward_max: float,
) -> str:
    """The text of task.py."""
    from orchestry.cli.tasks import class_name

    values = {
        "name": name,
        "class_name": class_name(name),
        "agents": ", ".join(f"AgentSpec(role={role!r})" for role in roles),
        "models": f"    models = {models!r}  # what the program calls them\n" if models else "",
        "command": repr(command),
        "reward": _highest(reward_max),
    }
    return TASK.substitute(values)


def _shared(roles: Sequence[str], models: Mapping[str, str]) -> str:
    """What to do where agents have one model; '' where each has its own."""
    names = [models.get(role, role) for role in roles]
    shared = [role for role, name in zip(roles, names, strict=True) if names.count(name) > 1]
    if not shared:
        return ""
    return (
        f"{' and '.join(shared)} have one model, so each call must tell who is asked: by the "
        "address in ORCHESTRY_URL_ROLE, the header X-Orchestry-Agent, or a system prompt that "
        "names one of them (or has its text of `marks` in task.py)."
    )


def _team(agents: str) -> tuple[list[str], dict[str, str]]:
    """The roles, and what the program calls their models. Raises ConfigError."""
    pairs = [tuple(map(str.strip, one.partition("="))) for one in agents.split(",") if one.strip()]
    roles = [role for role, _, _ in pairs]
    if not all(roles) or not roles or len(set(roles)) < len(roles):
        raise ConfigError(f"--agents is '{agents}': name each agent once, as in writer,critic")
    if empty := [role for role, equals, model in pairs if equals and not model]:
        raise ConfigError(
            f"--agents gives {empty[0]} no model: write ROLE=MODEL, or the role alone"
        )
    return roles, {role: model for role, _, model in pairs if model}


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


def _replaced(file: Path, content: bytes) -> str:
    """Writes a file, and says where an earlier one of other content is kept, which may be edited by
    hand."""
    said = ""
    if file.exists() and file.read_bytes() != content:
        names = (f"{file.name}.{number}" for number in count(1))
        kept = next(free for name in names if not (free := file.with_name(name)).exists())
        file.rename(kept)
        said = f"The {file.name} of before is kept as {kept}."
    write_atomic(file, content)
    return said


def _absolute(word: str) -> str:
    """Files by their full path: a run may be resumed from another folder."""
    path = Path(word)
    try:
        return str(path.absolute()) if path.is_file() else word
    except OSError:  # a text too long for a path
        return word
