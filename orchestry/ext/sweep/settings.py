"""SweepConfig: which settings are tried, how many trials, what they may cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from orchestry.core.errors import ConfigError
from orchestry.core.executor import ExecutorName
from orchestry.core.resolve import Mark, explain_fault, read_config_file, refuse_secrets
from orchestry.core.types import Frozen

Choice = str | int | float | bool | None


class Range(Frozen):
    """Numbers from which a setting is drawn."""

    low: int | float
    """The lowest. If both ends are whole numbers, all values are."""
    high: int | float
    """The highest, included."""
    log: bool = False
    """Whether to draw evenly in the logarithm."""
    step: float | None = Field(None, gt=0.0)
    """Distance between two values. None: any value; of whole numbers 1."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low={self.low:g} is not below high={self.high:g}: swap them")
        if self.log and (self.low <= 0 or self.step):
            raise ValueError("log takes low > 0, and no step: leave one of them out")
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        if whole and self.step and not self.step.is_integer():
            raise ValueError(
                f"step={self.step:g} is not whole, and low and high are: give a whole step, or "
                f"low: {float(self.low)}"
            )
        return self


class Choices(Frozen):
    """Values from which a setting is chosen."""

    choices: tuple[Choice, ...] = Field(min_length=2)


def _tried(raw: Any, parse: ValidatorFunctionWrapHandler) -> Any:
    """A bare list is a list of choices. What is neither gets one message, not one of each model."""
    try:
        return parse({"choices": raw} if isinstance(raw, list | tuple) else raw)
    except ValidationError as error:
        own = [fault["ctx"]["error"] for fault in error.errors() if fault["type"] == "value_error"]
        takes = "give a list of at least two values, or a range such as {low: 1, high: 8}"
        raise ValueError(
            own[0] if own else f"{takes} (log: true or step: 2 may be added)"
        ) from None


class Named(Frozen):
    """A class of Optuna, by name, and what its constructor takes."""

    name: str
    arguments: Mapping[str, Any] = Field(default_factory=dict)


def _named(raw: Any) -> Any:
    """A bare text is the class's name."""
    return {"name": raw} if isinstance(raw, str) else raw


STORAGE = "ORCHESTRY_STORAGE"
"""The environment variable that is read instead of the key `storage`, and never written."""


def _bare(url: str) -> str:
    """Raises ConfigError, which does not show the address, for one that may hold a password."""
    _, found, rest = url.partition("://")
    if not found:
        raise ConfigError(
            "config key 'storage' is no URL: give one such as postgresql+psycopg://HOST/DATABASE"
        )
    if set("#\\") & set(url) or url.split() != [url]:
        raise ConfigError(
            "config key 'storage' holds a blank, '#' or '\\', which programs read differently: "
            "leave it out"
        )
    if ":" in rest.rpartition("@")[0] or "?" in url:
        raise ConfigError(
            "config key 'storage' has a password or a query, which would be written to disk: leave "
            "them out, and give the password in PGPASSWORD or ~/.pgpass, or export the whole "
            f"address as {STORAGE}"
        )
    return url


class MeasureConfig(Frozen):
    """What a finished run is judged by. Test problems are for the end."""

    split: Literal["dev", "train"] = "dev"
    """The problems on which each run's team is evaluated."""
    samples: int | None = Field(None, ge=1, le=64)
    """Independent trajectories per problem; None: the run's own search."""
    episodes: int | None = Field(None, ge=1)
    """The first so many problems; None: all. Of backend ppo: new games; None: 1,000."""


class ConfirmConfig(Frozen):
    """The best setting beside the run as it was given, on seeds and problems of their own."""

    seeds: int = Field(0, ge=0, le=100)
    """Runs of each, with seeds that no trial had; 0: nothing is confirmed."""
    split: Literal["test", "dev"] = "test"
    """The problems on which both are evaluated."""
    samples: int | None = Field(None, ge=1, le=64)
    """Independent trajectories per problem; None: the run's own search."""


class SweepConfig(Frozen):
    """One sweep. Raises ConfigError with one line per fault, and for a secret."""

    run: Mapping[str, Any] = Field(default_factory=dict)
    """The config of each trial, as in a file for `--config`."""
    keys: Mapping[str, Annotated[Range | Choices, WrapValidator(_tried)]] = Field(min_length=1)
    """Config keys and what is tried for them: {low, high, log, step} or a list of values."""
    trials: int = Field(20, ge=1, le=100_000)
    """Settings that are tried, over all resumes."""
    seeds: int = Field(1, ge=1, le=100)
    """Runs per trial: `run.seed` and the seeds after it. Its value is their mean."""
    sampler: Annotated[Named, BeforeValidator(_named)] = Named(name="TPESampler")
    """Who proposes settings: a class of optuna.samplers."""
    pruner: Annotated[Named, BeforeValidator(_named)] = Named(name="MedianPruner")
    """Who stops a trial by the learning curve of its first run: a class of optuna.pruners;
    NopPruner stops none."""
    measure: MeasureConfig = MeasureConfig()
    confirm: ConfirmConfig = ConfirmConfig()
    budget_usd: float | None = Field(5.0, ge=0.0, le=1e9)
    """Hard cap in dollars over all runs and evaluations. None: no cap."""
    seed: int = Field(0, ge=0)
    """Of the sampler."""
    executor: Annotated[ExecutorName, Mark.ADDRESS] = "local"
    """Where runs go, and how many trials at once: `local` one, `processes:N` N on this machine,
    `ray` or `ray://HOST:PORT` as many as the Ray cluster holds."""
    storage: Annotated[str | None, AfterValidator(lambda url: url and _bare(url))] = None
    """The study's database, an SQLAlchemy URL of SQLite, PostgreSQL or MySQL, for several machines;
    None: study.db in the sweep's folder."""
    study: str | None = Field(None, min_length=1, max_length=200)
    """The study's name in `storage`, the same on all machines; None: the name of the sweep's
    folder."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for key in self.keys:
            if why := _refused(key):
                raise ConfigError(f"config key 'keys.{key}': {why}")
        if self.run.get("backend") == "ppo" and (self.confirm.seeds or self.measure.samples):
            raise ConfigError(
                "config keys 'confirm.seeds' and 'measure.samples' are of problems, and backend "
                "ppo plays games: leave them out; `orchestry run --config best.yaml --seed S` and "
                "`orchestry compare` play the best anew"
            )
        if str(self.run.get("executor", "")).startswith("ray"):
            raise ConfigError(
                "config key 'run.executor' is ray: the sweep's own key `executor` says where its "
                "runs are played, and a run that waits there for room would wait for itself: leave "
                "it out of `run`"
            )
        if self.run.get("recipe"):
            raise ConfigError(
                "config key 'run.recipe': a trial is one run, and a recipe several: leave it out"
            )
        confirm, train = self.confirm, str(self.run.get("split", "train"))
        seen = {self.measure.split: "measure.split", train: "run.split"}
        if confirm.seeds and confirm.split in seen:
            raise ConfigError(
                f"config key 'confirm.split' is {confirm.split}, and so is {seen[confirm.split]}: "
                "the best was chosen on these problems, so they confirm nothing: choose another "
                "split"
            )
        return self


_OTHERS = (
    "task",
    "task_path",
    "split",
    "backend",
    "seed",
    "problem",
    "recipe",
    "weights",
    "sandbox",
)
_HOW = ("executor", "ranks", "cache", "retry", "trackers", "prices")


def _refused(key: str) -> str:
    """Why a key can't be tried; '' if it can."""
    section = key.partition(".")[0]
    if section in _OTHERS:
        return (
            "trials with other values of it are measured otherwise, so their values can't be "
            "compared: put it into `run`"
        )
    if section == "budget":
        return "the sweep sets each run's cap from budget_usd: leave it out"
    if section in _HOW:
        return "it says how and where a run is played, not what it learns: put it into `run`"
    if section == "allow_unsafe_code":
        return "it decides what is safe, not what is good: put it into `run`"
    if key.endswith("base_url") or key == "learn.vllm_url":
        return "it is an address, and no setting: put it into `run`"
    return ""


def read_sweep(path: Path, changes: Mapping[str, Any] | None = None) -> SweepConfig:
    """The sweep in a YAML file, with some keys changed; raises ConfigError."""
    return sweep_of({**read_config_file(path), **(changes or {})}, str(path))


def sweep_of(raw: Mapping[str, Any], where: str) -> SweepConfig:
    """SweepConfig from plain data; raises ConfigError, which says `where` that stands."""
    refuse_secrets(raw, SweepConfig)
    try:
        return SweepConfig.model_validate(raw)
    except ValidationError as error:
        said = [explain_fault(fault, SweepConfig) for fault in error.errors()]
        raise ConfigError(f"{where}: {'; '.join(said)}") from None
