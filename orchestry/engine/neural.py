"""Runs of backend ppo: from config to summary, with exact resume from the last checkpoint.

The journal has one `learned` event per checkpoint. progress.jsonl has a row per batch; rows after
the last checkpoint are dropped on a resume, which plays those batches again.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestry.backends.gpu import GpuWatch, gpu_watch
from orchestry.backends.local.model import device_of, gpu_name
from orchestry.core.concurrency import heeding
from orchestry.core.config import RunConfig
from orchestry.core.digests import file_digest
from orchestry.core.errors import ConfigError, LearnError
from orchestry.core.machine import launched
from orchestry.core.ppo import MOST, PpoConfig, check_settings
from orchestry.core.seeds import derive
from orchestry.engine.arena import Arena, arena
from orchestry.engine.changes import changed, grounded, worded
from orchestry.engine.executors import launch_of
from orchestry.engine.games import (
    NEEDS,
    checkpoint_of,
    last_checkpoint,
    learned_state,
    play_games,
    players_digests,
    policy_from,
    policy_of,
)
from orchestry.engine.learners import (
    PROCESSES,
    begin_as,
    check_alone,
    check_count,
    check_launch,
    check_steps,
    digests_of,
    load_learner,
)
from orchestry.engine.manifest import ground, record_ground
from orchestry.engine.session import Observer
from orchestry.engine.trust import Trust, of_run
from orchestry.store.collapse import Collapses, collapses
from orchestry.store.journal import Learned, Opened, Stopped
from orchestry.store.progress import GPU, MEAN, PACE, PROGRESS, RECENT, Row, progress
from orchestry.store.run import Run, Store, existing, load_run
from orchestry.store.summary import books, summarise_journal
from orchestry.store.trackers import Tracker, TrackerRow, show_rows
from orchestry.task.setup import option_digests
from orchestry.task.vector import Player, Script

if TYPE_CHECKING:
    from orchestry.backends.ppo.learner import Learner, Played

LEARNED, LIKELIEST, UNTRAINED = "learned", "likeliest", "untrained"
_NOTE_S = 10.0
"""Seconds between two lines for the user."""


def begin(config: RunConfig, folder: Path, watch: Observer) -> Run:
    """Plays a new run into a folder; see `engine.run.train`."""
    check_settings(config)
    with launch_of(config):
        check_launch(config.ppo)
        return _played(checked(config, watch.note), folder, watch, accept=False)


def checked(config: RunConfig, note: Callable[[str], None]) -> Arena:
    """Of a new run, after all checks that cost nothing. Raises as `arena` and `begin_as`."""
    found = arena(config, note)
    if config.ppo.source:
        begin_as(_of_one(found), found, config.ppo.source)
    return found


def go_on(config: RunConfig, folder: Path, watch: Observer, accept: bool) -> Run:
    """Continues a run from its last checkpoint."""
    with launch_of(config):
        check_launch(config.ppo)
        return _played(arena(config, watch.note), existing(folder), watch, accept)


def measure(
    run: Run,
    changes: Mapping[str, Any],
    games: int,
    note: Callable[[str], None],
    *,
    scripts: Sequence[str] = (),
    trust: Trust = False,
) -> dict[str, list[list[float]]]:
    """Each agent's return in so many games, (games, agents), of teams by name: the `learned` one,
    the same with its `likeliest` action each time, where the learned one draws; the `untrained`
    one; and scripted players by `scripts`. All play the same first evenings; seats that don't learn
    are played by the run's opponents.

    `changes` are nested like the config, such as another scenario in `options`. Raises ConfigError
    as `arena`, and where games have another shape than those that were learned in.
    """
    check_alone("a measurement of policies")
    if games > MOST:
        raise ConfigError(f"found {games:,} games, and all are played at once: ask for {MOST:,}")
    if taken := sorted({LEARNED, LIKELIEST, UNTRAINED} & {*scripts}):
        raise ConfigError(f"{', '.join(taken)}: always shown, so not to be named beside the team")
    found = arena(of_run(run.folder, changes, trust, note), note)
    _note_changes(run, found, changes, note)
    roles, seed = found.learners, found.config.seed
    now = learned_state(run)  # once: it may go on learning, and delete this checkpoint
    start = {**_of_one(found).state(), "roles": roles}

    def played(name: str) -> list[list[float]]:
        on = found.games(games, "measured")
        own = (
            policy_from(*now, on, roles, seed, name == LIKELIEST)
            if name in (LEARNED, LIKELIEST)
            else policy_from(found.config.ppo, start, on, roles, seed)
            if name == UNTRAINED
            else found.player(name, found.learning, games, derive(seed, "measured", name))
        )
        others = found.others(games, partial(_as_now, now, found), "measured")
        return play_games(on, (Player(own, found.learning), *others))

    import torch

    with _threads(torch, found.config.ppo.threads):
        return {name: played(name) for name in (LEARNED, LIKELIEST, UNTRAINED, *scripts)}


def _note_changes(
    run: Run, found: Arena, changes: Mapping[str, Any], note: Callable[[str], None]
) -> None:
    """Says which players and files are no longer what the run learned with, besides those that this
    call names itself."""

    def since(key: str, digests: Mapping[str, str]) -> list[str]:
        named = tuple(f"{key}.{one}." for one in changes.get(key, {}))
        rest = {name: one for name, one in digests.items() if not f"{name}.".startswith(named)}
        return changed(run.events, rest)

    if others := since("agents", players_digests(found.config)):
        note(
            f"the run learned beside other contents of {worded(others)}: a file in an opponent's "
            "folder `checkpoints` stays as it is"
        )
    if others := since("options", option_digests(found.task, found.config.options)):
        note(f"the run learned with other contents of {worded(others)}: these are other games")


def _as_now(
    now: tuple[PpoConfig, Mapping[str, Any]],
    found: Arena,
    seats: tuple[int, ...],
    games: int,
    seed: int,
) -> Script:
    """What the run learned, in seats that `self` plays."""
    roles = [found.roles[seat] for seat in seats]
    return policy_from(*now, found.games(1, "shape"), roles, seed)


def learned(run: Run, likeliest: bool = False) -> Script:
    """The last policy of a run, for the seats that it learned. Raises as `policy_of`."""
    if not run.neural:
        raise ConfigError(f"{run.folder} is no run of backend ppo")
    found = arena(of_run(run.folder), lambda text: None, alone=True)
    return policy_of(run, found.games(1, "shape"), found.learners, found.config.seed, likeliest)


def _of_one(found: Arena) -> Learner:
    """The learner before its first batch, with a single game."""
    from orchestry.backends.ppo.learner import Learner, Seats

    settings = found.config.ppo.model_copy(update={"games": 1})
    games = found.games(1, "untrained")
    return Learner(games, settings, Seats(found.learning), found.config.seed)


def _played(found: Arena, folder: Path, watch: Observer, accept: bool) -> Run:
    from orchestry.engine.run import in_own_loop

    in_own_loop(_play(found, folder, watch, accept))
    return load_run(folder)


async def _play(found: Arena, folder: Path, watch: Observer, accept: bool) -> None:
    import torch

    config, start = found.config, time.monotonic()
    with Store(folder, shortened=accept) as store, _threads(torch, config.ppo.threads):
        check_count(store.events)
        check_steps(config.ppo, store.events)
        changes = grounded(digests_of(found), store, accept)
        store.write("config.yaml", config.to_yaml())
        device = device_of(config.ppo.device)
        here = {"device": str(device), **_several()}
        record_ground(store, {**ground(NEEDS, gpu_name(device)), **here})
        work = _Work(found, store, watch.note)
        shape = "x".join(map(str, config.ppo.hidden))
        store.journal.append(Opened(at=time.time(), provider="ppo", model=shape, **changes))
        with (
            heeding(work.stop),
            work.shown(),
            gpu_watch(str(device_of(config.ppo.device)), watch.note) as gpu,
        ):
            await work.play(gpu)
        store.journal.append(Stopped(reason=work.reason, at=time.time()))
        store.journal.sync()
        figures = work.rows[-1] if work.rows else {}
        told = summarise_journal(
            folder, config.model_dump(mode="json"), books([*Run(folder).events]), []
        )
        own = {
            "stopped": work.reason,
            "strategy": "ppo",
            "learning": {k: v for k, v in figures.items() if k != "at"},
            "seconds": time.monotonic() - start,
        }
        store.write("summary.json", told.model_copy(update=own).model_dump_json(indent=2) + "\n")
    if work.reason == "interrupted":
        watch.note(f"interrupted: `orchestry resume {folder}` continues it")


def _several() -> dict[str, int]:
    """How many processes learn, where it is not one."""
    count = launched().processes
    return {PROCESSES: count} if count > 1 else {}


@contextmanager
def _threads(torch: Any, count: int) -> Iterator[None]:
    """In this context torch computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(slots=True)
class _Work:
    """The batches of one process."""

    arena: Arena
    store: Store
    note: Callable[[str], None]
    reason: Any = "done"
    rows: list[Row] = field(default_factory=list)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _trackers: list[Tracker] = field(default_factory=list)
    _told: float = 0.0
    _collapses: Collapses = field(init=False)

    @property
    def settings(self) -> PpoConfig:
        return self.arena.config.ppo

    def stop(self) -> None:
        """At Ctrl-C: after this batch."""
        self.reason = "interrupted"

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Trackers are open in this context."""
        self.rows = self._kept_rows()
        config = self.arena.config.model_dump(mode="json", by_alias=True)
        self._collapses = collapses(config, (), {}, self.rows)
        shown = (_row(one) for one in self.rows)
        self._trackers = show_rows(self.arena.config, self.store.folder, shown, self.note)
        try:
            yield
        finally:
            for tracker in self._trackers:
                tracker.close()

    async def play(self, gpu: GpuWatch) -> None:
        """Plays what is missing of the run's steps."""
        learner = self._begun()
        whole, saved, told = self.settings.steps, learner.steps, time.monotonic()
        while learner.steps < whole and self.reason == "done":
            before = learner.steps
            figures, played = learner.iterate(whole)
            lost = [name for name, value in figures.items() if not isfinite(value)]
            if lost or not learner.team.finite:  # figures are of the weights before the last update
                kept = last_checkpoint(self.store.events)
                raise LearnError(
                    f"step {learner.steps}: {', '.join(lost) or 'weights'} are no longer finite: "
                    "begin again with a lower ppo.learning_rate, if the task's observations and "
                    "rewards are finite numbers"
                    f"{'; the last checkpoint is from before' if kept else ''}"
                )
            row = {f"learn/{name}": value for name, value in figures.items()}
            if _crossed(before, learner.steps, self.settings.evaluate_every):
                row["evaluation/reward"] = self._evaluated(learner)
            since, told = told, time.monotonic()
            row[PACE] = (learner.steps - before) / (told - since)
            row |= {f"{GPU}/{name}": value for name, value in gpu.figures().items()}
            self._add(learner.steps, row, played)
            last = learner.steps >= whole or self.reason != "done"
            if last or _crossed(before, learner.steps, self.settings.checkpoint_every):
                self._checkpoint(learner)
                saved = learner.steps
            await asyncio.sleep(0)  # signals are heeded here
        if saved < learner.steps:  # a signal came between
            self._checkpoint(learner)
        learner.close()

    def _begun(self) -> Learner:
        """From the last checkpoint, or anew."""
        from orchestry.backends.ppo.checkpoint import read

        learner = load_learner(self.arena, self.note)
        if (last := last_checkpoint(self.store.events)) is not None:
            if not learner.restore(read(checkpoint_of(self.store.folder, last))):
                self.note(
                    f"the checkpoint was written on another kind of device than {learner.device}: "
                    "random numbers begin anew, so the weights will not be the same bit for bit"
                )
            self._recent.extend(last.state["recent"])
        elif source := self.settings.source:
            begin_as(learner, self.arena, source)
            self._checkpoint(learner)
        return learner

    def _add(self, steps: int, figures: Mapping[str, float], played: Played) -> None:
        """A row of progress.jsonl, to the trackers too, and at times a line for the user."""
        self._recent.extend(played.returns)
        games = self.rows[-1]["train/total_episodes"] if self.rows else 0
        row = {"steps": steps, "at": time.time(), **figures}
        if played.returns:
            row["episode/reward"] = statistics.fmean(played.returns)
            row["episode/length"] = statistics.fmean(played.lengths)
            if self.arena.learners != self.arena.roles:
                row["episode/own_reward"] = statistics.fmean(played.own)
        if self._recent:
            row[MEAN] = statistics.fmean(self._recent)
        row["train/total_episodes"] = games + len(played.returns)
        self.rows.append(row)
        self.store.append(PROGRESS, json.dumps(row) + "\n")
        for tracker in self._trackers:
            tracker.show([_row(row)])
        for text in self._collapses.batch(row):
            self.note(text)
        if time.monotonic() - self._told >= _NOTE_S:
            self._told = time.monotonic()
            self.note(_said(row, self.settings.steps))

    def _checkpoint(self, learner: Learner) -> None:
        """Writes one, then journals it; older ones go."""
        from orchestry.backends.ppo.checkpoint import save

        past = [event for event in self.store.events if isinstance(event, Learned)]
        number = past[-1].update + 1 if past else 1
        name = _file(number)
        path, games = self.store.folder / name, learner.games
        shape = {
            "agents": len(self.arena.roles),
            "roles": self.arena.learners,
            "observed": games.observations.shape[-1],
            "choices": list(games.choices),
        }
        save(path, {**learner.state(), **shape})
        state = {
            "checkpoint": name,
            "digest": file_digest(path),
            "steps": learner.steps,
            "recent": list(self._recent),
            **_several(),
        }
        event = Learned(update=number, state=state, at=time.time())
        self.store.learned(event)
        self.store.events.append(event)
        for old in past[: -self.settings.keep + 1 or None]:
            (self.store.folder / _file(old.update)).unlink(missing_ok=True)

    def _evaluated(self, learner: Learner) -> float:
        """The team's mean return as it is, in games of its own; learning does not depend on it."""
        found, count = self.arena, self.settings.evaluate_games
        state = {"team": learner.team.state(), "roles": found.learners}
        path = ("evaluation", learner.steps)
        games = found.games(count, *path)

        def itself(seats: tuple[int, ...], count: int, seed: int) -> Script:
            roles = [found.roles[seat] for seat in seats]
            return policy_from(self.settings, state, games, roles, seed)

        own = Player(itself(found.learning, count, found.config.seed), found.learning)
        returns = play_games(games, (own, *found.others(count, itself, *path)))
        return statistics.fmean(statistics.fmean(each) for each in returns)

    def _kept_rows(self) -> list[Row]:
        """The rows up to the last checkpoint; later ones are dropped from the file."""
        last = last_checkpoint(self.store.events)
        steps = int(last.state["steps"]) if last else 0
        rows = [row for row in progress(self.store.folder) if row["steps"] <= steps]
        self.store.write(PROGRESS, "".join(f"{json.dumps(row)}\n" for row in rows))
        return rows


def _file(number: int) -> str:
    """A checkpoint's, in the run's folder."""
    return f"checkpoints/{number:06}.pt"


def _crossed(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, after]; 0: never."""
    return bool(every) and before // every != after // every


def _row(row: Mapping[str, float]) -> TrackerRow:
    figures = {name: value for name, value in row.items() if name not in ("steps", "at")}
    return TrackerRow(int(row["steps"]), row["at"], figures)


def _said(row: Mapping[str, float], whole: int) -> str:
    mean = row.get(MEAN)
    shown = "no game has ended yet" if mean is None else f"return {mean:.1f} over the last games"
    speed = row[PACE]
    rest = f" of {whole:,}" if row["steps"] < whole else ""  # whole batches may be more
    return f"step {row['steps']:,}{rest}: {shown}, {speed:,.0f} steps/s"
