"""RunConfig: everything that decides a run, resolved before any money is spent.

Merged in this order: field defaults < `configs/<backend>.yaml` < `--config` < `--set` < flags. The
docstring under each field explains its key in docs/cli.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from orchestry.core.asked import check_extra_body, check_headers, check_rename, thinking_budget
from orchestry.core.choices import BackendName, Proposal, ProviderName
from orchestry.core.errors import ConfigError
from orchestry.core.executor import ExecutorName
from orchestry.core.files import is_player
from orchestry.core.learning import LearnConfig
from orchestry.core.ppo import PpoConfig
from orchestry.core.recipes import RecipeConfig
from orchestry.core.resolve import (
    Mark,
    by_role,
    explain_fault,
    merge,
    put_key,
    read_config_file,
    refuse_secrets,
    settings_of,
    unless_auto,
    with_keys,
)
from orchestry.core.types import AgentSpec, Example, Frozen, Limits, Split

Arrangement = Literal["fixed", "concat", "sequential", "discussion", "single"]
_Share = Annotated[float, Field(ge=0.0, le=1.0)]
_Weight = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0.0, le=86_400.0)]
MAX_TOKENS = MAX_EPISODES = 1_000_000
MAX_RUBRIC = 10_000
"""Characters of a judge's rubric."""
RENAMED = {"search.strategy": {"fixed": "single"}}
"""Per key, values that were renamed: `fixed` is now a baseline, not a strategy."""
GONE = {
    "behaviors.screen": "all candidates race from their first pair on",
    "behaviors.pairs": "a race lasts as long as `behaviors.share` pays for it",
}
"""By key, why keys of earlier releases are no more."""


class FakeConfig(Frozen):
    """The scripted provider: what it answers, how slowly, and how often it fails."""

    script: Path | None = None
    """JSON lines {"agent", "match"?, "text"}; without it, seeded filler text."""
    latency_s: _Seconds = 0.0
    """Median seconds per answer."""
    latency_sigma: float = Field(0.0, ge=0.0, le=5.0)
    """Sigma of a lognormal latency; 0 is constant."""
    output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    """Mean length of filler answers; None: a lognormal around 0.35 of max_tokens."""
    fault_rate: _Share = 0.0
    """Share of attempts that fail."""
    faults: tuple[Literal["429", "529", "500", "timeout", "drop"], ...] = ("429", "529", "500")
    """Which failures are drawn, evenly."""


class ProviderConfig(Frozen):
    """Which models answer."""

    name: ProviderName = "auto"
    """`auto`: the provider that the model's name names; else Claude if ANTHROPIC_API_KEY is set,
    `openai` if OPENAI_API_KEY or OPENAI_BASE_URL is, and the embedded model if none is. `local:RUN`
    is `local` with that `team`."""
    model: str | None = None
    """None: the provider's own default. With `auto` it may name its provider: `openai/NAME`,
    `anthropic/NAME`, `ollama/NAME`, `embedded/NAME`."""
    base_url: Annotated[str | None, Mark.RESUMABLE, Mark.ADDRESS] = None
    """None: ANTHROPIC_BASE_URL or OPENAI_BASE_URL, else the vendor's."""
    timeout_s: Annotated[float, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(
        120.0, gt=0.0, le=86_400.0
    )
    """Seconds before an unanswered call is given up, and charged its worst-case cost."""
    extra_body: Annotated[Mapping[str, Any], AfterValidator(check_extra_body)] = {}
    """Fields that are added to each request's body; null leaves one out, such as `{seed: null}`.
    Those that may raise what a call costs are refused."""
    rename: Annotated[Mapping[str, str], AfterValidator(check_rename)] = {}
    """Other names for fields of the body, such as `{max_tokens: max_completion_tokens}`."""
    headers: Annotated[
        Mapping[str, str], AfterValidator(check_headers), Mark.RESUMABLE, Mark.OPERATIONAL
    ] = {}
    """Headers of each request. A key stands in the environment: `{api-key: "${MY_KEY}"}`."""
    system: Literal["system", "user"] = "system"
    """Where system text stands: in its own role or, for servers without it, in the first user
    message. A server that refuses the role is asked in that way without being told."""
    split_thoughts: bool = True
    """`openai`: whether thoughts between <think> and </think> at the beginning of an answer's text
    are taken out of it. They are kept in the journal, not scored, and shown to no agent."""
    recording: Annotated[Path | None, Mark.MOVABLE] = None
    """`recorded`: the run directory, or its journal.jsonl, to replay."""
    team: Annotated[Path | None, Mark.MOVABLE] = None
    """`local`: the run of backend local, or the checkpoint, whose trained weights answer."""
    fake: FakeConfig = FakeConfig()
    """`fake`: the script."""

    @model_validator(mode="before")
    @classmethod
    def _names_its_team(cls, raw: Any) -> Any:
        name = raw.get("name") if isinstance(raw, Mapping) else None
        if not isinstance(name, str) or not name.startswith("local:"):
            return raw
        return {**raw, "name": "local", "team": name.removeprefix("local:") or None}

    @model_validator(mode="after")
    def _has_no_other_team(self) -> Self:
        if self.team is not None and self.name != "local":
            raise ValueError(
                f"team is for provider.name=local, found provider.name={self.name}: leave it out"
            )
        return self


class SamplingConfig(Frozen):
    """How answers are drawn."""

    max_tokens: int = Field(512, ge=1, le=MAX_TOKENS)
    """Longest answer, in tokens; also what the ledger reserves for one."""
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    """None: the provider's own default. Claude has no temperature, and refuses one."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer."""


def _players(value: Any) -> Any:
    """A name alone, or a list of names; runs by their absolute paths, since a resume may come from
    another folder."""
    names = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return value
    return tuple(
        str(Path(name).resolve()) if isinstance(name, str) and is_player(Path(name)) else name
        for name in names
    )


class AgentConfig(Frozen):
    """Settings of one agent that override the task, `provider` and `sampling`."""

    model: str | None = None
    """None: the model of `provider`. It may name another provider, such as `openai/NAME`. Backend
    local loads it as this agent's base model."""
    provider: Annotated[ProviderConfig | None, BeforeValidator(with_keys)] = None
    """Who answers for this agent: a provider's name, or the keys of `provider`. None:
    `provider`. In backend local only for a `frozen` agent."""
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    """None: that of `sampling`."""
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    """None: that of `sampling`."""
    plays: Annotated[tuple[str, ...], BeforeValidator(_players), Mark.MOVABLE] = ()
    """Who plays this agent by numbers; no model is asked and nothing is learned. A scripted player
    of the task's, such as `guard`; the folder of a run of backend ppo; or a file in its folder
    `checkpoints`. Of several, each game has one. `self` in backend ppo: earlier versions of the
    policy that learns. The task must have games that can be played as arrays."""
    frozen: bool = False
    """Backend local: keep this agent as it is, while the others learn beside it. Its answers come
    from its adapter (of `learn.from`, else the base alone) or, paid, from its `provider`."""
    infer: bool = False
    """Whether the agent, before each action, says in one line what it believes its partners will
    do: one more call, shown to itself alone. The part `infer_accuracy_ROLE` of the reward compares
    the line with what they then did."""
    infer_bonus: _Weight = 0.0
    """Weight of that part in the team's reward, beside the weights of the task's own parts."""
    chain: tuple[str, ...] = Field((), max_length=8)
    """Calls before each action, in order: `plan`, `draft`, `doubts`, or an instruction of your own.
    Each sees what the earlier ones of the same move said; only the last call is the action."""
    max_calls: int | None = Field(None, ge=1)
    """Most calls of its tools in one turn; then it must answer. None: the task's own."""
    system_prompt: str | None = None
    """None: the task's own, followed by `goal` if that is given."""
    examples: tuple[Example, ...] = Field((), max_length=20)
    """Good work to learn from: what the agent was `asked`, and what it `answered`."""
    goal: str | None = None
    """None: the task's own. The judge reads it too."""
    role: str | None = None
    """The agent's role, if `agents` is a list. If `agents` is a mapping, its keys are the roles."""

    @model_validator(mode="after")
    def _plays_or_answers(self) -> Self:
        asks = ("model", "provider", "frozen", "infer", "chain")
        if self.plays and (odd := [name for name in asks if getattr(self, name)]):
            raise ValueError(
                f"plays acts by numbers, and {', '.join(odd)} is for a model: leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _thinks_sensibly(self) -> Self:
        if self.infer_bonus and not self.infer:
            raise ValueError(
                f"infer_bonus={self.infer_bonus:g} pays for inferences, and infer is false: set "
                "infer=true, or leave the bonus out"
            )
        if not all(step.strip() for step in self.chain):
            raise ValueError("chain has a blank step: write plan, draft, doubts or an instruction")
        return self

    @property
    def said(self) -> dict[str, Any]:
        """The AgentSpec fields that this agent overrides."""
        return self.model_dump(include={"goal", "system_prompt", "max_calls"}, exclude_none=True)


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
    branch: Literal["chains", "tree"] = "chains"
    """What backend local learns from. `chains`: `learn.group_size` trajectories a problem. `tree`:
    so many samples in every state, for tasks of several turns; `learn.grouping=history` compares
    them. Evaluations draw chains."""
    max_nodes: int = Field(256, ge=2, le=100_000)
    """`branch: tree`: a tree with more states is refused."""
    exploration: Annotated[_Share, Mark.MEASURED] = 0.0
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
    """The model that judges, and writes behaviours if behaviors.provider names no other. None: the
    run's own provider and model."""
    when: Literal["undecided", "always"] | None = None
    """`undecided`: rate siblings whose scores tie before the end; `always`: rate every set. None:
    `undecided`. In a task that asks for no judge, None is `always`: if you enable the judge there,
    it rates every set."""
    every: int = Field(1, ge=1, le=MAX_EPISODES)
    """Ask the judge in every N-th episode only: 0, N, 2N, ... The values of the others are the
    task's scores, as without a judge."""
    weight: _Share = 0.5
    """Weight of the judge's number in a judged value; the rest is the task's score. In backend
    local the judged value of a finished trajectory is its last reward in the returns."""
    repeats: int = Field(2, ge=1, le=16)
    """Calls per sibling set, in balanced orders; a fitted model combines their ratings. Two calls
    cancel the effect of the order (docs/benchmarks.md); one call is half the price."""
    quality: _Weight = 0.6
    """Weight of the quality rating in the judge's number."""
    collaboration: _Weight = 0.3
    """Weight of the collaboration rating."""
    efficiency: _Weight = 0.1
    """Weight of the efficiency rating."""
    rubric: str = Field("", max_length=MAX_RUBRIC)
    """What good work is in this task, for the judge, in place of the task's own rubric. '': the
    task's (`BaseTask.rubric`), if it has one. The judge reads the agents' goals in any case."""
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
    """`replay` draws more samples, always from the state with the fewest calls so far; `siblings`
    uses only the samples at hand; `equal` splits evenly."""
    share: _Share | None = None
    """Most calls for replays, as a share of the episode's own calls. None: 0.1 if behaviours are
    learned, which need it, else 0."""


class BehaviorsConfig(Frozen):
    """The library of behaviours: what is learned from episodes and put into the prompts."""

    enabled: bool | None = None
    """None: the same as judge.enabled. If that is None too: on if the judge would be Claude or a
    model behind OpenAI's API, even in a task that asks for no judge."""
    every: int = Field(5, ge=1, le=100_000)
    """Episodes between two updates of the library."""
    overlap: bool = False
    """True: while an update races, the next episodes are played with the library before it. The
    run takes less time, and what an update accepts is used `every` episodes later."""
    source: Annotated[Path | None, Mark.MOVABLE] = Field(None, alias="from")
    """A library to start from (`behaviors.from`): a YAML file, a run, or the name of a bundled one.
    A library of another task or model is tested first. Backend local puts its accepted behaviours
    into the prompts, and weights learn with them; it tests none."""
    provider: Annotated[ProviderConfig | None, Mark.RESUMABLE] = None
    """The model that writes behaviours. None: the judge's."""
    propose: tuple[Proposal, ...] | None = Field(None, min_length=1)
    """What is tried: `rules`, which a model writes; `prompts`, whole prompts that it writes anew
    from what helped; `examples`, moves of winners; `gold`, the task's own answers to train problems
    as examples; `feedback`, what the task said of bad work, as a rule to check. None: the first
    three; but the last three if the embedded model would have to write, for its rules are noise."""
    top: _Share = 0.2
    """Share of an update's trajectories that count as winners."""
    candidates: int = Field(4, ge=1, le=16)
    """Behaviours written per update, divided among the agents by the loss they caused."""
    max_per_agent: int = Field(3, ge=1, le=20)
    """Most behaviours in one agent's prompt."""
    share: Annotated[float | None, BeforeValidator(unless_auto)] = Field(None, gt=0.0, le=100.0)
    """Calls that an update may spend on dev, as a multiple of its episodes' calls. None or `auto`:
    as many as show a gain of five points with a chance of 80 %, at most three times those calls,
    and no more than the budget leaves beside the episodes to come."""
    in_search: bool = True
    """Whether the search too tries what races: about half of the last move's samples are drawn with
    it. That is a comparison in the same state at no further cost, and a wider search."""
    alpha: float = Field(0.05, gt=0.0, lt=1.0)
    """Chance of even one false acceptance in the whole run, at most."""


class BudgetConfig(Frozen):
    """Money."""

    usd: float | None = Field(5.0, ge=0.0, le=1e9)
    """Hard cap in dollars, over all resumes of the run. None: no cap."""
    warn_share: _Share = 0.8
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
    base_s: _Seconds = 0.5
    """First wait; it doubles, with full jitter, unless the server names its own."""
    max_s: _Seconds = 60.0
    """Longest wait between two attempts."""
    patience_s: _Seconds = 600.0
    """Seconds that the run waits for a server that is away (eight failures in a row). Then the run
    stops with exit code 4 and can be resumed."""


def _off(value: Any) -> Any:
    """YAML reads the bare word `off` as false."""
    return "off" if value is False else value


class TrackersConfig(Frozen):
    """Copies of the run's figures in other tools. Evaluations have no trackers."""

    tensorboard: bool = False
    """Event files in the run's folder `tensorboard`, for `tensorboard --logdir runs`."""
    wandb: Annotated[Literal["off", "online", "offline"], BeforeValidator(_off)] = "off"
    """Weights & Biases. `offline` writes into the run's folder `wandb`, for `wandb sync`; `online`
    takes the login of this machine (`wandb login`, or WANDB_API_KEY)."""
    project: str = "orchestry"
    """W&B: the project."""
    entity: str | None = None
    """W&B: the user or team. None: the account's own."""
    name: str | None = None
    """W&B: the run's name. None: the name of its folder."""
    tags: tuple[str, ...] = ()
    """W&B: labels of the run."""


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


def _told(fault: Mapping[str, Any], root: type[BaseModel]) -> str:
    key = ".".join(map(str, fault["loc"]))
    if key in GONE:
        return f"config key '{key}' is gone: {GONE[key]}: leave it out"
    return explain_fault(fault, root)


class RunConfig(Frozen):
    """One run. Frozen: a changed run is a new config.

    Raises ConfigError with one line per fault, and for a secret.
    """

    backend: Annotated[BackendName, Mark.MEASURED] = "api"
    """`api` searches and rewrites prompts; `local` trains adapters by policy gradients; `ppo`
    trains small neural policies, which play a game's numbers."""
    task: Annotated[str, Mark.MEASURED] = "code_review"
    """`orchestry tasks list` shows them; backend local has `code_collaboration` unless told."""
    task_path: Annotated[tuple[Path, ...], Mark.RESUMABLE, Mark.OPERATIONAL] = ()
    """Folders searched for tasks before ./tasks and the bundled ones."""
    weights: Annotated[Mapping[str, _Weight], Mark.MEASURED] = Field(default_factory=dict)
    """Weights of the task's reward parts by name; the others keep the task's own weights."""
    options: Annotated[Mapping[str, Any], Mark.MEASURED] = Field(default_factory=dict)
    """The task's own settings; see its README. The others keep the task's defaults."""
    baseline: Arrangement | None = None
    """Play the task as this baseline: one model alone, or a team that communicates differently;
    `orchestry baselines list` explains them. A run learns so too: `single` trains one model."""
    episodes: Annotated[int, Mark.RESUMABLE] = Field(20, ge=1, le=MAX_EPISODES)
    """One episode is one problem, searched once."""
    passes: Annotated[int | None, Mark.RESUMABLE] = Field(None, ge=1, le=10_000)
    """Play every problem of the split so many times: when the run begins, `episodes` becomes that
    number. None: `episodes` says how many."""
    problem: Annotated[Mapping[str, Any] | None, Mark.MEASURED] = None
    """Play this one problem, written like a line of problems.jsonl, instead of a split's
    (`orchestry ask`)."""
    split: Split = "train"
    """Play problems of this split; only `orchestry evaluate` and baselines play test."""
    curriculum: Literal["none", "grade", "success"] = "none"
    """The order of the problems. `none`: seeded, all of them in each pass. `grade`: in the first
    pass the easiest first, by the problems' `data.grade`. `success`: drawn anew after each update,
    most often those that the team solves about half of the time."""
    pace: Annotated[_Seconds, Mark.RESUMABLE, Mark.OPERATIONAL] = 0.0
    """Seconds from the beginning of an episode to that of the next, at least: for tight rate
    limits. Backend local draws the episodes of an update together, and has no pace."""
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
    ppo: PpoConfig = PpoConfig()
    recipe: RecipeConfig = RecipeConfig()
    budget: Annotated[BudgetConfig, Mark.RESUMABLE, Mark.OPERATIONAL] = BudgetConfig()
    cache: Annotated[CacheConfig, Mark.RESUMABLE, Mark.OPERATIONAL] = CacheConfig()
    retry: Annotated[RetryConfig, Mark.RESUMABLE, Mark.OPERATIONAL] = RetryConfig()
    trackers: Annotated[TrackersConfig, Mark.RESUMABLE, Mark.OPERATIONAL] = TrackersConfig()
    prices: Mapping[str, PriceConfig] = Field(default_factory=dict)
    """By model: prices that override or add to genai-prices."""
    executor: Annotated[ExecutorName, Mark.RESUMABLE, Mark.OPERATIONAL, Mark.ADDRESS] = "local"
    """Where sandbox runs and the processes of a launch go: `local` is this process and its sandbox,
    `processes` other processes of this machine too, `ray` the Ray cluster that this machine belongs
    to, `ray://HOST:PORT` another one. See docs/scale.md."""
    ranks: Annotated[int, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(1, ge=1, le=1024)
    """Processes that draw and learn together, with an `executor` other than local.
    The first is this one."""
    sandbox: Annotated[Limits, Mark.OPERATIONAL] = Limits()
    """What code written by a model may use."""
    allow_unsafe_code: Annotated[bool, Mark.RESUMABLE, Mark.OPERATIONAL] = False
    """Run code that models write even if this machine can't confine it."""

    @model_validator(mode="after")
    def _leaves_room_beside_thoughts(self) -> Self:
        budget = thinking_budget(self.provider.extra_body)
        limits = (one.max_tokens or 0 for one in self.agents.values())
        most = max([self.sampling.max_tokens, *limits])
        if budget >= most:
            raise ValueError(
                f"provider.extra_body.thinking.budget_tokens is {budget}, and thoughts are part of "
                "an answer, and the highest limit of sampling.max_tokens and agents is "
                f"{most}: raise that above it"
            )
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, raw: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        """A notebook shows the command line's messages, not pydantic's."""
        try:
            refuse_secrets(raw, cls)
            return check(by_role(raw))
        except RecursionError:
            raise ConfigError("a YAML alias in the config lies inside its own anchor") from None
        except ValidationError as error:
            raise ConfigError("; ".join(_told(item, cls) for item in error.errors())) from None

    def system_prompt(self, spec: AgentSpec) -> str:
        """An agent's system prompt before learning: this config's; else the task's, with the goal
        that this config adds; else one made of role and goal, or the goal alone for an agent whose
        prompts a program writes."""
        own = self.agents.get(spec.role, AgentConfig())
        if own.system_prompt is not None:
            return own.system_prompt
        if not spec.system_prompt and spec.programmed:
            return own.goal or spec.goal
        if not spec.system_prompt:
            return f"You are the {spec.role} of a team. {own.goal or spec.goal}".strip()
        return f"{spec.system_prompt}\n\nYour goal: {own.goal}" if own.goal else spec.system_prompt

    @property
    def team(self) -> tuple[str, ...]:
        """The roles of a list of agents, in order; () if `agents` is a mapping."""
        return tuple(role for role, own in self.agents.items() if own.role is not None)

    def plain(self) -> dict[str, Any]:
        """The settings that were given, without defaults, as plain data."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def to_yaml(self) -> str:
        """The resolved config as a file that `--config` takes back."""
        return yaml.safe_dump(
            self.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True
        )


def resolve(
    files: Sequence[Path] = (),
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Merges config files, `a.b=c` settings and flags (dotted keys) into a RunConfig.

    Raises ConfigError naming the key, what was found, and the nearest known key.
    """
    merged: dict[str, Any] = {}
    for layer in (*(read_config_file(path) for path in files), settings_of(sets)):
        if isinstance(layer.get("agents"), list):  # the whole team: replaces earlier layers
            merged["agents"] = {}
        merged = merge(merged, by_role(layer))
    for key, value in (flags or {}).items():
        put_key(merged, key, value)
    return validate(merged)


def validate(raw: Mapping[str, Any]) -> RunConfig:
    """RunConfig from plain data; raises ConfigError as RunConfig itself does."""
    return RunConfig.model_validate(raw)


def modern(written: Mapping[str, Any]) -> dict[str, Any]:
    """A config of an earlier release, with renamed values replaced, and without keys that are
    gone."""
    found = dict(written)
    for key in GONE:
        section, _, name = key.partition(".")
        if isinstance(below := found.get(section), Mapping):
            found[section] = {own: value for own, value in below.items() if own != name}
    for key, names in RENAMED.items():
        section, _, name = key.partition(".")
        below = found.get(section)
        if isinstance(below, Mapping) and str(below.get(name)) in names:
            found[section] = {**below, name: names[str(below[name])]}
    return found
