"""What every backend is: who answers and at what price, who judges, and what an update leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.backends.api.library import Library, empty
from orchestry.backends.judging import open_bench, why_off
from orchestry.backends.settling import settled
from orchestry.backends.team import team
from orchestry.core.config import RunConfig
from orchestry.core.types import Completion, Judge, Member, Policy, Provider, Rate, Request, Tree
from orchestry.judge.calibration import Calibration, calibration, judged_pairs
from orchestry.judge.judge import ListwiseJudge
from orchestry.models.gateway import Gateway, open_gateway
from orchestry.models.prices import price_table
from orchestry.rollout.beam import Schedule
from orchestry.rollout.rollout import Rollout
from orchestry.store import journal
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run, Store
from orchestry.task.base import BaseTask

NO_KEYS = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "none-needed-for-a-dry-run")


@dataclass(frozen=True, slots=True)
class Update:
    """What an update leaves: the state for the journal, files for the run, lines for the user."""

    state: Mapping[str, Any]
    files: Mapping[str, str]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the team earned on dev: for the journal, and as a line for the user."""

    event: journal.Evaluated
    note: str


@dataclass(frozen=True, slots=True)
class PromptChange:
    """What the library came to: accepted behaviours, and the prompts' diff from the task's own."""

    accepted: int
    diff: str


@dataclass(frozen=True, slots=True)
class Ranked:
    """A policy asked for one episode, whose calls go before those of younger ones."""

    policy: Policy
    episode: int

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy."""
        rank = {"rank": self.episode}
        return await self.policy.sample([one.model_copy(update=rank) for one in requests], n)


class Backend(ABC):
    """Provider and gateway of one run. Built: checked, nothing spent. `open`: calls can be made."""

    gateway: Gateway
    calibration = Calibration()
    """What people's ratings correct the judge's numbers by."""
    library: Library
    """Behaviours that the run began with in its prompts; empty where there are none."""
    in_step = False
    """Whether episodes wait for each other's answers, so that none may be kept back for another."""

    def __init__(
        self, config: RunConfig, provider: Provider, judged: bool, environ: Mapping[str, str]
    ) -> None:
        """`judged` is whether the task asks for a judge where the config does not say."""
        self.provider = provider
        self.prices = price_table(provider, config)
        self.bench = open_bench(config, provider, self.prices, environ)
        self.config = settled(config, provider, self.bench.provider, judged)
        self.library = empty(config.task, provider.model)
        why = why_off(config, self.bench.provider, judged)
        self.notes: list[str] = [why] if why else []
        self._stack = AsyncExitStack()

    @property
    @abstractmethod
    def every(self) -> int | None:
        """Episodes between two updates; None where nothing is learned."""

    @property
    @abstractmethod
    def updates(self) -> int:
        """Updates taken so far, by earlier processes too."""

    @property
    def taught(self) -> int | None:
        """Those of them that found something to learn from, where that is counted."""
        return None

    @property
    def dev_plays(self) -> int:
        """Plays of dev problems, beside the run's episodes, that are as large as those."""
        return 0

    @property
    def best_update(self) -> int | None:
        """The one after which the team earned most on dev, where it was evaluated."""
        return None

    @property
    def dev_rewards(self) -> dict[str, float]:
        """Mean rewards on dev `before` learning, at the `last` evaluation and at the `best`, where
        weights were evaluated while they learned."""
        return {}

    @abstractmethod
    def rollout(
        self, task: BaseTask[Any], rate: Rate, schedule: Schedule, episode: int
    ) -> Rollout[Any]:
        """How that episode is played: with what was learned before it."""

    @abstractmethod
    async def update(
        self,
        block: Sequence[EpisodeRecord],
        ratings: Mapping[tuple[int, str], float],
        again: Sequence[EpisodeRecord] = (),
    ) -> Update:
        """Learns from the episodes since the last update; `ratings` are people's, by node, and
        `again` the earlier episodes that they rated.
        """

    async def replay(self, rollout: Rollout[Any], tree: Tree[Any]) -> None:  # noqa: B027
        """The plays beside an episode's own that learning from it takes."""

    async def evaluate(self) -> Evaluation | None:
        """The team as it stands, on dev; None where that is not due, or was done before."""
        return None

    @classmethod
    @abstractmethod
    def as_left(cls, source: Run, learned: journal.Learned | None, folder: Path) -> dict[str, Any]:
        """Changes of a run's config that play the team as an update left it, or as the run began
        if None, and learn nothing.

        `folder` is where such a run lies, or will. Raises ConfigError for an update that is kept
        no more, StoreError where the run is damaged.
        """

    @property
    def judges(self) -> bool:
        """Whether a judge is asked: not where nothing is pruned and no finished trajectory is to
        be judged.
        """
        judge, prunes = self.config.judge, self.config.search.strategy == "beam"
        return bool(judge.enabled) and (prunes or judge.when == "always")

    @property
    def corrects(self) -> tuple[float, float]:
        """Slope and intercept by which the judge's numbers are corrected."""
        return self.calibration.slope, self.calibration.intercept

    async def open(
        self, store: Store, task: BaseTask[Any], rate: Rate, on_warn: Callable[[str], None]
    ) -> None:
        """Starts the providers, and the gateway with what the journal already paid for."""
        others = [self.bench.provider] if self.bench.own else []
        self.gateway = await self._stack.enter_async_context(
            open_gateway(
                self.config,
                self.provider,
                self.prices,
                store.journal,
                store.events,
                on_warn=on_warn,
                besides=others,
            )
        )
        for provider in (self.provider, *others):
            await self._stack.enter_async_context(provider)
        self._critic: Policy = self.gateway
        self._agents = task.agents
        if self.bench.own:
            self._critic = self.gateway.beside(self.bench.provider, self.bench.prices)
        self.calibration = _calibration(store)
        self._calibrations = _calibrations(store)

    async def close(self) -> None:
        await self._stack.aclose()

    def meet(self, task: BaseTask[Any]) -> None:
        """Checks that the run's settings fit the task; raises ConfigError, or adds notes."""
        self.team(task)

    def begin(self) -> None:  # noqa: B027 - most take over nothing
        """Checks what a run takes over as it begins, and a resume has already; raises ConfigError
        for what is not there."""

    def team(self, task: BaseTask[Any], library: Library | None = None) -> dict[str, Member]:
        """The task's agents as this run asks them; raises ConfigError for a role it lacks."""
        return team(task, self.config, self.provider.model, library or self.library)

    def digests(self) -> dict[str, str]:
        """What this run stands on beside its config and task, by content: equal content has equal
        digests wherever it lies. May be asked once `meet` was called; a resume compares them."""
        return {}

    def files(self) -> dict[str, str]:
        """What the run keeps of what it knows, beside the journal: texts by name."""
        return {}

    def prompt_change(self, task: BaseTask[Any]) -> PromptChange:
        """What stands in the prompts now, beside what the task itself says."""
        return PromptChange(0, "")

    def _judge(self, episode: int) -> Judge | None:
        if not self.judges:
            return None
        judge = self.config.judge
        return ListwiseJudge(
            Ranked(self._critic, episode),
            self.bench.provider.model,
            judge,
            self._agents,
            self._calibrations.get(episode, self.calibration),
            judge.temperature,
        )


def _calibration(store: Store) -> Calibration:
    """From all that people rated before this process."""
    records = [store.episodes[number] for number in sorted(store.episodes)]
    return calibration(judged_pairs(records, journal.ratings(store.events)))


def _calibrations(store: Store) -> dict[int, Calibration]:
    """Of the finished episodes that were lost: the calibration of the process that played them."""
    then, found = Calibration(), dict[int, Calibration]()
    for event in store.events:
        if isinstance(event, journal.Opened):
            then = Calibration(*event.calibration)
        elif isinstance(event, journal.Committed) and event.episode in store.lost:
            found[event.episode] = then
    return found
