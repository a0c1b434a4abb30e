"""Distillation: what others answered becomes the weights of a local team.

What is written is a run directory without episodes, with one update: `evaluate`, `ask` and `export`
take it, and its checkpoint is a start for `learn.from`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Unpack

from orchestry.backends.gold import GOLD
from orchestry.backends.local.model import require_installed
from orchestry.backends.local.weights import starting
from orchestry.core.digests import file_digest
from orchestry.core.errors import ConfigError, PromptTooLong, StoreError, reason
from orchestry.core.files import new_folder, to_json
from orchestry.core.machine import launched
from orchestry.engine.changes import config_digests
from orchestry.engine.plan import Plan
from orchestry.engine.run import new_run_folder, prepare
from orchestry.engine.trust import Trust, remember
from orchestry.ext.distil.examples import Examples, How, Settings, examples, unlike
from orchestry.ext.distil.preferences import Preference
from orchestry.ext.distil.teachers import named
from orchestry.ext.distil.winners import Lesson
from orchestry.models.hermes import in_text
from orchestry.store.checkpoints import CHECKPOINT, DISTILLED, file_digests
from orchestry.store.journal import Learned, Opened, Stopped
from orchestry.store.run import Run, Store

if TYPE_CHECKING:
    from orchestry.backends.local.trainer import Trainer
    from orchestry.ext.distil.tuning import Pair, Target, Tuned


@dataclass(frozen=True, slots=True)
class Distilled:
    """What a distillation wrote."""

    run: Path
    """The folder that was written: `evaluate`, `ask` and `export` take it as a run."""
    agents: tuple[str, ...]
    examples: Mapping[str, int]
    """By agent: answers learned from."""
    held_out: Mapping[str, tuple[float, float] | None]
    """By agent: loss of what is held out (of answers: nats per token) before and after; None:
    nothing was."""

    @property
    def folder(self) -> Path:
        """The checkpoint, for `learn.from`: one folder per agent."""
        return self.run / CHECKPOINT


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
    on gold answers (`gold=True`) or on what a `teacher` does in games (runs may then be left out),
    or on preferences between answers (`method="dpo"`).

    `runs` are of one task, on train, of backend api or local. `into`: a new or empty folder
    (default: `runs/TASK--distil--TIME--ID`), written at the end, whole or not at all. `config`:
    settings of the team, nested like a run's: `task` (needed without runs), `seed`, the base as
    `provider.model`, `agents`, `options`, and of `learn` what concerns adapters, such as `rank` or
    `from`; what it leaves open comes from the first run. `note` is told one line at a time,
    `progress` the number of steps done, and of all. `how`: the fields of Settings. Equal arguments
    give equal weights on a CPU.

    Raises ConfigError for runs, settings or a folder that can't be used, before anything is
    learned; LearnError for non-finite numbers.
    """
    place = Path(into) if into is not None else None
    _check(place)
    found = examples(runs, config=config, note=note, trust=trust, **how)
    task = found.setup.config.task
    return _learned(found, place or new_run_folder(f"{task}--distil"), note, progress)


# --- how it is learned --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Encoded:
    """Lessons as tokens of the team's bases."""

    learn: tuple[Target | Pair, ...]
    held_out: tuple[Target | Pair, ...]
    too_long: int
    """Lessons that the base's context can't hold."""

    def counts(self, role: str) -> dict[str, int]:
        """An agent's examples and tokens."""
        mine = [one for one in self.learn if one.agent == role]
        sides = [side for one in mine for side in _sides(one)]
        return {
            "examples": len(mine),
            "tokens": sum(len(one.ids) for one in sides),
            "prompt_tokens": sum(len(one.prompt_ids) for one in sides),
            "held_out": sum(one.agent == role for one in self.held_out),
        }


def _sides(one: Target | Pair) -> tuple[Target, ...]:
    from orchestry.ext.distil.tuning import Target

    return (one,) if isinstance(one, Target) else (one.better, one.worse)


def open_trainer(plan: Plan, settings: Settings, note: Callable[[str], None]) -> Trainer:
    """The team on its bases. Answers are learned at temperature 1."""
    from orchestry.backends.local.trainer import Trainer

    team = plan.backend.team(plan.task)
    warm = {role: replace(member, temperature=1.0) for role, member in team.items()}
    rate = {"learning_rate": settings.rate}
    learn = plan.config.learn.model_copy(update=rate)
    found = Trainer(warm, learn, settings.epochs, plan.config.seed, note)
    if learn.source is not None:
        found.start_from(learn.source, roles=starting(learn, [*team]))
    return found


def encoded(found: Examples, trainer: Trainer) -> Encoded:
    """The lessons as tokens; those that do not fit are counted. Raises ConfigError if none does."""
    learn, held_out = (
        [_unit(one, trainer) for one in part] for part in (found.lessons, found.held_out)
    )
    if not any(learn):
        raise ConfigError("no example fits into the base's context: choose another base")
    return Encoded(
        tuple(one for one in learn if one is not None),
        tuple(one for one in held_out if one is not None),
        sum(one is None for one in (*learn, *held_out)),
    )


def _unit(one: Lesson | Preference, trainer: Trainer) -> Target | Pair | None:
    """As tokens; None if it does not fit into the context."""
    from orchestry.ext.distil.tuning import Pair

    if isinstance(one, Lesson):
        return _target(one, trainer)
    better, worse = _target(one.better, trainer), _target(one.worse, trainer)
    return Pair(better, worse) if better and worse else None


def _target(one: Lesson, trainer: Trainer) -> Target | None:
    from orchestry.ext.distil.tuning import Target

    base = next(crew.base for crew in trainer.crews if one.agent in crew.roles)
    try:
        prompt = base.render(one.messages, tools=one.tools)
        same_prompt = one.drawn == one.messages
        drawn = prompt if same_prompt else base.render(one.drawn, tools=one.tools)
    except PromptTooLong:
        return None
    # Equal prompts have equal tokens only if the run had this base's tokenizer.
    same = one.tokens is not None and one.tokens.prompt_ids == drawn
    ids = one.tokens.ids if one.tokens and same else base.answer_ids(in_text(one.said), one.ended)
    return Target(one.agent, prompt, ids) if len(prompt) + len(ids) <= base.context else None


def _learned(
    found: Examples,
    place: Path,
    note: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> Distilled:
    """Fine-tunes, then writes everything."""
    from orchestry.ext.distil.tuning import Epoch, Tuning

    settings, plan = found.settings, prepare(found.setup.config, note, need_key=False)
    _warn(found, note)
    trainer = open_trainer(plan, settings, note)
    data = encoded(found, trainer)
    if data.too_long:
        note(f"{data.too_long} examples are longer than the base's context and are left out")
    examples = {role: data.counts(role)["examples"] for role in found.roles}
    for role in found.roles:
        if not examples[role]:
            note(f"{role} has no example, and keeps its weights")

    def told(epoch: Epoch) -> None:
        note(_line(epoch.number, settings.epochs, epoch.loss, epoch.held_out))

    tuned = Tuning[Any](
        trainer,
        _method(trainer, data, settings),
        data.learn,
        data.held_out,
        epochs=settings.epochs,
        batch=settings.batch,
        seed=plan.config.seed,
        told=told,
        stepped=progress,
    ).run()
    remember(plan.config, place)
    _write(Work(found, plan, data, tuned), trainer, place)
    return Distilled(
        run=place,
        agents=found.roles,
        examples=examples,
        held_out={role: tuned.held_out(role) for role in found.roles},
    )


def _warn(found: Examples, note: Callable[[str], None]) -> None:
    """Says that the team will be asked in other words than those that it learned with."""
    if count := unlike(found):
        note(
            f"warning: {count} of {len(found.lessons)} examples have prompts that the new team "
            "will not see, with learned behaviours or of another run: --drop-behaviors learns the "
            "same answers to the team's own prompts"
        )


def _method(trainer: Trainer, data: Encoded, settings: Settings) -> Any:
    from orchestry.ext.distil.tuning import Imitation, Pair, Preferences

    if settings.method == "sft":
        return Imitation(trainer)
    pairs = [one for one in (*data.learn, *data.held_out) if isinstance(one, Pair)]
    return Preferences(trainer, pairs, settings.beta)


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
    plan = prepare(found.setup.config, note, need_key=False)
    _warn(found, note)
    data = encoded(found, open_trainer(plan, found.settings, note))
    if data.too_long:
        note(f"{data.too_long} examples are longer than the base's context and are left out")
    return {role: data.counts(role) for role in found.roles}


# --- what is written ----------------------------------------------------------------------------


def _check(place: Path | None) -> None:
    """Raises ConfigError for a folder that is not new or empty, for several processes, and if a
    package is missing."""
    require_installed()
    if launched().processes > 1:
        raise ConfigError("distil takes one process: start it without `accelerate launch`")
    if place is None:
        return
    if not place.name:
        raise ConfigError(f"--into {place} is not a new folder: give it a name")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        what = "is not empty" if place.is_dir() else "is not a directory"
        raise ConfigError(f"{place} {what}: choose another folder with --into")
    near = next(path for path in place.absolute().parents if path.exists())
    if not near.is_dir() or not os.access(near, os.W_OK):
        raise ConfigError(f"{near} takes no new folder: choose another folder with --into")


@dataclass(frozen=True, slots=True)
class Work:
    """A distillation that is done."""

    found: Examples
    plan: Plan
    data: Encoded
    tuned: Tuned


def _write(work: Work, trainer: Trainer, place: Path) -> None:
    """Writes the folder whole or not at all."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(place) as part:
            for crew in trainer.crews:
                crew.adapters.save(part / CHECKPOINT)
            (part / DISTILLED).write_text(to_json(_facts(work)), encoding="utf-8")
            _write_run(work, part)
    except OSError as error:
        raise StoreError(
            f"the distilled team can't be written to {place} ({reason(error)}): free space or "
            "change rights there, or choose another folder with --into"
        ) from None


def _write_run(work: Work, part: Path) -> None:
    """Config and journal: a run that has made one update."""
    plan, found = work.plan, work.found
    team = plan.backend.team(plan.task)
    digests = {**config_digests(plan.config), **plan.digests, **plan.backend.digests()}
    state = {
        "checkpoint": CHECKPOINT,
        "files": file_digests(part / CHECKPOINT),
        "reward": fmean(one.reward for one in found.lessons),
        "samples": len(work.data.learn),
        "distilled": found.settings.plain(),
        "prompts": {role: one.system_prompt for role, one in team.items()},
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


def _facts(work: Work) -> dict[str, Any]:
    """distil.json."""
    found, plan, data, tuned = work.found, work.plan, work.data, work.tuned
    teacher = found.settings.teacher
    return {
        "task": plan.config.task,
        "base": plan.backend.provider.model,
        "digests": {**plan.digests, **plan.backend.digests()},
        "seed": plan.config.seed,
        "settings": found.settings.plain(),
        "runs": [_source(run, found.lessons) for run in found.runs],
        "gold": sum(one.run == GOLD for one in found.lessons),
        "teacher": teacher and named(teacher, found.teacher),
        "too_long": data.too_long,
        "agents": {role: _agent(role, data, tuned) for role in found.roles},
        "epochs": [asdict(epoch) for epoch in tuned.epochs],
    }


def _source(run: Run, lessons: Sequence[Lesson | Preference]) -> dict[str, Any]:
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
    losses = tuned.held_out(role)
    return {
        **data.counts(role),
        "kept_epoch": tuned.kept[role],
        "loss_before": losses and losses[0],
        "loss_after": losses and losses[1],
    }
