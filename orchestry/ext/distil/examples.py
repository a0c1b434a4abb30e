"""What a distillation learns from: settings, and runs, gold answers and a teacher's games, as
examples for each agent.

No weights are loaded, so that an export of the same examples needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from orchestry.backends.tools import noted
from orchestry.core.config import AgentConfig, RunConfig, validate
from orchestry.core.errors import ConfigError, unknown
from orchestry.core.resolve import leaves, merge
from orchestry.core.seeds import shuffled
from orchestry.core.types import Member
from orchestry.engine.games import load_player, seat_policy
from orchestry.engine.trust import Trust, of_run
from orchestry.ext.distil.gold import gold_lessons
from orchestry.ext.distil.preferences import Preference, preferences
from orchestry.ext.distil.teachers import taught
from orchestry.ext.distil.winners import (
    TOP,
    By,
    Choice,
    Lesson,
    bare,
    check_source,
    each_once,
    of_team,
    winners,
)
from orchestry.store.run import Run, load_run
from orchestry.task.base import BaseTask
from orchestry.task.programs.agent_task import AgentTask
from orchestry.task.setup import Setup, set_up
from orchestry.task.thinking import Thoughtful
from orchestry.task.vector import run_named

RATES = {"sft": 1e-3, "dpo": 1e-4}
"""Learning rates by method."""
GAMES = 16
"""That a teacher plays."""
FEWEST = 5
"""With fewer problems none is held out."""
_LEARN = (
    *("from", "rank", "alpha", "rslora", "targets", "dropout", "shared", "device", "dtype"),
    *("quantize", "threads", "micro_tokens", "gradient_checkpointing", "max_grad_norm"),
    *("top_p", "top_k", "roles"),
)
_TAKEN = (
    *("task", "task_path", "options", "weights", "seed", "provider", "sampling", "agents"),
    *("backend", "sandbox", "allow_unsafe_code", *(f"learn.{name}" for name in _LEARN)),
)
"""Config keys that a distillation uses; `sampling` and `learn.top_*` when its team plays."""
_FIXED: dict[str, Any] = {
    "backend": "local",
    "split": "train",
    "learn": {"enabled": False},
    "judge": {"enabled": False},
    "credit": {"share": 0.0},
}
"""What the team's config always says."""

Method = Literal["sft", "dpo"]


class How(TypedDict, total=False):
    """The options of `distil`, each with a default; see Settings."""

    method: Method
    by: By
    top: float
    min_reward: float
    gold: bool
    teacher: str
    games: int
    drop_behaviors: bool
    epochs: int
    learning_rate: float
    batch: int
    held_out: float
    beta: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What is learned, and how."""

    method: Method = "sft"
    """`sft`: supervised, the winners' answers. `dpo`: preferences (arXiv 2305.18290), for each
    agent the better of two answers to one prompt, by the values of the states they led to."""
    by: By = "reward"
    """What trajectories are compared by: see winners.BY."""
    top: float | None = None
    """The share of trajectories that win, for each agent; of pairs, with `dpo`, those with the
    largest differences. None: 0.2, and all pairs."""
    min_reward: float = 0.0
    """A winner has at least this reward."""
    gold: bool = False
    """Whether the gold answers of the train problems are learned too, or alone."""
    teacher: str | None = None
    """Who plays games to learn from, besides or alone: a scripted player of the task, or the folder
    of a run of backend ppo."""
    games: int = GAMES
    """Games that the teacher plays, on train problems by turns."""
    drop_behaviors: bool = False
    """Whether learned behaviours are left out of the prompts: what they taught in words goes into
    the weights (context distillation)."""
    epochs: int = 4
    """Passes over the examples, at most."""
    learning_rate: float | None = None
    """None: 1e-3, and 1e-4 with `dpo`."""
    batch: int = 4
    """Examples of each agent per step, at most."""
    held_out: float = 0.1
    """The share of problems that is not learned from and ends the learning (early stopping)."""
    beta: float = 0.1
    """`dpo`: how much the team is held to where it began; 0.1 lets it move far."""

    @property
    def rate(self) -> float:
        """The learning rate."""
        return self.learning_rate or RATES[self.method]

    @property
    def share(self) -> float:
        """The share that wins."""
        return self.top if self.top is not None else TOP if self.method == "sft" else 1.0

    @property
    def alone(self) -> str | None:
        """The flag of what can be learned from without runs, where one is given."""
        return "--gold" if self.gold else "--teacher" if self.teacher else None

    @property
    def chooses(self) -> bool:
        """Whether it says which trajectories win."""
        return self.top is not None or self.min_reward > 0.0 or self.by != "reward"

    def plain(self) -> dict[str, Any]:
        """As plain data, with what None stands for."""
        return asdict(self) | {"learning_rate": self.rate, "top": self.share}

    def __post_init__(self) -> None:
        """Raises ConfigError for values out of range, and for what would be ignored."""
        if self.method not in RATES:
            raise ConfigError(unknown("method", self.method, [*RATES]))
        if self.method == "dpo" and (alone := self.alone):
            raise ConfigError(
                f"--method dpo compares answers, and {alone} has no worse ones: leave it out"
            )
        if self.teacher is None and self.games != GAMES:
            raise ConfigError("--games is of --teacher: name one, or leave it out")
        if not 1 <= self.games <= 100_000:
            raise ConfigError(f"games is {self.games}: give 1 to 100000")
        if self.method == "dpo" and self.by != "reward":
            raise ConfigError(
                f"--method dpo compares answers by what they led to: leave out --by {self.by}"
            )
        if self.method == "sft" and self.beta != 0.1:
            raise ConfigError("--beta is of --method dpo: leave it out")
        if not 0.0 < self.beta <= 100.0:
            raise ConfigError(f"beta is {self.beta:g}: give one above 0, and 100 at most")
        if not 1 <= self.epochs <= 1000:
            raise ConfigError(f"epochs is {self.epochs}: give 1 to 1000")
        if not 1 <= self.batch <= 4096:
            raise ConfigError(f"batch is {self.batch}: give 1 to 4096 examples")
        if self.learning_rate is not None and not 0.0 < self.learning_rate <= 1.0:
            raise ConfigError(f"learning-rate is {self.learning_rate:g}: give one in (0, 1]")
        if not 0.0 <= self.held_out <= 0.5:
            raise ConfigError(f"held-out is {self.held_out:g}: give a share in [0, 0.5]")


@dataclass(frozen=True, slots=True)
class Examples:
    """What will be learned, before any weights are loaded."""

    setup: Setup
    runs: tuple[Run, ...]
    settings: Settings
    lessons: tuple[Lesson | Preference, ...]
    held_out: tuple[Lesson | Preference, ...]
    teacher: Run | None = None
    """As it was when it taught: it may learn on."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The team."""
        return tuple(spec.role for spec in self.setup.task.agents)


def examples(
    runs: Sequence[Run | str | Path] = (),
    *,
    config: Mapping[str, Any] | None = None,
    note: Callable[[str], None] = lambda text: None,
    trust: Trust = False,
    **how: Unpack[How],
) -> Examples:
    """What `distil` would learn from; see there."""
    settings, given = Settings(**how), dict(config or {})
    found = tuple(load_run(one.folder if isinstance(one, Run) else one) for one in runs)
    place = run_named(settings.teacher) if settings.teacher else None
    teacher = load_player(place) if place else None
    first = found or ((teacher,) if teacher else ())
    _check_given(found, settings, given, first)
    setup = set_up(_config(first, given, trust, note), note, seat_policy)
    frozen = {role for role, own in setup.config.agents.items() if own.frozen}
    every = _lessons(setup, found, settings, note, teacher)
    lessons = [one for one in every if one.agent not in frozen]
    if not lessons:
        raise ConfigError("all agents with examples are frozen: take agents.ROLE.frozen away")
    learn, held_out = _split(lessons, settings, setup.config.seed)
    return Examples(setup, found, settings, tuple(learn), tuple(held_out), teacher)


# --- checks and config ---------------------------------------------------------------------------


def foreseen(given: Mapping[str, Any], how: How, runs: bool) -> RunConfig:
    """The team's config, before the `runs` exist, if there will be some. Raises ConfigError for
    what `distil` would refuse whatever they hold."""
    settings = Settings(**how)
    Choice(settings.by, settings.share, settings.min_reward)
    _check_asked(runs, settings)
    _check_keys(given)
    return validate(merge(given, _FIXED))


def _check_given(
    runs: Sequence[Run], settings: Settings, given: Mapping[str, Any], first: Sequence[Run]
) -> None:
    """Raises ConfigError for what can't be used, or would be ignored. `first`: where the config
    comes from."""
    _check_asked(bool(runs), settings)
    task = given.get("task") or (first[0].config.get("task") if first else None)
    if task is None:
        raise ConfigError(f"{settings.alone} without a run needs the task: name it with --task")
    for run in runs:
        check_source(run, str(task))
    _check_keys(given)


def _check_asked(runs: bool, settings: Settings) -> None:
    if not runs and settings.alone is None:
        raise ConfigError(
            "there is nothing to learn from: name runs, a --teacher, or --gold with --task"
        )
    if not runs and settings.chooses:
        raise ConfigError(
            "--by, --top and --min-reward choose among the trajectories of runs: name runs, or "
            "leave them out"
        )


def _check_keys(given: Mapping[str, Any]) -> None:
    for key, _ in leaves(given):
        known = any(key == name or key.startswith(f"{name}.") for name in _TAKEN)
        if not known or (key.startswith("agents.") and ".provider" in key):
            fix = {
                "learn.learning_rate": "give --learning-rate",
                "learn.epochs": "give --epochs",
            }.get(key, "leave it out")
            raise ConfigError(f"distil does not use {key}: {fix}")


def _config(
    runs: Sequence[Run], given: Mapping[str, Any], trust: Trust, note: Callable[[str], None]
) -> RunConfig:
    """The local team's config: the first run's task and prompts, and what was given."""
    raw = dict[str, Any]()
    for number, run in enumerate(runs):
        today = {name: given[name] for name in ("task_path",) if name in given}
        config = of_run(run.folder, today, trust, note)
        if not number:
            raw = _taken_over(config)
    return validate(merge(merge(raw, given), _FIXED))


def _taken_over(config: RunConfig) -> dict[str, Any]:
    """The part of a run's config that a local team of the same task needs; its models only if they
    are local weights."""
    plain = config.plain()
    found: dict[str, Any] = {
        name: plain[name]
        for name in ("task", "task_path", "options", "weights", "agents", "sampling")
        if name in plain
    }
    local = config.backend == "local"
    if local:
        found["provider"] = {"model": config.provider.model}
    if isinstance(agents := found.get("agents"), Mapping):
        found["agents"] = {
            role: {
                key: value
                for key, value in own.items()
                if key not in _elsewhere(own, config.backend)
            }
            for role, own in agents.items()
        }
    if not local:
        found["sampling"] = {
            key: value for key, value in plain.get("sampling", {}).items() if key != "temperature"
        }
    return found


def _elsewhere(own: Mapping[str, Any], backend: str) -> set[str]:
    """The keys of an agent that say who answered; a model only if it is no base of weights. A
    policy that learned against others teaches their seats too."""
    weights = backend == "local" and own.get("provider") is None
    names = {"model": not weights, "plays": backend == "ppo"}
    return {"provider", "frozen", "temperature", *(name for name, out in names.items() if out)}


def _lessons(
    setup: Setup,
    runs: Sequence[Run],
    settings: Settings,
    note: Callable[[str], None],
    teacher: Run | None,
) -> Sequence[Lesson | Preference]:
    """Everything that the settings choose, each once."""
    refuse_tools(setup.task, settings.method)
    if settings.drop_behaviors and isinstance(setup.task, AgentTask):
        raise ConfigError(
            f"task {setup.task.name} is played by a program, in whose system prompts what was "
            "learned can't be told from the program's own text: leave out --drop-behaviors"
        )
    team = _team(setup)
    most = {spec.role: spec.max_calls for spec in setup.task.agents if spec.tools}

    def shown(one: Lesson) -> Lesson:
        own = bare(one, team) if settings.drop_behaviors else of_team(one, team)
        if (calls := most.get(one.agent)) is None:
            return own
        return replace(own, messages=noted(own.messages, calls), drawn=noted(own.drawn, calls))

    choice = Choice(settings.by, settings.share, settings.min_reward, setup.config.seed)
    if settings.method == "dpo":
        return each_once(preferences(runs, choice, shown))
    found = gold_lessons(setup, team, note) if settings.gold else []
    if settings.teacher:
        found += taught(setup, team, settings.teacher, teacher, settings.games)
    found += winners(runs, choice) if runs else []
    return each_once(map(shown, found))


def refuse_tools(task: BaseTask[Any], method: str) -> None:
    """Raises ConfigError where moves with tools can't be learned from."""
    able = ", ".join(spec.role for spec in task.agents if spec.tools)
    if able and method == "dpo":
        raise ConfigError(
            f"agents with tools ({able}) can't be taught by preferences, which compare two answers "
            "to one prompt: choose method sft"
        )
    if able and isinstance(task, Thoughtful):
        raise ConfigError(
            f"agents with tools ({able}) can't be taught what agents.ROLE.infer or "
            "agents.ROLE.chain has them say: leave both out"
        )


def _team(setup: Setup) -> dict[str, Member]:
    """The agents' prompts before anything is learned."""
    config, own = setup.config, setup.config.agents
    return {
        spec.role: Member(
            role=spec.role,
            system_prompt=config.system_prompt(spec),
            model="",
            max_tokens=config.sampling.max_tokens,
            examples=own.get(spec.role, AgentConfig()).examples,
            tools=tuple(one.spec for one in spec.every_tool),
        )
        for spec in setup.task.agents
    }


def unlike(found: Examples) -> int:
    """How many examples have a prompt that the team itself will not see; 0 for a program, which
    writes its prompts itself."""
    if isinstance(found.setup.task, AgentTask):
        return 0
    team = _team(found.setup)
    sides = [one if isinstance(one, Lesson) else one.better for one in found.lessons]
    return sum(bare(one, team).messages != one.messages for one in sides)


def _split(
    lessons: Sequence[Lesson | Preference], settings: Settings, seed: int
) -> tuple[list[Lesson | Preference], list[Lesson | Preference]]:
    """The lessons to learn, and those of held-out problems."""
    problems = sorted({one.problem for one in lessons})
    share = settings.held_out if len(problems) >= FEWEST else 0.0
    count = max(1, round(share * len(problems))) if share else 0
    order = shuffled(len(problems), seed, "held out")
    out = {problems[place] for place in order[:count]}
    return (
        [one for one in lessons if one.problem not in out],
        [one for one in lessons if one.problem in out],
    )
