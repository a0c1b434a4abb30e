"""Distillation: the winners of runs, and gold answers, become the weights of a local team.

What is written is a run directory without episodes, with one update: `evaluate`, `ask` and `export`
take it, and its checkpoint is a start for `learn.from`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from orchestry.core.config import RunConfig, validate
from orchestry.core.digests import file_digest
from orchestry.core.errors import ConfigError, PromptTooLong, StoreError, reason
from orchestry.core.files import new_folder, to_json
from orchestry.core.machine import launched
from orchestry.core.resolve import leaves, merge
from orchestry.core.seeds import shuffled
from orchestry.engine.changes import config_digests
from orchestry.engine.gold import GOLD, gold_lessons
from orchestry.engine.plan import Plan
from orchestry.engine.run import new_run_folder, prepare
from orchestry.engine.trust import Trust, of_run
from orchestry.engine.winners import (
    TOP,
    By,
    Choice,
    Lesson,
    check_source,
    each_once,
    winners,
    without_behaviors,
)
from orchestry.store.checkpoints import DISTILLED, file_digests
from orchestry.store.journal import Learned, Opened, Stopped
from orchestry.store.run import Run, Store, load_run

if TYPE_CHECKING:
    from orchestry.backends.local.trainer import Trainer
    from orchestry.backends.local.tuning import Target, Tuned

CHECKPOINT = "checkpoints/000001"
LEARNING_RATE = 1e-3
FEWEST = 5
"""With fewer problems none is held out."""
_LEARN = (
    *("from", "rank", "alpha", "dropout", "shared", "device", "dtype", "quantize", "threads"),
    *("micro_tokens", "gradient_checkpointing", "max_grad_norm", "top_p", "top_k"),
    *("targets", "rslora"),
)
_TAKEN = (
    *("task", "task_path", "options", "weights", "seed", "provider", "sampling", "agents"),
    *("backend", "sandbox", "allow_unsafe_code", *(f"learn.{name}" for name in _LEARN)),
)
"""Config keys that a distillation uses; `sampling` and `learn.top_p` when its team plays."""


class How(TypedDict, total=False):
    """The options of `distil`, each with a default; see Settings."""

    by: By
    top: float
    min_reward: float
    gold: bool
    drop_behaviors: bool
    epochs: int
    learning_rate: float
    batch: int
    held_out: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What is learned, and how."""

    by: By = "reward"
    """What trajectories are compared by: see winners.BY."""
    top: float = TOP
    """The share of trajectories that win, for each agent."""
    min_reward: float = 0.0
    """A winner has at least this reward."""
    gold: bool = False
    """Whether the gold answers of the train problems are learned too, or alone."""
    drop_behaviors: bool = False
    """Whether learned behaviours are left out of the prompts: what they taught in words goes into
    the weights (context distillation)."""
    epochs: int = 4
    """Passes over the examples, at most."""
    learning_rate: float = LEARNING_RATE
    batch: int = 4
    """Examples of each agent per step, at most."""
    held_out: float = 0.1
    """The share of problems that is not learned from and ends the learning (early stopping)."""

    def __post_init__(self) -> None:
        """Raises ConfigError for values out of range."""
        if not 1 <= self.epochs <= 1000:
            raise ConfigError(f"epochs is {self.epochs}: give 1 to 1000")
        if not 1 <= self.batch <= 4096:
            raise ConfigError(f"batch is {self.batch}: give 1 to 4096 examples")
        if not 0.0 < self.learning_rate <= 1.0:
            raise ConfigError(f"learning-rate is {self.learning_rate:g}: give one in (0, 1]")
        if not 0.0 <= self.held_out <= 0.5:
            raise ConfigError(f"held-out is {self.held_out:g}: give a share in [0, 0.5]")


@dataclass(frozen=True, slots=True)
class Distilled:
    """What a distillation wrote."""

    run: Path
    """The folder that was written: `evaluate`, `ask` and `export` take it as a run."""
    agents: tuple[str, ...]
    examples: Mapping[str, int]
    """By agent: answers learned from."""
    held_out: Mapping[str, tuple[float, float] | None]
    """By agent: loss of the held-out answers (nats per token) before and after; None: none was
    held out."""

    @property
    def folder(self) -> Path:
        """The checkpoint, for `learn.from`: one folder per agent."""
        return self.run / CHECKPOINT


@dataclass(frozen=True, slots=True)
class Examples:
    """What will be learned, before any weights are loaded."""

    plan: Plan
    runs: tuple[Run, ...]
    settings: Settings
    lessons: tuple[Lesson, ...]
    held_out: tuple[Lesson, ...]

    @property
    def roles(self) -> tuple[str, ...]:
        """The team."""
        return tuple(spec.role for spec in self.plan.task.agents)


def distil(
    runs: Sequence[Run | str | Path] = (),
    into: str | Path | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] = lambda done, steps: None,
    trust: Trust = False,
    **how: Unpack[How],
) -> Distilled:
    """Fine-tunes each agent's LoRA adapter on its own answers in the runs' winning trajectories,
    or on gold answers (`gold=True`; runs may then be left out).

    `runs` are of one task, on train, of any backend. `into`: a new or empty folder (default:
    `runs/TASK--distil--TIME--ID`), written at the end, whole or not at all. `config`: settings of
    the team, nested like a run's: `task` (needed without runs), `seed`, the base as
    `provider.model`, `agents`, `options`, and of `learn` what concerns adapters, such as `rank` or
    `from`; what it leaves open comes from the first run. `note` is told one line at a time,
    `progress` the number of steps done, and of all. `how`: the fields of Settings. Equal arguments
    give equal weights on a CPU.

    Raises ConfigError for runs, settings or a folder that can't be used, before anything is
    learned; LearnError for non-finite numbers.
    """
    place = Path(into) if into is not None else None
    _check_place(place)
    found = examples(runs, config=config, note=note, trust=trust, **how)
    task = found.plan.config.task
    return _learned(found, place or new_run_folder(f"{task}--distil"), note, progress)


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
    _check_given(found, settings, given)
    plan = prepare(_config(found, given, trust, note), note, need_key=False)
    lessons = gold_lessons(plan, note) if settings.gold else []
    if found:
        seed = plan.config.seed
        choice = Choice(settings.by, settings.top, settings.min_reward, seed)
        lessons += _of_team(winners(found, choice), plan)
    if settings.drop_behaviors:
        lessons = without_behaviors(lessons, plan.backend.team(plan.task))
    learn, held_out = _split(each_once(lessons), settings.held_out, plan.config.seed)
    return Examples(plan, found, settings, tuple(learn), tuple(held_out))


# --- what is learned ----------------------------------------------------------------------------


def _check_given(runs: Sequence[Run], settings: Settings, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for what can't be used, or would be ignored."""
    if launched().processes > 1:
        raise ConfigError("distil takes one process: start it without `accelerate launch`")
    if not runs and not settings.gold:
        raise ConfigError("there is nothing to learn from: name runs, or --gold with --task")
    task = given.get("task") or (runs[0].config.get("task") if runs else None)
    if task is None:
        raise ConfigError("--gold without a run needs the task: name it with --task")
    for run in runs:
        check_source(run, str(task))
    for key, _ in leaves(given):
        if not any(key == name or key.startswith(f"{name}.") for name in _TAKEN):
            fix = {
                "learn.learning_rate": "give --learning-rate",
                "learn.epochs": "give --epochs",
            }.get(key, "leave it out")
            raise ConfigError(f"distil does not use {key}: {fix}")


def _config(
    runs: Sequence[Run], given: Mapping[str, Any], trust: Trust, note: Callable[[str], None]
) -> RunConfig:
    """The local team's config: the first run's task and prompts, and what was given."""
    fixed: dict[str, Any] = {
        "backend": "local",
        "split": "train",
        "learn": {"enabled": False},
        "judge": {"enabled": False},
        "credit": {"share": 0.0},
    }
    raw = dict[str, Any]()
    for number, run in enumerate(runs):
        today = {name: given[name] for name in ("task_path",) if name in given}
        config = of_run(run.folder, today, trust, note)
        if not number:
            raw = _taken_over(config)
    return validate(merge(merge(raw, given), fixed))


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
    elsewhere = {"provider", "temperature"} | (set() if local else {"model"})
    if isinstance(agents := found.get("agents"), Mapping):
        found["agents"] = {
            role: {key: value for key, value in own.items() if key not in elsewhere}
            for role, own in agents.items()
        }
    if not local:
        found["sampling"] = {
            key: value for key, value in plain.get("sampling", {}).items() if key != "temperature"
        }
    return found


def _of_team(lessons: list[Lesson], plan: Plan) -> list[Lesson]:
    """Raises ConfigError for an agent that the team lacks."""
    roles = {spec.role for spec in plan.task.agents}
    if strangers := sorted({one.agent for one in lessons} - roles):
        raise ConfigError(
            f"the runs have an agent {strangers[0]}, and the team is {', '.join(sorted(roles))}: "
            "name runs of this team"
        )
    return lessons


def _split(lessons: Sequence[Lesson], share: float, seed: int) -> tuple[list[Lesson], list[Lesson]]:
    """The lessons to learn, and those of held-out problems."""
    problems = sorted({one.problem for one in lessons})
    count = max(1, round(share * len(problems))) if share and len(problems) >= FEWEST else 0
    order = shuffled(len(problems), seed, "held out")
    out = {problems[place] for place in order[:count]}
    return (
        [one for one in lessons if one.problem not in out],
        [one for one in lessons if one.problem in out],
    )


# --- how it is learned --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Encoded:
    """Lessons as tokens of the team's bases."""

    learn: tuple[Target, ...]
    held_out: tuple[Target, ...]
    too_long: int
    """Lessons that the base's context can't hold."""


def open_trainer(plan: Plan, settings: Settings, note: Callable[[str], None]) -> Trainer:
    """The team on its bases. Answers are learned at temperature 1."""
    from orchestry.backends.local.trainer import Trainer

    team = plan.backend.team(plan.task)
    warm = {role: replace(member, temperature=1.0) for role, member in team.items()}
    rate = {"learning_rate": settings.learning_rate}
    learn = plan.config.learn.model_copy(update=rate)
    found = Trainer(warm, learn, settings.epochs, plan.config.seed, note)
    if learn.source is not None:
        found.start_from(learn.source)
    return found


def encoded(found: Examples, trainer: Trainer) -> Encoded:
    """The lessons as tokens; those that do not fit are counted."""
    learn, held_out = (
        [_target(one, trainer) for one in part] for part in (found.lessons, found.held_out)
    )
    return Encoded(
        tuple(one for one in learn if one is not None),
        tuple(one for one in held_out if one is not None),
        sum(one is None for one in (*learn, *held_out)),
    )


def _target(one: Lesson, trainer: Trainer) -> Target | None:
    """The lesson as tokens; None if it does not fit into the context."""
    from orchestry.backends.local.tuning import Target

    base = next(crew.base for crew in trainer.crews if one.agent in crew.roles)
    try:
        prompt = base.render(one.messages)
        same = one.tokens is not None and (
            one.tokens.prompt_ids
            == (prompt if one.drawn == one.messages else base.render(one.drawn))
        )
        # Equal prompts have equal tokens only if the run had this base's tokenizer.
        ids = one.tokens.ids if one.tokens and same else base.answer_ids(one.answer, one.ended)
    except PromptTooLong:
        return None
    return Target(one.agent, prompt, ids) if len(prompt) + len(ids) <= base.context else None


def _learned(
    found: Examples,
    place: Path,
    note: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> Distilled:
    """Fine-tunes, then writes everything."""
    from orchestry.backends.local.tuning import Epoch, Tuning

    settings = found.settings
    trainer = open_trainer(found.plan, settings, note)
    data = encoded(found, trainer)
    if data.too_long:
        note(f"{data.too_long} examples are longer than the base's context and are left out")
    counts = Counter(one.agent for one in data.learn)
    for role in found.roles:
        if not counts[role]:
            note(f"{role} has no example, and keeps its weights")
    if not counts:
        raise ConfigError("no example fits into the base's context: choose another base")

    def told(epoch: Epoch) -> None:
        note(_line(epoch.number, settings.epochs, epoch.loss, epoch.held_out))

    tuned = Tuning(
        trainer,
        data.learn,
        data.held_out,
        epochs=settings.epochs,
        batch=settings.batch,
        seed=found.plan.config.seed,
        told=told,
        stepped=progress,
    ).run()
    _write(found, data, trainer, tuned, place)
    return Distilled(
        run=place,
        agents=found.roles,
        examples={role: counts[role] for role in found.roles},
        held_out={role: tuned.held_out(role) for role in found.roles},
    )


def _line(number: int, epochs: int, loss: float | None, held_out: Mapping[str, float]) -> str:
    """An epoch's line for the user."""
    what = f"epoch {number} of {epochs}" if number else "before learning"
    losses = [f"loss {loss:.3f}"] if loss is not None else []
    if held_out:
        each = ", ".join(f"{role} {one:.3f}" for role, one in held_out.items())
        losses.append(f"held-out {each}")
    return f"{what}: {'; '.join(losses) or 'nothing is held out'}"


def counts(found: Examples, note: Callable[[str], None]) -> dict[str, dict[str, int]]:
    """By agent: how many examples and tokens would be learned; loads the base."""
    data = encoded(found, open_trainer(found.plan, found.settings, note))
    if data.too_long:
        note(f"{data.too_long} examples are longer than the base's context and are left out")
    rows = dict[str, dict[str, int]]()
    for role in found.roles:
        mine = [one for one in data.learn if one.agent == role]
        rows[role] = {
            "examples": len(mine),
            "tokens": sum(len(one.ids) for one in mine),
            "prompt_tokens": sum(len(one.prompt_ids) for one in mine),
            "held_out": sum(one.agent == role for one in data.held_out),
        }
    return rows


# --- what is written ----------------------------------------------------------------------------


def _check_place(place: Path | None) -> None:
    """Raises ConfigError for a folder that is not new or empty."""
    if place is None:
        return
    if not place.name:
        raise ConfigError(f"--into {place} is not a new folder: give it a name")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        what = "is not empty" if place.is_dir() else "is not a directory"
        raise ConfigError(f"{place} {what}: choose another folder with --into")


def _write(found: Examples, data: Encoded, trainer: Trainer, tuned: Tuned, place: Path) -> None:
    """Writes the folder whole or not at all."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(place) as part:
            for crew in trainer.crews:
                crew.adapters.save(part / CHECKPOINT)
            (part / DISTILLED).write_text(to_json(_facts(found, data, tuned)), encoding="utf-8")
            _write_run(found, data, part)
    except OSError as error:
        raise StoreError(
            f"the distilled team can't be written to {place} ({reason(error)}): free space or "
            "change rights there, or choose another folder with --into"
        ) from None


def _write_run(found: Examples, data: Encoded, part: Path) -> None:
    """Config and journal: a run that has made one update."""
    plan = found.plan
    digests = {**config_digests(plan.config), **plan.digests, **plan.backend.digests()}
    state = {
        "checkpoint": CHECKPOINT,
        "files": file_digests(part / CHECKPOINT),
        "reward": fmean(one.reward for one in found.lessons),
        "samples": len(data.learn),
        "distilled": asdict(found.settings),
    }
    provider, now = plan.backend.provider, time.time()
    with Store(part) as store:
        store.write("config.yaml", plan.config.to_yaml())
        for event in (
            Opened(at=now, provider=provider.name, model=provider.model, digests=digests),
            Learned(update=1, state=state, at=now),
            Stopped(reason="done", at=now),
        ):
            store.journal.append(event)
        store.journal.sync()


def _facts(found: Examples, data: Encoded, tuned: Tuned) -> dict[str, Any]:
    """distil.json."""
    plan = found.plan
    return {
        "task": plan.config.task,
        "base": plan.backend.provider.model,
        "digests": {**plan.digests, **plan.backend.digests()},
        "seed": plan.config.seed,
        "settings": asdict(found.settings),
        "runs": [_source(run, found.lessons) for run in found.runs],
        "gold": sum(one.run == GOLD for one in found.lessons),
        "too_long": data.too_long,
        "agents": {role: _agent(role, data, tuned) for role in found.roles},
        "epochs": [asdict(epoch) for epoch in tuned.epochs],
    }


def _source(run: Run, lessons: Sequence[Lesson]) -> dict[str, Any]:
    name = run.folder.absolute().name
    return {
        "run": name,
        "journal": file_digest(run.folder / "journal.jsonl"),
        "episodes": file_digest(run.folder / "episodes.jsonl"),
        "backend": run.config.get("backend", "api"),
        "models": sorted({one.model for one in lessons if one.run == name}),
        "examples": sum(one.run == name for one in lessons),
    }


def _agent(role: str, data: Encoded, tuned: Tuned) -> dict[str, Any]:
    mine = [one for one in data.learn if one.agent == role]
    losses = tuned.held_out(role)
    return {
        "examples": len(mine),
        "tokens": sum(len(one.ids) for one in mine),
        "held_out": sum(one.agent == role for one in data.held_out),
        "kept_epoch": tuned.kept[role],
        "loss_before": losses and losses[0],
        "loss_after": losses and losses[1],
    }
