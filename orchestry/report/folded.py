"""The summary of a run that has none, as far as its journal and its episodes tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestry.store.journal import (
    Answered,
    Counted,
    Evaluated,
    Event,
    Learned,
    Lost,
    Opened,
    Reserved,
)
from orchestry.store.records import EpisodeRecord, Summary, UsageRecord


def folded(
    folder: Path,
    config: Mapping[str, Any],
    events: Sequence[Event],
    finished: Sequence[EpisodeRecord],
) -> Summary:
    """What summary.json would say if the run had been stopped here. Calls still open count nothing;
    dollars by use, prompts and what the task calls solved are left out."""
    opened = next((event for event in events if isinstance(event, Opened)), None)
    usage, lost = _usage(events), _lost(events)
    episodes = [record for record in finished if not record.failed]
    best = max(episodes, key=lambda record: (record.reward, -record.episode), default=None)
    tags: Counter[str] = sum((record.tags() for record in episodes), Counter())
    judged: Counter[str] = sum((Counter(record.judgements) for record in episodes), Counter())
    dev = {event.update: event.reward for event in events if isinstance(event, Evaluated)}
    return Summary(
        run_dir=str(folder),
        task=str(config.get("task")),
        backend=str(config.get("backend")),
        strategy=str(config.get("search", {}).get("strategy", "beam")),
        baseline=config.get("baseline"),
        provider=opened.provider if opened else "",
        model=opened.model if opened else "",
        stopped="interrupted",
        episodes=len(finished),
        failed_episodes=len(finished) - len(episodes),
        failed_calls=len(failures(events)),
        episodes_asked=int(config.get("episodes", len(finished))),
        calls=sum(row.calls for row in usage),
        cache_hits=sum(row.cache_hits for row in usage),
        input_tokens=sum(row.input_tokens for row in usage),
        output_tokens=sum(row.output_tokens for row in usage),
        cost_usd=round(sum(row.usd for row in usage) + lost, 9),
        lost_usd=lost,
        budget_usd=config.get("budget", {}).get("usd"),
        mean_reward=fmean(record.reward for record in episodes) if episodes else None,
        mean_trajectory_reward=fmean(r.mean_leaf_reward for r in episodes) if episodes else None,
        best_reward=best.reward if best else None,
        best_episode=best.episode if best else None,
        tags=dict(sorted(tags.items())),
        leaves=sum(len(list(record.leaves())) for record in episodes),
        judgements=dict(sorted(judged.items())),
        updates=sum(isinstance(event, Learned) for event in events),
        dev_rewards={"before": dev[0], "last": dev[max(dev)]} if 0 in dev and len(dev) > 1 else {},
        usage=usage,
        seconds=seconds(events),
    )


def seconds(events: Iterable[Event]) -> float:
    """Wall time of all the run's processes, each from its opening to its last event."""
    found, opened, last = 0.0, None, 0.0
    for event in events:
        if isinstance(event, Opened):
            found += last - opened if opened is not None else 0.0
            opened = last = event.at
        else:
            last = max(last, getattr(event, "at", last))
    return found + (last - opened if opened is not None else 0.0)


def failures(events: Iterable[Event]) -> list[Answered]:
    """The calls that failed for good, less those that were asked again and answered."""
    last = {event.key: event for event in events if isinstance(event, Answered)}
    return [event for event in last.values() if event.source == "failed"]


def _usage(events: Iterable[Event]) -> tuple[UsageRecord, ...]:
    """By agent and purpose, as the gateway counts them."""
    answers: dict[tuple[str, str], list[Answered]] = {}
    for event in events:
        if isinstance(event, Answered):
            answers.setdefault((event.agent, event.purpose), []).append(event)
    return tuple(_row(*name, found) for name, found in sorted(answers.items()))


def _row(agent: str, purpose: str, found: Sequence[Answered]) -> UsageRecord:
    drawn = [event.completion for event in found if event.source in ("provider", "weights")]
    return UsageRecord(
        agent=agent,
        purpose=purpose,
        calls=len(drawn),
        cache_hits=sum(event.source == "cache" for event in found),
        input_tokens=sum(completion.input_tokens for completion in drawn),
        output_tokens=sum(completion.output_tokens for completion in drawn),
        usd=round(sum(completion.usd for completion in drawn), 9),
    )


def _lost(events: Iterable[Event]) -> float:
    """Dollars set aside for calls that were never answered."""
    reserved, lost = dict[int, float](), dict[int, float]()
    for event in events:
        if isinstance(event, Reserved):
            reserved[event.call] = event.usd
        elif isinstance(event, Lost):
            lost[event.call] = reserved.get(event.call, 0.0)
        elif isinstance(event, Counted):
            lost[event.call] = event.usd
    return round(sum(lost.values()), 9)
