"""`orchestry attach`: a task whose episodes are played by a program of the user's own."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestry.cli.groups import App, Command
from orchestry.cli.options import Hiding, NewTaskIn, option
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.files import json_lines
from orchestry.core.types import SPLITS

if TYPE_CHECKING:
    from orchestry.core.types import Problem, Split

TASK = Template('''"""A program of yours, started once per rollout."""

from collections.abc import Sequence
from pathlib import Path

from orchestry import AgentSpec, AgentTask, Problem, Split, read_problems

BANK = Path(__file__).with_name("problems.jsonl")


class $class_name(AgentTask):
    name = "$name"
    agents = ($agents,)
$models    command = $command
    max_turns = 16  # most calls of models in one rollout
    timeout_s = 600.0  # longest time without a call and without an end

    def problems(self, split: Split) -> Sequence[Problem]:
        return read_problems(BANK, split)
''')
HINT = (
    "The command comes after `--`, as in: orchestry attach my_app --problems problems.jsonl "
    "--agents writer,editor -- python app.py"
)
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
    agents: Annotated[
        str,
        option(
            "The program",
            "Its agents, as it names them in `model`; with ROLE=MODEL, the name that it asks for.",
            "--agents",
            metavar="A,B",
        ),
    ] = "agent",
    parent: NewTaskIn = Path("tasks"),
    force: Hiding = False,
) -> None:
    """Write a task that starts a program of yours once per rollout.

    The program finds the address and the key of its agents where the clients of OpenAI and
    Anthropic look for them, and its problem in ORCHESTRY_PROBLEM. It prints its reward last, as in
    {"reward": 0.5}. Nothing is started yet.
    """
    from orchestry.cli.tasks import class_name, new_folder, tell_next

    roles, models = _team(agents)
    bank, said = _bank(problems, _given(name, roles, problems))
    values = {
        "name": name,
        "class_name": class_name(name),
        "agents": ", ".join(f"AgentSpec(role={role!r})" for role in roles),
        "models": f"    models = {models!r}  # what the program calls them\n" if models else "",
        "command": repr(tuple(map(_absolute, words))),
    }
    folder = new_folder(parent, name, force)
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(TASK.substitute(values), encoding="utf-8")
    (folder / "problems.jsonl").write_bytes(bank)
    for line in filter(None, (said, _shared(models))):
        typer.echo(line)
    tell_next(folder, f"tasks check {name}", f"run --task {name} --episodes 4")


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


def _shared(models: Mapping[str, str]) -> str:
    """What tells agents of one model apart; '' if there are none."""
    named = [*models.values()]
    shared = [role for role, model in models.items() if named.count(model) > 1]
    if not shared:
        return ""
    return (
        f"{' and '.join(shared)} have one model, so each call must tell who is asked: by the "
        "address in ORCHESTRY_URL_ROLE, the header X-Orchestry-Agent, or a system prompt that "
        "names one of them (or has its text of `marks` in task.py)."
    )


def _given(name: str, roles: Sequence[str], path: Path) -> list[Problem]:
    """The problems. Raises ConfigError for these and for roles that can't be."""
    from orchestry.task.base import read_problems
    from orchestry.task.programs.agent_task import check_roles

    try:
        check_roles(name, roles)
        found = [one for split in SPLITS for one in read_problems(path, split)]
    except TaskError as error:  # what the user gave, not a task that failed
        raise ConfigError(str(error)) from None
    if not any(one.split == "train" for one in found):
        raise ConfigError(f"{path} has no problem of split train, on which a team learns")
    return found


def _bank(path: Path, given: Sequence[Problem]) -> tuple[bytes, str]:
    """The file of problems, and what is said of its splits: they are written in if it has none."""
    whole = path.read_bytes()
    if any("split" in one.model_fields_set for one in given):
        return whole, ""
    if len(given) < len(SPLITS):
        return whole, (
            f"No line of {path} has a split, and {len(given)} problems are too few to divide: all "
            "are train, so prompts can't be tested on dev."
        )
    parts = [json.loads(line) for _, line in json_lines(whole)]
    for one, split in zip(parts, _splits(len(parts)), strict=True):
        one["split"] = split
    counts = Counter(one["split"] for one in parts)
    shares = ", ".join(f"{counts[split]} {split}" for split in SPLITS)
    text = "".join(f"{json.dumps(one)}\n" for one in parts)
    return text.encode(), (
        f"No line of {path} has a split, so of its {len(parts)} problems are {shares}."
    )


def _splits(count: int) -> Iterator[Split]:
    """Of each five problems the last but one is dev, and the last is test; of fewer likewise."""
    size = min(5, count)
    last: dict[int, Split] = {size - 2: "dev", size - 1: "test"}
    return (last.get(place % size, "train") for place in range(count))


def _absolute(word: str) -> str:
    """Files by their full path: a run may be resumed from another folder."""
    path = Path(word)
    try:
        return str(path.absolute()) if path.is_file() else word
    except OSError:  # a text too long for a path
        return word
