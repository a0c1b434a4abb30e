"""Sweeps: trials of settings, proposed and pruned by Optuna, each a run directory.

One process plays a sweep's folder, and several folders may share a study (`study`). A trial's
runs are processes of their own (`trials`), so that one can be stopped by its curve, a killed
one resumed, and several played at once, here or elsewhere. Before a trial begins, its part of what
is left of the cap is reserved (`slices`); the ledgers of its runs keep to that.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import yaml
from filelock import FileLock, Timeout

from orchestry.backends.local.weights import START
from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError, OrchestryError
from orchestry.core.executor import Executor
from orchestry.core.files import refuse_pipes, write_atomic
from orchestry.core.ppo import check_settings
from orchestry.core.resolve import by_role, put_key
from orchestry.engine.executors import needs_of, open_executor
from orchestry.engine.trust import remember
from orchestry.ext.sweep.settings import Choices, MeasureConfig, SweepConfig
from orchestry.ext.sweep.slices import CONFIRM, TRIAL, Slice, Spent
from orchestry.ext.sweep.study import (
    Played,
    Study,
    Tried,
    cap_of,
    classes,
    folder_of,
    in_words,
    own_file,
)
from orchestry.ext.sweep.trials import (
    Asked,
    Curve,
    Interrupts,
    Note,
    Stop,
    await_writers,
    is_whole,
    play_all,
    play_run,
    spent_in,
)
from orchestry.store.run import Run
from orchestry.store.summary import NANO, nano

if TYPE_CHECKING:
    from optuna.trial import Trial

_OF_ONE_RUN = ("budget", "recipe", "executor", "ranks")
_SETTLED = ("strategy", "k_samples", "episodes_in_flight")
"""Search settings that backend local derives from `learn`."""
FAILURES = 3
"""So many failed trials in a row stop the sweep."""
ENOUGH = 50
"""Whole trials from which on the keys' importance is computed."""
TRIALS, SWEEP, BEST, LOCK = "trials.jsonl", "sweep.json", "best.yaml", "sweep.lock"
"""In the sweep's folder."""
PINNED = "trial.json"
"""In confirm/best: which trial is confirmed."""


class Sweep:
    """A sweep in its folder, which one process plays at a time."""

    study: Study
    executor: Executor

    def __init__(
        self,
        config: SweepConfig,
        folder: Path,
        note: Note,
        *,
        trust: bool = False,
        confirmed: bool = False,
        give_up: str | None = None,
    ) -> None:
        """`trust`: the person passed --trust, and its runs pass it on. `confirmed`: the person was
        asked about other people's places in the config (`engine.trust.check_trust`); its runs then
        use them. `give_up`: a folder of the study that is lost for good. Raises ConfigError for
        settings that no run takes, and without Optuna."""
        self.config, self.folder, self.note = config, folder, note
        self._trust, self._confirmed, self._give_up = trust, confirmed, give_up
        self._interrupts = Interrupts()
        for key, settings in corners(config):
            try:
                trial_config(config, settings)
            except ConfigError as error:
                where = f"keys.{key}" if key else "run"
                raise ConfigError(f"config key '{where}': {error}") from None
        if config.budget_usd is None and not own_file(config):
            raise ConfigError(
                "config key 'budget_usd' is null: what this folder spends would be hidden from the "
                "others that share the study: give a cap, 0 for models that cost nothing"
            )
        _check_folder(folder)
        classes(config)

    def play(self) -> str:
        """Plays what is missing of all trials; why it ended, in the words of `Stopped`.

        Raises ConfigError while another process plays this folder, for a folder of another sweep,
        for a sampler that lacks a package, and for a database or cluster that can't be reached."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.executor = open_executor(self.config.executor)
        try:
            with FileLock(self.folder / LOCK, timeout=0), self._interrupts, in_words():
                self.open()
                return self._ended()
        except Timeout:
            raise ConfigError(
                f"{self.folder}: another process plays this sweep: wait for its end, or stop it"
            ) from None

    def open(self) -> None:
        """Opens the study. Raises ConfigError if it is another sweep's."""
        path = self.folder / SWEEP
        if not path.exists():
            write_atomic(path, json.dumps(self._plain(), allow_nan=False).encode())
        self.study = Study(self.config, self.folder)

    def _ended(self) -> str:
        try:
            await_writers(self.folder, self.note, self._interrupts)
            self.study.renew()
            if self._give_up is not None:
                self.note(f"given up: {self.study.give_up(self._give_up)} of {self._give_up}")
            self._play_trials()
            for number, owner in self.study.going.items():
                self.note(f"trial {number} has not ended: {owner} plays it, or was stopped there")
            self._confirm()
        except Stop as stop:
            self.note(stop.told)
            return stop.reason
        except KeyboardInterrupt:
            self.note("interrupted: the same command goes on")
            return "interrupted"
        finally:
            self.write()
        return "done"

    def _play_trials(self) -> None:
        left, failures = self.study.left(), 0

        def propose() -> Callable[[], tuple[Trial, str, Tried]] | None:
            found = self._next(left)
            return None if found is None else lambda: self._try(*found)

        def ended(found: tuple[Trial, str, Tried]) -> None:
            nonlocal failures
            self._tell(*found)
            self.write()
            tried = found[2]
            failures = failures + 1 if tried.state == "failed" else 0
            if failures == FAILURES:
                raise Stop("failed", f"{FAILURES} trials in a row failed: {tried.why}")

        play_all(propose, self._places, ended, self._interrupts)

    def _places(self) -> int:
        return self.executor.at_once(needs_of(trial_config(self.config, {})))

    @property
    def best(self) -> Tried | None:
        """The trial with the highest value; the first, if tied. One that stopped at its part of the
        cap was measured on less, and is the best only among its like."""
        whole = [one for one in self.study.tried if one.value is not None]

        def worth(one: Tried) -> tuple[bool, float, int]:
            return not any(run.stopped for run in one.runs), one.value or 0.0, -one.number

        return max(whole, key=worth, default=None)

    def write(self) -> None:
        """Writes trials.jsonl, sweep.json, and best.yaml once there is a best trial."""
        tried, rows = self.study.tried, self.study.slices.all()
        lines = "".join(json.dumps(asdict(one)) + "\n" for one in tried)
        write_atomic(self.folder / TRIALS, lines.encode())
        values = {one.value for one in tried if one.value is not None}
        whole = sum(one.value is not None for one in tried)
        known = self.study.importance() if whole >= ENOUGH and len(values) > 1 else {}
        away = [row for row in rows if row.owner != self.study.owner and row.state != "open"]
        usd = spent_in(self.folder) + sum(row.nano for row in away) / NANO
        mine = next((row.owner for row in rows if row.key == CONFIRM), "")
        found = {
            **self._plain(),
            "importance": known,
            "usd": usd,
            "owner": self.study.owner,
            "confirms": mine,
            "going": {str(number): owner for number, owner in self.study.going.items()},
        }
        if best := self.best:
            found["same"] = self._as_given(best.settings)
            text = yaml.safe_dump(raw_config(self.config, best.settings), sort_keys=False)
            write_atomic(self.folder / BEST, text.encode())
        write_atomic(self.folder / SWEEP, json.dumps(found).encode())

    def _plain(self) -> dict[str, Any]:
        nothing = {"importance": {}, "usd": 0.0, "same": False, "confirms": "", "going": {}}
        return {"sweep": self.config.model_dump(mode="json"), "owner": "", **nothing}

    def _as_given(self, settings: Mapping[str, Any]) -> bool:
        """Whether settings make the run as it was given."""
        return trial_config(self.config, settings) == trial_config(self.config, {})

    def _next(
        self, left: list[tuple[str, Trial, dict[str, Any]]]
    ) -> tuple[str, Trial, dict[str, Any], int] | None:
        """A trial that was cut off, then new ones, up to the number asked for, with the
        nano-dollars of its slice. Raises Stop if the cap has nothing left."""
        for place, (key, trial, settings) in enumerate(left):
            spent = spent_in(self.folder / folder_of(trial.number))
            try:
                part = self._reserve(key, lambda rows: self._share(rows, True), spent)
            except Stop:  # what one has spent says nothing of the others
                if place == len(left) - 1:
                    raise
                continue
            left.pop(place)
            return key, trial, settings, part or 0
        key = f"{TRIAL}{uuid.uuid4().hex}"
        if self.study.over or (part := self._reserve(key, self._share)) is None:
            return None
        try:
            return key, *self.study.ask(key), part
        except ConfigError:
            self.study.slices.drop(key)
            raise

    def _share(self, others: Sequence[Slice], again: bool = False) -> Fraction | None:
        """A trial's part of what is left, in even parts; None: all have begun."""
        begun = [row for row in others if row.key.startswith(TRIAL) and row.state != "failed"]
        to_come = max(int(again), self.config.trials - len(begun))
        units = to_come * self.config.seeds + 2 * self.config.confirm.seeds
        return Fraction(self.config.seeds, units) if to_come > 0 else None

    def _reserve(
        self, key: str, share: Callable[[Sequence[Slice]], Fraction | None], spent: float = 0.0
    ) -> int | None:
        """Raises Stop."""
        cap = cap_of(self.config)
        try:
            return self.study.slices.reserve(key, self.study.owner, share, cap, nano(spent))
        except Spent:
            usd = self.config.budget_usd
            told = f"the sweep's cap of ${usd:g} is spent or reserved: raise budget_usd"
            raise Stop("budget", told) from None

    def _try(
        self, key: str, trial: Trial, settings: Mapping[str, Any], part: int
    ) -> tuple[Trial, str, Tried]:
        """Plays a trial's runs one after the other."""
        folder = self.folder / folder_of(trial.number)
        folder.mkdir(exist_ok=True)
        self.note(f"trial {trial.number}: {said(settings)}")
        curve = Curve(trial, [*self.study.trials[trial.number].intermediate_values])
        try:
            runs = tuple(self._runs(folder, settings, part, curve))
            found = _ended(trial.number, settings, runs, curve)
        except OrchestryError as error:
            paid = tuple(
                Played(str(place.relative_to(self.folder)), int(place.name[5:]), None, usd)
                for place in sorted(folder.glob("seed-*"))
                if (usd := spent_in(place))
            )
            found = Tried(trial.number, settings, "failed", None, paid, why=str(error))
        return trial, key, replace(found, owner=self.study.owner)

    def _tell(self, trial: Trial, key: str, found: Tried) -> None:
        """Writes what a trial came to into the study, and gives back what it did not spend."""
        over = self.study.tell(trial, found)
        spent = nano(spent_in(self.folder / folder_of(found.number)))
        self.study.slices.settle(key, spent, "failed" if found.state == "failed" else "ended")
        if over:
            self.note(f"{self.config.sampler.name} has tried everything")
        value = "" if found.value is None else f", value {found.value:.4g}"
        dollars = f", ${sum(run.usd for run in found.runs):.4f}"
        cut = " (stopped at its part of the cap)" if any(run.stopped for run in found.runs) else ""
        why = f": {found.why}" if found.why else ""
        self.note(f"trial {found.number}: {found.state}{value}{dollars}{cut}{why}")

    def _runs(
        self, folder: Path, settings: Mapping[str, Any], part: int, curve: Curve
    ) -> Iterator[Played]:
        """A trial's runs, until one is pruned."""
        config = self._prepare(folder, settings)
        how, share = self.config.measure, part // self.config.seeds
        for seed in range(config.seed, config.seed + self.config.seeds):
            asked = self._run(folder, config, seed)
            others = nano(spent_in(folder)) - nano(spent_in(asked.place))
            asked = self._capped(asked, max(0, min(share, part - others)))
            found = play_run(asked, how, how.split, curve if seed == config.seed else None)
            name, usd = str(asked.place.relative_to(self.folder)), spent_in(asked.place)
            yield Played(name, seed, found.value, usd, found.stopped)
            if found.value is None:
                return

    def _prepare(self, folder: Path, settings: Mapping[str, Any]) -> RunConfig:
        """Writes the config of a trial's runs."""
        file, config = folder / "trial.yaml", trial_config(self.config, settings)
        file.write_text(yaml.safe_dump(raw_config(self.config, settings)))
        if self._confirmed:
            remember(config, file)
        return config

    def _run(self, folder: Path, config: RunConfig, seed: int) -> Asked:
        budget = self.config.run.get("budget") or {}
        return Asked(
            folder,
            seed,
            most=budget.get("usd"),
            trust=self._trust,
            executor=self.executor,
            needs=needs_of(config),
            games=config.backend == "ppo",
            interrupts=self._interrupts,
            note=self.note,
        )

    def _capped(self, asked: Asked, part: int) -> Asked:
        """A run with its part of the cap, if there is one."""
        return asked if self.config.budget_usd is None else replace(asked, usd=part / NANO)

    def _confirm(self) -> None:
        """Plays the best setting and the run as it was given, with seeds that no trial had, if this
        folder is the one that does."""
        asked, place = self.config.confirm, self.folder / CONFIRM
        if not asked.seeds or (best := self._chosen()) is None or not self._is_last():
            return
        sides = {place / "given": {}, place / "best": best["settings"]}
        for side in sides:
            side.mkdir(parents=True, exist_ok=True)
        write_atomic(place / "best" / PINNED, json.dumps(best).encode())
        configs = {folder: self._prepare(folder, settings) for folder, settings in sides.items()}
        seed = trial_config(self.config, {}).seed + self.config.seeds
        runs = [
            self._run(folder, config, each)
            for each in range(seed, seed + asked.seeds)
            for folder, config in configs.items()
        ]
        todo = list[Asked]()

        def propose() -> Callable[[], Asked] | None:
            if not todo:
                return None
            one, key = todo[0], str(todo[0].place.relative_to(self.folder))
            share = Fraction(1, len(todo))
            part = self._reserve(key, lambda rows: share, spent_in(one.place)) or 0
            own = replace(self._capped(todo.pop(0), part), raised=True)
            self.note(f"confirming: {own.folder.name}, seed {own.seed}")
            return lambda: self._confirmed_by(own)

        def ended(one: Asked) -> None:
            key = str(one.place.relative_to(self.folder))
            self.study.slices.settle(key, nano(spent_in(one.place)), "ended")

        for one in runs:
            if is_whole(one, asked.split, asked.samples):
                ended(one)  # a process that was killed may not have given back the rest
            else:
                todo.append(one)
        play_all(propose, self._places, ended, self._interrupts)

    def _confirmed_by(self, own: Asked) -> Asked:
        asked = self.config.confirm
        try:
            play_run(own, MeasureConfig(samples=asked.samples), asked.split, None)
        except OrchestryError as error:
            raise Stop("failed", f"the best could not be confirmed: {error}") from None
        return own

    def _is_last(self) -> bool:
        """Whether this folder confirms: the first one once all trials have ended."""
        first = self.study.slices.confirms(self.study.owner)
        if not first:
            self.note("the last folder whose trials end confirms the best")
        elif first != self.study.owner:
            self.note(f"{first} confirms the best: the result is in its folder")
        return first == self.study.owner

    def _chosen(self) -> Mapping[str, Any] | None:
        """The trial that is confirmed and its settings: the one with which it began, else the best;
        None if there is nothing to confirm."""
        path, asked = self.folder / CONFIRM / "best" / PINNED, self.config.confirm.model_dump()
        if path.is_file():
            found: Mapping[str, Any] = json.loads(path.read_bytes())
            if (before := found.get("confirm", asked)) != asked:
                raise Stop(
                    "failed",
                    f"the best is confirmed with {before}, and now `confirm` is {asked}: to choose "
                    "anew after a look at the result would claim too much: set it back",
                )
            return found
        if (best := self.best) is None:
            return None
        if self._as_given(best.settings):
            self.note("the best setting is the run as it was given: there is nothing to confirm")
            return None
        return {"trial": best.number, "settings": best.settings, "confirm": asked}


def raw_config(config: SweepConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The run's config with a trial's settings, as a file for `--config` holds it."""
    found: dict[str, Any] = json.loads(json.dumps(by_role(dict(config.run))))
    for key, value in settings.items():
        put_key(found, key, value)
    return found


def as_trials(run: Run) -> dict[str, Any]:
    """The config of a run for the trials of a sweep, as plain data: as it was given, without what
    its backend settled and what the sweep itself decides."""
    plain = {key: value for key, value in run.config.items() if key not in _OF_ONE_RUN}
    if plain.get("backend") == "local":
        given = plain.get("search", {})
        plain["search"] = {key: one for key, one in given.items() if key not in _SETTLED}
    start = run.folder.absolute() / START
    if start.is_dir() and plain.get("backend") == "local":  # what it began with may be gone
        plain["learn"] = {**plain["learn"], "from": str(start), "roles": None}
    return plain


def trial_config(config: SweepConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The same, checked. Raises ConfigError."""
    found = validate(raw_config(config, settings))
    if found.backend == "ppo":
        check_settings(found)
    return found


def corners(config: SweepConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings that show whether a run takes them: none, whose key is '', then each key at its
    ends or choices."""
    yield "", {}
    ends = {
        key: what.choices if isinstance(what, Choices) else (what.low, what.high)
        for key, what in config.keys.items()
    }
    first = {key: values[0] for key, values in ends.items()}
    for key, values in ends.items():
        yield from ((key, {**first, key: value}) for value in values)


def said(settings: Mapping[str, Any]) -> str:
    """Settings in a line."""
    return ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in settings.items()
    )


def _ended(
    number: int, settings: Mapping[str, Any], runs: tuple[Played, ...], curve: Curve
) -> Tried:
    values = [run.value for run in runs if run.value is not None]
    whole = len(values) == len(runs)
    value = fmean(values) if whole else None
    state = "complete" if whole else "pruned"
    return Tried(number, settings, state, value, runs, tuple(curve.points))


def _check_folder(folder: Path) -> None:
    """Raises ConfigError for a folder that holds other things than a sweep, StoreError for a pipe
    in it."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--dir {folder} is a file: choose a folder for the sweep")
    refuse_pipes(folder)
    held = {path.name for path in folder.iterdir()} - {LOCK} if folder.is_dir() else set()
    if held and SWEEP not in held:
        raise ConfigError(
            f"--dir {folder} is not empty and holds no sweep (no {SWEEP}): choose another folder"
        )
