"""A run of which is read what can be read, with a word on what can't."""

from __future__ import annotations

from functools import cached_property

from pydantic import ValidationError

from orchestry.core.errors import StoreError
from orchestry.core.files import json_lines
from orchestry.report.measures import Measures, measured
from orchestry.store import journal
from orchestry.store.journal import Event, Opened
from orchestry.store.records import EpisodeRecord, Summary
from orchestry.store.run import Run, committed, committed_episodes
from orchestry.store.summary import books, summarise


class Salvaged(Run):
    """A run that may be unfinished, still written, or damaged: bad lines are left out and named.

    Raises StoreError for a journal of another version, and for one without a readable line.
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
        """summary.json; where the run has no readable one, what journal and episodes tell."""
        return self._written or summarise(self.folder, self.config, books(self.events), self._all)

    @cached_property
    def measures(self) -> Measures | None:
        """The run's figures, made once; None where it has no finished episode."""
        return measured(self)

    @cached_property
    def _written(self) -> Summary | None:
        try:
            return super().summary
        except StoreError:
            return None

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """What a reader of the run has to know that it lacks, a sentence each."""
        return (*self._journal[1], *self._records[1], *self._unfinished())

    @cached_property
    def _journal(self) -> tuple[list[Event], list[str]]:
        """Its readable events, and what is wrong with the others."""
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
        """The finished episodes that can be read, and what is wrong with the others."""
        wrong = list[str]()
        numbers = committed(self.events)
        try:
            found, _ = committed_episodes(self.folder, self.events)
        except StoreError as error:
            lines = json_lines((self.folder / "episodes.jsonl").read_bytes())
            there = [record for _, line in lines if (record := _episode(line))]
            found = {record.episode: record for record in there if record.episode in numbers}
            wrong.append(_left_out(error))
        if lost := numbers - found.keys():
            names = ", ".join(map(str, sorted(lost)))
            wrong.append(f"episodes.jsonl lacks what the journal calls finished: episode {names}")
        return [found[number] for number in sorted(found)], wrong

    def _unfinished(self) -> list[str]:
        found = []
        done, asked = len(self._all), self.config.get("episodes")
        if not done:
            found.append("no episode is finished")
        elif isinstance(asked, int) and done < asked:
            found.append(f"{done} of {asked} episodes are finished")
        if self.failed:
            found.append(f"episodes that failed, and are in no figure: {len(self.failed)}")
        last = self.events[-1].kind if self.events else None
        if last != "stopped":
            found.append("its process has not ended in order: it still runs, or was cut off")
        if self._written is None:
            found.append("it has no readable summary.json: the journal's answers are summed here")
        return found


def _left_out(error: StoreError) -> str:
    return f"damaged lines are left out: {error}"


def _whole(data: bytes) -> list[bytes]:
    """The lines that end; a last one without its end was cut off by a kill."""
    return data.split(b"\n")[:-1]


def _event(line: bytes, before: int) -> Event | None:
    try:
        return journal.decode(line, before)
    except ValueError:
        return None


def _episode(line: bytes) -> EpisodeRecord | None:
    try:
        return EpisodeRecord.model_validate_json(line)
    except ValidationError:
        return None
