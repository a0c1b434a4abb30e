"""Sweeps: trials of settings, proposed and pruned by Optuna, each a run directory.

One process plays a sweep. A trial's runs are processes of their own (engine.trials), so that one
can be stopped by its curve, and a killed one resumed. Before a trial begins, its part of what is
left of the cap is set aside; the ledgers of its runs keep to that.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from inspect import signature
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import yaml
from filelock import FileLock, Timeout

from orchestry.core.config import RunConfig, validate
from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, OrchestryError, unknown
from orchestry.core.files import write_atomic
from orchestry.core.resolve import by_role, leaves, put_key
from orchestry.core.seeds import derive
from orchestry.core.sweep import Choices, MeasureConfig, Named, Range, SweepConfig
from orchestry.engine.trials import (
    Asked,
    Curve,
    Note,
    Stop,
    await_writers,
    ends_in_order,
    is_whole,
    play_run,
    spent_in,
)
from orchestry.engine.trust import remember

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

FAILURES = 3
"""So many failed trials in a row stop the sweep."""
ENOUGH = 20
"""Whole trials from which on the keys' importance is computed."""
TRIALS, SWEEP, BEST, CONFIRM, LOCK = (
    "trials.jsonl",
    "sweep.json",
    "best.yaml",
    "confirm",
    "sweep.lock",
)
"""In the sweep's folder."""
PINNED = "trial.json"
"""In confirm/best: which trial is confirmed."""
_FOLDER = re.compile(r"trial-\d{4,6}")
_DECIDE = ("run", "keys", "seeds", "measure")
"""What a sweep's trials have in common; the rest may change when it goes on."""


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
    stopped: str = ""
    """What stopped at its budget: `run`, `evaluation` or `run and evaluation`."""


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
    """Of its first run: episodes, and the running mean of the reward."""
    why: str = ""


class Sweep:
    """A sweep in its folder, which one process plays at a time."""

    study: Study

    def __init__(
        self,
        config: SweepConfig,
        folder: Path,
        note: Note,
        *,
        trust: bool = False,
        confirmed: bool = False,
    ) -> None:
        """`trust`: the person passed --trust, and its runs pass it on. `confirmed`: the person was
        asked about other people's places in the config (`engine.trust.check_trust`); its runs then
        use them. Raises ConfigError for settings that no run takes, and without Optuna."""
        self.config, self.folder, self.note = config, folder, note
        self._trust, self._confirmed = trust, confirmed
        for key, settings in corners(config):
            try:
                trial_config(config, settings)
            except ConfigError as error:
                where = f"keys.{key}" if key else "run"
                raise ConfigError(f"config key '{where}': {error}") from None
        _check_folder(folder)
        _classes(config)

    def play(self) -> str:
        """Plays what is missing of all trials; why it ended, in the words of `Stopped`.

        Raises ConfigError while another process plays the sweep, for a folder of another sweep, and
        for a sampler that lacks a package."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / LOCK, timeout=0), ends_in_order():
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
        self.study = _study(self.config, self.folder)
        now = json.loads(json.dumps(self.config.model_dump(mode="json", include=set(_DECIDE))))
        before = self.study.user_attrs.get("asked")
        if before is None:
            self.study.set_user_attr("asked", now)
        elif before != now:
            raise ConfigError(
                f"{self.folder} holds another sweep: {_differing(before, now)}: choose another "
                "--dir (trials, budget_usd, confirm, sampler and pruner may change)"
            )

    def _ended(self) -> str:
        try:
            await_writers(self.folder, self.note)
            self._play_trials()
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
        failures = 0
        for trial, settings in self._missing():
            tried = self._try(trial, settings)
            failures = failures + 1 if tried.state == "failed" else 0
            self.write()
            if failures == FAILURES:
                raise Stop("failed", f"{FAILURES} trials in a row failed: {tried.why}")

    @property
    def tried(self) -> list[Tried]:
        """The trials that ended, in order."""
        found = [trial.user_attrs.get("tried") for trial in self.study.get_trials(deepcopy=False)]
        return [_tried(one) for one in found if one]

    @property
    def best(self) -> Tried | None:
        """The trial with the highest value; the first, if tied."""
        whole = [one for one in self.tried if one.value is not None]
        return max(whole, key=lambda one: (one.value, -one.number), default=None)

    def write(self) -> None:
        """Writes trials.jsonl, sweep.json, and best.yaml once there is a best trial."""
        lines = "".join(json.dumps(asdict(one)) + "\n" for one in self.tried)
        write_atomic(self.folder / TRIALS, lines.encode())
        found = {**self._plain(), "importance": self._importance(), "usd": spent_in(self.folder)}
        if best := self.best:
            found["same"] = self._as_given(best.settings)
            text = yaml.safe_dump(raw_config(self.config, best.settings), sort_keys=False)
            write_atomic(self.folder / BEST, text.encode())
        write_atomic(self.folder / SWEEP, json.dumps(found).encode())

    def _plain(self) -> dict[str, Any]:
        plain = self.config.model_dump(mode="json")
        return {"sweep": plain, "importance": {}, "usd": 0.0, "same": False}

    def _as_given(self, settings: Mapping[str, Any]) -> bool:
        """Whether settings make the run as it was given."""
        return trial_config(self.config, settings) == trial_config(self.config, {})

    def _importance(self) -> dict[str, float]:
        """How much each key matters for reaching the best tenth of trials (PED-ANOVA, Watanabe et
        al., arXiv 2304.10255), summing to 1; empty below ENOUGH whole trials."""
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        values = [one.value for one in self.tried if one.value is not None]
        if len(values) < ENOUGH or len(set(values)) < 2:
            return {}
        return dict(get_param_importances(self.study, evaluator=PedAnovaImportanceEvaluator()))

    def _missing(self) -> Iterator[tuple[Trial, dict[str, Any]]]:
        """Trials that a killed process left, then new ones, up to the number asked for."""
        from optuna.trial import TrialState

        for left in self.study.get_trials(states=(TrialState.RUNNING,)):
            name = str(left.user_attrs.get("folder", ""))
            self.study.tell(left.number, state=TrialState.FAIL)
            if _FOLDER.fullmatch(name) and (self.folder / name).is_dir():
                self.study.enqueue_trial(left.params, user_attrs={"folder": name})
        sampler = self.config.sampler.model_dump(mode="json")
        while self._begun() < self.config.trials:
            if self.study.user_attrs.get("over") == sampler:
                return
            yield self._asked()

    def _asked(self) -> tuple[Trial, dict[str, Any]]:
        """The next trial. Raises ConfigError if the sampler lacks a package."""
        from optuna.trial import TrialState

        # Seeded by the trial: a process that goes on draws what this one would have drawn.
        self.study.sampler = _sampler(self.config, len(self.study.get_trials(deepcopy=False)))
        try:
            trial = self.study.ask()
            if "folder" not in trial.user_attrs:
                trial.set_user_attr("folder", f"trial-{trial.number:04d}")
            keys = self.config.keys.items()
            return trial, {key: suggested(trial, key, what) for key, what in keys}
        except ImportError as error:
            for one in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                self.study.tell(one.number, state=TrialState.FAIL)
            raise _lacking("sampler", self.config.sampler, error) from None

    def _begun(self) -> int:
        """Trials that count: not failed ones, nor those that wait in the queue."""
        from optuna.trial import TrialState

        counted = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        return len(self.study.get_trials(deepcopy=False, states=counted))

    def _try(self, trial: Trial, settings: Mapping[str, Any]) -> Tried:
        """Plays a trial's runs one after the other, and tells the study."""
        folder = self.folder / str(trial.user_attrs["folder"])
        folder.mkdir(exist_ok=True)
        part = self._part()
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
        try:
            self.study.tell(trial, found.value, state=states.get(found.state, TrialState.FAIL))
        except RuntimeError:  # study.stop(), which is for optimize: the sampler has no more
            if not self.study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                raise
            self.study.set_user_attr("over", self.config.sampler.model_dump(mode="json"))
            self.note(f"{self.config.sampler.name} has tried everything")
        value = "" if found.value is None else f", value {found.value:.4g}"
        dollars = f", ${sum(run.usd for run in found.runs):.4f}"
        cut = " (stopped at its part of the cap)" if any(run.stopped for run in found.runs) else ""
        why = f": {found.why}" if found.why else ""
        self.note(f"trial {found.number}: {found.state}{value}{dollars}{cut}{why}")

    def _runs(
        self, folder: Path, settings: Mapping[str, Any], part: float | None, curve: Curve
    ) -> Iterator[Played]:
        """A trial's runs, until one is pruned."""
        self._prepare(folder, settings)
        first = trial_config(self.config, settings).seed
        own = None if part is None else part / self.config.seeds
        for seed in range(first, first + self.config.seeds):
            asked = self._run(folder, seed, own)
            how = self.config.measure
            found = play_run(asked, how, how.split, curve if seed == first else None)
            name, usd = str(asked.place.relative_to(self.folder)), spent_in(asked.place)
            yield Played(name, seed, found.value, usd, found.stopped)
            if found.value is None:
                return

    def _prepare(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Writes the config of a trial's runs."""
        file = folder / "trial.yaml"
        file.write_text(yaml.safe_dump(raw_config(self.config, settings)))
        if self._confirmed:
            remember(trial_config(self.config, settings), file)

    def _run(self, folder: Path, seed: int, usd: float | None) -> Asked:
        budget = self.config.run.get("budget") or {}
        return Asked(folder, seed, usd, budget.get("usd"), self._trust)

    def _left(self) -> float | None:
        """Dollars left of the cap; None: there is none. Raises Stop at 0."""
        if (cap := self.config.budget_usd) is None:
            return None
        left = cap - spent_in(self.folder)
        if left < 0 or left == 0 < cap:
            raise Stop("budget", f"the sweep's cap of ${cap:g} is spent: raise budget_usd")
        return left

    def _part(self) -> float | None:
        """Dollars that the next trial may spend: what is left, in even parts. Raises Stop at 0."""
        if (left := self._left()) is None:
            return None
        to_come = max(1, self.config.trials - self._begun() + 1)
        units = to_come * self.config.seeds + 2 * self.config.confirm.seeds
        return left * self.config.seeds / max(1, units)

    def _confirm(self) -> None:
        """Plays the best setting and the run as it was given, with seeds that no trial had."""
        asked, best = self.config.confirm, self._pinned()
        if not asked.seeds or best is None:
            return
        seed = trial_config(self.config, {}).seed + self.config.seeds
        seeds = range(seed, seed + asked.seeds)
        sides = {self.folder / CONFIRM / "given": {}, self.folder / CONFIRM / "best": best}
        runs = [(folder, each) for each in seeds for folder in sides]
        how = MeasureConfig(samples=asked.samples)
        todo = [one for one in runs if not is_whole(Asked(*one), asked.split, asked.samples)]
        for folder in {folder for folder, _ in todo}:
            self._prepare(folder, sides[folder])
        try:
            for place, (folder, each) in enumerate(todo):
                self.note(f"confirming: {folder.name}, seed {each}")
                left = self._left()
                part = None if left is None else left / (len(todo) - place)
                own = replace(self._run(folder, each, part), raised=True)
                play_run(own, how, asked.split, None)
        except OrchestryError as error:
            raise Stop("failed", f"the best could not be confirmed: {error}") from None

    def _pinned(self) -> Mapping[str, Any] | None:
        """The settings that are confirmed: those with which it began, else the best ones; None if
        there is nothing to confirm."""
        place = self.folder / CONFIRM
        path = place / "best" / PINNED
        if path.is_file():
            found: Mapping[str, Any] = json.loads(path.read_bytes())["settings"]
            return found
        if not self.config.confirm.seeds or (best := self.best) is None:
            return None
        if self._as_given(best.settings):
            self.note("the best setting is the run as it was given: there is nothing to confirm")
            return None
        for name in ("given", "best"):
            (place / name).mkdir(parents=True, exist_ok=True)
        pinned = {"trial": best.number, "settings": best.settings}
        write_atomic(path, json.dumps(pinned).encode())
        return best.settings


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


def _check_folder(folder: Path) -> None:
    """Raises ConfigError for a folder that holds other things than a sweep."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--dir {folder} is a file: choose a folder for the sweep")
    held = {path.name for path in folder.iterdir()} - {LOCK} if folder.is_dir() else set()
    if held and SWEEP not in held:
        raise ConfigError(
            f"--dir {folder} is not empty and holds no sweep (no {SWEEP}): choose another folder"
        )


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Which keys differ, with both values, the first three."""
    first, second = dict(leaves(before)), dict(leaves(now))
    odd = [key for key in first | second if first.get(key) != second.get(key)]
    found = [
        f"{key} was {first.get(key, 'not given')!r} and is {second.get(key, 'not given')!r}"
        for key in odd[:3]
    ]
    return "; ".join([*found, *([f"and {len(odd) - 3} more"] if len(odd) > 3 else [])])


def _classes(config: SweepConfig) -> tuple[Any, Any]:
    """The sampler and the pruner. Raises ConfigError."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"Optuna is not installed: `{install('sweep')}`") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return _sampler(config, 0), _made(optuna.pruners, "pruner", config.pruner, {})


def _study(config: SweepConfig, folder: Path) -> Study:
    """The study in study.db, with the sampler and the pruner."""
    import optuna
    from sqlalchemy import URL

    sampler, pruner = _classes(config)
    url = URL.create("sqlite", database=str(folder.resolve() / "study.db")).render_as_string()
    return optuna.create_study(
        storage=url.replace("{", "{{").replace("}", "}}"),  # Optuna formats it
        study_name="sweep",
        sampler=sampler,
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
    except ImportError as error:
        raise _lacking(key, named, error) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"config key '{key}': {named.name}: {error}") from None


def _lacking(key: str, named: Named, error: ImportError) -> ConfigError:
    """The message for a package that a class of Optuna needs."""
    cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
    package = (cause.name or error.name or "").partition(".")[0]
    what = f"the package {package}: `pip install {package}`" if package else f"a package: {error}"
    return ConfigError(
        f"config key '{key}': {named.name} needs {what}, then the same command goes on"
    )
