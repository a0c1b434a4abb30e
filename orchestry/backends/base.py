"""The base of all backends: providers and prices, the judge, and updates.

A new backend is checked, and nothing is spent. `open` opens the resources that calls need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.backends.tools import Toolbox, WithTools, toolbox
from orchestry.core.choices import UNWRITTEN, WITH_AUTHOR
from orchestry.core.config import (
    AgentConfig,
    BehaviorsConfig,
    CreditConfig,
    JudgeConfig,
    ProviderConfig,
    RunConfig,
)
from orchestry.core.errors import ConfigError
from orchestry.core.types import (
    AgentSpec,
    Completion,
    Judge,
    Member,
    Policy,
    Problem,
    Provider,
    Rate,
    Request,
    Tools,
    Tree,
)
from orchestry.judge.calibration import Calibration, calibration, judged_pairs
from orchestry.judge.judge import ListwiseJudge, for_task
from orchestry.models.gateway import Gateway, open_gateway
from orchestry.models.names import as_the_run
from orchestry.models.openai import is_vendor
from orchestry.models.prices import PriceTable, price_table
from orchestry.models.providers import open_provider
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.schedule import Schedule, schedule
from orchestry.store import journal
from orchestry.store.records import EpisodeRecord, Power
from orchestry.store.run import Run, Store
from orchestry.task.base import BaseTask
from orchestry.task.programs.agent_task import AgentTask

NO_KEYS = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "none-needed-for-a-dry-run")
NOISE = "judge off: ratings of a small embedded model are noise (judge.enabled=true asks it anyway)"
ABLE = ("anthropic", "openai")
"""Providers whose models can judge."""
_POOR = ("embedded", "local")
"""Providers whose models are not asked for behaviours by default."""
SHARE = 0.1
"""Share of an episode's calls that replays may use, if behaviours are learned."""


@dataclass(frozen=True, slots=True)
class Update:
    """The result of an update: state for the journal, files for the run, lines for the user."""

    state: Mapping[str, Any]
    files: Mapping[str, str]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The team's evaluation on dev, for the journal, and a line for the user."""

    event: journal.Evaluated
    note: str


@dataclass(frozen=True, slots=True)
class PromptChange:
    """The library's results: accepted behaviours, the prompts' diff from the task's own, and what
    the run could have found."""

    accepted: int
    diff: str
    power: Power | None = None


@dataclass(frozen=True, slots=True)
class Ranked:
    """The policy of one episode; its calls have priority over younger episodes'."""

    policy: Policy
    episode: int

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy."""
        rank = {"rank": self.episode}
        return await self.policy.sample([one.model_copy(update=rank) for one in requests], n)


@dataclass(frozen=True, slots=True)
class Opening:
    """What a backend is opened on."""

    store: Store
    task: BaseTask[Any]
    rate: Rate
    tools: Tools
    warn: Callable[[str], None]


class Backend(ABC):
    """Provider and gateway of one run; see the module."""

    gateway: Gateway
    players: Policy
    """Answers for the agents, with their tools if they have some; each backend sets it."""
    calibration = Calibration()
    """The correction of the judge's numbers by people's ratings."""
    _toolbox: Toolbox | None = None
    in_step = False
    """Whether episodes wait for each other's answers, so that all must run together."""

    def __init__(
        self,
        config: RunConfig,
        task: BaseTask[Any],
        provider: Provider,
        environ: Mapping[str, str],
    ) -> None:
        """Raises ConfigError for settings that do not fit the task or the provider."""
        config = as_the_run(config, provider.name)
        self.provider = provider
        self.prices = price_table(provider, config)
        asking = Asking(config, Asked(provider, self.prices), environ)
        self._own = {
            role: asking.agent(role, own) for role, own in config.agents.items() if own.provider
        }
        self.bench = asking.critic()
        self.author = asking.author(self.bench)
        self.config = _resolved(
            config, provider, self.bench.provider, self.author.provider, self._own, task.judged
        )
        self._roles = [spec.role for spec in task.agents]
        why = why_off(config, self.bench.provider, task.judged)
        self.notes: list[str] = [why] if why else []

    @property
    @abstractmethod
    def every(self) -> int | None:
        """Episodes between two updates; None if nothing is learned."""

    @property
    @abstractmethod
    def updates(self) -> int:
        """Updates taken so far, by earlier processes too."""

    @property
    def overlaps(self) -> bool:
        """Whether the update after a block is made while the next block is played."""
        return False

    @property
    def taught(self) -> int | None:
        """Updates that had something to learn from, if that is counted."""
        return None

    @property
    def dev_plays(self) -> int:
        """Plays of dev problems that are as large as the run's episodes."""
        return 0

    @property
    def best_update(self) -> int | None:
        """The update after which the team earned most on dev, if it was evaluated."""
        return None

    @property
    def last_update(self) -> Mapping[str, Any]:
        """The last update's state for the journal, if weights are trained."""
        return {}

    @property
    def dev_rewards(self) -> dict[str, float]:
        """Mean rewards on dev `before` learning, at the `last` evaluation and at the `best`, if
        there were evaluations."""
        return {}

    def schedules(
        self,
        task: BaseTask[Any],
        problems: Sequence[Problem],
        before: Iterable[EpisodeRecord] = (),
    ) -> list[Schedule]:
        """How each problem of a block is searched, given the episodes before the block."""
        return [schedule(self.config.search, task, problem) for problem in problems]

    @abstractmethod
    def rollout(
        self, task: BaseTask[Any], rate: Rate, schedule: Schedule, episode: int
    ) -> Rollout[Any]:
        """The policy of an episode, with everything learned before it."""

    @abstractmethod
    async def update(
        self,
        block: Sequence[EpisodeRecord],
        said: Mapping[tuple[int, str], journal.Rated],
        again: Sequence[EpisodeRecord] = (),
    ) -> Update:
        """Learns from the episodes since the last update. `said` has people's ratings by episode
        and node; `again` are earlier episodes that they rated.
        """

    async def replay(self, rollout: Rollout[Any], tree: Tree[Any]) -> None:  # noqa: B027
        """Extra plays per episode that learning needs."""

    async def evaluate(self) -> Evaluation | None:
        """Evaluates the team on dev; None if this is not due or was done before."""
        return None

    @classmethod
    @abstractmethod
    def as_left(cls, source: Run, learned: journal.Learned | None, folder: Path) -> dict[str, Any]:
        """Changes to a run's config that play the team after an update (None: untrained) without
        learning.

        `folder` is that run's folder. Raises ConfigError for an update that is no longer kept,
        StoreError if the run is damaged.
        """

    @property
    def judges(self) -> bool:
        """Whether a judge is asked. It is not if nothing is pruned and no finished trajectory has
        to be judged.
        """
        judge, prunes = self.config.judge, self.config.search.strategy == "beam"
        return bool(judge.enabled) and (prunes or judge.when == "always")

    @property
    def corrects(self) -> tuple[float, float]:
        """Slope and intercept by which the judge's numbers are corrected."""
        return self.calibration.slope, self.calibration.intercept

    @asynccontextmanager
    async def open(self, on: Opening) -> AsyncIterator[None]:
        """Opens the providers, the gateway with the journal's paid answers, and the agents'
        tools."""
        others = [asked for asked in self._in_use() if asked.provider is not self.provider]
        async with AsyncExitStack() as stack:
            self.gateway = await stack.enter_async_context(
                open_gateway(
                    self.config,
                    self.provider,
                    self.prices,
                    on.store.journal,
                    on.store.events,
                    on_warn=on.warn,
                    besides=[asked.provider for asked in others],
                )
            )
            for asked in self._in_use():
                await stack.enter_async_context(asked.provider)
            self._critic: Policy = self.gateway.beside(self.bench.provider, self.bench.prices)
            self._author: Policy = self.gateway.beside(self.author.provider, self.author.prices)
            for role, asked in self._own.items():
                self.gateway.route(role, asked.provider, asked.prices)
            providers = [one.provider for one in self._in_use()]
            agents, sandbox = on.task.agents, on.tools.sandbox
            self._toolbox = toolbox(agents, providers, sandbox, on.store, self.gateway)
            self._agents, self._judging = agents, for_task(self.config.judge, on.task)
            self.calibration = _calibration(on.store)
            self._calibrations = _calibrations(on.store)
            if isinstance(on.task, AgentTask):
                by_schema = self.provider.name != "local"  # weights know no schema
                await stack.enter_async_context(on.task.serving(structured=by_schema))
            yield

    @property
    def must_finish(self) -> int:
        """Calls in flight that a stop waits for: those that cost money, and those of tools."""
        return self.gateway.paid_in_flight + (self._toolbox.in_flight if self._toolbox else 0)

    def _with_tools(self, policy: Policy, *, in_step: bool = False) -> Policy:
        """The policy, and the agents' tools if they have some."""
        return WithTools(policy, self._toolbox, in_step) if self._toolbox else policy

    def cap(self, usd: float | None) -> None:
        """Sets another cap; only before `open`."""
        budget = self.config.budget.model_copy(update={"usd": usd})
        self.config = self.config.model_copy(update={"budget": budget})

    def kept_config(self, store: Store) -> RunConfig:
        """The config, with paths of starting files replaced by the run's own copies."""
        return self.config

    def answering(self, role: str) -> Asked:
        """The provider of an agent."""
        return self._own.get(role) or Asked(self.provider, self.prices)

    def asked(self, request: Request) -> tuple[Provider, PriceTable]:
        """The provider and prices for a request."""
        critics = {"judge": self.bench, "distil": self.author}
        found = critics.get(request.purpose) or self.answering(request.agent)
        return found.provider, found.prices

    def _in_use(self) -> list[Asked]:
        """The providers of this run, each once."""
        found = [self.answering(role) for role in [*self._roles, *self._own]]
        if self.config.judge.enabled:
            found.append(self.bench)
        if self.config.behaviors.enabled:
            found.append(self.author)
        return list({id(asked.provider): asked for asked in found}.values())

    def team(self, task: BaseTask[Any]) -> dict[str, Member]:
        """The task's agents with this run's settings."""
        return {spec.role: self._member(spec) for spec in task.agents}

    def _member(self, spec: AgentSpec) -> Member:
        own, usual = self.config.agents.get(spec.role, AgentConfig()), self.config.sampling
        return Member(
            role=spec.role,
            system_prompt=self.config.system_prompt(spec),
            model=own.model or self.provider.model,
            max_tokens=own.max_tokens or usual.max_tokens,
            temperature=usual.temperature if own.temperature is None else own.temperature,
            stop=usual.stop,
            examples=own.examples,
            frozen=own.frozen,
            tools=tuple(one.spec for one in spec.every_tool),
        )

    def digests(self) -> dict[str, str]:
        """Digests of what this run depends on besides config and task, by content (not by path). A
        resume compares them."""
        return {}

    def files(self) -> dict[str, str]:
        """Texts that the run stores besides the journal, by name."""
        return {}

    def prompt_change(self, task: BaseTask[Any]) -> PromptChange:
        """The learned part of the prompts."""
        return PromptChange(0, "")

    def judges_episode(self, episode: int) -> bool:
        """Whether a judge is asked in that episode."""
        return self.judges and episode % self.config.judge.every == 0

    def _judge(self, episode: int) -> Judge | None:
        if not self.judges_episode(episode):
            return None
        return ListwiseJudge(
            Ranked(self._critic, episode),
            self.bench.provider.model,
            self._judging,
            self._agents,
            self._corrected(episode),
            self._judging.temperature,
        )

    def _corrected(self, episode: int) -> Calibration:
        """How the judge's numbers are corrected in that episode."""
        return self._calibrations.get(episode, self.calibration)


def _calibration(store: Store) -> Calibration:
    """From all ratings before this process."""
    records = [store.episodes[number] for number in sorted(store.episodes)]
    return calibration(judged_pairs(records, journal.ratings(store.events)))


def _calibrations(store: Store) -> dict[int, Calibration]:
    """For finished episodes that were lost: the calibration of the process that played them."""
    then, found = Calibration(), dict[int, Calibration]()
    for event in store.events:
        if isinstance(event, journal.Opened):
            then = Calibration(*event.calibration)
        elif isinstance(event, journal.Committed) and event.episode in store.lost:
            found[event.episode] = then
    return found


# --- providers: fills in what the config leaves open ------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A provider and its prices."""

    provider: Provider
    prices: PriceTable


class Asking:
    """Opens the other providers of a run; settings that are equal share one."""

    def __init__(self, config: RunConfig, usual: Asked, environ: Mapping[str, str]) -> None:
        self._config, self._usual, self._environ = config, usual, environ
        self._found = {_alike(config.provider, usual.provider): usual}

    def critic(self) -> Asked:
        """The provider that judges; raises ConfigError as for the run's own provider."""
        asked = self._config.judge.provider
        return self._usual if asked is None else self._open(asked)

    def author(self, critic: Asked) -> Asked:
        """The provider that writes behaviours; raises ConfigError as for the run's own provider."""
        asked = self._config.behaviors.provider
        return critic if asked is None else self._open(asked)

    def agent(self, role: str, own: AgentConfig) -> Asked:
        """The provider of an agent that has its own; raises ConfigError as for the run's own
        provider."""
        assert own.provider is not None, "the run's own provider answers for all others"
        model = own.model or own.provider.model
        try:
            return self._open(own.provider.model_copy(update={"model": model}))
        except ConfigError as error:
            raise ConfigError(f"agents.{role}.provider: {error}") from None

    def _open(self, asked: ProviderConfig) -> Asked:
        provider = open_provider(asked, self._config.seed, self._environ)
        key = _alike(asked, provider)
        if key not in self._found:
            alone = self._config.model_copy(update={"provider": asked, "agents": {}})
            self._found[key] = Asked(provider, price_table(provider, alone))
        return self._found[key]


def _alike(asked: ProviderConfig, provider: Provider) -> tuple[str, str, str]:
    """Equal for two settings of the same provider."""
    settled = settled_provider(asked, provider).model_dump_json()
    return provider.name, provider.base_url, settled


def able(critic: Provider) -> bool:
    """Whether this provider's model judges and distils by default."""
    return critic.name in ABLE


def why_off(config: RunConfig, critic: Provider, judged: bool) -> str | None:
    """A note for users who might expect a judge and did not set judge.enabled.

    `judged` is whether the task asks for a judge.
    """
    if config.judge.enabled is not None:
        return None
    if critic.name == "embedded":
        return NOISE
    if able(critic) and not judged:
        return (
            f"judge off: task {config.task} asks for no judge (set judge.enabled=true to use one)"
        )
    return None


def _resolved(
    config: RunConfig,
    provider: Provider,
    critic: Provider,
    author: Provider,
    own: Mapping[str, Asked],
    judged: bool,
) -> RunConfig:
    """The config with all providers resolved (the run's, the judge's, the author's, agents' `own`):
    names, addresses and files, so that a resume from any folder uses the same ones. An address with
    a password is left in the environment.

    `judged`: whether the task asks for a judge; it matters only if the config leaves this open.
    Raises ConfigError for a temperature that no provider would use.
    """
    judge = settled_judge(config.judge, critic, judged)
    behaviors = _settled_behaviors(config, author)
    found = config.model_copy(
        update={
            "provider": settled_provider(config.provider, provider),
            "agents": {
                role: _settled_agent(agent, own[role].provider) if role in own else agent
                for role, agent in config.agents.items()
            },
            "judge": judge,
            "credit": _credit(config.credit, bool(behaviors.enabled)),
            "behaviors": behaviors,
            "cache": config.cache.model_copy(update=_absolute(dir=config.cache.dir)),
            "task_path": tuple(path.absolute() for path in config.task_path),
        }
    )
    _check_temperatures(found, provider, critic, own)
    return found


def settled_provider(asked: ProviderConfig, provider: Provider) -> ProviderConfig:
    """The provider's settings with name, model, address and paths resolved."""
    name = asked.name if provider.name == "local" else provider.name  # backend local names none
    changes: dict[str, Any] = {"name": name, "model": provider.model}
    if provider.name in ("anthropic", "openai") and not set("@?") & set(provider.base_url):
        changes["base_url"] = provider.base_url
    changes |= _absolute(recording=asked.recording, team=asked.team)
    changes["fake"] = asked.fake.model_copy(update=_absolute(script=asked.fake.script))
    return asked.model_copy(update=changes)


def _settled_agent(own: AgentConfig, provider: Provider) -> AgentConfig:
    """The agent's settings with its provider resolved and its model named."""
    assert own.provider is not None, "only agents with their own provider are resolved here"
    model = own.model or own.provider.model or provider.model
    found = settled_provider(own.provider, provider).model_copy(update={"model": model})
    return own.model_copy(update={"provider": found, "model": model})


def settled_judge(judge: JudgeConfig, critic: Provider, judged: bool) -> JudgeConfig:
    """On by default for models that can judge, if the task is `judged`; at temperature 0."""
    changes: dict[str, Any] = {}
    if judge.temperature is None and _takes_temperature(critic):
        changes["temperature"] = 0.0
    if judge.enabled is None:
        changes["enabled"] = able(critic) and judged
    if judge.when is None:
        changes["when"] = "undecided" if judged else "always"
    if judge.provider is not None:
        changes["provider"] = settled_provider(judge.provider, critic)
    return judge.model_copy(update=changes)


def _settled_behaviors(config: RunConfig, author: Provider) -> BehaviorsConfig:
    """Whether behaviours are learned by default follows the user's setting for the judge. The
    task's wish for a judge does not matter, because behaviours are tested by its score.
    """
    behaviors, judged = config.behaviors, config.judge.enabled
    changes: dict[str, Any] = {**_absolute(source=behaviors.source)}
    if behaviors.enabled is None:
        changes["enabled"] = able(author) if judged is None else judged
    if behaviors.propose is None:
        changes["propose"] = UNWRITTEN if author.name in _POOR else WITH_AUTHOR
    if behaviors.provider is not None:
        changes["provider"] = settled_provider(behaviors.provider, author)
    return behaviors.model_copy(update=changes)


def _credit(credit: CreditConfig, learns: bool) -> CreditConfig:
    """If nothing is learned from credits, they use only existing samples."""
    if credit.share is not None:
        return credit
    if learns:
        return credit.model_copy(update={"share": SHARE})
    method = "siblings" if credit.method == "replay" else credit.method
    return credit.model_copy(update={"share": 0.0, "method": method})


def too_short(key: str, every: int, episodes: int) -> list[str]:
    """Before a run: a note if it ends before its first update, which takes `every` episodes (the
    config key of that name)."""
    if episodes >= every:
        return []
    what = f"an update takes {key}={every} episodes, the run has {episodes}"
    return [f"nothing is learned: {what}: raise --episodes to {every}, or lower {key}"]


def _absolute(**paths: Path | None) -> dict[str, Path]:
    return {name: path.absolute() for name, path in paths.items() if path}


def _takes_temperature(provider: Provider) -> bool:
    """Claude and OpenAI's own newer models refuse one."""
    if provider.name == "openai":
        return not is_vendor(provider.base_url)
    return provider.name != "anthropic"


def _check_temperatures(
    config: RunConfig, provider: Provider, critic: Provider, own: Mapping[str, Asked]
) -> None:
    usual = config.sampling.temperature
    asked = [(provider, usual), (critic, config.judge.temperature)]
    for role, agent in config.agents.items():
        who = own[role].provider if role in own else provider
        beside = config.backend == "local" and role in own  # `sampling` is for the weights
        left_out = None if beside else usual
        asked.append((who, left_out if agent.temperature is None else agent.temperature))
    if any(who.name == "anthropic" and number is not None for who, number in asked):
        raise ConfigError(
            "Claude takes no temperature, and one is set in sampling, agents or judge: remove it "
            "(agents.ROLE.temperature sets it for those that others answer for); its samples "
            "differ by an angle at the end of the prompt"
        )
