"""What every backend is: who answers and at what price, who judges, and what an update leaves.

A backend that is built was checked, and nothing is spent. `open` holds what calls need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.core.choices import PROVIDERS
from orchestry.core.config import (
    AgentConfig,
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
    Provider,
    Rate,
    Request,
    Tree,
)
from orchestry.judge.calibration import Calibration, calibration, judged_pairs
from orchestry.judge.judge import ListwiseJudge
from orchestry.models.gateway import Gateway, open_gateway
from orchestry.models.openai import is_vendor
from orchestry.models.prices import PriceTable, price_table
from orchestry.models.providers import open_provider
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.schedule import Schedule
from orchestry.store import journal
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run, Store
from orchestry.task.base import BaseTask

NO_KEYS = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "none-needed-for-a-dry-run")
NOISE = (
    "judge off: ratings of the embedded 135M model are noise (judge.enabled=true asks it anyway)"
)
CRITIC = ("judge", "distil")
"""Purposes of the calls that the judge's provider answers."""
ABLE = ("anthropic", "openai")
"""Providers whose models can judge."""
SHARE = 0.1
"""Calls for replays where behaviours are learned, as a share of an episode's."""


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
    """The library's results: accepted behaviours, and the prompts' diff from the task's own."""

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
    """Provider and gateway of one run; see the module."""

    gateway: Gateway
    calibration = Calibration()
    """What people's ratings correct the judge's numbers by."""
    in_step = False
    """Whether episodes wait for each other's answers, so that none may be kept back for another."""

    def __init__(
        self,
        config: RunConfig,
        task: BaseTask[Any],
        provider: Provider,
        environ: Mapping[str, str],
    ) -> None:
        """Raises ConfigError for settings that do not fit the task or the provider."""
        self.provider = provider
        self.prices = price_table(provider, config)
        asking = Asking(config, Asked(provider, self.prices), environ)
        self._own = {
            role: asking.agent(role, own) for role, own in config.agents.items() if own.provider
        }
        self.bench = asking.critic()
        self.config = resolved(config, provider, self.bench.provider, self._own, task.judged)
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
        """The team as it stands, on dev; None if that is not due, or was done before."""
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

    @asynccontextmanager
    async def open(
        self, store: Store, task: BaseTask[Any], rate: Rate, on_warn: Callable[[str], None]
    ) -> AsyncIterator[None]:
        """Holds the providers, and the gateway with what the journal already paid for."""
        others = [asked for asked in self._in_use() if asked.provider is not self.provider]
        async with AsyncExitStack() as stack:
            self.gateway = await stack.enter_async_context(
                open_gateway(
                    self.config,
                    self.provider,
                    self.prices,
                    store.journal,
                    store.events,
                    on_warn=on_warn,
                    besides=[asked.provider for asked in others],
                )
            )
            for asked in self._in_use():
                await stack.enter_async_context(asked.provider)
            self._critic: Policy = self.gateway.beside(self.bench.provider, self.bench.prices)
            for role, asked in self._own.items():
                self.gateway.route(role, asked.provider, asked.prices)
            self._agents = task.agents
            self.calibration = _calibration(store)
            self._calibrations = _calibrations(store)
            yield

    def cap(self, usd: float | None) -> None:
        """Takes another cap, before it is opened."""
        budget = self.config.budget.model_copy(update={"usd": usd})
        self.config = self.config.model_copy(update={"budget": budget})

    def kept_config(self, store: Store) -> RunConfig:
        """The config, with what the run starts from as its own directory keeps it."""
        return self.config

    def answering(self, role: str) -> Asked:
        """Who answers for an agent."""
        return self._own.get(role) or Asked(self.provider, self.prices)

    def asked(self, request: Request) -> tuple[Provider, PriceTable]:
        """Who answers a request, and at what prices."""
        critic = request.purpose in CRITIC
        found = self.bench if critic else self.answering(request.agent)
        return found.provider, found.prices

    def _in_use(self) -> list[Asked]:
        """Who is asked in this run, each provider once."""
        found = [self.answering(role) for role in self._roles]
        if self.config.judge.enabled or self.config.behaviors.enabled:
            found.append(self.bench)
        return list({id(asked.provider): asked for asked in found}.values())

    def team(self, task: BaseTask[Any]) -> dict[str, Member]:
        """The task's agents as this run asks them."""
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
        )

    def digests(self) -> dict[str, str]:
        """What this run stands on beside its config and task, by content: equal content has equal
        digests wherever it lies. A resume compares them."""
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


# --- who is asked: the config with its open questions answered ------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A provider, and what its calls cost."""

    provider: Provider
    prices: PriceTable


class Asking:
    """Finds who is asked besides the run's own provider: one for all that name the same."""

    def __init__(self, config: RunConfig, usual: Asked, environ: Mapping[str, str]) -> None:
        self._config, self._usual, self._environ = config, usual, environ
        self._found = {_alike(config.provider, usual.provider): usual}

    def critic(self) -> Asked:
        """Who judges and distils; raises ConfigError as the run's own provider does."""
        asked = self._config.judge.provider
        return self._usual if asked is None else self._open(asked)

    def agent(self, role: str, own: AgentConfig) -> Asked:
        """Who answers for an agent with a provider of its own; raises ConfigError as the run's own
        provider does."""
        assert own.provider is not None, "the run's own provider answers for all others"
        model = own.model or own.provider.model
        try:
            return self._open(own.provider.model_copy(update={"model": model}))
        except ConfigError as error:
            raise ConfigError(f"agents.{role}.provider: {error}") from None

    def _open(self, asked: ProviderConfig) -> Asked:
        asked = named(asked, self._config.provider, self._usual.provider)
        provider = open_provider(asked, self._config.seed, self._environ)
        key = _alike(asked, provider)
        if key not in self._found:
            alone = self._config.model_copy(update={"provider": asked, "agents": {}})
            self._found[key] = Asked(provider, price_table(provider, alone))
        return self._found[key]


def _alike(asked: ProviderConfig, provider: Provider) -> tuple[str, str, ProviderConfig]:
    """Equal for two that are one and the same."""
    return provider.name, provider.base_url, settled_provider(asked, provider)


def able(critic: Provider) -> bool:
    """Whether this provider's model is asked to judge, and to distil, without being told to."""
    return critic.name in ABLE


def why_off(config: RunConfig, critic: Provider, judged: bool) -> str | None:
    """A line for the user who did not say whether to judge, and might have expected it.

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


def named(asked: ProviderConfig, runs: ProviderConfig, provider: Provider) -> ProviderConfig:
    """A judge's or an agent's provider by name: where it names none, the run's own, at the same
    address."""
    if asked.name != "auto":
        return asked
    changes = {"name": provider.name, "base_url": asked.base_url or runs.base_url}
    return asked.model_copy(update=changes)


def resolved(
    config: RunConfig,
    provider: Provider,
    critic: Provider,
    own: Mapping[str, Asked],
    judged: bool,
) -> RunConfig:
    """The config as it is run with this provider, this one for the judge, and agents' `own` ones:
    who is asked, where, and from which files, so that a resume asks the same ones from any folder.
    An address with a password stays in the environment.

    `judged` is whether the task asks for a judge; it decides only what the config leaves open.
    Raises ConfigError for a temperature that no one would read.
    """
    judge = settled_judge(config.judge, critic, judged)
    learns = _learns(config, critic)
    source = config.behaviors.source
    found = config.model_copy(
        update={
            "provider": settled_provider(config.provider, provider),
            "agents": {
                role: _settled_agent(agent, own[role].provider) if role in own else agent
                for role, agent in config.agents.items()
            },
            "judge": judge,
            "credit": _credit(config.credit, learns),
            "behaviors": config.behaviors.model_copy(
                update={"enabled": learns, "source": source.absolute() if source else None}
            ),
            "cache": config.cache.model_copy(update=_absolute(dir=config.cache.dir)),
            "task_path": tuple(path.absolute() for path in config.task_path),
        }
    )
    _check_temperatures(found, provider, critic, own)
    return found


def settled_provider(asked: ProviderConfig, provider: Provider) -> ProviderConfig:
    """With name, model, address and paths as found."""
    name = provider.name if provider.name in PROVIDERS else asked.name  # weights have none
    changes: dict[str, Any] = {"name": name, "model": provider.model}
    if provider.name in ("anthropic", "openai") and not set("@?") & set(provider.base_url):
        changes["base_url"] = provider.base_url
    changes |= _absolute(recording=asked.recording)
    changes["fake"] = asked.fake.model_copy(update=_absolute(script=asked.fake.script))
    return asked.model_copy(update=changes)


def _settled_agent(own: AgentConfig, provider: Provider) -> AgentConfig:
    """With its provider as found, and its model also where the run's own would be named."""
    assert own.provider is not None, "only agents with their own provider are resolved here"
    model = own.model or own.provider.model or provider.model
    found = settled_provider(own.provider, provider).model_copy(update={"model": model})
    return own.model_copy(update={"provider": found, "model": model})


def settled_judge(judge: JudgeConfig, critic: Provider, judged: bool) -> JudgeConfig:
    """On by default for models that can judge, where the task is `judged`; at temperature 0."""
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


def _learns(config: RunConfig, critic: Provider) -> bool:
    """By default as the user says of the judge, whose model distils; not as the task does, whose
    score is what behaviours are tested by.
    """
    if config.behaviors.enabled is not None:
        return config.behaviors.enabled
    return able(critic) if config.judge.enabled is None else config.judge.enabled


def _credit(credit: CreditConfig, learns: bool) -> CreditConfig:
    """Where nothing is learned from them, credits are made of the samples at hand."""
    if credit.share is not None:
        return credit
    if learns:
        return credit.model_copy(update={"share": SHARE})
    method = "siblings" if credit.method == "replay" else credit.method
    return credit.model_copy(update={"share": 0.0, "method": method})


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
        asked.append((who, usual if agent.temperature is None else agent.temperature))
    if any(who.name == "anthropic" and number is not None for who, number in asked):
        raise ConfigError(
            "Claude takes no temperature, and one is set in sampling, agents or judge: remove it "
            "(agents.ROLE.temperature sets it for those that others answer for); its samples "
            "differ by an angle at the end of the prompt"
        )
