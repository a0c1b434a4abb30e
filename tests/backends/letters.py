"""A task of letters for two agents, and the local runs of it that tests look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestry.core.config import RunConfig, resolve
from orchestry.core.learning import LearnConfig
from orchestry.core.types import Member, Turn
from orchestry.store.journal import Learned
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run, load_run

if TYPE_CHECKING:
    from orchestry.backends.local.trainer import Trainer

ROLES = ("left", "right")
EVERY, GROUP = 4, 4
TASK = '''
import asyncio
from dataclasses import dataclass, replace

from orchestry import AgentSpec, BaseTask, Problem

PAUSE = 0.0
ROLES = ("left", "right")


@dataclass(frozen=True)
class State:
    problem: Problem
    said: tuple = ()


class Letters(BaseTask):
    """Two agents answer at once; the reward is the share of the letter e in what they wrote."""

    name = "letters"
    agents = tuple(AgentSpec(role=role, system_prompt=role[0]) for role in ROLES)

    def problems(self, split):
        return [Problem(id=f"{split}-{n}", prompt=f"say {n}", split=split) for n in range(4)]

    def reset(self, problem, seed):
        return State(problem)

    def to_act(self, state):
        return () if state.said else ROLES

    def observe(self, state, agent):
        return state.problem.prompt

    def step(self, state, actions):
        return replace(state, said=tuple(actions[role] for role in ROLES))

    async def evaluate(self, state, tools):
        await asyncio.sleep(PAUSE * int(state.problem.id[-1]))
        text = "".join(state.said)
        return self.score(quality=text.count("e") / max(1, len(text)))
'''


def write_task(folder: Path, source: str) -> Path:
    (folder / "letters").mkdir(parents=True)
    (folder / "letters" / "task.py").write_text(source)
    return folder


def settings(model: str, tasks: Path, *more: str) -> list[str]:
    return [
        "backend=local",
        "task=letters",
        f"task_path=[{tasks}]",
        f"provider.model={model}",
        f"episodes={2 * EVERY}",
        "sampling.max_tokens=8",
        "budget.usd=5",  # which configs/local.yaml sets otherwise, for runs by the command line
        "learn.threads=1",
        "learn.learning_rate=0.03",
        f"learn.every={EVERY}",
        f"learn.group_size={GROUP}",
        "learn.rank=4",
        "learn.alpha=8",
        *more,
    ]


def config(model: str, tasks: Path, *more: str) -> RunConfig:
    return resolve([], settings(model, tasks, *more))


def learned(run: Run) -> list[Learned]:
    return [event for event in run.events if isinstance(event, Learned)]


def adapters(folder: Path) -> dict[str, bytes]:
    """All saved adapters of a run, to the last bit."""
    found = sorted(folder.glob("checkpoints/*/*/adapter_model.safetensors"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def artefacts(folder: Path) -> dict[str, Any]:
    """All of a run that must not depend on when and how often it was interrupted; the speed of
    drawing does."""
    names = ("config.yaml", "episodes.jsonl", "metrics.jsonl", "rewards.csv")
    states = [dict(event.state) for event in learned(load_run(folder))]
    for state in states:
        state.pop("tokens_per_s", None)
    files = {name: (folder / name).read_text() for name in names}
    return {"states": states, "adapters": adapters(folder), **files}


def turns(episode: EpisodeRecord) -> list[Turn]:
    return [turn for node in episode.nodes for turn in node.turns]


def trainer(model: str, checkpoint: Path | None = None, alpha: int = 8) -> Trainer:
    """The team of the runs here, fresh or from a checkpoint."""
    from orchestry.backends.local.trainer import Trainer

    chosen = LearnConfig.model_validate({"threads": 1, "rank": 4, "alpha": alpha})
    team = {role: Member(role, role[0], model, 8, temperature=0.8) for role in ROLES}
    made = Trainer(team, chosen, 1, 0, warn=print)
    if checkpoint is not None:
        made.start_from(checkpoint)
    return made


def surprise(made: Trainer, episode: EpisodeRecord) -> float:
    """The largest gap between the log-probabilities recorded and those of these weights."""
    import torch

    from orchestry.backends.local.batch import Packed
    from orchestry.backends.local.logprobs import completion_logprobs

    gaps, (crew,) = [], made.crews
    for turn in turns(episode):
        tokens = turn.completion.tokens
        assert tokens is not None
        packed = Packed(ROLES.index(turn.agent), tokens.prompt_ids, (tokens.ids,))
        with torch.no_grad():
            (found,) = completion_logprobs(crew.base, crew.adapters, [packed], 0.8)
        gaps.append(float((found - torch.tensor(tokens.logprobs)).abs().max()))
    return max(gaps)
