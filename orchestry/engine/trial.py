"""One rollout of a user's program, with made-up answers: whether it asks its agents and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError, RewardFault, TaskError
from orchestry.core.types import SPLITS
from orchestry.engine.run import train
from orchestry.store.journal import Answered
from orchestry.store.run import load_run
from orchestry.task.check import IDLE_PAY, PAID, Finding
from orchestry.task.programs.agent_task import AgentTask

RULE = "program"
KEPT = {"task", "task_path", "options", "weights", "agents", "sampling", "allow_unsafe_code"}
"""What a trial has of the run's config."""


def program_tried(task: AgentTask, config: RunConfig) -> Finding:
    """Starts the program once, as a run does, at no cost; what it does outside is done.

    It keeps the rule if it has asked an agent, and if a reward that it gives can be taken: whether
    it can go on with an answer that is made up is no fault of its own. Raises KeyboardInterrupt if
    it is interrupted.
    """
    split = next((one for one in SPLITS if task.problems(one)), None)
    if split is None:
        return Finding(RULE, "not tried", "since there is no problem")
    with TemporaryDirectory(prefix="orchestry-check-") as folder:
        run, said, earned = Path(folder, "run"), "it comes to its end", 0.0
        try:
            found = train(validate(_trial(config, split)), run)
            if found.summary.stopped == "interrupted":
                raise KeyboardInterrupt
            earned = found.rewards[0]
            said += f" and earns {earned:.2f}"
        except ConfigError as error:
            return _broken(str(error))
        except TaskError as error:
            said = str(error)
            if any(isinstance(one, RewardFault) for one in (error, error.__cause__)):
                return _broken(said)
        asked = Counter(one.agent for one in load_run(run).events if isinstance(one, Answered))
    if not asked:
        return _broken(said)
    calls = ", ".join(f"{spec.role} {asked[spec.role]}" for spec in task.agents)
    text = f"calls with made-up answers: {calls}; then {said}"
    return Finding(RULE, "warn", text + PAID) if earned > IDLE_PAY else Finding(RULE, "ok", text)


def _broken(said: str) -> Finding:
    return Finding(RULE, "FAIL", said, (said,))


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
