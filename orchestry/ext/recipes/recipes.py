"""Recipes: stages that play and teach one team in turn, under one budget.

Each stage is a run directory in `RUN/stages`. What was done and what the team is now follow from
these directories alone, so a resume goes on where the last process was cut off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from orchestry.backends.api.backend import ApiBackend
from orchestry.backends.library import IN_RUN, file_of
from orchestry.backends.local.weights import Team as Weights
from orchestry.backends.local.weights import team_of
from orchestry.backends.prompted import KEPT
from orchestry.backends.teams import check_critics
from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError, LockedError
from orchestry.core.files import to_json, to_yaml, write_atomic
from orchestry.core.resolve import leaves, merge
from orchestry.core.seeds import derive
from orchestry.engine.changes import check_changes, names_players
from orchestry.engine.evaluate import evaluate, held_out_config
from orchestry.engine.regime import Regime
from orchestry.engine.run import prepare, resume, train
from orchestry.engine.session import Observer
from orchestry.engine.trust import Trust, check_trust, of_run, remember
from orchestry.ext.distil import examples
from orchestry.ext.distil.distil import distil
from orchestry.ext.distil.examples import How
from orchestry.ext.distil.gold import gold_answers
from orchestry.models.names import by_names
from orchestry.store.checkpoints import checkpoint, chosen_update
from orchestry.store.recipes import (
    TOOK,
    Stage,
    finished,
    measured_before,
    measurements,
    recipe_in,
    stages_of,
    weights_answer,
)
from orchestry.store.run import Run, load_run
from orchestry.store.summary import books

Stages = tuple[Stage, ...]
_OWN = ("recipe", "backend")
"""Keys that a stage's config has not, or has of its own."""
_SEARCH = ("joint", "concurrency", "branch", "max_nodes")
"""Of `search`, the keys that backend local takes too."""
_ADAPTERS = (
    *("rank", "alpha", "rslora", "targets", "dropout", "shared", "device", "dtype", "quantize"),
    *("threads", "micro_tokens", "gradient_checkpointing", "max_grad_norm", "top_p", "top_k"),
)
"""Of `learn`, the keys that a distillation takes over."""
_OF_GAMES = {"teacher", "games"}
"""What a recipe's distillation does not take."""
_HERE = ("auto", "embedded")
"""Providers whose model is a base of weights."""
_PLAYED: dict[str, Any] = {"split": "train", "baseline": None, "problem": None}
"""Keys with the values that a recipe's stages have."""
_FIXED = ("backend", "episodes", "passes", "recipe")
"""Keys that a resume can't change, since finished stages depend on them."""


@dataclass(frozen=True, slots=True)
class Team:
    """What the stages so far made of the team."""

    weights: Path | None = None
    """A checkpoint; None: no weights were trained."""
    library: Path | None = None
    """The behaviours in its prompts."""


def begin_recipe(config: RunConfig, folder: Path, watch: Observer) -> Run:
    """Plays a recipe into a new folder; returns the run of the stage that ended it.

    All stages are checked first, as far as that is possible before the earlier ones are played.
    """
    stages = stages_of(folder, config.recipe.steps)
    _refuse_backend(config)
    if (folder / "config.yaml").exists():
        raise ConfigError(
            f"{folder} holds a recipe: `orchestry resume {folder}`, or choose another --run-dir"
        )
    config = _settled(config, stages)
    config = _from_anywhere(config, plans := [*foreseen(config, stages).values()])
    for plan in plans:
        remember(plan, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        _write(config, folder)
        return _go_on(config, stages, watch)


def _settled(config: RunConfig, stages: Stages) -> RunConfig:
    """The config with the provider that `auto` means today, if one answers before the team has
    weights: then a model that is named is that provider's, and no base."""
    asked = [
        stage
        for stage in stages
        if stage.step in ("search", "prompts")
        if not weights_answer(stages, stage)
        and "name" not in _given(config, stage).get("provider", {})
    ]
    if not asked or config.learn.source is not None:
        return config
    found, _ = by_names(config.model_copy(update={"agents": {}}), os.environ)
    given = {"provider": found.provider, "prices": found.prices}
    return config.model_copy(update=given)


def _from_anywhere(config: RunConfig, plans: list[RunConfig]) -> RunConfig:
    """The config with full paths, for a resume from another folder."""
    team, paths = _first(config), [str(path) for one in plans[:1] for path in one.task_path]
    full: dict[str, Any] = {"task_path": paths} if paths else {}
    if team.weights is not None:
        full["learn"] = {"from": str(team.weights)}
    if team.library is not None:
        full["behaviors"] = {"from": str(team.library)}
    return validate(merge(config.plain(), full))


def _write(config: RunConfig, folder: Path) -> None:
    """Keeps only what was given: each stage fills in the rest by its own backend and team."""
    write_atomic(folder / "config.yaml", to_yaml(config.plain()).encode("utf-8"))


def resume_recipe(
    folder: Path,
    changes: Mapping[str, Any],
    watch: Observer,
    *,
    trust: Trust = False,
    accept: bool = False,
) -> Run:
    """Goes on with the stage that was interrupted. `changes` are those of `resume`, without
    `episodes`; and all of `recipe.stages` for stages that have not begun."""
    now = {key: value for key, value in changes.items() if key != "recipe"}
    check_changes(now)
    _check_fixed(changes, recipe_in(folder))
    config = of_run(folder, changes, trust, watch.note)
    stages = stages_of(folder, config.recipe.steps)
    config = _settled(config, stages)
    for plan in foreseen(config, stages).values():
        check_trust(plan, folder, trust, changes)
    with _alone(folder):
        _write(config, folder)
        return _go_on(config, stages, watch, now, trust, accept)


def _check_fixed(changes: Mapping[str, Any], stages: Stages) -> None:
    """Raises ConfigError for a change of what a finished or interrupted stage depends on."""
    begun = {name for one in stages if one.begun for name in (str(one.number), one.step)}
    known = {name for one in stages for name in (str(one.number), one.step)}
    free = tuple(f"recipe.stages.{name}." for name in known - begun)
    for key, _ in leaves(changes):
        if not key.startswith(free) and (key.partition(".")[0] in _FIXED or names_players(key)):
            raise ConfigError(
                f"{key} can't be changed on the resume of a recipe, whose finished stages depend "
                "on it: begin another recipe, or give a stage that has not begun settings of its "
                "own (recipe.stages.N)"
            )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Raises LockedError while another process plays the recipe."""
    lock = FileLock(folder / "recipe.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise LockedError(
            f"{folder} is being played by another process: wait for it, or stop it"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _go_on(
    config: RunConfig,
    stages: Stages,
    watch: Observer,
    changes: Mapping[str, Any] | None = None,
    trust: Trust = False,
    accept: bool = False,
) -> Run:
    """Plays what is left of the stages; returns the run that ended it."""
    team = _first(config)
    for stage in stages:
        run = _played(config, stages, stage, team, watch, changes or {}, trust, accept)
        if not stage.done(run.events):
            return run
        team = team_after(stage, team)
        for place, update in measurements(stages, stage, config.recipe):
            found = _measured(config, stages, stage, place, update, watch, trust)
            if not finished(found.events):
                return found
    return run


def _played(
    config: RunConfig,
    stages: Stages,
    stage: Stage,
    team: Team,
    watch: Observer,
    changes: Mapping[str, Any],
    trust: Trust,
    accept: bool,
) -> Run:
    """The run of a stage, played to its end if that was not done before."""
    if stage.begun and stage.done((run := load_run(stage.folder)).events):
        return run
    watch.note(f"stage {stage.number} of {len(stages)}: {stage.step}")
    if stage.step == "distil":
        return _distilled(config, stages, stage, team, watch.note, trust)
    left = _left(config, stages)
    if stage.begun:
        now = merge(changes, {"budget": {"usd": left}})
        return resume(stage.folder, now, watch, trust=trust, accept=accept)
    asked = merge(plain_of(config, stage, team), {"budget": {"usd": left}})
    return train(validate(asked), stage.folder, watch)


def _distilled(
    config: RunConfig,
    stages: Stages,
    stage: Stage,
    team: Team,
    note: Callable[[str], None],
    trust: Trust,
) -> Run:
    given, how = distilling(config, stage, team)
    sources = [one.folder for one in _since_last(stages, stage)]
    begun = time.monotonic()
    try:
        distil(sources, stage.folder, config=given, note=note, trust=trust, **how)
    except ConfigError as error:
        raise ConfigError(
            f"stage {stage.number} of the recipe, distil: {error} (its options are "
            f"recipe.stages.{stage.number}.min_reward and so on; a resume takes them)"
        ) from None
    took = to_json({"seconds": time.monotonic() - begun})
    write_atomic(stage.folder / TOOK, took.encode("utf-8"))
    return load_run(stage.folder)


def _since_last(stages: Stages, stage: Stage) -> list[Stage]:
    """The stages before this one that were played since the last `distil`."""
    found = list[Stage]()
    for one in stages[: stage.number - 1]:
        found = [] if one.step == "distil" else [*found, one]
    return found


def _left(config: RunConfig, stages: Stages) -> float | None:
    """Dollars that the recipe's finished runs have left of its budget. There is one unfinished run
    at most, which counts what it spent against its own cap."""
    if config.budget.usd is None:
        return None
    paths = [path.parent for stage in stages for path in stage.folder.rglob("journal.jsonl")]
    journals = [Run(path).events for path in paths]
    spent = sum(books(events).cost_usd for events in journals if finished(events))
    return max(0.0, config.budget.usd - spent)


# --- the team -----------------------------------------------------------------------------------


def _first(config: RunConfig) -> Team:
    source, library = config.learn.source, config.behaviors.source
    weights = source and source.expanduser().absolute()
    return Team(weights, library and file_of(library).absolute())


def team_after(stage: Stage, team: Team) -> Team:
    """The team that a finished stage leaves."""
    folder = stage.folder.absolute()
    if stage.step == "prompts" and (folder / IN_RUN).is_file():
        return replace(team, library=folder / IN_RUN)
    if stage.step not in ("distil", "magrpo"):
        return team
    run = load_run(folder)
    learned = chosen_update(run, None)
    kept = folder / KEPT
    return Team(
        checkpoint(run, learned) if learned else team.weights,
        kept if kept.is_file() else None,  # a distillation works behaviours into the weights
    )


# --- the stages' configs ------------------------------------------------------------------------


def plain_of(config: RunConfig, stage: Stage, team: Team) -> dict[str, Any]:
    """The config of a stage that is played, as plain data."""
    plain = {key: value for key, value in config.plain().items() if key not in _OWN}
    again = sum(step == stage.step for step in config.recipe.steps[: stage.number - 1])
    if again:  # other problems first, and other samples
        plain["seed"] = derive(config.seed, stage.step, again) % 2**31
    shape = _local if stage.step == "magrpo" else _api
    return merge(shape(plain, stage, team), _given(config, stage))


def _given(config: RunConfig, stage: Stage) -> dict[str, Any]:
    """The settings that the recipe has for this stage alone."""
    own = config.recipe.stages
    return merge(own.get(stage.step, {}), own.get(str(stage.number), {}))


def _api(plain: Mapping[str, Any], stage: Stage, team: Team) -> dict[str, Any]:
    found = {**plain, "backend": "api", "agents": _without(plain, "frozen")}
    for section, key in (("learn", "from"), ("search", "branch")):  # for gradients alone
        found[section] = {k: v for k, v in plain.get(section, {}).items() if k != key}
    behaviors = {**plain.get("behaviors", {}), "enabled": stage.step == "prompts"}
    if team.weights is not None:
        found["provider"] = {"name": "local", "team": str(team.weights)}
    found["behaviors"] = {**behaviors, "from": team.library and str(team.library)}
    return found


def _local(plain: Mapping[str, Any], stage: Stage, team: Team) -> dict[str, Any]:
    search = plain.get("search", {})
    found = {key: value for key, value in plain.items() if key not in ("credit", "pace")}
    found["search"] = {key: search[key] for key in _SEARCH if key in search}
    found |= {"backend": "local", "provider": _base(plain, team)}
    found["agents"] = {
        role: own if own.get("provider") else _as_base(plain, own)
        for role, own in plain.get("agents", {}).items()
    }
    found["learn"] = {**plain.get("learn", {}), **_sizes(team)}
    found["behaviors"] = {"from": team.library and str(team.library)}
    return found


def distilling(config: RunConfig, stage: Stage, team: Team) -> tuple[dict[str, Any], How]:
    """The config and the options of a distillation."""
    plain, own = config.plain(), _given(config, stage)
    how = {key: own.pop(key) for key in How.__annotations__.keys() - _OF_GAMES if key in own}
    how.setdefault("drop_behaviors", team.library is not None)
    learn = plain.get("learn", {})
    given: dict[str, Any] = {
        "task": config.task,
        "seed": config.seed,
        "provider": _base(plain, team),
        "learn": {**{key: learn[key] for key in _ADAPTERS if key in learn}, **_sizes(team)},
    }
    taken = ("task_path", "options", "weights", "agents", "sampling")
    given |= {key: plain[key] for key in taken if key in plain}
    if "agents" in given:
        plain["agents"] = {role: _as_base(plain, one) for role, one in plain["agents"].items()}
        given["agents"] = _without(plain, "frozen", "provider")
    return merge(given, own), cast(How, how)


def _without(plain: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The agents' settings without these keys."""
    agents = plain.get("agents", {})
    return {r: {k: v for k, v in own.items() if k not in keys} for r, own in agents.items()}


def _as_base(plain: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """An agent's settings, without a model that is no base because a provider elsewhere has it."""
    asked = own.get("provider") or plain.get("provider", {})
    here = asked.get("name", "auto") in _HERE
    return {key: value for key, value in own.items() if key != "model" or here}


def _base(plain: Mapping[str, Any], team: Team) -> dict[str, Any]:
    """The base model of the weights: that of the team's adapters, else the config's."""
    if team.weights is not None:
        found = team_of(team.weights)
        return {"model": found.base(next(iter(found.adapters)))}
    asked = plain.get("provider", {})
    here = asked.get("name", "auto") in _HERE
    return {key: asked[key] for key in ("name", "model") if here and key in asked}


def _sizes(team: Team) -> dict[str, Any]:
    """The keys of `learn` that begin with the team's adapters."""
    if team.weights is None:
        return {}
    weights: Weights = team_of(team.weights)
    return {**weights.sizes, "from": str(team.weights)}


def _refuse_backend(config: RunConfig) -> None:
    """Raises ConfigError for a setting that a new recipe would ignore."""
    if "backend" in config.model_fields_set:
        raise ConfigError("each step of a recipe has its own backend: leave out --backend")
    if config.learn.roles:
        raise ConfigError(
            "stages of a recipe hand weights on by the agents' own names: leave out learn.roles"
        )


def foreseen(config: RunConfig, stages: Stages, need_key: bool = True) -> dict[Stage, RunConfig]:
    """The configs of all stages that are played, checked before any is. For weights that do not
    exist yet a free stand-in answers. Raises ConfigError; without `need_key` not for a missing
    key."""
    found, team = dict[Stage, RunConfig](), _first(config)
    base: dict[str, Any] | None = None
    """That of the weights that the last distillation leaves."""
    for stage in stages:
        if stage.step == "distil":
            _check_distil(config, stages, stage, team)
            base = distilling(config, stage, team)[0]["provider"]
            continue
        plain = plain_of(config, stage, team)
        if stage.step == "magrpo" and base:
            plain["provider"] = merge(base, _given(config, stage).get("provider", {}))
        if unfit := [key for key, value in _PLAYED.items() if plain.get(key, value) != value]:
            raise ConfigError(
                f"a recipe teaches the task's team on its train problems: leave out {unfit[0]}"
            )
        own = "provider" in _given(config, stage)
        here = stage.step != "magrpo" and weights_answer(stages, stage) and not own
        if here:
            plain["provider"] = {"name": "fake"}
        plan = prepare(asked := validate(plain), need_key=need_key)
        if here:
            assert isinstance(plan.backend, ApiBackend), "the stage has backend api"
            check_critics(asked, plan.backend)
        found[stage] = plan.config
        if stage.step == "magrpo" and found[stage].learn.method == "full":
            _check_alone(stages, stage)
    return found


def _check_distil(config: RunConfig, stages: Stages, stage: Stage, team: Team) -> None:
    """Raises ConfigError for a distillation that would be refused whatever was played before."""
    given, how = distilling(config, stage, team)
    sources = _since_last(stages, stage)
    if not how.get("gold") and not sources:
        raise ConfigError(
            f"stage {stage.number} of the recipe, distil, has no stage to learn from: put search "
            "before it, or learn from gold answers (recipe.stages.distil.gold=true)"
        )
    taught = team.library is not None or any(one.step == "prompts" for one in sources)
    if taught and _given(config, stage).get("drop_behaviors") is False:
        raise ConfigError(
            f"stage {stage.number} of the recipe, distil, works learned behaviours into the "
            "weights, and later stages play without them: leave out drop_behaviors"
        )
    _check_frozen(config, stage)
    plan = prepare(examples.foreseen(given, how, bool(sources)), need_key=False)
    examples.refuse_tools(plan.task, how.get("method", "sft"))
    if how.get("gold"):
        gold_answers(plan.task, plan.problems)


def _check_frozen(config: RunConfig, stage: Stage) -> None:
    """Raises ConfigError for frozen weights, which a distillation would change."""
    for role, own in config.agents.items():
        if own.frozen and own.provider is None:
            raise ConfigError(
                f"stage {stage.number} of the recipe, distil, gives every agent an adapter, and "
                f"agents.{role}.frozen keeps {role} as it is: leave out frozen, or set it for the "
                "stages after it (recipe.stages.magrpo.agents)"
            )


def _check_alone(stages: Stages, stage: Stage) -> None:
    """Raises ConfigError if another stage would have to go on from full weights, or leave some."""
    if stage is not stages[-1] or any(weights_answer(stages, one) for one in stages[:-1]):
        raise ConfigError(
            f"stage {stage.number} of the recipe, magrpo, trains all weights of a base "
            "(learn.method=full), and stages hand on adapters: make it the last stage and the "
            "first to train weights, or leave out learn.method"
        )


def forecast(config: RunConfig, stages: Stages) -> list[tuple[str, RunConfig]]:
    """What a recipe plays, by name: its stages, and the measurements of the team."""
    _refuse_backend(config)
    config = _settled(config, stages)
    asked, configs = config.recipe, foreseen(config, stages, need_key=False)
    found = [(f"{one.number} {one.step}", plan) for one, plan in configs.items()]
    standin = next(iter(configs.values()), None)
    for stage in stages:
        if stage.step == "search" or not asked.samples or standin is None:
            continue
        plain = configs.get(stage, standin).plain()
        if stage not in configs:  # a distillation, whose weights answer
            plain |= {"backend": "api", "provider": {"name": "fake"}}
            plain["agents"] = _without(plain, "frozen", "provider", "model", "temperature")
        plain = merge(plain, {"learn": {"enabled": False}, "behaviors": {"enabled": False}})
        measured = held_out_config(plain, asked.split, None, asked.samples, asked.problems)
        plan = prepare(measured, need_key=False, held_out=True)  # with the number of problems
        times = 1 if measured_before(stages, stage) else 2
        found += [(f"{stage.number} {stage.step}, on {asked.split}", plan.config)] * times
    return found


# --- measurements -------------------------------------------------------------------------------


def _measured(
    config: RunConfig,
    stages: Stages,
    stage: Stage,
    place: Path,
    update: int | None,
    watch: Observer,
    trust: Trust,
) -> Run:
    """The team on held-out problems; `place` holds the results."""
    if (place / "config.yaml").is_file() and finished((run := load_run(place)).events):
        return run
    asked = config.recipe
    return evaluate(
        stage.folder,
        asked.split,
        _left(config, stages),
        watch,
        update,
        asked.samples,
        asked.problems,
        seed=config.seed,
        trust=trust,
    )


def _forecast(config: RunConfig) -> list[tuple[str, RunConfig]]:
    return forecast(config, stages_of(Path("runs"), config.recipe.steps))  # nothing is written


RECIPE = Regime(begin_recipe, resume_recipe, _forecast)
