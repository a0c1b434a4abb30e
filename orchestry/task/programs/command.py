"""A rollout as a process: a command that finds its addresses, its key and its problem in the
environment, and says its reward in the last line of what it prints, or in a file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestry.core.errors import TaskError
from orchestry.core.types import Problem, Score

if TYPE_CHECKING:
    from orchestry.task.programs.agent_task import AgentTask, Team

_SHOWN = 500
"""Characters of a failed program's last words."""


def environ(problem: Problem, team: Team, reward: Path) -> dict[str, str]:
    """The variables that vendors' clients read, and ours."""
    own = {
        "OPENAI_BASE_URL": team.url,
        "OPENAI_API_KEY": team.key,
        "ANTHROPIC_BASE_URL": team.url,
        "ANTHROPIC_API_KEY": team.key,
        "ORCHESTRY_PROBLEM": problem.model_dump_json(exclude={"split"}),
        "ORCHESTRY_SEED": str(team.seed),
        "ORCHESTRY_REWARD": str(reward),
    }
    urls = {f"ORCHESTRY_URL_{_name(role)}": team.base_url(role) for role in team.roles}
    return {**os.environ, **own, **urls}


def run_command(task: AgentTask, problem: Problem, team: Team) -> Score:
    """Plays one rollout. Raises TaskError if the command fails, or says no reward."""
    with tempfile.TemporaryDirectory(prefix="orchestry-") as folder:
        reward = Path(folder) / "reward.json"
        process = subprocess.Popen(
            task.command,
            env=environ(problem, team, reward),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        team.at_end(lambda: _stop(process))
        said, _ = process.communicate()
        if process.returncode:
            raise TaskError(
                f"task {task.name}: {task.command[0]} ended with {process.returncode} on problem "
                f"{problem.id}: {said[-_SHOWN:].strip()}"
            )
        told = reward.read_text() if reward.exists() else _last_line(said)
    return _score(task, problem, told)


def _stop(process: subprocess.Popen[str]) -> None:
    """With all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _score(task: AgentTask, problem: Problem, told: str) -> Score:
    """From {"reward": 0.5}, or an object with the parts of the task's reward; `feedback` and `tags`
    if it has some."""
    try:
        found = json.loads(told)
    except ValueError:
        found = None
    if isinstance(found, int | float) and not isinstance(found, bool):
        found = {"reward": found}
    if not isinstance(found, Mapping):
        raise TaskError(
            f"task {task.name}: the program said no reward on problem {problem.id}, its last line "
            f'is {told[:_SHOWN]!r}: print {{"reward": 0.5}} at the end, or write it into the file '
            "named by ORCHESTRY_REWARD"
        )
    parts: dict[str, Any] = {k: v for k, v in found.items() if k not in ("feedback", "tags")}
    if "reward" in parts:
        parts = {next(iter(task.part_weights)): parts["reward"]}
    return task.score(feedback=str(found.get("feedback", "")), tags=found.get("tags", ()), **parts)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _name(role: str) -> str:
    return re.sub(r"\W", "_", role).upper()
