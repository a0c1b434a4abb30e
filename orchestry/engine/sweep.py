"""Sweeps: trials of settings, proposed and pruned by Optuna, each a run directory.

A trial's runs are processes of their own, so that one can be stopped by its curve, and a killed one
resumed. What a trial may spend is reserved from the sweep's cap before it begins; its ledger keeps
to that.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import yaml
from filelock import FileLock

from orchestry.core.config import RunConfig, validate
from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, OrchestryError, unknown
from orchestry.core.files import is_run, json_lines, write_atomic
from orchestry.core.resolve import by_role, put_key
from orchestry.core.seeds import derive
from orchestry.core.sweep import Choices, MeasureConfig, Named, Range, SweepConfig
from orchestry.store import journal
from orchestry.store.measurements import EVALUATIONS
from orchestry.store.progress import progress
from orchestry.store.recipes import finished
from orchestry.store.records import Summary
from orchestry.store.run import is_held, read_config
from orchestry.store.summary import books

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

LOOK_S = 1.0
"""Seconds between two looks at a run's curve."""
FAILURES = 3
"""So many failed trials in a row stop the sweep."""
RUNS_SHARE = 0.75
"""Of what a run and its evaluation may spend, the run's part."""
TRIALS, SWEEP, BEST, CONFIRM = "trials.jsonl", "sweep.json", "best.yaml", "confirm"
"""In the sweep's folder."""
LOCK, LOG = "trial.lock", "log.txt"
"""In a trial's folder."""
_RETURN = "train/avg_reward_100ep"
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Played:
    """One run of a trial."""

    folder: str
    """From the sweep's folder."""
    seed: int
    value: float | None
    """What it is judged by; None: it was pruned, or has no evaluation."""
    usd: float
    """Its runs and evaluations, in dollars."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial that ended."""

    number: int
    settings: Mapping[str, Any]
    state: str
    """`complete`, `pruned` or `failed`."""
    value: float | None
    """The mean over its runs."""
    runs: tuple[Played, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    """Of its first run: episodes or steps, and the running mean of the reward or return."""
    why: str = ""


class Stop(Exception):
    """The sweep can't go on now."""

    def __init__(self, reason: str, told: str) -> None:
        """`reason`: `budget`, `away`, `interrupted` or `failed`."""
        super().__init__(told)
        self.reason, self.told = reason, told


class Sweep:
    """A sweep in its folder. The same sweep may be played by several processes at once."""

    def __init__(self, config: SweepConfig, folder: Path, note: Note) -> None:
        """Raises ConfigError for settings that no run takes, and without Optuna."""
        self.config, self.folder, self.note = config, folder, note
        for key, settings in corners(config):
            try:
                trial_config(config, settings)
            except ConfigError as error:
                raise ConfigError(f"config key 'keys.{key}': {error}") from None
        folder.mkdir(parents=True, exist_ok=True)
        self.study = _study(config, folder)

    def play(self) -> str:
        """Plays what is missing of all trials; why it ended, in the words of `Stopped`."""
        failures = 0
        try:
            for trial in self._missing():
                tried = self._try(trial)
                failures = failures + 1 if tried.state == "failed" else 0
                self.write()
                if failures == FAILURES:
                    raise Stop("failed", f"{FAILURES} trials in a row failed: {tried.why}")
            self._confirm()
        except Stop as stop:
            self.note(stop.told)
            return stop.reason
        except OrchestryError as error:
            self.note(f"the best could not be confirmed: {error}")
            return "failed"
        finally:
            self.write()
        return "done"

    @property
    def tried(self) -> list[Tried]:
        """The trials that ended, of all processes, in order."""
        found = [trial.user_attrs.get("tried") for trial in self.study.get_trials(deepcopy=False)]
        return [_tried(one) for one in found if one]

    @property
    def best(self) -> Tried | None:
        """The trial with the highest value; the first, if tied."""
        whole = [one for one in self.tried if one.value is not None]
        return max(whole, key=lambda one: (one.value, -one.number), default=None)

    def write(self) -> None:
        """Writes trials.jsonl, and best.yaml once there is a best trial."""
        lines = "".join(json.dumps(asdict(one)) + "\n" for one in self.tried)
        write_atomic(self.folder / TRIALS, lines.encode())
        found = {"sweep": self.config.model_dump(mode="json"), "importance": self._importance()}
        write_atomic(self.folder / SWEEP, json.dumps(found).encode())
        if best := self.best:
            text = yaml.safe_dump(raw_config(self.config, best.settings), sort_keys=False)
            write_atomic(self.folder / BEST, text.encode())

    def _importance(self) -> dict[str, float]:
        """Share of the values' variance by key (PED-ANOVA, Watanabe et al., arXiv 2304.10255);
        empty below four whole trials."""
        from optuna.importance import get_param_importances

        if len({one.value for one in self.tried if one.value is not None}) < 4:
            return {}
        return dict(get_param_importances(self.study))

    def _missing(self) -> Iterator[Trial]:
        """Trials that a killed process left, then new ones, up to the number asked for."""
        from optuna.trial import TrialState

        for left in self.study.get_trials(states=(TrialState.RUNNING,)):
            folder = self.folder / left.user_attrs.get("folder", "")
            if not (folder / LOCK).exists() or is_held(folder / LOCK):
                continue  # another process plays it, here or on another machine
            self.study.tell(left.number, state=TrialState.FAIL)
            attrs = {"folder": folder.name, "again": left.number}
            self.study.enqueue_trial(left.params, user_attrs=attrs)
        while self._begun() < self.config.trials:
            trial = self.study.ask()
            # Seeded by the trial: a process that begins later, or again, draws other settings.
            self.study.sampler = _sampler(self.config, trial.number)
            yield trial

    def _begun(self) -> int:
        """Trials that count: not failed ones, nor those that wait in the queue."""
        from optuna.trial import TrialState

        counted = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        return len(self.study.get_trials(deepcopy=False, states=counted))

    def _try(self, trial: Trial) -> Tried:
        """Plays a trial's runs one after the other, and tells the study."""
        settings = {key: suggested(trial, key, what) for key, what in self.config.keys.items()}
        folder = self.folder / (trial.user_attrs.get("folder") or f"trial-{trial.number:04d}")
        folder.mkdir(exist_ok=True)
        with FileLock(folder / LOCK):
            trial.set_user_attr("folder", folder.name)
            part = self._part(trial)
            self.note(f"trial {trial.number}: {said(settings)}")
            curve = Curve(trial)
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
            self._tell(trial, found)
        return found

    def _tell(self, trial: Trial, found: Tried) -> None:
        from optuna.trial import TrialState

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
        trial.set_user_attr("tried", asdict(found))
        self.study.tell(trial, found.value, state=states.get(found.state, TrialState.FAIL))
        value = "" if found.value is None else f", value {found.value:.4g}"
        dollars = f", ${sum(run.usd for run in found.runs):.4f}"
        self.note(
            f"trial {found.number}: {found.state}{value}{dollars}{found.why and ': '}{found.why}"
        )

    def _runs(
        self, folder: Path, settings: Mapping[str, Any], part: float | None, curve: Curve
    ) -> Iterator[Played]:
        """A trial's runs, until one is pruned."""
        (folder / "trial.yaml").write_text(yaml.safe_dump(raw_config(self.config, settings)))
        first = trial_config(self.config, settings).seed
        for seed in range(first, first + self.config.seeds):
            asked = Asked(folder, seed, None if part is None else part / self.config.seeds)
            found = self._played(asked, curve if seed == first else None, self.config.measure.split)
            yield found
            if found.value is None:
                return

    def _played(self, asked: Asked, curve: Curve | None, split: str) -> Played:
        """A run, and its evaluation."""
        pruned = _train(asked, curve)
        value = None if pruned else _judged(asked, self.config.measure, split)
        folder = asked.place.relative_to(self.folder)
        return Played(str(folder), asked.seed, value, spent_in(asked.place))

    def _part(self, trial: Trial) -> float | None:
        """Dollars that a trial may spend: what is left, in even parts. Raises Stop at 0."""
        if (cap := self.config.budget_usd) is None:
            return None
        others = [
            one for one in self.study.get_trials(deepcopy=False) if one.number != trial.number
        ]
        left = cap - sum(map(_spent, others))
        to_come = self.config.trials - self._begun() + 1
        units = to_come * self.config.seeds + 2 * self.config.confirm.seeds
        part = left * self.config.seeds / units
        if part <= 0 < cap:
            raise Stop("budget", f"the sweep's cap of ${cap:g} is spent: raise budget_usd")
        trial.set_user_attr("usd", part)
        return part

    def _confirm(self) -> None:
        """Plays the best setting and the run as it was given, with seeds that no trial had."""
        from optuna.trial import TrialState

        asked, place = self.config.confirm, self.folder / CONFIRM
        if not asked.seeds:
            return
        place.mkdir(exist_ok=True)
        with FileLock(place / LOCK):
            if self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                self.note("another process plays the last trials, and will confirm the best")
            elif best := self.best:
                for name, settings in (("given", {}), ("best", best.settings)):
                    self._confirm_one(place / name, settings)

    def _confirm_one(self, folder: Path, settings: Mapping[str, Any]) -> None:
        asked = self.config.confirm
        cap, spent = self.config.budget_usd, sum(map(_spent, self.study.get_trials(deepcopy=False)))
        part = None if cap is None else max(0.0, cap - spent) / (2 * asked.seeds)
        folder.mkdir(exist_ok=True)
        (folder / "trial.yaml").write_text(yaml.safe_dump(raw_config(self.config, settings)))
        first = trial_config(self.config, {}).seed + self.config.seeds
        for seed in range(first, first + asked.seeds):
            self.note(f"confirming: {folder.name}, seed {seed}")
            one = Asked(folder, seed, part)
            _train(one, None)
            _judged(one, MeasureConfig(samples=asked.samples), asked.split)


@dataclass(frozen=True, slots=True)
class Asked:
    """A run of a trial."""

    folder: Path
    """The trial's; trial.yaml is its config."""
    seed: int
    usd: float | None
    """What run and evaluation may spend."""

    @property
    def place(self) -> Path:
        """The run's directory."""
        return self.folder / f"seed-{self.seed}"


class Curve:
    """A run's learning curve, as a trial reports it."""

    def __init__(self, trial: Trial) -> None:
        self.points = list[tuple[int, float]]()
        self._trial = trial

    def look(self, place: Path) -> bool:
        """Reports what is new; whether the run is to be stopped."""
        known = self.points[-1][0] if self.points else 0
        new = [(at, value) for at, value in curve_of(place) if at > known]
        for at, value in new:
            self.points.append((at, value))
            self._trial.report(value, at)
        return bool(new) and self._trial.should_prune()


def curve_of(place: Path) -> list[tuple[int, float]]:
    """A run's curve so far: after so many episodes the mean reward of the last fifth of them (at
    least five), or after so many steps the mean return of the last 100 games."""
    rows = progress(place)
    if rows:
        return [(int(row["steps"]), row[_RETURN]) for row in rows if _RETURN in row]
    path = place / "metrics.jsonl"
    lines = json_lines(path.read_bytes()) if path.exists() else ()
    rewards = [json.loads(line)["mean_leaf_reward"] for _, line in lines]
    return [
        (at, fmean(rewards[max(0, at - max(5, at // 5)) : at])) for at in range(1, len(rewards) + 1)
    ]


def spent_in(place: Path) -> float:
    """Dollars of a run and its evaluations, as their journals say."""
    found = place.glob("**/journal.jsonl")
    return sum(books(journal.read(path)).cost_usd for path in found)


def _train(asked: Asked, curve: Curve | None) -> bool:
    """Plays a run to its end, or goes on with it; whether it was pruned."""
    if is_run(asked.place):
        if finished(list(journal.read(asked.place / "journal.jsonl"))):
            return False
        args = ["resume", str(asked.place)]
    else:
        args = ["run", "--config", str(asked.folder / "trial.yaml"), "--seed", str(asked.seed)]
        args += ["--run-dir", str(asked.place)]
        args += [] if asked.usd is None else ["--budget", str(asked.usd * RUNS_SHARE)]
    code, pruned = _process(args, asked, curve)
    if not pruned:
        _check(code, asked)
    return pruned


def _judged(asked: Asked, how: MeasureConfig, split: str) -> float:
    """A finished run's value."""
    if read_config(asked.place).get("backend") == "ppo":
        return curve_of(asked.place)[-1][1]
    args = ["evaluate", str(asked.place), "--split", split, "--no-compare"]
    args += [] if how.samples is None else ["--samples", str(how.samples)]
    args += [] if how.episodes is None else ["--episodes", str(how.episodes)]
    args += [] if asked.usd is None else ["--budget", str(asked.usd * (1 - RUNS_SHARE))]
    _check(_process(args, asked, None)[0], asked)
    found = max((asked.place / EVALUATIONS).glob(f"{split}*/summary.json"), key=_written)
    summary = Summary.model_validate_json(found.read_bytes())
    value = summary.mean_trajectory_reward if how.samples else summary.mean_reward
    if value is None:
        raise OrchestryError(
            f"{found.parent} has no finished episode, since its part of the cap is too small: "
            "raise budget_usd, or lower trials, seeds or measure.episodes"
        )
    return value


def _check(code: int, asked: Asked) -> None:
    """Raises Stop or OrchestryError for a command that did not come to its end or its budget."""
    if code == 130:
        raise Stop("interrupted", "interrupted: the same command goes on")
    if code == 4:
        raise Stop("away", "the server stayed away: the same command goes on")
    if code not in (0, 3):
        raise OrchestryError(_last_line(asked.folder / LOG))


def _process(args: Sequence[str], asked: Asked, curve: Curve | None) -> tuple[int, bool]:
    """Runs a command of ours, and stops it in order if its curve says so; its exit code, and
    whether it was stopped. What it says is kept in the trial's log."""
    pruned = False
    with (asked.folder / LOG).open("ab") as log:
        command = [sys.executable, "-m", "orchestry", *args, "--trust"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while process.poll() is None:
                if curve is not None and not pruned and curve.look(asked.place):
                    pruned = True
                    process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
        except KeyboardInterrupt:  # the terminal told the process too
            process.wait()
            return 130, False
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if curve is not None and not pruned:
        curve.look(asked.place)
    return process.returncode, pruned


def raw_config(config: SweepConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The run's config with a trial's settings, as a file for `--config` holds it."""
    found: dict[str, Any] = json.loads(json.dumps(by_role(dict(config.run))))
    for key, value in settings.items():
        put_key(found, key, value)
    return found


def trial_config(config: SweepConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The same, checked. Raises ConfigError."""
    return validate(raw_config(config, settings))


def corners(config: SweepConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings that show whether a run takes them: each key at its ends or choices, by key."""
    ends = {
        key: what.choices if isinstance(what, Choices) else (what.low, what.high)
        for key, what in config.keys.items()
    }
    first = {key: values[0] for key, values in ends.items()}
    for key, values in ends.items():
        yield from ((key, {**first, key: value}) for value in values)


def suggested(trial: Trial, key: str, what: Range | Choices) -> Any:
    """The sampler's value for a key."""
    if isinstance(what, Choices):
        return trial.suggest_categorical(key, what.choices)
    if isinstance(what.low, int) and isinstance(what.high, int):
        step = int(what.step or 1)
        return trial.suggest_int(key, what.low, what.high, step=step, log=what.log)
    return trial.suggest_float(key, what.low, what.high, step=what.step, log=what.log)


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


def _tried(plain: Mapping[str, Any]) -> Tried:
    runs = tuple(Played(**run) for run in plain["runs"])
    curve = tuple((int(at), float(value)) for at, value in plain["curve"])
    return Tried(**{**plain, "runs": runs, "curve": curve})


def _spent(trial: FrozenTrial) -> float:
    """Dollars of a trial that ended; of one that goes on, what is reserved for it. One that was cut
    off counts where it goes on."""
    if tried := trial.user_attrs.get("tried"):
        return float(sum(run["usd"] for run in tried["runs"]))
    return 0.0 if trial.state.is_finished() else float(trial.user_attrs.get("usd", 0.0))


def _study(config: SweepConfig, folder: Path) -> Study:
    """The study in its storage, with the sampler and the pruner. Raises ConfigError."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"Optuna is not installed: `{install('sweep')}`") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    pruner = _made(optuna.pruners, "pruner", config.pruner, {})
    storage = config.storage or f"sqlite:///{folder.resolve() / 'study.db'}"
    with FileLock(folder / "study.lock"):  # two processes must not make its tables at once
        return optuna.create_study(
            storage=storage,
            study_name=folder.name,
            sampler=_sampler(config, 0),
            pruner=pruner,
            direction="maximize",
            load_if_exists=True,
        )


def _sampler(config: SweepConfig, trial: int) -> Any:
    from optuna import samplers

    return _made(samplers, "sampler", config.sampler, {"seed": derive(config.seed, trial) % 2**32})


def _made(module: Any, key: str, named: Named, usual: Mapping[str, Any]) -> Any:
    """An object of a class that the config names."""
    known = [n for n in dir(module) if n.endswith(key.title()) and not n.startswith("Base")]
    if named.name not in known:
        raise ConfigError(unknown(f"{key} of Optuna", named.name, known))
    made = getattr(module, named.name)
    takes = signature(made).parameters
    given = {name: value for name, value in usual.items() if name in takes}
    try:
        return made(**{**given, **named.arguments})
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigError(f"config key '{key}': {named.name}: {error}") from None


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns


def _last_line(log: Path) -> str:
    """What a command said last."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("orchestry: ") if lines else "it said nothing"
