"""A sweep's study in its database: Optuna's trials, and the slices of the cap beside them.

Several machines may share it, each with a sweep folder of its own. What trials came to travels
through the study; their runs stay in the folder that played them, which alone takes them up again.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, OrchestryError, unknown
from orchestry.core.files import write_atomic
from orchestry.core.resolve import leaves
from orchestry.core.seeds import derive
from orchestry.ext.sweep.settings import STORAGE, Choices, Named, Range, SweepConfig
from orchestry.ext.sweep.slices import CONFIRM, Slices, State
from orchestry.ext.sweep.trials import spent_in
from orchestry.store.summary import NANO, nano

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, Trial

DECIDE = ("run", "keys", "seeds", "measure")
"""What a sweep's trials have in common; the rest may change when it goes on."""
OPENS = 5
"""Attempts to open the database: machines that create its tables at once disturb each other."""
WAIT_S = 120.0
"""How long SQLite waits while others write."""
_PACKAGES = {"postgresql": "psycopg[binary]", "mysql": "pymysql", "mariadb": "pymysql"}


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
    owner: str = ""
    """The sweep folder that played it."""


class Study:
    """A sweep's study, as one of its folders sees it."""

    def __init__(self, config: SweepConfig, folder: Path) -> None:
        """Opens it. Raises ConfigError if it is another sweep's, or can't be opened."""
        import optuna

        self._config, self._folder = config, folder
        classes(config)
        self._name = config.study or ("sweep" if own_file(config) else folder.resolve().name)
        opened = _opened(config, folder)
        self._storage = optuna.storages.get_storage(opened)
        self._study = optuna.create_study(
            storage=self._storage,
            study_name=self._name,
            direction="maximize",
            load_if_exists=True,
        )
        self._id = self._storage.get_study_id_from_name(self._name)
        now = json.loads(json.dumps(config.model_dump(mode="json", include=set(DECIDE))))
        self.slices = Slices(opened.engine, self._name, now)
        if self.slices.asked != now:
            raise ConfigError(
                f"{folder} holds another sweep: {_differing(self.slices.asked, now)}: choose "
                "another --dir, or `study` (trials, budget_usd, confirm, sampler and pruner may "
                "change)"
            )
        if any("owner" not in trial.user_attrs for trial in self.trials):
            raise ConfigError(
                f"{folder}: its study has trials of an earlier version, whose dollars are not in "
                "it: choose another --dir"
            )
        self.owner = _owner(folder, self.slices.id)

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials, in order."""
        return self._study.get_trials(deepcopy=False)

    @property
    def tried(self) -> list[Tried]:
        """The trials that ended, in order."""
        return [
            _tried(one.user_attrs["tried"], one.intermediate_values)
            for one in self.trials
            if "tried" in one.user_attrs
        ]

    @property
    def going(self) -> dict[int, str]:
        """The folders that play the trials that have not ended, by number."""
        open_ = [trial for trial in self.trials if not trial.state.is_finished()]
        return {trial.number: str(trial.user_attrs.get("owner", "?")) for trial in open_}

    def left(self) -> list[tuple[str, Trial, dict[str, Any]]]:
        """This folder's trials that were cut off: the keys of their slices, and their settings."""
        own = [one for one in self.trials if one.user_attrs.get("owner") == self.owner]
        return [
            (str(one.user_attrs["slice"]), *self._asked(one.number))
            for one in own
            if not one.state.is_finished()
        ]

    def ask(self, key: str) -> tuple[Trial, dict[str, Any]]:
        """A new trial with that slice, and its settings. Raises ConfigError if the sampler lacks a
        package."""
        from optuna.trial import TrialState, create_trial

        # `Study.ask` could neither write the owner in the same transaction, nor leave others' alone
        attrs = {"owner": self.owner, "slice": key}
        blank = create_trial(state=TrialState.RUNNING, user_attrs=attrs)
        made = self._storage.create_new_trial(self._id, blank)
        return self._asked(self._storage.get_trial(made).number)

    def _asked(self, number: int) -> tuple[Trial, dict[str, Any]]:
        """Raises ConfigError."""
        import optuna

        # Seeded by the trial: a process that goes on draws what this one would have drawn.
        sampler, pruner = classes(self._config, number)
        study = optuna.load_study(
            study_name=self._name, storage=self._storage, sampler=sampler, pruner=pruner
        )
        own = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        found = optuna.Trial(study, own)
        keys = self._config.keys.items()
        try:
            return found, {key: suggested(found, key, what) for key, what in keys}
        except ImportError as error:
            self._storage.set_trial_state_values(own, optuna.trial.TrialState.FAIL)
            raise _lacking("sampler", self._config.sampler, error) from None

    def tell(self, trial: Trial, found: Tried) -> bool:
        """Writes what a trial came to; whether the sampler has just tried everything."""
        from optuna.trial import TrialState

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
        plain = {name: value for name, value in asdict(found).items() if name != "curve"}
        trial.set_user_attr("tried", plain)  # the study has the curve; MySQL's texts end at 64 KiB
        study = trial.study
        try:
            study.tell(trial, found.value, state=states.get(found.state, TrialState.FAIL))
        except RuntimeError:  # study.stop(), which is for optimize: the sampler has no more
            if not study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                raise
            study.set_user_attr("over", self._config.sampler.model_dump(mode="json"))
            return True
        return False

    def give_up(self, owner: str) -> int:
        """What a folder that is lost for good had begun: its trials fail, others take their place,
        and another folder may confirm the best. What was reserved for it counts as spent. Returns
        the number of trials. Raises ConfigError for a name that no folder has, and for this one."""
        from optuna.trial import TrialState

        known = {row.owner for row in self.slices.all()} - {self.owner}
        if owner not in known:
            raise ConfigError(unknown("folder of this study", owner, sorted(known)))
        left = [number for number, other in self.going.items() if other == owner]
        for number in left:
            own = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
            self._storage.set_trial_state_values(own, TrialState.FAIL)
        self.slices.give_up(owner)
        return len(left)

    @property
    def over(self) -> bool:
        """Whether the sampler has tried everything."""
        sampler = self._config.sampler.model_dump(mode="json")
        return bool(self._study.user_attrs.get("over") == sampler)

    def renew(self) -> None:
        """Brings this folder's slices up to its journals."""
        known = dict[str, tuple[int, State]]()
        for one in self.trials:
            if one.user_attrs.get("owner") == self.owner:
                state: State = "ended" if one.state.is_finished() else "open"
                state = "failed" if one.state.name == "FAIL" else state
                spent = nano(spent_in(self._folder / folder_of(one.number)))
                known[one.user_attrs["slice"]] = spent, state
        for row in self.slices.all():
            if row.owner == self.owner and row.key.startswith(f"{CONFIRM}/"):
                known[row.key] = nano(spent_in(self._folder / row.key)), row.state
        self.slices.renew(self.owner, known, cap_of(self._config))

    def importance(self) -> dict[str, float]:
        """How much each key matters for reaching the best tenth of trials (PED-ANOVA, Watanabe et
        al., arXiv 2304.10255), summing to 1."""
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        return dict(get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator()))


def folder_of(number: int) -> str:
    """A trial's folder, in that of the sweep."""
    return f"trial-{number:04d}"


def cap_of(config: SweepConfig) -> int | None:
    """The cap in whole nano-dollars, never more than it is."""
    return None if config.budget_usd is None else int(round(config.budget_usd * NANO, 3))


def own_file(config: SweepConfig) -> bool:
    """Whether the study is in the sweep's folder."""
    return not (os.environ.get(STORAGE) or config.storage)


def _opened(config: SweepConfig, folder: Path) -> RDBStorage:
    """The database. Raises ConfigError, which does not show its address."""
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import ArgumentError, DBAPIError

    url, lite = _url(config, folder)
    options: dict[str, Any] = {"max_overflow": -1}  # as many connections as trials are played
    options |= {"connect_args": {"timeout": WAIT_S}} if lite else {"pool_pre_ping": True}
    for attempt in range(OPENS):
        try:
            # Optuna formats the address.
            return RDBStorage(url.replace("{", "{{").replace("}", "}}"), engine_kwargs=options)
        except (DBAPIError, StorageInternalError) as error:
            if attempt == OPENS - 1:
                why = f"the sweep's database can't be opened ({said_by(error)})"
                raise ConfigError(f"{why}: correct `storage` or {STORAGE}, or start it") from None
            time.sleep(0.2 * (attempt + 1))
        except ArgumentError:
            raise _no_address() from None
        except ImportError as error:
            kind = url.partition(":")[0].partition("+")[0]
            cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
            package = _PACKAGES.get(kind) or cause.name or "its driver"
            raise ConfigError(
                f"the sweep's database needs a driver: `pip install '{package}'`, and an address "
                f"that names it, such as {kind}+{package.partition('[')[0]}://HOST/DATABASE"
            ) from None
    raise AssertionError


def host_of(storage: str) -> str:
    """The server to which a storage's address connects, as `KIND://HOST:PORT`; '' is a file."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(storage)
    except ArgumentError:
        raise _no_address() from None
    port = f":{url.port}" if url.port else ""
    return f"{url.drivername}://{url.host}{port}" if url.host else ""


def _url(config: SweepConfig, folder: Path) -> tuple[str, bool]:
    """The database's address, and whether it is SQLite's."""
    from sqlalchemy import URL
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    url = os.environ.get(STORAGE) or config.storage
    if not url:
        file = URL.create("sqlite", database=str(folder.resolve() / "study.db"))
        return file.render_as_string(), True
    try:
        return url, make_url(url).get_backend_name() == "sqlite"
    except ArgumentError:
        raise _no_address() from None


def _no_address() -> ConfigError:
    return ConfigError(
        f"the sweep's database (`storage` or {STORAGE}) has no address of SQLAlchemy: give one "
        "such as postgresql+psycopg://HOST/DATABASE"
    )


@contextmanager
def in_words() -> Iterator[None]:
    """A database that does not answer is an error in words. Raises OrchestryError."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        why = f"the sweep's database does not answer ({said_by(error)})"
        raise OrchestryError(f"{why}: the same command goes on") from None


def said_by(error: BaseException) -> str:
    """A database's error, without the statement and its values."""
    cause = error if hasattr(error, "orig") else error.__cause__ or error
    lines = str(getattr(cause, "orig", None) or cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__


def _owner(folder: Path, study: str) -> str:
    """This folder's name in the study, the same on each start. Raises ConfigError for a folder of
    another study."""
    path = folder / "machine.json"
    if not path.is_file():
        name = f"{socket.gethostname()[:200]}-{uuid.uuid4().hex[:8]}"
        write_atomic(path, json.dumps({"owner": name, "study": study}).encode())
    found = json.loads(path.read_bytes())
    if found["study"] != study:
        raise ConfigError(
            f"{folder} belongs to another study: its database or name is another one now: give "
            "the earlier `storage` and `study`, or choose another --dir"
        )
    return str(found["owner"])


def suggested(trial: Trial, key: str, what: Range | Choices) -> Any:
    """The sampler's value for a key; of a trial that goes on, the one it has."""
    if isinstance(what, Choices):
        return trial.suggest_categorical(key, what.choices)
    if isinstance(what.low, int) and isinstance(what.high, int):
        step = int(what.step or 1)
        return trial.suggest_int(key, what.low, what.high, step=step, log=what.log)
    return trial.suggest_float(key, what.low, what.high, step=what.step, log=what.log)


def _tried(plain: Mapping[str, Any], curve: Mapping[int, float]) -> Tried:
    runs = tuple(Played(**run) for run in plain["runs"])
    return Tried(**{**plain, "runs": runs, "curve": tuple(sorted(curve.items()))})


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Which keys differ, with both values, the first three."""
    first, second = dict(leaves(before)), dict(leaves(now))
    odd = [key for key in first | second if first.get(key) != second.get(key)]
    found = [
        f"{key} was {first.get(key, 'not given')!r} and is {second.get(key, 'not given')!r}"
        for key in odd[:3]
    ]
    return "; ".join([*found, *([f"and {len(odd) - 3} more"] if len(odd) > 3 else [])])


_IN_ORDER = ("GridSampler", "QMCSampler")
"""They walk one order of all points, which their seed decides. Others draw anew for each trial, so
that a process that goes on draws what an uninterrupted one would have drawn."""


def classes(config: SweepConfig, trial: int = 0) -> tuple[Any, Any]:
    """The sampler of a trial, and the pruner. Raises ConfigError."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"Optuna is not installed: `{install('sweep')}`") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    if config.sampler.name == "CmaEsSampler" and not own_file(config):
        raise ConfigError(
            "config key 'sampler': CmaEsSampler keeps its state as a pickle in the study, and who "
            "writes to a shared storage could run code here: take another one, or leave out storage"
        )
    if config.sampler.name in _IN_ORDER:
        trial = 0
    usual = {"seed": derive(config.seed, trial) % 2**32}
    if config.executor != "local" or not own_file(config):
        usual["constant_liar"] = True  # trials that go on are not proposed again
    sampler = _made(optuna.samplers, "sampler", config.sampler, usual)
    return sampler, _made(optuna.pruners, "pruner", config.pruner, {})


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
