"""RunConfig: everything that decides a run, resolved before any money is spent.

Merged in this order: field defaults < `configs/<backend>.yaml` < `--config` < `--set` < flags.
Every key has its line of explanation; `orchestry run --help` points here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from orchestry.core import files as on_disk
from orchestry.core.choices import BackendName, ProviderName
from orchestry.core.errors import ConfigError
from orchestry.core.learn_config import LearnConfig
from orchestry.core.resolve import Mark, explain, refuse_secrets
from orchestry.core.track_config import TrackersConfig
from orchestry.core.types import AgentSpec, Frozen, Limits, Split

Arrangement = Literal["fixed", "concat", "sequential", "discussion"]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Weight = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0.0, le=86_400.0)]
MAX_TOKENS = MAX_EPISODES = 1_000_000
RENAMED = {"search.strategy": {"fixed": "single"}}
"""By key, values that had another name in earlier releases: `fixed` is a baseline, and no strategy
any more."""


class FakeConfig(Frozen):
    """The scripted provider: what it answers, how slowly, and how often it fails."""

    script: Path | None = None
    """JSON lines {"agent", "match"?, "text"}; without it, seeded filler text."""
    latency_s: Seconds = 0.0
    """Median seconds per answer."""
    latency_sigma: float = Field(0.0, ge=0.0, le=5.0)
    """Sigma of a lognormal latency; 0 is constant."""
    output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    """Mean length of filler answers; None: a lognormal around 0.35 of max_tokens."""
    fault_rate: Share = 0.0
    """Share of attempts that fail."""
    faults: tuple[Literal["429", "529", "500", "timeout", "drop"], ...] = ("429", "529", "500")
    """Which failures are drawn, evenly."""


class ProviderConfig(Frozen):
    """Which models answer."""

    name: ProviderName = "auto"
    """`auto`: Claude if ANTHROPIC_API_KEY is set, else the embedded model."""
    model: str | None = None
    """None: the provider's own default."""
    base_url: Annotated[str | None, Mark.RESUMABLE, Mark.ADDRESS] = None
    """None: ANTHROPIC_BASE_URL or OPENAI_BASE_URL, else the vendor's."""
    timeout_s: Annotated[float, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(
        120.0, gt=0.0, le=86_400.0
    )
    """Seconds before an unanswered call is given up, and charged its worst-case cost."""
    recording: Annotated[Path | None, Mark.MOVABLE] = None
    """`recorded`: the run directory, or its journal.jsonl, to replay."""
    fake: FakeConfig = FakeConfig()
    """`fake`: the script."""


class SamplingConfig(Frozen):
    """How answers are drawn."""

    max_tokens: int = Field(512, ge=1, le=MAX_TOKENS)
    """Longest answer, in tokens; also what the ledger reserves for one."""
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    """None: the provider's own default. Claude has no temperature, and refuses one."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer."""


def _provider(raw: Any) -> Any:
    """A provider's keys, where only its name is given."""
    return {"name": raw} if isinstance(raw, str) else raw


class AgentConfig(Frozen):
    """What one agent does differently from the task, `provider` and `sampling`."""

    model: str | None = None
    """None: that of `provider`. Backend local loads it as this agent's base model."""
    provider: Annotated[ProviderConfig | None, BeforeValidator(_provider)] = None
    """Who answers for this agent: a provider's name, or keys as of `provider`. None: `provider`."""
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    """None: that of `sampling`."""
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    """None: that of `sampling`."""
    system_prompt: str | None = None
    """None: the task's own, followed by `goal` if that is given."""
    goal: str | None = None
    """None: the task's own. The judge reads it too."""
    role: str | None = None
    """The agent's name, in a list of agents; as a mapping, `agents` names it before the colon."""

    @property
    def said(self) -> dict[str, str]:
        """What it says of an AgentSpec."""
        return self.model_dump(include={"goal", "system_prompt"}, exclude_none=True)


class SearchConfig(Frozen):
    """How trajectories are searched."""

    strategy: Annotated[Literal["beam", "single", "best_of_n", "chains"], Mark.MEASURED] = "beam"
    """`single` plays one trajectory; `best_of_n` as many as the beam's calls allow; `chains` plays
    `k_samples` from the first state to the end, as backend local always does."""
    k_samples: Annotated[int, Mark.MEASURED] = Field(4, ge=1, le=64)
    """Samples per acting agent and state."""
    beam_width: Annotated[int, Mark.MEASURED] = Field(2, ge=1, le=64)
    """States kept after a stage."""
    joint: Annotated[Literal["aligned", "cross"], Mark.MEASURED] = "aligned"
    """Simultaneous agents: pair their j-th samples, or combine all of them."""
    exploration: Annotated[Share, Mark.MEASURED] = 0.0
    """Probability that a beam slot goes to a random state instead of the next best."""
    concurrency: Annotated[int, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(32, ge=1, le=1000)
    """Most calls in flight at once, per provider."""
    episodes_in_flight: Annotated[int | None, Mark.OPERATIONAL] = Field(None, ge=1, le=1000)
    """Most episodes played at once. None: as many as keep `concurrency` calls in flight."""

    @field_validator("strategy", mode="before")
    @classmethod
    def _has_its_new_name(cls, value: Any) -> Any:
        renamed = RENAMED["search.strategy"]
        if isinstance(value, str) and value in renamed:
            raise ValueError(f"it is called '{renamed[value]}' now: give '{renamed[value]}'")
        return value


class JudgeConfig(Frozen):
    """The central judge, which rates siblings whose task scores tie."""

    enabled: bool | None = None
    """None: on if the judge is Claude or a model behind OpenAI's API, unless the task asks for
    no judge (code_collaboration; `BaseTask.judged`). The embedded model's ratings are noise."""
    provider: ProviderConfig | None = None
    """The model that judges and distils behaviours. None: the run's own provider and model."""
    when: Literal["undecided", "always"] | None = None
    """`undecided`: rate siblings whose scores tie before the end; `always`: rate every set. None:
    `undecided`. In a task that asks for no judge, None is `always`: if you enable the judge there,
    it rates every set."""
    weight: Share = 0.5
    """Weight of the judge's number in a judged value; the rest is the task's score."""
    repeats: int = Field(2, ge=1, le=16)
    """Calls per sibling set, in balanced orders; a fitted model combines their ratings. Two calls
    cancel the effect of the order (docs/benchmarks.md); one call is half the price."""
    quality: Weight = 0.6
    """Weight of the quality rating in the judge's number."""
    collaboration: Weight = 0.3
    """Weight of the collaboration rating."""
    efficiency: Weight = 0.1
    """Weight of the efficiency rating."""
    rubric: str = Field("", max_length=10_000)
    """What good work is in this task, for the judge. '': the judge reads the agents' goals."""
    max_tokens: int = Field(1024, ge=64, le=MAX_TOKENS)
    """Longest answer when judging or distilling, in tokens. The limit is raised if needed: to 64,
    plus 120 per sibling to rate or 320 per behaviour to distil."""
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    """None: 0, if the provider takes a temperature."""
    max_chars: int = Field(6000, ge=200, le=1_000_000)
    """The judge is shown at most this many characters of an answer or of a shared prompt."""

    @model_validator(mode="after")
    def _has_weight(self) -> JudgeConfig:
        if not self.quality + self.collaboration + self.efficiency:
            raise ValueError("quality, collaboration and efficiency are all zero: give one weight")
        return self


class CreditConfig(Frozen):
    """How an episode's return is split between the agents."""

    method: Literal["replay", "siblings", "equal"] = "replay"
    """`replay` draws more samples where the siblings' estimate is uncertain; `siblings` uses only
    the samples at hand; `equal` splits evenly."""
    share: Share | None = None
    """Most calls for replays, as a share of the episode's own calls. None: 0.1 if behaviours are
    learned, which need it, else 0."""


class BehaviorsConfig(Frozen):
    """The library of behaviours: what is learned from episodes and put into the prompts."""

    enabled: bool | None = None
    """None: the same as judge.enabled. If that is None too: on if the judge would be Claude or a
    model behind OpenAI's API, even in a task that asks for no judge."""
    every: int = Field(5, ge=1, le=100_000)
    """Episodes between two updates of the library."""
    source: Annotated[Path | None, Mark.MOVABLE] = Field(None, alias="from")
    """A library to start from (`behaviors.from`): a YAML file, a run, or the name of a bundled one.
    A library of another task or model is tested first."""
    top: Share = 0.2
    """Share of an update's trajectories that count as winners."""
    candidates: int = Field(3, ge=1, le=16)
    """Behaviours distilled per update, divided among the agents by the loss they caused."""
    max_per_agent: int = Field(3, ge=1, le=20)
    """Most behaviours in one agent's prompt."""
    screen: int = Field(8, ge=1, le=1000)
    """Dev problems on which each new candidate is screened before one goes on trial."""
    pairs: int = Field(1000, ge=8, le=100_000)
    """Most paired dev episodes in one trial. A trial plans as many as the noise requires, and may
    last over several updates. Fewer pairs detect only gains larger than five points."""
    share: float = Field(1.0, gt=0.0, le=100.0)
    """Calls that an update may spend on dev, as a multiple of its episodes' calls."""
    alpha: float = Field(0.05, gt=0.0, lt=1.0)
    """Chance of even one false acceptance in the whole run, at most."""


class BudgetConfig(Frozen):
    """Money."""

    usd: float | None = Field(5.0, ge=0.0, le=1e9)
    """Hard cap in dollars, over all resumes of the run. None: no cap."""
    warn_share: Share = 0.8
    """Warn once when this share of the cap is spent."""


class CacheConfig(Frozen):
    """Answers kept between runs, in the user cache."""

    enabled: bool = True
    """False: every answer is asked for again."""
    dir: Path | None = None
    """None: $XDG_CACHE_HOME/orchestry/answers."""


class RetryConfig(Frozen):
    """What happens when an attempt fails for a temporary reason."""

    attempts: int = Field(6, ge=1, le=50)
    """Attempts per call, including the first. While the server answers no call at all, free
    attempts continue: see patience_s."""
    billed_attempts: int = Field(3, ge=1, le=50)
    """Attempts per call that may be billed although they fail: an unreadable answer, an answer that
    breaks off, a timeout."""
    base_s: Seconds = 0.5
    """First wait; it doubles, with full jitter, unless the server names its own."""
    max_s: Seconds = 60.0
    """Longest wait between two attempts."""
    patience_s: Seconds = 600.0
    """Seconds that the run waits for a server that is away (eight failures in a row). Then the run
    stops with exit code 4 and can be resumed."""


class PriceConfig(Frozen):
    """Dollars per million tokens, for models that genai-prices does not know."""

    input: float = Field(ge=0.0, allow_inf_nan=False)
    """Of the prompt."""
    output: float = Field(ge=0.0, allow_inf_nan=False)
    """Of the answer."""
    cached_input: float | None = Field(None, ge=0.0, allow_inf_nan=False)
    """None: the input price."""
    cache_write: float | None = Field(None, ge=0.0, allow_inf_nan=False)
    """None: the input price."""


class RunConfig(Frozen):
    """One run. Frozen: a changed run is a new config.

    Raises ConfigError with one line per fault, and for a secret.
    """

    backend: Annotated[BackendName, Mark.MEASURED] = "api"
    """`api` searches and rewrites prompts; `local` trains adapters by policy gradients."""
    task: Annotated[str, Mark.MEASURED] = "code_review"
    """`orchestry tasks list` shows them; backend local has `code_collaboration` unless told."""
    task_path: Annotated[tuple[Path, ...], Mark.RESUMABLE, Mark.OPERATIONAL] = ()
    """Folders searched for tasks before ./tasks and the bundled ones."""
    weights: Annotated[Mapping[str, Weight], Mark.MEASURED] = Field(default_factory=dict)
    """Weights of the task's reward parts by name; the others keep the task's own weights."""
    options: Annotated[Mapping[str, Any], Mark.MEASURED] = Field(default_factory=dict)
    """The task's own settings; see its README. The others keep the task's defaults."""
    baseline: Arrangement | None = None
    """Play the task as this baseline: one model alone, or a team that communicates differently;
    `orchestry baselines list` explains them."""
    episodes: Annotated[int, Mark.RESUMABLE] = Field(20, ge=1, le=MAX_EPISODES)
    """One episode is one problem, searched once."""
    split: Split = "train"
    """Play problems of this split; only `orchestry evaluate` and baselines play test."""
    seed: Annotated[int, Mark.MEASURED] = Field(0, ge=0)
    """Same seed, same run, if the provider is deterministic."""
    provider: Annotated[ProviderConfig, Mark.MEASURED] = ProviderConfig()
    sampling: Annotated[SamplingConfig, Mark.MEASURED] = SamplingConfig()
    agents: Annotated[Mapping[str, AgentConfig], Mark.MEASURED] = Field(default_factory=dict)
    """By role: settings of this agent alone. If the task takes new roles (`open_roles`), a list of
    agents, each with its `role`, is the whole team in that order."""
    search: SearchConfig = SearchConfig()
    judge: JudgeConfig = JudgeConfig()
    credit: CreditConfig = CreditConfig()
    behaviors: BehaviorsConfig = BehaviorsConfig()
    learn: LearnConfig = LearnConfig()
    budget: Annotated[BudgetConfig, Mark.RESUMABLE, Mark.OPERATIONAL] = BudgetConfig()
    cache: Annotated[CacheConfig, Mark.RESUMABLE, Mark.OPERATIONAL] = CacheConfig()
    retry: Annotated[RetryConfig, Mark.RESUMABLE, Mark.OPERATIONAL] = RetryConfig()
    trackers: Annotated[TrackersConfig, Mark.RESUMABLE, Mark.OPERATIONAL] = TrackersConfig()
    prices: Mapping[str, PriceConfig] = Field(default_factory=dict)
    """By model: prices that override or add to genai-prices."""
    sandbox: Annotated[Limits, Mark.OPERATIONAL] = Limits()
    """What code written by a model may use."""
    allow_unsafe_code: Annotated[bool, Mark.RESUMABLE, Mark.OPERATIONAL] = False
    """Run the code that models write even if this machine can't confine it."""

    @model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, raw: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        """A notebook reads the same words as the command line, and no page of pydantic's."""
        try:
            refuse_secrets(raw, cls)
            return check(_by_role(raw))
        except RecursionError:
            raise ConfigError("a YAML alias in the config lies inside its own anchor") from None
        except ValidationError as error:
            raise ConfigError("; ".join(explain(item, cls) for item in error.errors())) from None

    def system_prompt(self, spec: AgentSpec) -> str:
        """An agent's system prompt before anything was learned: this config's, the task's with the
        goal that this config gives, or one made of role and goal."""
        own = self.agents.get(spec.role, AgentConfig())
        if own.system_prompt is not None:
            return own.system_prompt
        if not spec.system_prompt:
            return f"You are the {spec.role} of a team. {own.goal or spec.goal}".strip()
        return f"{spec.system_prompt}\n\nYour goal: {own.goal}" if own.goal else spec.system_prompt

    @property
    def team(self) -> tuple[str, ...]:
        """The roles of a list of agents, in its order; () where `agents` is a mapping."""
        return tuple(role for role, own in self.agents.items() if own.role is not None)

    def plain(self) -> dict[str, Any]:
        """What was said of the run, not what is left at its default, as plain data."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def to_yaml(self) -> str:
        """The resolved config as a file that `--config` takes back."""
        return yaml.safe_dump(
            self.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True
        )


def settings_of(sets: Sequence[str]) -> dict[str, Any]:
    """`a.b=c` settings, nested as in a file; the last word on a key counts."""
    found: dict[str, Any] = {}
    for item in sets:
        key, value = _parse_set(item)
        put(found, key, value)
    return found


def resolve(
    files: Sequence[Path] = (),
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Merges config files, `a.b=c` settings and flags (dotted keys) into a RunConfig.

    Raises ConfigError naming the key, what was found, and the nearest known key.
    """
    merged: dict[str, Any] = {}
    for layer in (*(read_yaml(path) for path in files), settings_of(sets)):
        if isinstance(layer.get("agents"), list):  # the whole team, whoever was named before
            merged["agents"] = {}
        merged = merge(merged, _by_role(layer))
    for key, value in (flags or {}).items():
        put(merged, key, value)
    return validate(merged)


def _by_role(raw: Any) -> Any:
    """A config's raw data, with a list of agents as a mapping whose entries keep their role, and
    an agent's provider as a mapping, so that layers can be merged."""
    agents = raw.get("agents") if isinstance(raw, Mapping) else None
    if isinstance(agents, list | tuple):
        agents = _named(agents)
    if not isinstance(agents, Mapping):
        return raw
    return {**raw, "agents": {role: _agent(role, own) for role, own in agents.items()}}


def _agent(name: str, own: Any) -> Any:
    if not isinstance(own, Mapping):
        return own
    if (role := own.get("role")) not in (None, name):
        raise ConfigError(
            f"config key 'agents.{name}.role' is '{role}': leave it, or make agents a list "
            f"such as [{{role: {role}}}]"
        )
    return {**own, "provider": _provider(own["provider"])} if "provider" in own else own


def _named(agents: Sequence[Any]) -> dict[str, Any]:
    """Raises ConfigError for an entry without a role, and for a role that two entries have."""
    found = dict[str, Any]()
    for place, own in enumerate(agents):
        role = own.get("role") if isinstance(own, Mapping) else None
        if not role or not isinstance(role, str):
            raise ConfigError(
                f"config key 'agents.{place}' has no role: give each agent of the list one, such "
                "as {role: coder}"
            )
        if role in found:
            raise ConfigError(f"config key 'agents' has two agents of role '{role}': rename one")
        found[role] = own
    return found


def validate(raw: Mapping[str, Any]) -> RunConfig:
    """RunConfig from plain data; raises ConfigError as RunConfig itself does."""
    return RunConfig.model_validate(raw)


def modern(written: Mapping[str, Any]) -> dict[str, Any]:
    """A config that an earlier release wrote, with today's names of values."""
    found = dict(written)
    for key, names in RENAMED.items():
        section, _, name = key.partition(".")
        below = found.get(section)
        if isinstance(below, Mapping) and str(below.get(name)) in names:
            found[section] = {**below, name: names[str(below[name])]}
    return found


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from disk; raises ConfigError for anything else."""
    try:
        return on_disk.read_yaml(path)
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist: check --config") from None
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"config file {path} can't be read: {why}: correct it") from None


def _parse_set(item: str) -> tuple[str, Any]:
    key, sep, value = item.partition("=")
    if not sep or not key:
        raise ConfigError(f"--set takes key=value such as search.k_samples=8, not '{item}'")
    try:
        return key, on_disk.parse_yaml(value)
    except ValueError as error:
        why = f"--set {key}: '{value}' is not a YAML value ({error}): quote it"
        raise ConfigError(why) from None


_NAME = re.compile(r'(?:^|\.)(?:"([^"]+)"|([^.]*))')


def put(target: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets a dotted key in nested data; a name that has dots itself stands in double quotes, such
    as agents."a.b".model. Raises ConfigError below a plain value."""
    *path, last = [quoted or bare for quoted, bare in _NAME.findall(dotted)]
    for name in path:
        inner = target.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"'{dotted}' goes below '{name}', which is already a plain value")
        target = inner
    target[last] = value


def merge(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `extra` laid over it, mapping by mapping; both stay as they are."""
    merged = dict(base)
    for key, value in extra.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged
