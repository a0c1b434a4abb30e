"""A run's figures, computed from its journal, and the summary made from them.

Gateway and ledger use the same code event by event, a resume on the journal so far, and a report on
the readable part of it; so they always agree.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestry.core.errors import StoreError
from orchestry.core.extras import split_thoughts
from orchestry.core.types import Completion
from orchestry.store.checkpoints import best_evaluation, dev_summary
from orchestry.store.journal import (
    Answered,
    Counted,
    Evaluated,
    Event,
    Learned,
    Lost,
    Opened,
    Rated,
    Released,
    Reserved,
    Stopped,
    read,
)
from orchestry.store.records import EpisodeRecord, Summary, UsageRecord

NANO = 1_000_000_000
LEARNING = {
    "entropy": "entropy of the drawing policy, nats per token (estimate from drawn tokens)",
    "length": "answer length, tokens",
    "truncated": "share of answers cut off at their token limit",
    "flat": "share of problems whose trajectories all earned the same",
    "kl": "KL to the base, nats per token (k3 estimate)",
    "clipped": "share of ratios outside learn.clip",
    "ratio": "probability of a drawn token by the learner over that by its server",
    "ratio_clipped": "share of these ratios above learn.importance",
    "value_loss": "the critic's mean squared error",
    "value_explained": "share of the returns' variance that the critic explains",
    "tokens_per_s": "tokens drawn per second",
}
"""The figures of an update of weights that say what its answers were like, and their meanings; see
backends.local.diagnostics."""
_WHOLE = 0.9
"""Means over a smaller share of the episodes, or of the trajectories, are marked."""
_USES = {"act": "search", "judge": "judge", "credit": "credit", "embed": "search"}
"""The summary's category per purpose of a call; all others are learning."""


def nano(usd: float) -> int:
    """Whole nano-dollars, rounded up except for float noise.

    >>> nano(0.1 + 0.2), nano(1.2e-9)
    (300000000, 2)
    """
    return math.ceil(round(usd * NANO, 3))


@dataclass(slots=True)
class Balance:
    """The money spent, according to a journal's events, in nano-dollars."""

    settled: int = 0
    lost: int = 0
    reserved: int = 0
    open: dict[int, Reserved] = field(default_factory=dict)
    """Open reservations by call number."""
    lost_calls: dict[str, dict[int, int]] = field(default_factory=dict)
    """The charges for lost calls, by request and call number."""
    calls: int = 0
    """The next call's number."""
    damaged: bool = False
    """Some lines of the journal can't be read, so a call may end without a reservation."""

    @property
    def spent(self) -> int:
        return self.settled + self.lost

    def add(self, event: Event) -> None:
        """Adds one event; the live ledger and a resume both use this, so they agree.

        Raises StoreError if a call ends that is not open.
        """
        if isinstance(event, Reserved):
            self.open[event.call] = event
            self.reserved += nano(event.usd)
            self.calls = max(self.calls, event.call + 1)
        elif isinstance(event, Answered) and event.call is not None:
            self._end(event.call)
            self.settled += nano(event.completion.usd)
        elif isinstance(event, Released):
            self._end(event.call)
        elif isinstance(event, Lost):
            if reserved := self._end(event.call):
                self._charge(reserved.key, event.call, reserved.usd)
        elif isinstance(event, Counted):
            self._charge(event.key, event.call, event.usd)

    def _charge(self, key: str, call: int, usd: float) -> None:
        """Replaces the charge for a lost call."""
        charged = self.lost_calls.setdefault(key, {})
        self.lost += nano(usd) - charged.get(call, 0)
        charged[call] = nano(usd)

    def _end(self, call: int) -> Reserved | None:
        if call not in self.open:
            if self.damaged:
                return None
            raise StoreError(
                f"the journal ends call {call}, which it never reserved: a line was taken out of "
                "it; restore the file from a copy"
            )
        reserved = self.open.pop(call)
        self.reserved -= nano(reserved.usd)
        return reserved


def replay(events: Iterable[Event], *, damaged: bool = False) -> Balance:
    """The balance of a journal, calls in flight still open."""
    balance = Balance(damaged=damaged)
    for event in events:
        balance.add(event)
    return balance


@dataclass(slots=True)
class _Sum:
    calls: int = 0
    cache_hits: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    unspoken: int = 0
    nano_usd: int = 0
    """Whole nano-dollars, so that the sum does not depend on the order of answers."""
    place: str = ""
    """The first part of the last answer's key, which names its provider."""


class Usage:
    """Adds up answers, of this process and of earlier ones."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], _Sum] = {}
        self.refused = set[str]()
        """Calls that were refused to programs, without those that a later attempt answered."""

    def add(self, event: Answered) -> None:
        """Adds one answer; an answer from the cache counts only as a hit."""
        total = self._sums.setdefault((event.agent, event.purpose), _Sum())
        total.place, _, digest = event.key.rpartition("-")
        if event.completion.void == "refused":
            self.refused.add(digest)
        else:
            self.refused.discard(digest)
        if event.source == "cache":
            total.cache_hits += 1
        total.unspoken += event.source != "failed" and _is_unspoken(event.completion)
        if event.source not in ("provider", "weights"):
            return
        total.calls += 1
        total.input_tokens += event.completion.input_tokens
        total.output_tokens += event.completion.output_tokens
        total.nano_usd += nano(event.completion.usd)

    def rows(self, names: Mapping[str, str]) -> tuple[UsageRecord, ...]:
        """One row per agent and purpose, in order of both. `names`: the providers', as in
        Opened."""
        return tuple(
            UsageRecord(
                agent=agent,
                purpose=purpose,
                provider=names.get(total.place, ""),
                calls=total.calls,
                cache_hits=total.cache_hits,
                input_tokens=total.input_tokens,
                output_tokens=total.output_tokens,
                usd=total.nano_usd / NANO,
                unspoken=total.unspoken,
            )
            for (agent, purpose), total in sorted(self._sums.items())
        )


def _is_unspoken(said: Completion) -> bool:
    """Whether the limit ended an answer before it had any text but thoughts."""
    cut = said.stop == "length" and not said.calls
    return cut and not split_thoughts(said.text, cut=True)[1].strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The figures of a run's calls and updates."""

    provider: str
    model: str
    usage: tuple[UsageRecord, ...]
    cost_usd: float
    lost_usd: float
    failed_calls: int
    refused_calls: int
    updates: int
    learning: Mapping[str, float]
    dev_rewards: Mapping[str, float]
    best_update: int | None
    seconds: float


class Fold:
    """The figures of a journal, added up event by event, some of whose lines may be unreadable."""

    def __init__(self) -> None:
        self.usage, self.balance = Usage(), Balance(damaged=True)
        self._processes = list[Opened]()
        self._failed = set[str]()
        self._evaluated = list[Evaluated]()
        self._updates, self._state = 0, dict[str, Any]()
        self._seconds = self._last = 0.0
        self._opened: float | None = None

    def add(self, event: Event) -> None:
        """Adds one event."""
        self.balance.add(event)
        if isinstance(event, Answered):
            self.usage.add(event)
            (self._failed.add if event.source == "failed" else self._failed.discard)(event.key)
        elif isinstance(event, Opened):
            self._processes.append(event)
        elif isinstance(event, Evaluated):
            self._evaluated.append(event)
        elif isinstance(event, Learned):
            self._updates, self._state = self._updates + 1, event.state
        self._time(event)

    def _time(self, event: Event) -> None:
        if isinstance(event, Opened):
            self._seconds = self.seconds
            self._opened = self._last = event.at
        elif not isinstance(event, Rated):
            self._last = max(self._last, getattr(event, "at", self._last))

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of all processes, each from its opening to its last event but
        ratings."""
        return self._seconds + (self._last - self._opened if self._opened is not None else 0.0)

    @property
    def books(self) -> Books:
        """The figures so far; open calls do not count."""
        opened, top = next(iter(self._processes), None), best_evaluation(self._evaluated)
        return Books(
            provider=opened.provider if opened else "",
            model=opened.model if opened else "",
            usage=self.usage.rows(provider_names(self._processes)),
            cost_usd=self.balance.spent / NANO,
            lost_usd=self.balance.lost / NANO,
            failed_calls=len(self._failed),
            refused_calls=len(self.usage.refused),
            updates=self._updates,
            learning=last_figures(self._state),
            dev_rewards=dev_summary(self._evaluated),
            best_update=top.update if top else None,
            seconds=self.seconds,
        )


def books(events: Iterable[Event]) -> Books:
    """The figures of a whole journal."""
    fold = Fold()
    for event in events:
        fold.add(event)
    return fold.books


def last_figures(state: Mapping[str, Any]) -> dict[str, float]:
    """The figures of LEARNING in an update's state; empty for an update of prompts."""
    return {name: float(state[name]) for name in LEARNING if name in state}


def summarise_journal(
    folder: Path, config: Mapping[str, Any], books: Books, finished: Sequence[EpisodeRecord]
) -> Summary:
    """The summary that journal and episodes allow, as if the run was interrupted here. The process
    that played the run adds its weights, its prompts and the tag for solved."""
    records = [record for record in finished if not record.failed]
    top = max(records, key=lambda record: (record.reward, -record.episode), default=None)
    tags: Counter[str] = sum((record.tags() for record in records), Counter())
    judged: Counter[str] = sum((Counter(record.judgements) for record in records), Counter())
    asked = _by_provider(books.usage)
    return Summary(
        run_dir=str(folder),
        task=str(config.get("task")),
        backend=str(config.get("backend")),
        strategy=str(config.get("search", {}).get("strategy", "beam")),
        baseline=config.get("baseline"),
        provider=books.provider,
        model=books.model,
        stopped="interrupted",
        episodes=len(finished),
        failed_episodes=len(finished) - len(records),
        failed_calls=books.failed_calls,
        refused_calls=books.refused_calls,
        episodes_asked=max(int(config.get("episodes", 0)), len(finished)),
        calls=sum(row.calls for row in books.usage),
        cache_hits=sum(row.cache_hits for row in books.usage),
        input_tokens=sum(row.input_tokens for row in books.usage),
        output_tokens=sum(row.output_tokens for row in books.usage),
        cost_usd=books.cost_usd,
        lost_usd=books.lost_usd,
        budget_usd=config.get("budget", {}).get("usd"),
        **_coverage(finished),
        mean_reward=fmean(record.mean_reward for record in records) if records else None,
        best_of_k=fmean(record.best_of_k for record in records) if records else None,
        best_reward=top.reward if top else None,
        best_episode=top.episode if top else None,
        tags=dict(sorted(tags.items())),
        leaves=sum(len(record.trajectories()) for record in records),
        cost_by_use=_by_use(books.usage),
        cost_by_provider={name: sum(row.usd for row in rows) for name, rows in asked.items()},
        calls_by_provider={name: sum(row.calls for row in rows) for name, rows in asked.items()},
        judgements=dict(sorted(judged.items())),
        updates=books.updates,
        learning=dict(books.learning),
        dev_rewards=dict(books.dev_rewards),
        best_update=books.best_update,
        usage=books.usage,
        seconds=books.seconds,
    )


def _coverage(finished: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """What the means are over, what they leave out, and why."""
    gone = Counter[str]()
    for record in finished:
        gone.update(record.left_out or {"its call failed": record.failed_calls})
    failed = Counter(record.failed for record in finished if record.failed)
    kept = sum(len(record.trajectories()) for record in finished if not record.failed)
    whole = (len(finished) - failed.total(), len(finished)), (kept, kept + gone.total())
    return {
        "trajectories": kept,
        "left_out": _alike(gone),
        "left_out_episodes": _alike(failed),
        "partial": any(part < _WHOLE * all_ for part, all_ in whole),
    }


def _alike(counts: Mapping[str, int]) -> dict[str, int]:
    """The most frequent first; texts that differ in numbers alone count under the first of them."""
    found, names = Counter[str](), dict[str, str]()
    for text, count in counts.items():
        short = re.sub(r"^after \d+ attempts: ", "", text)
        found[names.setdefault(re.sub(r"\d+", "0", short), short)] += count
    return {text: count for text, count in found.most_common() if count}


def _by_use(usage: Sequence[UsageRecord]) -> dict[str, float]:
    dollars = dict.fromkeys(("search", "judge", "credit", "learning"), 0.0)
    for row in usage:
        dollars[_USES.get(row.purpose, "learning")] += row.usd
    return dollars


def provider_names(events: Iterable[Event]) -> dict[str, str]:
    """Names of all providers that were asked, by the first part of their answers' keys."""
    return {
        place: name
        for event in events
        if isinstance(event, Opened)
        for place, name in event.providers.items()
    }


def _by_provider(usage: Iterable[UsageRecord]) -> dict[str, list[UsageRecord]]:
    """The rows of each provider; empty if only one was asked."""
    found: dict[str, list[UsageRecord]] = {}
    for row in sorted(usage, key=lambda row: row.provider):
        found.setdefault(row.provider, []).append(row)
    return found if len(found) > 1 else {}


def end_of(events: Sequence[Event]) -> Stopped | None:
    """How the last process ended; None: it still runs, or was cut off. A person may have rated its
    trajectories since."""
    last = next((event for event in reversed(events) if not isinstance(event, Rated)), None)
    return last if isinstance(last, Stopped) else None


def ending(folder: Path) -> str:
    """Why a run's last process ended in order; '' if it did not, or has not yet."""
    end = end_of(list(read(folder / "journal.jsonl")))
    return "" if end is None else end.reason


def failures(events: Iterable[Event]) -> list[Answered]:
    """The calls that failed for good, without those that a later attempt answered."""
    last = {event.key: event for event in events if isinstance(event, Answered)}
    return [event for event in last.values() if event.source == "failed"]
