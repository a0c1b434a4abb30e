"""One rollout of a user's program, with made-up answers: whether it asks its agents and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import TaskError
from orchestry.engine.run import train
from orchestry.store.run import Run
from orchestry.task.check import Finding

RULE = "program"


def program_tried(config: RunConfig, roles: Sequence[str]) -> Finding:
    """Starts the program of an AgentTask of these roles once, as a run does, at no cost.

    What the program does outside is done. Raises what a run raises if it can't begin.
    """
    plain = {
        "task": config.task,
        "task_path": config.task_path,
        "options": config.options,
        "provider": {"name": "fake"},
        "episodes": 1,
        "search": {"strategy": "chains", "k_samples": 1},
        "judge": {"enabled": False},
        "behaviors": {"enabled": False},
        "cache": {"enabled": False},
        "allow_unsafe_code": config.allow_unsafe_code,
    }
    with TemporaryDirectory(prefix="orchestry-check-") as folder:
        try:
            return Finding(RULE, True, _told(train(validate(plain), Path(folder, "run")), roles))
        except TaskError as error:
            return Finding(RULE, False, str(error), (str(error),))


def _told(run: Run, roles: Sequence[str]) -> str:
    (episode,) = run.episodes
    asked = Counter(turn.agent for node in episode.nodes for turn in node.turns)
    calls = ", ".join(f"{role} {asked[role]}" for role in roles)
    return f"it plays problem '{episode.problem}' to its end; calls, with made-up answers: {calls}"
