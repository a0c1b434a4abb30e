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
from orchestry.backends import judging
from orchestry.backends.team import base_prompt, team
from orchestry.behaviors.learner import Learner, Played, State
from orchestry.behaviors.library import Library, prompt_diff, read_library, to_yaml
from orchestry.config import RunConfig
from orchestry.errors import ConfigError
from orchestry.providers import open_provider, resolve_name
from orchestry.records import EpisodeRecord
from orchestry.rollout import Member, Rate, Rollout
from orchestry.search.beam import Chains, Schedule
from orchestry.search.calibration import calibration, judged_pairs
from orchestry.search.judge import ListwiseJudge
from orchestry.services.gateway import Gateway, open_gateway
from orchestry.services.prices import price_table
from orchestry.store import Store
from orchestry.task import BaseTask
from orchestry.types import Judge, Problem, Provider

NO_KEYS = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "none-needed-for-a-dry-run")
LIBRARY = "behaviors/library.yaml"
"""Where a run keeps its library."""


@dataclass(frozen=True, slots=True)
class Update:
    """What an update leaves: the state for the journal, files for the run, lines for the user."""

    state: Mapping[str, Any]
    files: Mapping[str, str]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Learned:
    """What the library came to: accepted behaviours, and the prompts' diff from the task's own."""

    accepted: int
    diff: str


class ApiBackend:
    """Provider and gateway of one run. Built: checked, nothing spent. `open`: calls can be made."""

    gateway: Gateway
    judge: Judge | None = None
    learner: Learner | None = None

    def __init__(self, config: RunConfig, environ: Mapping[str, str], need_key: bool) -> None:
        name, note = resolve_name(config.provider, environ)
        self.notes = [note] if note else []
        named = config.provider.model_copy(update={"name": name})
        if not need_key:
            environ = {**NO_KEYS, **environ}
        self.provider = open_provider(named, config.seed, environ)
        self.prices = price_table(self.provider, config)
        self.bench = judging.open_bench(config, self.provider, self.prices, environ)
        self.config = judging.settled(_settled(config, name, self.provider), self.bench, environ)
        if config.judge.enabled is None and self.bench.provider.name == "embedded":
            self.notes.append(judging.NOISE)
        _check_temperatures(self.config, self.bench.provider.name)
        self.library = self._first_library()
        self._stack = AsyncExitStack()

    @property
    def every(self) -> int | None:
        """Episodes between two updates; None where nothing is learned."""
        return self.config.behaviors.every if self.config.behaviors.enabled else None

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
        critic = self.gateway
        if self.bench.own:
            critic = self.gateway.beside(self.bench.provider, self.bench.prices)
        if self.config.judge.enabled:
            self.judge = self._new_judge(task, critic, store)
        if self.config.behaviors.enabled:
            self.learner = self._new_learner(task, rate, critic, store.events)

    async def close(self) -> None:
        await self._stack.aclose()

    def team(self, task: BaseTask[Any], library: Library | None = None) -> dict[str, Member]:
        """The task's agents as this run asks them; raises ConfigError for a role it lacks."""
        return team(task, self.config, self.provider.model, library or self.library)

    def rollout(
        self, task: BaseTask[Any], rate: Rate, schedule: Schedule, update: int = 0
    ) -> Rollout[Any]:
        """How an episode is played with what was learned by that update."""
        library = self.learner.states[update].library if self.learner else self.library
        return Rollout(
            task=task,
            team=self.team(task, library),
            policy=self.gateway,
            rate=rate,
            schedule=schedule,
            judge=self.judge,
        )

    async def update(
        self, block: Sequence[EpisodeRecord], ratings: Mapping[tuple[int, str], float]
    ) -> Update:
        """Learns from the episodes since the last update; `ratings` are people's, by node."""
        assert self.learner is not None, "only a backend that learns is asked to"
        notes = await self.learner.update(block, ratings)
        state = self.learner.states[-1].model_dump(mode="json")
        return Update(state, self.files(), notes)

    def files(self) -> dict[str, str]:
        """What was learned, as files of the run by name."""
        if self.learner is None:
            return {}
        return {LIBRARY: to_yaml(self.learner.states[-1].library)}

    def learned(self, task: BaseTask[Any]) -> Learned:
        """What stands in the prompts now, beside what the task itself says."""
        library = self.learner.states[-1].library if self.learner else self.library
        bare = Library(task=library.task, model=library.model)
        accepted = sum(len(library.accepted(spec.role)) for spec in task.agents)
        return Learned(accepted, prompt_diff(bare, library, self._prompts(task)))

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
            return library
        if not self.config.behaviors.enabled:
            raise ConfigError(
                f"{source} was learned on {library.task} with {library.model}, not on {task} with "
                f"{model}, so it must be tested before it is used: set behaviors.enabled=true"
            )
        return library.transferred(task, model)

    def _new_judge(self, task: BaseTask[Any], critic: Gateway, store: Store) -> Judge:
        """The judge, corrected by what people said in `orchestry rate` before this process."""
        judge, rated = self.config.judge, journal.ratings(store.events)
        records = [store.episodes[number] for number in sorted(store.episodes)]
        return ListwiseJudge(
            critic,
            self.bench.provider.model,
            judge,
            task.agents,
            calibration(judged_pairs(records, rated)),
            judge.temperature,
        )

    def _new_learner(
        self, task: BaseTask[Any], rate: Rate, critic: Gateway, events: Sequence[journal.Event]
    ) -> Learner:
        learned = [event for event in events if isinstance(event, journal.Learned)]
        return Learner(
            self.config.behaviors,
            self.config.seed,
            task.agents,
            prompts=self._prompts(task),
            dev=task.problems("dev"),
            arena=_Dev(self, task, rate),
            policy=critic,
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


def _settled(config: RunConfig, name: str, provider: Provider) -> RunConfig:
    """The config with provider, model, address and paths as found.

    So a resume asks the same ones, from any folder. An address with a password stays in the
    environment.
    """
    asked, cache = config.provider, config.cache
    settled: dict[str, Any] = {"name": name, "model": provider.model}
    if name in ("anthropic", "openai") and not set("@?") & set(provider.base_url):
        settled["base_url"] = provider.base_url
    if asked.recording:
        settled["recording"] = asked.recording.absolute()
    if asked.fake.script:
        script = asked.fake.script.absolute()
        settled["fake"] = asked.fake.model_copy(update={"script": script})
    changed: dict[str, Any] = {"provider": asked.model_copy(update=settled)}
    if cache.dir:
        changed["cache"] = cache.model_copy(update={"dir": cache.dir.absolute()})
    learning = config.behaviors
    if learning.source:
        source = learning.source.absolute()
        changed["behaviors"] = learning.model_copy(update={"source": source})
    changed["task_path"] = tuple(path.absolute() for path in config.task_path)
    return config.model_copy(update=changed)


def _check_temperatures(config: RunConfig, critic: str) -> None:
    """Raises ConfigError for a temperature that no one would read; `critic` judges."""
    set_ones = [config.sampling.temperature, *(own.temperature for own in config.agents.values())]
    asked = config.provider.name == "anthropic" and any(t is not None for t in set_ones)
    if asked or (critic == "anthropic" and config.judge.temperature is not None):
        raise ConfigError(
            "Claude takes no temperature, and one is set in sampling, agents or judge: remove it; "
            "its samples differ by an angle at the end of the prompt"
        )
