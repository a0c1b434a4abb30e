"""Runs that only measure: a run's team, or a baseline, on held-out problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from orchestry.backends import backend_of
from orchestry.core.config import MAX_EPISODES, RunConfig, validate
from orchestry.core.errors import ConfigError, unknown
from orchestry.core.resolve import Mark, leaves, marks, merge
from orchestry.core.types import Split
from orchestry.engine.changes import changed, names_base, names_players, players, worded
from orchestry.engine.plan import Plan
from orchestry.engine.run import prepare, run_plan
from orchestry.engine.session import Observer, Silent
from orchestry.engine.transfer import elsewhere
from orchestry.engine.trust import Trust, of_run
from orchestry.store.checkpoints import Which, chosen_update
from orchestry.store.journal import Learned
from orchestry.store.measurements import EVALUATIONS, Measurement, host_of
from orchestry.store.records import Summary
from orchestry.store.run import Run, load_run, read_config
from orchestry.task.arrangements import ARRANGEMENTS, BASELINES, arranged
from orchestry.task.registry import load_task

SAMPLES = 10
"""A baseline plays this many trajectories per problem, enough for pass@10."""
_QUIET: dict[str, Any] = {
    "credit": {"share": 0.0},
    "curriculum": "none",
    "trackers": {"tensorboard": False, "wandb": "off"},  # trackers show the run's own curves
}


def evaluate(
    run: Run | str | Path,
    split: Split = "test",
    budget_usd: float | None = None,
    observer: Observer | None = None,
    update: Which = None,
    samples: int | None = None,
    episodes: int | None = None,
    patience_s: float | None = None,
    *,
    seed: int | None = None,
    task_path: Sequence[Path] = (),
    executor: str = "local",
    trust: Trust = False,
    task: str | None = None,
    roles: Mapping[str, str] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Run:
    """Plays each problem of a held-out split once, as the run would; results are stored in the run.

    A second call for the same split continues where the first stopped, or returns its results.
    `budget_usd`: the evaluation's own cap; None keeps the run's. `update`: the team after that
    update (0: untrained), or the `best` on dev; None: after the last. `samples`: this many
    independent trajectories per problem instead of the search. `episodes`: only the first problems,
    in the run's order. `patience_s`: seconds to wait for a server that is away; None keeps the
    run's. `seed`: of problems and samples; None: the run's. `task_path`: the task's folder, if it
    moved. `executor`: where programs are scored; the run's own may not be there any more. `task`:
    another task, played with what the run learned. `roles`: by role of that task, the agent of the
    run that plays it; others are played by the agent of their own name, or untrained. `changes`:
    that task's own settings, nested like the config (`options`, `weights`, `sampling`). Problems
    and seeds are the same for all teams. Raises ConfigError for an unknown update, for roles that
    do not exist, and if the run names other people's code or servers that are not trusted.
    """
    source, watch = _source(run), observer or Silent()
    note = watch.note
    today: dict[str, Any] = {}
    if task_path:
        today["task_path"] = [str(path) for path in task_path]
    if budget_usd is not None:
        today["budget"] = {"usd": budget_usd}
    own = of_run(source.folder, today, trust, note)
    learned = chosen_update(source, update)
    # One folder per update of the team; a run that learned nothing has a single one.
    number = (learned.update if learned else 0) if chosen_update(source, None) else None
    stage = Measurement(split=split, update=number, samples=samples)
    other = elsewhere(source, own, task, roles, changes)
    if other is not None:
        stage = replace(stage, task=other.how.task, how=other.how.how)
    folder = source.folder / EVALUATIONS / stage.name
    left = partial(as_left, source, own, update=update)
    plain = other.plain(left, folder, note) if other else left(folder)
    here = _here(executor, patience_s, seed)
    config = held_out_config(merge(plain, here), split, budget_usd, samples, episodes)
    note(_whom(source, learned))
    plan = prepare(config, note, held_out=True)
    if other is not None:
        note(other.said)
        other.write(folder)
    return play_measurement(plan, folder, watch)


def _here(executor: str, patience_s: float | None, seed: int | None) -> dict[str, Any]:
    """How and where this evaluation is played, nested like the config."""
    found: dict[str, Any] = {"executor": executor, "ranks": 1}
    if patience_s is not None:
        found["retry"] = {"patience_s": patience_s}
    return found if seed is None else {**found, "seed": seed}


def as_left(run: Run, config: RunConfig, folder: Path, update: Which = None) -> dict[str, Any]:
    """A run's config, as plain data, with the team as an update left it; None: the last one.
    `folder` takes what it learned. Raises as `Backend.as_left` does."""
    left = backend_of(config).as_left(run, chosen_update(run, update), folder)
    return merge(config.plain(), left)


class How(TypedDict, total=False):
    """The options of `evaluate`, besides run and budget."""

    split: Split
    observer: Observer | None
    update: Which
    samples: int | None
    episodes: int | None
    patience_s: float | None
    task_path: Sequence[Path]
    executor: str
    trust: Trust
    task: str | None
    roles: Mapping[str, str] | None
    changes: Mapping[str, Any] | None


def compared(
    run: Run | str | Path, budget_usd: float | None = None, **how: Unpack[How]
) -> tuple[Run, Run | None]:
    """`evaluate`, then the same for the untrained team, within the remaining budget.

    The second is None if the first is the untrained team itself, or did not finish.
    """
    found = evaluate(run, budget_usd=budget_usd, **how)
    if found.summary.stopped != "done" or chosen_update(_source(run), how.get("update")) is None:
        return found, None
    began = How(**{**how, "update": 0})
    return found, evaluate(run, budget_usd=left_of(found.summary), **began)


@dataclass(frozen=True, slots=True)
class Baselines:
    """Baselines of a config's task and team: untrained, unjudged, with the config's seeds.

    Raises ConfigError for an unknown name or an invalid config.
    """

    config: RunConfig
    names: Sequence[str]
    split: Split = "test"
    samples: int = SAMPLES
    """Trajectories per problem. For `best_of_n` with a beam: as many as the beam's calls allow."""
    episodes: int | None = None
    """Number of problems, in the config's order; None plays all."""

    def configs(self) -> dict[str, RunConfig]:
        """The configs to run, by name."""
        found = {name: self._of(name) for name in self.names}
        return {
            name: prepare(config, need_key=False, held_out=True).config
            for name, config in found.items()
        }

    def play(self, root: Path, observer: Observer | None = None) -> Iterator[Run]:
        """Plays one after the other, each into `root/NAME--SPLIT--samples-N`.

        The config's budget caps all of them together; the run that reaches the cap is the last one
        returned. Unfinished runs of an earlier call are continued. All are checked before the first
        is played.
        """
        notes: dict[str, list[str]] = {name: [] for name in self.names}
        plans = {
            name: prepare(self._of(name), told.append, held_out=True)
            for name, told in notes.items()
        }
        watch, left = observer or Silent(), self.config.budget.usd
        for name, plan in plans.items():
            for text in notes[name]:
                watch.note(text)
            stage = Measurement(baseline=name, split=self.split, samples=self.samples)
            plan.backend.cap(left)
            run = play_measurement(plan, root / stage.name, watch)
            yield run
            if run.summary.stopped != "done":
                return
            left = left_of(run.summary)

    def _of(self, name: str) -> RunConfig:
        if name not in BASELINES:
            raise ConfigError(unknown("baseline", name, [*BASELINES]))
        if self.config.baseline is not None:
            raise ConfigError(
                f"the config is of baseline {self.config.baseline}, and baselines are of the team: "
                "leave out `baseline`, or name the team's own run"
            )
        changes: dict[str, Any] = {
            "baseline": name if name in ARRANGEMENTS else None,
            "behaviors": {"enabled": False, "from": None},
            "judge": {"enabled": False},
        }
        samples: int | None = self.samples
        if self.config.backend == "local":
            changes["learn"] = {"enabled": False, "from": None, "roles": None}
        elif name == "best_of_n" and self.config.search.strategy in ("beam", name):
            changes["search"], samples = {"strategy": name}, None
        plain = merge(self.config.plain(), changes)
        return held_out_config(plain, self.split, None, samples, self.episodes)


def fitting(config: RunConfig, note: Callable[[str], None]) -> tuple[str, ...]:
    """All baselines that the config's task can be played as; notes which are left out, and why."""
    task, found = load_task(config.task, config.task_path, options=config.options), list[str]()
    for name in BASELINES:
        asked = config.model_copy(update={"baseline": name if name in ARRANGEMENTS else None})
        try:
            arranged(asked, task)
            found.append(name)
        except ConfigError as error:
            note(f"left out: {error}")
    return tuple(found)


def _whom(source: Run, learned: Learned | None) -> str:
    """Which team is played, with its checkpoint if there is one."""
    if learned is None:
        return f"the team as {source.folder} began"
    kept = learned.state.get("checkpoint")
    return (
        f"the team as update {learned.update} left it{f': {source.folder / kept}' if kept else ''}"
    )


def _source(run: Run | str | Path) -> Run:
    """Reads the run from disk again."""
    return load_run(run.folder if isinstance(run, Run) else run)


def left_of(summary: Summary) -> float | None:
    """Dollars left of a run's cap; None if it has no cap."""
    cap = summary.budget_usd
    return None if cap is None else max(0.0, cap - summary.cost_usd)


def held_out_config(
    plain: Mapping[str, Any],
    split: Split,
    budget_usd: float | None,
    samples: int | None,
    episodes: int | None,
) -> RunConfig:
    """A config, from plain data, that measures on the split's first `episodes` problems, or on all.
    Raises ConfigError for fewer than one."""
    if episodes is not None and episodes < 1:
        raise ConfigError(
            f"episodes is {episodes}: give 1 or more, or leave it out for all problems"
        )
    count = {"episodes": episodes or MAX_EPISODES, "passes": None}
    changes: dict[str, Any] = {**_QUIET, "split": split, **count}
    if budget_usd is not None:
        changes["budget"] = {"usd": budget_usd}
    if samples is not None:
        # Aligned even if the run combines all samples, because combinations are not independent.
        changes["search"] = {"strategy": "chains", "k_samples": samples, "joint": "aligned"}
        # Nothing is pruned, and the task alone gives the reward.
        changes["judge"] = {"enabled": False}
        if plain.get("backend") == "local":
            changes["learn"] = {"group_size": samples}
    return validate(merge(plain, changes))


def play_measurement(plan: Plan, folder: Path, watch: Observer) -> Run:
    """Plays a plan into the folder of a measurement, or continues it. Raises ConfigError if the
    folder holds the results of another config."""
    _check_same(plan.config, folder)
    _compare(plan, folder, watch)
    return run_plan(plan, folder, watch)


def _compare(plan: Plan, folder: Path, watch: Observer) -> None:
    """Notes if the run of this folder was played with another version of the task or another
    base."""
    host = host_of(folder)
    if host is None:
        return
    before, now = load_run(host), plan.backend.digests()
    if before.config.get("task") == plan.config.task:
        now = {**plan.digests, **now}
    if found := changed(before.events, now):
        watch.note(
            f"{worded(found)} changed since {host} was played: rewards of then and now are not to "
            "be compared"
        )


def _check_same(config: RunConfig, folder: Path) -> None:
    """Raises ConfigError if the folder holds the results of another config."""
    if not (folder / "config.yaml").exists():
        return
    for key, before, now in differing(validate(read_config(folder)), config):
        raise ConfigError(
            f"{folder} was played with {key}={before!r}, and {now!r} is asked for: choose another "
            "folder, or remove that one"
        )


def differing(one: RunConfig, other: RunConfig) -> Iterator[tuple[str, Any, Any]]:
    """The keys that decide what is measured and differ, with both values."""
    first, second = map(_measured, (one, other))
    for key in first | second:
        if first.get(key) != second.get(key):
            yield key, first.get(key), second.get(key)


def _measured(config: RunConfig) -> dict[str, Any]:
    """Drops places that don't matter: server addresses, and folders whose content is known."""
    every = [*leaves(config.model_dump(mode="json", by_alias=True))]
    seats = {key: players(value or ()) for key, value in every if names_players(key)}
    return seats | {
        key: value
        for key, value in every
        if Mark.MEASURED in (said := marks(RunConfig, key))
        and not said & {Mark.RESUMABLE, Mark.MOVABLE}
        and not (names_base(config.backend, key) and Path(value or "").is_absolute())
    }
