"""A checked run, before anything is spent or written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestry.backends.base import Backend
from orchestry.core.config import RunConfig
from orchestry.core.seeds import derive, shuffled
from orchestry.core.types import Policy, Problem
from orchestry.engine.curriculum import by_grade, by_success
from orchestry.judge.judge import ListwiseJudge, for_task
from orchestry.models.ledger import Ledger
from orchestry.rollout.schedule import Schedule
from orchestry.store.records import EpisodeRecord
from orchestry.task.base import BaseTask
from orchestry.task.guard import count_stages

STAGES_PER_PLACE = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked run: its task loads; its key, prices and agents are known."""

    task: BaseTask[Any]
    problems: Sequence[Problem]
    backend: Backend
    digests: Mapping[str, str] = field(default_factory=dict)
    """Digests of the task's files."""
    unscored: str = ""
    """Why the reward of the problem that the config names can't be computed; '' if it can."""

    @property
    def config(self) -> RunConfig:
        """The config with everything that its backend resolved."""
        return self.backend.config

    def draw(self, block: range, before: Iterable[EpisodeRecord]) -> list[Problem]:
        """The problems of a block's episodes, given all episodes before it.

        A last block that is cut short is the beginning of a whole one: the run may be prolonged.
        """
        if block and self.config.curriculum == "success":
            whole = range(block.start, block.start + (self.backend.every or len(block)))
            return by_success(self.problems, whole, before, self.config.seed)[: len(block)]
        return [self.problem(episode) for episode in block]

    def problem(self, episode: int) -> Problem:
        """All problems in seeded order; after each pass they come again in another order. With
        `curriculum: grade` the first pass begins with the easiest; `success` needs `draw`."""
        epoch, place = divmod(episode, len(self.problems))
        if self.config.curriculum == "grade" and not epoch:
            return by_grade(self.problems, self.config.seed)[place]
        order = shuffled(len(self.problems), self.config.seed, "epoch", epoch)
        return self.problems[order[place]]

    def seed(self, episode: int) -> int:
        """The seed of an episode's samples."""
        return derive(self.config.seed, "episode", episode)

    def schedule(self, problem: Problem) -> Schedule:
        """How many samples each stage draws, and which states survive, before anything is known of
        the problem."""
        (found,) = self.backend.schedules(self.task, [problem])
        return found

    def judge(self, policy: Policy, **changes: Any) -> ListwiseJudge:
        """The run's judge, with that policy as its model."""
        settings = for_task(self.config.judge.model_copy(update=changes), self.task)
        model, agents = self.backend.bench.provider.model, self.task.agents
        return ListwiseJudge(policy, model, settings, agents, temperature=settings.temperature)

    @property
    def episodes_in_flight(self) -> int:
        """The config's number, else enough that calls are always waiting for a free slot.

        An episode pauses after each stage until the slowest call is answered. Four stages of calls
        per slot make up for that (measured in benchmarks/peers/overhead.py). More would leave more
        episodes unfinished at a stop.
        """
        search = self.config.search
        if search.episodes_in_flight is not None:
            return search.episodes_in_flight
        asked = {self.backend.answering(spec.role).provider for spec in self.task.agents}
        slots = max(provider.slots or search.concurrency for provider in asked)
        places = min(search.concurrency, slots)
        breadth = self.schedule(self.problems[0]).breadth
        return min(places, max(2, -(-STAGES_PER_PLACE * places // breadth)))

    @property
    def calls(self) -> int:
        """The most calls that playing an episode makes, counted on the first problem; an agent with
        tools may be asked again after each of its calls."""
        problem = self.problems[0]
        breadth = self.schedule(problem).breadth
        acting = len(self.task.to_act(self.task.reset(problem, 0)))
        loop = max(1 + spec.max_calls if spec.tools else 1 for spec in self.task.agents)
        return breadth * acting * count_stages(self.task, problem) * loop

    @property
    def judged_episodes(self) -> int:
        """How many episodes a judge is asked in."""
        return -(-self.config.episodes // self.config.judge.every) if self.backend.judges else 0

    def foresee(self, ledger: Ledger, finished: int) -> None:
        """Tells the ledger how much an episode may cost, before the first one has finished."""
        backend = self.backend
        usd = max(
            backend.answering(role).prices.worst(member.model, 0, member.max_tokens, shared=False)
            for role, member in backend.team(self.task).items()
        )
        ledger.foresee(self.calls, usd, finished)
