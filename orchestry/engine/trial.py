"""One rollout of a user's program, with made-up answers: whether it asks its agents and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import SPLITS
from orchestry.engine.run import train
from orchestry.store.journal import Answered
from orchestry.store.run import load_run
from orchestry.task.check import Finding
from orchestry.task.programs.agent_task import AgentTask

RULE = "program"
KEPT = {"task", "task_path", "options", "weights", "agents", "sampling", "allow_unsafe_code"}
"""What a trial has of the run's config."""


def program_tried(task: AgentTask, config: RunConfig) -> Finding:
    """Starts the program once, as a run does, at no cost; what it does outside is done.

    It keeps the rule if it has asked an agent: whether it can go on with an answer that is made up
    is no fault of its own. Raises KeyboardInterrupt if it is interrupted.
    """
    split = next((one for one in SPLITS if task.problems(one)), None)
    if split is None:
        return Finding(RULE, False, "not tried, since there is no problem")
    with TemporaryDirectory(prefix="orchestry-check-") as folder:
        run, said = Path(folder, "run"), "it comes to its end"
        try:
            if train(validate(_trial(config, split)), run).summary.stopped == "interrupted":
                raise KeyboardInterrupt
        except ConfigError as error:
            return Finding(RULE, False, str(error), (str(error),))
        except TaskError as error:
            said = str(error)
        asked = Counter(one.agent for one in load_run(run).events if isinstance(one, Answered))
    if not asked:
        return Finding(RULE, False, said, (said,))
    calls = ", ".join(f"{spec.role} {asked[spec.role]}" for spec in task.agents)
    return Finding(RULE, True, f"calls with made-up answers: {calls}; then {said}")


def _trial(config: RunConfig, split: str) -> Mapping[str, Any]:
    return config.model_dump(mode="json", by_alias=True, include=KEPT) | {
        "split": split,
        "provider": {"name": "fake", "fake": config.provider.fake.model_dump(mode="json")},
        "episodes": 1,
        "search": {"strategy": "chains", "k_samples": 1},
        "judge": {"enabled": False},
        "behaviors": {"enabled": False},
        "cache": {"enabled": False},
    }
