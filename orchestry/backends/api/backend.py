"""The api backend: agents are prompts for served models, called through the gateway.

It learns by changing the prompts: an update tests behaviours on dev, and those that help enter the
agents' system prompts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.backends.api.distil import Author
from orchestry.backends.api.learner import Learner, State
from orchestry.backends.api.pairs import Arena, Played
from orchestry.backends.base import (
    NO_KEYS,
    Backend,
    Opening,
    PromptChange,
    Ranked,
    Update,
    too_short,
)
from orchestry.backends.gold import Move, gold_moves
from orchestry.backends.library import (
    IN_RUN,
    Behavior,
    Library,
    empty_library,
    prompt_diff,
    read_library,
    to_yaml,
)
from orchestry.backends.programs import for_program
from orchestry.backends.prompted import KEPT, check_size, for_roles, keep, shown, with_source
from orchestry.core.choices import UNWRITTEN
from orchestry.core.config import ProviderConfig, RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.files import write_atomic
from orchestry.core.seeds import derive
from orchestry.core.types import Member, Policy, Problem, Provider, Rate, Variant
from orchestry.models.names import by_names
from orchestry.models.providers import open_provider
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.schedule import Chains, Schedule
from orchestry.store import journal
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run, Store
from orchestry.task.base import BaseTask

NO_RULES = (
    "no model writes behaviours: examples, gold and the task's feedback are tried, since rules of "
    "a small embedded model are noise (behaviors.provider names a model that writes, "
    "behaviors.propose=[rules,prompts,examples] asks this one anyway)"
)


class ApiBackend(Backend):
    """Prompts for a provider, and the library of behaviours in them."""

    learner: Learner | None = None
    library: Library
    """Behaviours in the prompts at the run's start; may be empty."""

    def __init__(
        self,
        config: RunConfig,
        task: BaseTask[Any],
        environ: Mapping[str, str],
        need_key: bool,
        folder: Path | None,
    ) -> None:
        _refuse_frozen(config)
        if config.search.branch != "chains":
            raise ConfigError(
                f"search.branch={config.search.branch} is for backend local, and backend api "
                "searches a tree anyway: leave it out"
            )
        config = with_source(config, folder)
        config, notes = _with_dev(config, task)
        config, chained = for_program(config, task)
        notes += chained
        config, note = by_names(config, environ, [spec.role for spec in task.agents])
        if not need_key:
            environ = {**NO_KEYS, **environ}
        provider = self._opened(config.provider, config, task, environ)
        super().__init__(config, task, provider, environ)
        if self.every is not None:
            notes += too_short("behaviors.every", self.every, config.episodes)
        notes += [NO_RULES] if self._writes_nothing(config) else []
        self.notes = [*notes, *([note] if note else []), *self.notes]
        roles = {spec.role for spec in task.agents}
        self.library, strangers = for_roles(self._first_library(), roles, task.name)
        self.notes += strangers

    def _opened(
        self,
        named: ProviderConfig,
        config: RunConfig,
        task: BaseTask[Any],
        environ: Mapping[str, str],
    ) -> Provider:
        """The run's provider; raises ConfigError."""
        return open_provider(named, config.seed, environ)

    def _writes_nothing(self, asked: RunConfig) -> bool:
        """Whether no model writes for the run, and the user did not say so."""
        learns, settled = self.config.behaviors.enabled, self.config.behaviors.propose
        return bool(learns) and asked.behaviors.propose is None and settled == UNWRITTEN

    @property
    def every(self) -> int | None:
        """See Backend."""
        return self.config.behaviors.every if self.config.behaviors.enabled else None

    @property
    def overlaps(self) -> bool:
        """See Backend."""
        return bool(self.config.behaviors.enabled) and self.config.behaviors.overlap

    @property
    def updates(self) -> int:
        """See Backend."""
        return len(self.learner.states) - 1 if self.learner else 0

    @asynccontextmanager
    async def open(self, on: Opening) -> AsyncIterator[None]:
        """See Backend."""
        async with super().open(on):
            self.players = self._with_tools(self.gateway)
            if self.config.behaviors.enabled:
                learned = [one for one in on.store.events if isinstance(one, journal.Learned)]
                later = Ranked(self.players, self.config.episodes)  # than all episodes' calls
                arena = Dev(self, on.task, later, on.rate)
                self.learner = self.new_learner(on.task, arena, self._author, learned)
            yield

    def kept_config(self, store: Store) -> RunConfig:
        """See Backend: includes the starting library, so that a change between processes is
        found."""
        return keep(self.config, store, self._start_text())

    def _start_text(self) -> str | None:
        """The text of the run's copy of its starting library; None: that of its file."""
        return None

    def _knows(self, model: str) -> bool:
        """Whether a library's evidence about that model holds for this run's."""
        return model == self.provider.model

    def digests(self) -> dict[str, str]:
        """See Backend: the weights of embedded models. A hub's file that is not downloaded yet has
        no digest."""
        own = {f"weights of {role}": asked.provider for role, asked in self._own.items()}
        found = {"weights": self.provider, **own}.items()
        return {name: sha for name, one in found if (sha := getattr(one, "sha256", None))}

    def team(self, task: BaseTask[Any], library: Library | None = None) -> dict[str, Member]:
        """See Backend: with the behaviours of `library`, else of the run's first one."""
        return shown(library or self.library, super().team(task))

    def rollout(
        self, task: BaseTask[Any], rate: Rate, schedule: Schedule, episode: int
    ) -> Rollout[Any]:
        """See Backend: with the library of that episode's block."""
        library, tried = self.library, list[Behavior]()
        if self.learner is not None and self.every is not None:
            update = max(0, episode // self.every - self.overlaps)
            library = self.learner.states[update].library
            tried = self.learner.tried(update, episode)
        return Rollout(
            task=task,
            team=self.team(task, library),
            policy=Ranked(self.players, episode),
            rate=rate,
            schedule=schedule,
            judge=self._judge(episode),
            variants={one.agent: self._variant(task, library, one) for one in tried},
        )

    def _variant(self, task: BaseTask[Any], library: Library, tried: Behavior) -> Variant:
        """The agent with this behaviour too, as in the race."""
        with_it = library.accept(tried, self.config.behaviors.max_per_agent)
        return Variant(tried.id, self.team(task, with_it)[tried.agent])

    async def update(
        self,
        block: Sequence[EpisodeRecord],
        said: Mapping[tuple[int, str], journal.Rated],
        again: Sequence[EpisodeRecord] = (),
    ) -> Update:
        """See Backend: behaviours are distilled and tested on dev."""
        assert self.learner is not None, "only a backend that learns is asked to"
        ratings = {key: one.rating for key, one in said.items()}
        block, again = ([_rewarded(one, said) for one in some] for some in (block, again))
        notes = await self.learner.update(block, ratings, again)
        state = self.learner.states[-1].model_dump(mode="json")
        return Update(state, self.files(), notes)

    @classmethod
    def as_left(cls, source: Run, learned: journal.Learned | None, folder: Path) -> dict[str, Any]:
        """See Backend: the library of that update, or the starting library."""
        library: Path | None = folder / KEPT
        if learned is None:
            library = _began_with(source)
        elif not (folder / KEPT).exists():
            (folder / KEPT).parent.mkdir(parents=True, exist_ok=True)
            text = to_yaml(Library.model_validate(learned.state["library"]))
            write_atomic(folder / KEPT, text.encode("utf-8"))
        return {"behaviors": {"enabled": False, "from": library and str(library)}}

    def files(self) -> dict[str, str]:
        """See Backend: the library in use."""
        if self.learner is None and not self.library.behaviors:
            return {}
        return {IN_RUN.as_posix(): to_yaml(self._latest)}

    def prompt_change(self, task: BaseTask[Any]) -> PromptChange:
        """The learned part of the prompts."""
        library = self._latest
        bare = Library(task=library.task, model=library.model)
        accepted = sum(len(library.accepted(spec.role)) for spec in task.agents)
        diff = prompt_diff(bare, library, self._prompts(task))
        return PromptChange(accepted, diff, self.learner.power if self.learner else None)

    @property
    def _latest(self) -> Library:
        return self.learner.states[-1].library if self.learner else self.library

    def _prompts(self, task: BaseTask[Any]) -> dict[str, str]:
        return {spec.role: self.config.system_prompt(spec) for spec in task.agents}

    def _first_library(self) -> Library:
        """Empty, or the library of `behaviors.from`. For this task and model it is used unchanged,
        otherwise all of it is tested first. Raises ConfigError if it would be used untested.
        """
        task, model, source = self.config.task, self.provider.model, self.config.behaviors.source
        if source is None:
            return empty_library(task, model)
        library = read_library(source)
        check_size(library, source, self.config.behaviors.max_per_agent)
        if library.task == task and self._knows(library.model):
            return library.adopted().model_copy(update={"model": model})
        if not self.config.behaviors.enabled:
            raise ConfigError(
                f"{source} was learned on {library.task} with {library.model}, not on {task} with "
                f"{model}, so it must be tested before it is used: set behaviors.enabled=true"
            )
        return library.transferred(task, model)

    def new_learner(
        self,
        task: BaseTask[Any],
        arena: Arena,
        author: Policy,
        learned: Sequence[journal.Learned] = (),
        times: float = 1.0,
    ) -> Learner:
        """A learner that writes with `author` and compares in `arena`, after these updates.
        A rehearsal plays one part in `times` of an update's episodes.

        Dev draws also depend on the starting library, so that a behaviour is not tested again on
        the draws that accepted it.
        """
        settings = self.config.behaviors
        return Learner(
            settings,
            derive(self.config.seed, *(b.id for b in self.library.behaviors)),
            task.agents,
            prompts=self._prompts(task),
            dev=task.problems("dev"),
            arena=arena,
            author=Author(author, self.author.provider.model, self.config.judge.max_tokens),
            updates=self.config.episodes // settings.every,
            budget=self.config.budget.usd if times == 1.0 else None,
            times=times,
            states=[
                State.first(self.library, settings.alpha),
                *(State.read(event.state, settings.alpha) for event in learned),
            ],
        )


@dataclass(frozen=True, slots=True)
class Dev:
    """Plays dev problems without search, so that only the library's effect is tested."""

    backend: ApiBackend
    task: BaseTask[Any]
    policy: Policy
    rate: Rate

    async def play(
        self, library: Library, problem: Problem, seed: int, still: Collection[str]
    ) -> Played:
        own = derive(self.backend.config.seed, "still", problem.id)
        rollout = Rollout(
            task=self.task,
            team=self.backend.team(self.task, library),
            policy=self.policy,
            rate=self.rate,
            schedule=Chains(1),
            purpose="trial",
            seeds=dict.fromkeys(still, own),
        )
        tree = await rollout.play(problem, seed)
        if not tree.leaves:
            return Played(None, ())
        leaf = tree.leaves[0]
        return Played(leaf.number, leaf.trajectory.turns)

    async def gold(self, seed: int, count: int) -> list[Move]:
        """See Arena: gold is no model's, so it costs no call."""
        team = self.backend.team(self.task, self.backend.library)
        return await gold_moves(self.task, team, self.rate, seed, count)


def _refuse_frozen(config: RunConfig) -> None:
    """Raises ConfigError for a setting that this backend would ignore."""
    for role, own in config.agents.items():
        if own.frozen:
            raise ConfigError(
                f"agents.{role}.frozen is for backend local, where weights learn: leave it out"
            )


def _with_dev(config: RunConfig, task: BaseTask[Any]) -> tuple[RunConfig, list[str]]:
    """Switches learning off for a task without dev problems, unless the user asked for it."""
    if config.behaviors.enabled is False or task.problems("dev"):
        return config, []
    lacks = f"task {config.task} has no dev problems, on which behaviours are tested"
    if config.behaviors.enabled:
        raise ConfigError(f"{lacks}: add some, or set behaviors.enabled=false")
    off = config.behaviors.model_copy(update={"enabled": False})
    return config.model_copy(update={"behaviors": off}), [f"{lacks}: nothing is learned"]


def _began_with(run: Run) -> Path | None:
    """The library in a run's prompts before its first update; empty for a library of another task
    or model, which must be tested first."""
    path = run.folder / KEPT
    if not path.exists():
        return None
    library = read_library(path)
    opened = next(event for event in run.events if isinstance(event, journal.Opened))
    return path if (library.task, library.model) == (run.config["task"], opened.model) else None


def _rewarded(
    record: EpisodeRecord, said: Mapping[tuple[int, str], journal.Rated]
) -> EpisodeRecord:
    """The episode with the rewards that people overrode."""
    mine = {
        node: one.rating for (n, node), one in said.items() if n == record.episode and one.override
    }
    leaves = {leaf.id for leaf in record.leaves()} & mine.keys()
    return record.with_rewards({leaf: mine[leaf] for leaf in leaves}) if leaves else record
