"""What went wrong in a run, counted from its journal and its episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestry.core.types import TASK_ERROR
from orchestry.report.kinds import Share
from orchestry.store.journal import (
    Answered,
    Event,
    Learned,
    Lost,
    Opened,
    Released,
    RolledBack,
    Scored,
    Stopped,
)
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run
from orchestry.store.summary import failures

FAINTEST = 1e-12
"""An advantage that is no larger than this is zero but for rounding."""


def faults(run: Run) -> dict[str, str]:
    """By name, counts with what they are counts of; the same names for every run."""
    events, failed = run.events, failures(run.events)
    answers = [e for e in events if isinstance(e, Answered) and e.source != "failed"]
    drawn = [event.completion for event in answers if event.source != "refused"]
    acts = [event.completion for event in answers if event.purpose == "act"]
    empty = sum(not completion.text.strip() for completion in drawn)
    return {
        "answers cut off at the length limit": _of(_stops(answers)["length"], len(answers)),
        "the agents' own among them": _of(sum(c.stop == "length" for c in acts), len(acts)),
        "empty answers": _of(empty, len(drawn)),
        "prompts longer than the model's context": _of(_refused(answers), len(answers)),
        "other stop reasons than end and length": _others(answers),
        "calls that failed for good, their samples left out": str(len(failed)),
        "episodes that failed, and are in no figure": str(len(run.failed)),
        "attempts that failed and were tried again or given up": _why(events, Released),
        "calls lost, charged at their worst case": _why(events, Lost),
        "states that the task could not score, counted as 0": _unscored(events),
        "judgements that were malformed": _malformed(run.episodes),
        "sample groups whose advantages are all zero": _flat(run.episodes),
        "actions that an update left out, for want of variance": _skipped(events),
        "processes after the first (resumes)": str(max(0, _count(events, Opened) - 1)),
        "times that finished episodes were taken back": str(_count(events, RolledBack)),
        "how its processes ended": _ends(events),
    }


def _of(count: int, whole: int) -> str:
    return str(Share(count, whole)) if whole else "none"


def _count(events: Sequence[Event], kind: type[Opened] | type[RolledBack]) -> int:
    return sum(isinstance(event, kind) for event in events)


def _stops(answers: Sequence[Answered]) -> Counter[str]:
    return Counter(event.completion.stop for event in answers)


def _refused(answers: Sequence[Answered]) -> int:
    return sum(event.source == "refused" for event in answers)


def _others(answers: Sequence[Answered]) -> str:
    found = {k: n for k, n in sorted(_stops(answers).items()) if k not in ("end", "length")}
    return _listed(found)


def _unscored(events: Sequence[Event]) -> str:
    scores = {event.key: event.score for event in events if isinstance(event, Scored)}
    return _of(sum(TASK_ERROR in score.tags for score in scores.values()), len(scores))


def _why(events: Sequence[Event], kind: type[Released] | type[Lost]) -> str:
    """Their number, and what the commonest of them said."""
    said = Counter(event.why or "no reason given" for event in events if isinstance(event, kind))
    return _listed(dict(said.most_common(3)), sum(said.values()))


def _listed(counts: dict[str, int], whole: int | None = None) -> str:
    total = sum(counts.values()) if whole is None else whole
    named = "; ".join(f"{count}: {name}" for name, count in counts.items())
    return f"{total} ({named})" if total else "0"


def _malformed(episodes: Sequence[EpisodeRecord]) -> str:
    outcomes: Counter[str] = sum((Counter(e.judgements) for e in episodes), Counter())
    return _of(outcomes["malformed"], sum(outcomes.values()))


def _flat(episodes: Sequence[EpisodeRecord]) -> str:
    """They teach nothing: all samples of such a state came to the same."""
    groups = [group.advantages for episode in episodes for group in episode.groups]
    flat = sum(all(abs(advantage) <= FAINTEST for advantage in group) for group in groups)
    return _of(flat, len(groups))


def _skipped(events: Sequence[Event]) -> str:
    states = [event.state for event in events if isinstance(event, Learned)]
    skipped = sum(int(state.get("skipped", 0)) for state in states)
    return _of(skipped, skipped + sum(int(state.get("samples", 0)) for state in states))


def _ends(events: Sequence[Event]) -> str:
    counts = Counter(event.reason for event in events if isinstance(event, Stopped))
    cut = _count(events, Opened) - sum(counts.values())
    ends = [f"{reason} {count}" for reason, count in counts.items()]
    return ", ".join([*ends, *([f"running or cut off {cut}"] if cut > 0 else [])]) or "-"
