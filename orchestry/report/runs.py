"""Run directories for reports: readable parts, measurements, labels, arms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError, OrchestryError, StoreError
from orchestry.core.files import json_lines, read_yaml
from orchestry.core.resolve import Mark, leaves, marks
from orchestry.report.measures import Measures, measured
from orchestry.report.text import left_out
from orchestry.store import journal
from orchestry.store.checkpoints import DISTILLED
from orchestry.store.collapse import Glance, collapses, glance
from orchestry.store.games import Evaluation, kept
from orchestry.store.journal import Event, Learned, Opened
from orchestry.store.measurements import BASELINES, EVALUATIONS, FORMS, Measurement
from orchestry.store.progress import Row, readable
from orchestry.store.recipes import STAGES
from orchestry.store.records import EpisodeRecord, Summary
from orchestry.store.run import Run, committed, committed_episodes, existing
from orchestry.store.summary import books, end_of, summarise_journal


@dataclass(frozen=True, slots=True)
class Experiment:
    """A run and its measurements."""

    label: str
    """Short and unique in a report, for tables and legends."""
    run: Salvaged
    evaluations: Mapping[str, Salvaged]
    """By folder name under RUN/evaluations/."""
    baselines: Mapping[str, Salvaged]
    """By folder name under RUN/baselines/."""
    missing: tuple[str, ...] = ()
    """What is missing and a reader must know, one sentence per item."""


def read_experiments(
    folders: Sequence[Path], reader: Callable[[Path], Salvaged] | None = None
) -> tuple[Experiment, ...]:
    """The runs in these folders, in the given order, with their measurements. `reader`: in place of
    Salvaged.

    Raises ConfigError without a folder, for a folder without a run, and for a repeated one;
    StoreError if nothing of a run can be read. Unfinished or partly damaged runs are no error:
    `missing` names the gaps.
    """
    if not folders:
        raise ConfigError("no run is given: name the directories that `orchestry run` printed")
    places = [folder.resolve() for folder in folders]
    twice = [
        folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1
    ]
    if twice:
        raise ConfigError(f"{twice[0]} is given twice: name each run once")
    reader = reader or Salvaged
    runs = [_read(folder, reader) for folder in folders]
    named = [place.name for place in places]
    if {place.parent.name for place in places} == {STAGES}:
        named = unique(named)  # stages differ by what they do
    else:
        named = run_labels([run.config for run in runs], named)
    return tuple(_around(run, label, reader) for run, label in zip(runs, named, strict=True))


def _read(folder: Path, reader: Callable[[Path], Salvaged]) -> Salvaged:
    run = reader(existing(folder))
    _ = run.config, run.events  # unreadable runs are reported before anything is written
    return run


def _around(run: Salvaged, label: str, reader: Callable[[Path], Salvaged]) -> Experiment:
    missing = list(run.missing)
    evaluations = _inside(run.folder / EVALUATIONS, missing, reader)
    baselines = _inside(run.folder / BASELINES, missing, reader)
    return Experiment(label, run, evaluations, baselines, tuple(missing))


def _inside(
    folder: Path, missing: list[str], reader: Callable[[Path], Salvaged]
) -> dict[str, Salvaged]:
    """The runs in a run's subfolder, by name; gaps are added to `missing`."""
    found = {}
    places = [place for place in folder.iterdir() if place.is_dir()] if folder.is_dir() else []
    for place in sorted(places):
        where = f"{folder.name}/{place.name}"
        stage = Measurement.parse(place.name)
        if stage is None or (stage.baseline is None) != (folder.name == EVALUATIONS):
            missing.append(f"{where} is left out: its name is not of the form {FORMS}")
            continue
        try:
            run = _read(place, reader)
        except OrchestryError as error:
            missing.append(f"{where} is left out: {error}")
            continue
        missing += [f"{where}: {'; '.join(run.missing)}"] if run.missing else []
        found[place.name] = run
    return found


class Salvaged(Run):
    """A run that may be unfinished, still running, or damaged: bad lines are skipped and named.

    Raises StoreError for a journal of another version, or without a readable line.
    """

    @cached_property
    def events(self) -> list[Event]:
        """The journal's readable events, oldest first."""
        return self._journal[0]

    @cached_property
    def _all(self) -> list[EpisodeRecord]:
        """The finished episodes that can be read, in order."""
        return self._records[0]

    @cached_property
    def summary(self) -> Summary:
        """summary.json; `folded` if it can't be read, or a resume has not ended since."""
        return (self.written if self.ended else None) or self.folded

    @property
    def ended(self) -> bool:
        """Whether its last process came to an end in order. A distilled team is written whole."""
        return end_of(self.events) is not None or (self.folder / DISTILLED).is_file()

    @cached_property
    def folded(self) -> Summary:
        """A summary computed from journal and episodes, as if the run was interrupted here."""
        return summarise_journal(self.folder, self.config, books(self.events), self._all)

    @cached_property
    def measures(self) -> Measures | None:
        """The run's figures, computed once; None without a finished episode."""
        return measured(self)

    @cached_property
    def took(self) -> float:
        """Wall-clock seconds of all its processes."""
        return books(self.events).seconds

    @property
    def collapses(self) -> list[str]:
        """What its updates show of a collapse, in sentences."""
        return collapses(self.config, self.events, self.glances, self.batches).said()

    @cached_property
    def glances(self) -> dict[int, Glance]:
        """What is kept of each finished episode to look for a collapse, by its number."""
        return {record.episode: glance(record) for record in self.episodes}

    @property
    def batches(self) -> list[Row]:
        """The figures of each batch of backend ppo, oldest first; of another backend none."""
        return self._progress[0]

    @property
    def measured(self) -> list[Evaluation]:
        """Evaluations in new games, oldest first."""
        return self._evaluations[0]

    @cached_property
    def _evaluations(self) -> tuple[list[Evaluation], str]:
        return kept(self.folder)

    @cached_property
    def _progress(self) -> tuple[list[Row], str]:
        return readable(self.folder)

    @cached_property
    def written(self) -> Summary | None:
        """summary.json as it stands; None if it can't be read. Of a resumed run it is that of the
        process before, until it ends."""
        try:
            return super().summary
        except StoreError:
            return None

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """What is missing and a reader must know, one sentence per item."""
        faults = filter(None, (self._progress[1], self._evaluations[1]))
        lost = [f"damaged lines are left out: {damaged}" for damaged in faults]
        return (*self._journal[1], *self._records[1], *lost, *self._unfinished())

    @cached_property
    def _journal(self) -> tuple[list[Event], list[str]]:
        """Its readable events, and the faults of the others."""
        path = self.folder / "journal.jsonl"
        try:
            return list(journal.read(path)), []
        except StoreError as error:
            lines = journal.checksums(_whole(path.read_bytes()))
            found = [event for line, before in lines if (event := _event(line, before))]
            if not any(isinstance(e, Opened) and e.version == journal.VERSION for e in found):
                raise
            return found, [_left_out(error)]

    @cached_property
    def _records(self) -> tuple[list[EpisodeRecord], list[str]]:
        """The readable finished episodes, and the faults of the others."""
        wrong = list[str]()
        numbers = committed(self.events)
        try:
            found, _ = committed_episodes(self.folder, self.events)
        except StoreError as error:
            lines = json_lines((self.folder / "episodes.jsonl").read_bytes())
            there = [record for _, line in lines if (record := readable_episode(line))]
            found = {record.episode: record for record in there if record.episode in numbers}
            wrong.append(_left_out(error))
        if lost := numbers - found.keys():
            names = ", ".join(map(str, sorted(lost)))
            wrong.append(f"episodes.jsonl lacks what the journal calls finished: episode {names}")
        return [found[number] for number in sorted(found)], wrong

    def _unfinished(self) -> list[str]:
        if (self.folder / DISTILLED).is_file():  # written whole, and nothing was played in it
            return []
        found = [*(self._unstepped() if self.neural else self._unplayed())]
        if not self.neural and (lost := left_out(self.summary)):
            mark = ", so the means are partial" if self.summary.partial else ""
            found.append(f"in no mean are {lost}{mark}")
        if end_of(self.events) is None:
            found.append("its process has not ended in order: it still runs, or was cut off")
        if self.written is None:
            instead = (
                "progress.jsonl is read" if self.neural else "the journal's answers are summed"
            )
            found.append(f"it has no readable summary.json: {instead} here")
        return found

    def _unplayed(self) -> Iterator[str]:
        done, asked = len(self._all), self.config.get("episodes")
        if not done:
            yield "no episode is finished"
        elif isinstance(asked, int) and done < asked:
            yield f"{done} of {asked} episodes are finished"

    def _unstepped(self) -> Iterator[str]:
        """Of backend ppo."""
        if not self.batches:
            yield "no batch is finished"
            return
        steps, asked = int(self.batches[-1]["steps"]), self.config["ppo"]["steps"]
        kept = max((e.state["steps"] for e in self.events if isinstance(e, Learned)), default=0)
        if steps < asked:
            end = end_of(self.events)
            why = f", then it was {end.reason}" if end else ""
            yield f"{steps:,} of {asked:,} steps are played{why}"
        if kept < steps:
            yield f"its last checkpoint is of step {kept:,}: a resume plays what follows again"
        if not any("episode/reward" in row for row in self.batches):
            yield "no game has ended"


def _left_out(error: StoreError) -> str:
    return f"damaged lines are left out: {error}"


def _whole(data: bytes) -> list[bytes]:
    """The complete lines; an incomplete last line was cut off by a kill."""
    return data.split(b"\n")[:-1]


def _event(line: bytes, before: int) -> Event | None:
    try:
        return journal.decode(line, before)
    except ValueError:
        return None


def readable_episode(line: bytes) -> EpisodeRecord | None:
    """The episode of a line; None for a damaged one."""
    try:
        return EpisodeRecord.model_validate_json(line)
    except ValidationError:
        return None


def behaviors(folder: Path) -> list[dict[str, Any]]:
    """A run's library of behaviours on disk; empty if it learned nothing. Raises StoreError."""
    path = folder / "behaviors" / "library.yaml"
    try:
        return _library(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} can't be read ({' '.join(str(error).split())[:200]}): correct it or restore "
            "it from a copy"
        ) from None


@lru_cache(maxsize=64)
def _library(path: Path, written: int) -> list[dict[str, Any]]:
    """Read once per version of the file: a page that is watched asks every second."""
    return list(read_yaml(path).get("behaviors") or [])


_Config = Mapping[str, Any]
_PLAIN = ("task", "backend", "provider.model", "provider.name", "search.strategy", "baseline")
"""Keys shown by their value alone; for all others the name is shown too."""
_LAST = ("seed", "episodes")
"""Shown only if no other key distinguishes the runs."""
_KNOWN = ("", "learn", "options", "ppo", "sampling", "search")
"""Sections whose keys are clear without the section's name."""


def run_labels(configs: Sequence[_Config], folders: Sequence[str]) -> list[str]:
    """A unique label per run: its folder, and the settings in which it differs from the others.

    >>> one = {"task": "tldr", "seed": 0}
    >>> run_labels([one], ["a"]), run_labels([one, {**one, "seed": 1}], ["a", "b"])
    (['a'], ['a (seed 0)', 'b (seed 1)'])
    """
    told = zip(folders, _settings(configs), strict=True)
    return unique([f"{folder} ({said})" if said else folder for folder, said in told])


def _settings(configs: Sequence[_Config]) -> list[str]:
    """The settings in which each differs from the others; '' if none differs."""
    flat = [telling_settings(config) for config in configs]
    keys = _fewest(flat)
    return [", ".join(in_words(key, one[key]) for key in keys if key in one) for one in flat]


def unique(found: Sequence[str]) -> list[str]:
    """Repeated labels get their position, from 1."""
    return [
        f"{label} #{number}" if found.count(label) > 1 else label
        for number, label in enumerate(found, start=1)
    ]


def telling_settings(config: _Config) -> dict[str, Any]:
    """The settings, by dotted key, that may affect results."""
    foreign = () if config.get("backend") == "ppo" else ("ppo.",)
    return {
        key: value
        for key, value in leaves(config)
        if Mark.OPERATIONAL not in marks(RunConfig, key) and not key.startswith(foreign)
    }


def _fewest(flat: Sequence[_Config]) -> list[str]:
    """The fewest differing keys that distinguish the runs."""
    chosen = list[str]()
    known = 1
    for key in differing(flat):
        told = len({tuple(repr(one.get(k)) for k in (*chosen, key)) for one in flat})
        if told > known:
            chosen, known = [*chosen, key], told
    return chosen


def differing(flat: Sequence[_Config]) -> list[str]:
    """Keys whose values differ between flat configs, the most informative first."""
    keys = dict.fromkeys(key for one in flat for key in one)
    found = [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]
    return sorted(found, key=lambda key: (key not in _PLAIN, key in _LAST, key == "episodes"))


def in_words(key: str, value: Any) -> str:
    """A setting in words.

    >>> in_words("agents.agent_3.plays", ["guard", "/home/me/runs/first"])
    'agent 3 plays guard or first'
    """
    values = value if isinstance(value, list) else [value]
    text = " or ".join(map(_short, values)) if values else "none"
    if key in _PLAIN:
        return text
    section, _, name = key.rpartition(".")
    whole = name if section in _KNOWN else key.removeprefix("agents.")
    return f"{whole.replace('_', ' ').replace('.', ' ')} {text}"


def _short(value: Any) -> str:
    large = isinstance(value, int) and value >= 10_000
    return f"{value:,}" if large else place_name(str(value))[:40]


def place_name(text: str) -> str:
    """Of a path its name; of a checkpoint's after that of its run.

    >>> place_name("guard"), place_name("/runs/first"), place_name("/runs/a/checkpoints/000003.pt")
    ('guard', 'first', 'a 000003.pt')
    """
    return text.replace("/checkpoints/", " ").rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Arm:
    """One setting, played with one or more seeds."""

    label: str
    number: int
    """Its position in the report, from 0; decides its colour in every figure."""
    experiments: tuple[Experiment, ...]

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.experiments[0].run.config.get("task"))

    @property
    def runs(self) -> list[Salvaged]:
        """Runs with a finished episode."""
        return [one.run for one in self.experiments if one.run.episodes]

    @property
    def learners(self) -> list[Salvaged]:
        """Runs of backend ppo with a finished batch."""
        return [one.run for one in self.experiments if one.run.neural and one.run.batches]

    @property
    def seeds(self) -> list[Any]:
        """The seed of each of its runs."""
        return [one.run.config.get("seed") for one in self.experiments]


def arms(experiments: Sequence[Experiment]) -> tuple[Arm, ...]:
    """The arms in order of their first runs."""
    found: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        found.setdefault(_but_for_the_seed(experiment), []).append(experiment)
    groups = list(found.values())
    told = _settings([{**group[0].run.config, "seed": None} for group in groups])
    named = [_named(group, said) for group, said in zip(groups, told, strict=True)]
    return tuple(
        Arm(label, number, tuple(group))
        for number, (label, group) in enumerate(zip(unique(named), groups, strict=True))
    )


def _named(group: Sequence[Experiment], said: str) -> str:
    """A single run has its own label; several seeds get what distinguishes them from other arms."""
    first = group[0]
    return first.label if len(group) == 1 else said or str(first.run.config.get("task", "runs"))


def by_task(found: Sequence[Arm]) -> Mapping[str, tuple[Arm, ...]]:
    """Arms by task, because rewards of different tasks can't be compared."""
    tasks = dict.fromkeys(arm.task for arm in found)
    return {task: tuple(arm for arm in found if arm.task == task) for task in tasks}


def _but_for_the_seed(experiment: Experiment) -> str:
    return repr(sorted(telling_settings({**experiment.run.config, "seed": None}).items()))
