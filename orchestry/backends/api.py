"""The api backend: a team of prompts over a served model, asked through the gateway.

It learns by rewriting the prompts: an update tries behaviours on dev, and those that help enter
the agents' system prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from orchestry import journal
from orchestry.backends.judging import open_bench, why_off
from orchestry.backends.settling import settled
from orchestry.backends.team import base_prompt, team
from orchestry.behaviors.learner import Learner, Played, State
from orchestry.behaviors.library import IN_RUN, Library, prompt_diff, read_library, to_yaml
from orchestry.config import RunConfig
from orchestry.errors import ConfigError
from orchestry.providers import open_provider, resolve_name
from orchestry.records import EpisodeRecord
from orchestry.rollout import Member, Rate, Rollout
from orchestry.search.beam import Chains, Schedule
from orchestry.search.calibration import Calibration, calibration, judged_pairs
from orchestry.search.judge import ListwiseJudge
from orchestry.seeds import derive
from orchestry.services.gateway import Gateway, open_gateway
from orchestry.services.prices import price_table
from orchestry.store import Store
from orchestry.task import BaseTask
from orchestry.types import Judge, Problem, Provider

NO_KEYS = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "none-needed-for-a-dry-run")
START = "behaviors/from.yaml"
"""Where a run keeps the library that it started from."""


@dataclass(frozen=True, slots=True)
class Update:
    """What an update leaves: the state for the journal, files for the run, lines for the user."""

    state: Mapping[str, Any]
    files: Mapping[str, str]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class PromptChange:
    """What the library came to: accepted behaviours, and the prompts' diff from the task's own."""

    accepted: int
    diff: str


class ApiBackend:
    """Provider and gateway of one run. Built: checked, nothing spent. `open`: calls can be made."""

    gateway: Gateway
    calibration = Calibration()
    """What people's ratings correct the judge's numbers by."""
    learner: Learner | None = None

    def __init__(
        self, config: RunConfig, judged: bool, environ: Mapping[str, str], need_key: bool
    ) -> None:
        """`judged` is whether the task asks for a judge where the config does not say."""
        self.notes: list[str] = []
        config = self._named(config, environ)
        if not need_key:
            environ = {**NO_KEYS, **environ}
        self.provider = self._found(config, environ)
        self.prices = price_table(self.provider, config)
        self.bench = open_bench(config, self.provider, self.prices, environ)
        self.config = settled(config, self.provider, self.bench.provider, judged)
        if (why := why_off(config, self.bench.provider, judged)) is not None:
            self.notes.append(why)
        self.library = self._first_library()
        self._stack = AsyncExitStack()

    def _named(self, config: RunConfig, environ: Mapping[str, str]) -> RunConfig:
        """The config with the provider's name, which the environment may decide."""
        name, note = resolve_name(config.provider, environ)
        self.notes += [note] if note else []
        named = config.provider.model_copy(update={"name": name})
        return config.model_copy(update={"provider": named})

    def _found(self, config: RunConfig, environ: Mapping[str, str]) -> Provider:
        """Who answers."""
        return open_provider(config.provider, config.seed, environ)

    @property
    def every(self) -> int | None:
        """Episodes between two updates; None where nothing is learned."""
        return self.config.behaviors.every if self.config.behaviors.enabled else None

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

    @property
    def updates(self) -> int:
        """Updates taken so far, by earlier processes too."""
        return len(self.learner.states) - 1 if self.learner else 0

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
        self._critic, self._agents = self.gateway, task.agents
        if self.bench.own:
            self._critic = self.gateway.beside(self.bench.provider, self.bench.prices)
        self.calibration = _calibration(store)
        self._calibrations = _calibrations(store)
        if self.config.behaviors.enabled:
            self.learner = self._new_learner(task, rate, store.events)

    async def close(self) -> None:
        await self._stack.aclose()

    def meet(self, task: BaseTask[Any]) -> None:
        """Checks that the run's settings fit the task; raises ConfigError, or adds notes."""
        self.team(task)
        self._keep_roles(task)

    def team(self, task: BaseTask[Any], library: Library | None = None) -> dict[str, Member]:
        """The task's agents as this run asks them; raises ConfigError for a role it lacks."""
        return team(task, self.config, self.provider.model, library or self.library)

    def rollout(
        self, task: BaseTask[Any], rate: Rate, schedule: Schedule, episode: int
    ) -> Rollout[Any]:
        """How that episode is played: with what was learned, and known of the judge, before it."""
        library = self.library
        if self.learner is not None and self.every is not None:
            library = self.learner.states[episode // self.every].library
        return Rollout(
            task=task,
            team=self.team(task, library),
            policy=self.gateway,
            rate=rate,
            schedule=schedule,
            judge=self._judge(episode),
        )

    def _judge(self, episode: int) -> Judge | None:
        if not self.judges:
            return None
        judge = self.config.judge
        return ListwiseJudge(
            self._critic,
            self.bench.provider.model,
            judge,
            self._agents,
            self._calibrations.get(episode, self.calibration),
            judge.temperature,
        )

    async def update(
        self,
        block: Sequence[EpisodeRecord],
        ratings: Mapping[tuple[int, str], float],
        again: Sequence[EpisodeRecord] = (),
    ) -> Update:
        """Learns from the episodes since the last update; `ratings` are people's, by node, and
        `again` the earlier episodes that they rated.
        """
        assert self.learner is not None, "only a backend that learns is asked to"
        notes = await self.learner.update(block, ratings, again)
        state = self.learner.states[-1].model_dump(mode="json")
        return Update(state, self.files(), notes)

    def files(self) -> dict[str, str]:
        """The library in use, as a file of the run by name."""
        if self.learner is None and not self.library.behaviors:
            return {}
        return {IN_RUN.as_posix(): to_yaml(self._latest)}

    def prompt_change(self, task: BaseTask[Any]) -> PromptChange:
        """What stands in the prompts now, beside what the task itself says."""
        library = self._latest
        bare = Library(task=library.task, model=library.model)
        accepted = sum(len(library.accepted(spec.role)) for spec in task.agents)
        return PromptChange(accepted, prompt_diff(bare, library, self._prompts(task)))

    @property
    def _latest(self) -> Library:
        return self.learner.states[-1].library if self.learner else self.library

    def _prompts(self, task: BaseTask[Any]) -> dict[str, str]:
        return {spec.role: base_prompt(spec, self.config) for spec in task.agents}

    def _first_library(self) -> Library:
        """Empty, or the one of `behaviors.from`: of this task and model as it is, else all of it
        to be tested first; raises ConfigError for one that would be used untested.
        """
        task, model, source = self.config.task, self.provider.model, self.config.behaviors.source
        if source is None:
            return Library(task=task, model=model)
        library = read_library(source)
        if (library.task, library.model) == (task, model):
            return library.adopted()
        if not self.config.behaviors.enabled:
            raise ConfigError(
                f"{source} was learned on {library.task} with {library.model}, not on {task} with "
                f"{model}, so it must be tested before it is used: set behaviors.enabled=true"
            )
        return library.transferred(task, model)

    def _keep_roles(self, task: BaseTask[Any]) -> None:
        """Leaves out, with a note, what the library holds for agents that the task lacks."""
        roles = {spec.role for spec in task.agents}
        strangers = sorted({b.agent for b in self.library.behaviors} - roles)
        if strangers:
            self.library = self.library.of(roles)
            self.notes.append(
                f"behaviors.from has behaviours for {', '.join(strangers)}, whom task {task.name} "
                f"lacks (it has {', '.join(sorted(roles))}): they are left out"
            )

    def _new_learner(
        self, task: BaseTask[Any], rate: Rate, events: Sequence[journal.Event]
    ) -> Learner:
        """Dev draws also depend on the library at the start: what was accepted on some draws is
        not tested on them again."""
        learned = [event for event in events if isinstance(event, journal.Learned)]
        return Learner(
            self.config.behaviors,
            derive(self.config.seed, *(b.id for b in self.library.behaviors)),
            task.agents,
            prompts=self._prompts(task),
            dev=task.problems("dev"),
            arena=_Dev(self, task, rate),
            policy=self._critic,
            model=self.bench.provider.model,
            max_tokens=self.config.judge.max_tokens,
            states=[State(library=self.library), *(State.model_validate(e.state) for e in learned)],
        )


@dataclass(frozen=True, slots=True)
class _Dev:
    """Plays dev problems without search, so that a library is tested on what it does alone."""

    backend: ApiBackend
    task: BaseTask[Any]
    rate: Rate

    async def play(self, library: Library, problem: Problem, seed: int) -> Played:
        rollout = Rollout(
            task=self.task,
            team=self.backend.team(self.task, library),
            policy=self.backend.gateway,
            rate=self.rate,
            schedule=Chains(1),
            purpose="trial",
        )
        tree = await rollout.play(problem, seed)
        leaf = tree.trajectories[tree.leaves[0]]
        return Played(tree.values[leaf.id].number, leaf.turns)


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
