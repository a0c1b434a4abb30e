"""A rollout as a process: a command that finds its addresses, its key and its problem in the
environment, and prints its reward last, or writes it into a file."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestry.core.errors import ConfigError, RewardFault, TaskError, reason
from orchestry.core.files import text_of
from orchestry.core.types import Problem, Score, utf8
from orchestry.task.programs.agent_task import variable

if TYPE_CHECKING:
    from orchestry.task.programs.agent_task import AgentTask, Team

_OUTPUTS = ("stdout", "stderr")
_LONGEST = 100_000
"""Bytes of a problem in a variable."""
_STARTERS = {"env", "ionice", "nice", "nohup", "setsid", "stdbuf", "time", "timeout"}
_OF_STARTERS = re.compile(r"(?!PATH=)\w+=.*|-?\d+[smhd]?|-[in]", re.DOTALL)
"""What they may be given before the program; behind anything else it isn't looked for."""
_NO_FILE = ("-c", "-m", "-")
_MISSING = 44
_FINDS = (
    "import sys; from importlib.util import find_spec; "
    f"sys.exit({_MISSING} if find_spec(sys.argv[1]) is None else 0)"
)
_FIND_S = 10.0
_SHOWN = 500
"""Characters of a failed program's last words."""


def environ(problem: Problem, team: Team, folder: Path) -> dict[str, str]:
    """The variables that vendors' clients read, and ours. The problem stands in a file too, since a
    variable has a limit."""
    text = problem.model_dump_json(exclude={"split"})
    (folder / "problem.json").write_text(text, encoding="utf-8")
    own = {
        "OPENAI_BASE_URL": team.url,
        "OPENAI_API_KEY": team.key,
        "AZURE_OPENAI_ENDPOINT": team.url,
        "AZURE_OPENAI_API_KEY": team.key,
        "ANTHROPIC_BASE_URL": team.url,
        "ANTHROPIC_API_KEY": team.key,
        "ORCHESTRY_PROBLEM_FILE": str(folder / "problem.json"),
        "ORCHESTRY_SEED": str(team.seed),
        "ORCHESTRY_REWARD": str(folder / "reward.json"),
    }
    if len(text.encode()) < _LONGEST:
        own["ORCHESTRY_PROBLEM"] = text
    urls = {variable(role): team.base_url(role) for role in team.roles}
    return {**os.environ, **own, **urls}


def check_command(command: Sequence[str]) -> None:
    """Raises ConfigError for one that this machine can't start, or whose Python file or module does
    not exist; also behind `env` and the like."""
    starter, (program, *rest) = command[0], command[(at := _started(command)) :]
    if at and shutil.which(starter) is None:
        raise ConfigError(f"the command {starter} can't be started (it is not on PATH): correct it")
    if shutil.which(program) is None:
        why = "it is not on PATH"
        if os.sep in program:
            rights = f"it is no program: `chmod +x {program}`, or put its interpreter before it"
            why = rights if Path(program).is_file() else "there is no such file"
        raise ConfigError(f"the command {program} can't be started ({why}): correct it")
    if not Path(program).name.startswith("python"):
        return
    options = [*takewhile(lambda word: word.startswith("-") and word not in _NO_FILE, rest)]
    kind, *last = [*rest[len(options) :], "", ""][:2]
    if kind.endswith(".py") and not Path(kind).is_file():
        raise ConfigError(f"the command's file {kind} does not exist: correct its path")
    if kind == "-m" and _lacks([*command[: at + 1], *options], last[0]):
        raise ConfigError(
            f"the command's module {last[0]} is not found by {program}: correct its name, or "
            f"install it there"
        )


def _started(command: Sequence[str]) -> int:
    """The place of the program in a command that begins with `env` or the like; 0 where it can't be
    told."""
    place = 0
    while place < len(command) and Path(command[place]).name in _STARTERS:
        place += 1
        while place < len(command) and _OF_STARTERS.fullmatch(command[place]):
            place += 1
    told = place < len(command) and not re.match(r"-|\w+=", command[place])
    return place if told else 0


def _lacks(python: Sequence[str], module: str) -> bool:
    """Whether that Python says so of a module's package, of which it imports nothing."""
    asked = [*python, "-c", _FINDS, module.partition(".")[0]]
    try:
        return subprocess.run(asked, capture_output=True, timeout=_FIND_S).returncode == _MISSING
    except (OSError, subprocess.TimeoutExpired):
        return False


def run_command(task: AgentTask, problem: Problem, team: Team) -> Score:
    """Plays one rollout. Raises TaskError if the command can't be started, fails, or gives no
    reward."""
    with tempfile.TemporaryDirectory(prefix="orchestry-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        code = _run(task, team, folder, environ(problem, team, folder))
        printed, warned = (_said(folder / one) for one in _OUTPUTS)
        if code:
            last = (warned.strip() or printed.strip())[-_SHOWN:]
            raise TaskError(
                f"task {task.name}: {task.command[0]} ended with {code} on problem {problem.id}: "
                f"{last}"
            )
        reward = folder / "reward.json"
        told = _said(reward) if reward.exists() else _reward_line(printed, _wanted(task))
    return _score(task, problem, told)


def _said(path: Path) -> str:
    """What a program wrote; some put a mark (BOM) before it."""
    return text_of(path.read_bytes(), errors="replace")


def _run(task: AgentTask, team: Team, folder: Path, env: dict[str, str]) -> int:
    """The command's exit code. It ends with all that it started; also if the rollout is over
    before it does."""
    out, err = ((folder / one).open("wb") for one in _OUTPUTS)  # a pipe is held open by children
    with out, err:
        try:
            process = subprocess.Popen(
                task.command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise TaskError(
                f"task {task.name}: {task.command[0]} can't be started ({reason(error)}): correct "
                "`command`"
            ) from None

        team.at_end(partial(_stop, process))
        code = process.wait()
        _kill(process.pid)  # what it left behind
        return code


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # else its number may be another's by now
        _kill(process.pid)


def _kill(group: int) -> None:
    """All processes of a group, if there are any."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _score(task: AgentTask, problem: Problem, told: str) -> Score:
    """From {"reward": 0.5}, for a task whose reward has one part, or an object with all parts;
    `feedback` and `tags` if it has some. Raises TaskError."""
    wanted = _wanted(task)
    shape = ", ".join(f'"{name}": 0.5' for name in wanted)
    wrong = RewardFault(
        f"task {task.name}: the program gave no reward on problem {problem.id}, only "
        f"{told[:_SHOWN]!r}: print {{{shape}}} as a line of its own, with numbers from 0 to "
        f"{task.reward_max:g} (reward_max in the task's file), or "
        "write it into the file that ORCHESTRY_REWARD names"
    )
    try:
        found = _json(told)
    except (ValueError, RecursionError):
        raise wrong from None
    if len(wanted) == 1 and _share(found, task.reward_max) is not None:
        found = {"reward": found}
    if not isinstance(found, Mapping):
        raise wrong
    feedback, tags = found.get("feedback", ""), found.get("tags", [])
    rest = {name: value for name, value in found.items() if name not in ("feedback", "tags")}
    parts = {name: _share(value, task.reward_max) for name, value in rest.items()}
    fits = set(parts) == set(wanted) and None not in parts.values()
    labels = isinstance(tags, list) and all(isinstance(one, str) for one in tags)
    if not fits or not labels or not isinstance(feedback, str):
        raise wrong
    if wanted == ["reward"]:
        parts = {next(iter(task.part_weights)): parts["reward"]}
    values: Any = parts
    return task.score(feedback=utf8(feedback), tags=[utf8(one) for one in tags], **values)


def _share(value: Any, most: float) -> float | None:
    """Of the highest reward; None for what is no number from 0 to that."""
    return value / most if type(value) in (int, float) and 0 <= value <= most else None


def _reward_line(text: str, wanted: Sequence[str]) -> str:
    """The last line that is an object with any of the reward's names, so that a library may print
    something behind it; without such a line the last one, which may be a bare number."""
    lines = text.strip().split("\n")  # others, such as U+2028, may stand in a text of the object
    for line in reversed(lines):
        with suppress(ValueError, RecursionError):
            found = _json(line)
            if isinstance(found, Mapping) and not found.keys().isdisjoint(wanted):
                return line
    return lines[-1]


def _json(text: str) -> Any:
    """Also with control characters in its texts, as a program that builds it by hand leaves them.
    Raises ValueError or RecursionError."""
    return json.loads(utf8(text), strict=False)


def _wanted(task: AgentTask) -> list[str]:
    """The names in a program's reward."""
    return [*task.part_weights] if len(task.part_weights) > 1 else ["reward"]
