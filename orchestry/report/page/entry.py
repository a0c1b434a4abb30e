"""One run in the page's index: its figures, one row per episode, and its updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from orchestry.core.errors import StoreError
from orchestry.report.ground import hardware, manifest
from orchestry.report.measures import measured
from orchestry.report.page.steps import steps
from orchestry.report.runs import Salvaged, behaviors
from orchestry.report.text import duration
from orchestry.store.journal import Committed, Evaluated, Event, Learned, RolledBack, last_words
from orchestry.store.records import EpisodeRecord

Kind = Literal["run", "evaluation", "baseline"]


@dataclass(frozen=True, slots=True)
class PageRun:
    """A run of the page. Evaluations and baselines name their run's position."""

    label: str
    run: Salvaged
    beside: bool
    """Whether it is compared with others on the page, so that its means need intervals."""
    kind: Kind = "run"
    of: int | None = None
    missing: tuple[str, ...] = ()


def entry(source: PageRun) -> dict[str, Any]:
    """Plain data without paths of this machine, so that a page may be shared."""
    rows = [row(record) for record in source.run.episodes]
    return {**about(source), **growing(source), "rows": rows}


def about(source: PageRun) -> dict[str, Any]:
    """What stays as it is."""
    run, kept = source.run, manifest(source.run.folder)
    return {
        "label": source.label,
        "kind": source.kind,
        "of": source.of,
        "folder": run.folder.name,
        "backend": run.config.get("backend"),
        "task": run.config.get("task"),
        "config": yaml.safe_dump(_shown(run.config), sort_keys=False, allow_unicode=True),
        "device": kept.get("device"),
        "hardware": hardware(run),
        "orchestry": kept.get("orchestry"),
    }


def growing(source: PageRun) -> dict[str, Any]:
    """What may change while a run goes on, but its rows, which are only added to."""
    run, events = source.run, source.run.events
    return {
        "missing": [*dict.fromkeys((*source.missing, *run.missing))],
        "collapses": run.collapses,
        "summary": _summary(run),
        "time": duration(run.took),
        "measures": _measures(run) if source.beside else None,
        "steps": steps(run),
        "updates": _updates(run),
        "dev": _dev(events),
        "behaviors": behaviors(run.folder),
        "ratings": [
            said.model_dump(mode="json", exclude={"kind", "at", "answers"})
            for said in last_words(events).values()
        ],
    }


def _summary(run: Salvaged) -> dict[str, Any] | None:
    try:
        return run.summary.model_dump(mode="json", exclude={"run_dir"})
    except StoreError:
        return None


def _measures(run: Salvaged) -> dict[str, Any] | None:
    try:
        found = measured(run)
    except StoreError:  # without a summary
        return None
    return found.plain() if found else None


def _shown(config: Any) -> Any:
    """The config with names in place of paths of this machine."""
    if isinstance(config, dict):
        return {key: _shown(value) for key, value in config.items()}
    if isinstance(config, list):
        return [_shown(value) for value in config]
    return Path(config).name if isinstance(config, str) and config.startswith("/") else config


def row(record: EpisodeRecord) -> dict[str, Any]:
    """Data for the list of episodes and the curves."""
    values = [leaf.value for leaf in record.leaves() if leaf.value is not None]
    return {
        "episode": record.episode,
        "problem": record.problem,
        "split": record.split,
        "reward": record.mean_reward,
        "best": record.best_of_k,
        "low": min(values, default=record.reward),
        "high": max(values, default=record.reward),
        "leaves": len(record.trajectories()),
        "calls": record.calls,
        "usd": record.usd,
        "parts": record.parts(),
        "tags": dict(sorted(record.tags().items())),
    }


def _updates(run: Salvaged) -> list[dict[str, Any]]:
    """Each update's figures, and the number of episodes that were played without it."""
    found = []
    played, learning = set[int](), run.config.get("behaviors") or {}
    for event in run.events:
        if isinstance(event, Committed):
            played.add(event.episode)
        elif isinstance(event, RolledBack):
            played = {episode for episode in played if episode < event.episode}
        elif isinstance(event, Learned):
            figures = {k: v for k, v in event.state.items() if isinstance(v, int | float)}
            checkpoint = event.state.get("checkpoint")
            found.append(
                {
                    "update": event.update,
                    "after": _beside(event.update, run) if learning.get("overlap") else len(played),
                    "figures": figures,
                    "norms": event.state.get("norms") or {},
                    "checkpoint": checkpoint,
                    "kept": bool(checkpoint) and (run.folder / str(checkpoint)).is_dir(),
                }
            )
    return found


def _beside(update: int, run: Salvaged) -> int:
    """The episodes up to the end of the block that was played beside an update."""
    return min((update + 1) * int(run.config["behaviors"]["every"]), int(run.config["episodes"]))


def _dev(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The team's reward on dev per update; 0 is the untrained team."""
    return [
        event.model_dump(mode="json", exclude={"kind", "at"})
        for event in events
        if isinstance(event, Evaluated)
    ]
