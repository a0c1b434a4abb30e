"""The local backend: one LoRA agent a role on weights of this machine, trained by MAGRPO gradients.

Task, reward, rollout and journal are those of every run. What differs: the team's own weights
answer, all episodes of an update in step, and an update is one step down the policy gradient.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestry import journal
from orchestry.backends.api import ApiBackend, Update
from orchestry.config import RunConfig
from orchestry.cores import idle_cores
from orchestry.errors import ConfigError
from orchestry.learn.lockstep import Lockstep
from orchestry.records import EpisodeRecord
from orchestry.rollout import Rate, Rollout
from orchestry.search.beam import Schedule
from orchestry.seeds import derive
from orchestry.store import Store
from orchestry.task import BaseTask
from orchestry.types import Completion, Problem, Provider, Request, Tree

if TYPE_CHECKING:
    from orchestry.learn.trainer import Trainer

EMBEDDED = "embedded"
ON_GPU = "Qwen/Qwen2.5-Coder-1.5B-Instruct"
TEMPERATURE = 0.8
"""Where the config names none: the paper's."""
_PACKAGES = ("torch", "transformers", "peft", "safetensors", "gguf")
_CHECKPOINTS = Path("checkpoints")
_TEMPLATE_TOKENS = 64  # what a chat template puts around a message, at most


class Weights:
    """The team's own weights, as a provider that bills nobody: they answer through Lockstep."""

    name, base_url = "local", ""
    deterministic, cacheable, bills_unanswered = True, False, False
    slots: int | None = None

    def __init__(self, model: str) -> None:
        self.model = model

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """Raises ConfigError: a judge or a credit by replay wants another provider."""
        raise ConfigError(
            f"backend local draws only its agents' own moves, not {request.purpose}: name a judge "
            "in judge.provider.name, or set judge.enabled=false"
        )

    def input_bound(self, request: Request) -> int:
        """A token is at least a byte."""
        texts = [message.content.encode() for message in request.messages]
        return sum(len(text) + _TEMPLATE_TOKENS for text in texts)

    def leads(self, request: Request) -> bool:
        return False

    async def __aenter__(self) -> Weights:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InStep(Rollout[Any]):
    """A rollout in step with the others of its update; its tree is kept to learn from."""

    lockstep: Lockstep
    keep: Callable[[Tree[Any]], None]

    async def play(self, problem: Problem, seed: int) -> Tree[Any]:
        """See Rollout.play."""
        with self.lockstep.playing():
            tree = await Rollout.play(self, problem, seed)
        self.keep(tree)
        return tree


class LocalBackend(ApiBackend):
    """A team of adapters on one base. Built: checked, nothing loaded. `open`: it can play."""

    def __init__(
        self, config: RunConfig, judged: bool, environ: Mapping[str, str], need_key: bool
    ) -> None:
        _need_packages()
        super().__init__(_as_chains(config), judged, environ, need_key)
        self._trees: dict[int, Tree[Any]] = {}
        self._updates = 0

    def _found(self, config: RunConfig, environ: Mapping[str, str]) -> tuple[RunConfig, Provider]:
        return config, Weights(config.provider.model or _default_model(config))

    @property
    def every(self) -> int | None:
        """Episodes between two updates; None where the adapters stay as they are."""
        return self.config.learn.every if self.config.learn.enabled else None

    @property
    def updates(self) -> int:
        return self._updates

    async def open(
        self, store: Store, task: BaseTask[Any], rate: Rate, on_warn: Callable[[str], None]
    ) -> None:
        """Loads the weights, and the adapters as the last update left them.

        Episodes since that update are played again, all together: what a batch holds is then what
        it would have been without the stop, to the last bit.
        """
        learned = [event for event in store.events if isinstance(event, journal.Learned)]
        self._updates, self._store = len(learned), store
        if self.every is not None:
            _take_back(store, self._updates * self.every)
        await super().open(store, task, rate, on_warn)
        last = store.folder / learned[-1].state["checkpoint"] if learned else None
        self._trainer = await asyncio.to_thread(self._load, task, last)
        self._lockstep = Lockstep(self._draw)

    def _load(self, task: BaseTask[Any], last: Path | None) -> Trainer:
        from orchestry.learn.trainer import Trainer

        settings = self.config.learn
        updates = self.config.episodes // settings.every
        roles = [spec.role for spec in task.agents]
        trainer = Trainer(self.provider.model, roles, settings, updates, self.config.seed)
        trainer.temperatures = {
            role: TEMPERATURE if member.temperature is None else member.temperature
            for role, member in self.team(task).items()
        }
        if last is not None:
            trainer.resume(last)
        elif settings.source is not None:
            trainer.start_from(settings.source)
        return trainer

    def rollout(
        self, task: BaseTask[Any], rate: Rate, schedule: Schedule, episode: int
    ) -> Rollout[Any]:
        """How that episode is played: by the weights that the updates before it left."""
        return InStep(
            task=task,
            team=self.team(task),
            policy=self._lockstep,
            rate=rate,
            schedule=schedule,
            judge=self._judge(episode),
            lockstep=self._lockstep,
            keep=lambda tree: self._trees.update({episode: tree}),
        )

    async def _draw(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """One batch from the weights, into journal and books."""
        self.gateway.check_door()
        began = time.monotonic()
        answers = await asyncio.to_thread(self._trainer.draw, requests, n)
        seconds = (time.monotonic() - began) / max(1, n * len(requests))
        for request, samples in zip(requests, answers, strict=True):
            for index, completion in enumerate(samples):
                one = {"sample_index": index, "seed": derive(request.seed, index)}
                self.gateway.note(request.model_copy(update=one), completion, seconds)
        return answers

    async def update(
        self,
        block: Sequence[EpisodeRecord],
        ratings: Mapping[tuple[int, str], float],
        again: Sequence[EpisodeRecord] = (),
    ) -> Update:
        """One MAGRPO step from the episodes since the last one, saved before it counts."""
        from orchestry.learn.groups import gather

        settings, trees = self.config.learn, [self._trees.pop(e.episode) for e in block]
        batch = gather(
            trees,
            joint=self.config.search.joint,
            rewards=settings.rewards,
            discount=settings.discount,
            grouping=settings.grouping,
            baseline=settings.baseline,
            normalise=settings.normalise,
        )
        done = await asyncio.to_thread(self._trainer.learn, batch)
        name = _CHECKPOINTS / f"{block[-1].episode + 1:06d}"
        await asyncio.to_thread(self._trainer.save, self._store.folder / name, settings.keep)
        self._updates += 1
        reward = sum(record.mean_leaf_reward for record in block) / len(block)
        state = {"checkpoint": name.as_posix(), "reward": reward, **done.figures()}
        note = f"update {self._updates}: mean reward {reward:.3f}, {done.line()}"
        return Update(state, {}, [note])


def _as_chains(config: RunConfig) -> RunConfig:
    """Independent trajectories, a group a problem, all episodes of an update at once."""
    learn, sampling = config.learn, config.sampling
    search = {
        "strategy": "chains",
        "k_samples": learn.group_size,
        "episodes_in_flight": learn.every,
    }
    temperature = TEMPERATURE if sampling.temperature is None else sampling.temperature
    threads = {"threads": learn.threads or idle_cores()}
    return config.model_copy(
        update={
            "search": config.search.model_copy(update=search),
            "sampling": sampling.model_copy(update={"temperature": temperature}),
            "learn": learn.model_copy(update=threads),
        }
    )


def _default_model(config: RunConfig) -> str:
    """A model that can code where there is a GPU to train it, else the embedded one."""
    import torch

    on_gpu = config.learn.device == "cuda" or (
        config.learn.device == "auto" and torch.cuda.is_available()
    )
    return ON_GPU if on_gpu else EMBEDDED


def _need_packages() -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"backend local needs {', '.join(missing)}, not installed here: "
            'pip install "orchestry[local]"'
        )


def _take_back(store: Store, first: int) -> None:
    """Episodes since the last update, where there are some."""
    if any(episode >= first for episode in store.episodes.keys() | store.lost):
        store.roll_back(first, time.time())
