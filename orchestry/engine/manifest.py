"""The summary of a run, and manifest.json: what it ran on."""

from __future__ import annotations

import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestry import __version__
from orchestry.core.config import RunConfig
from orchestry.core.errors import (
    BudgetExceeded,
    Interrupted,
    OrchestryError,
    ServerAway,
    StoreError,
    reason,
)
from orchestry.core.files import to_json
from orchestry.core.machine import cores, processor
from orchestry.engine.plan import Plan
from orchestry.store import summary
from orchestry.store.journal import VERSION
from orchestry.store.records import EpisodeRecord, Summary, UsageRecord
from orchestry.store.run import Store
from orchestry.store.summary import Books

Reason = Literal["done", "budget", "away", "interrupted", "failed"]
PACKAGES = (
    "anthropic",
    "openai",
    "xllamacpp",
    "genai-prices",
    "pydantic",
    "torch",
    "transformers",
)


def stop_reason(failure: OrchestryError | None) -> Reason:
    """Why a process ended, as the journal records it."""
    if failure is None:
        return "done"
    if isinstance(failure, BudgetExceeded):
        return "budget"
    if isinstance(failure, ServerAway):
        return "away"
    return "interrupted" if isinstance(failure, Interrupted) else "failed"


def fruitless(plan: Plan, records: Collection[EpisodeRecord] = ()) -> OrchestryError | None:
    """The error of a finished run without a result: no call was answered, or every episode failed.

    Answers from the cache and from earlier processes count.
    """
    if not any(row.calls + row.cache_hits for row in plan.backend.gateway.usage()):
        what = "not one call was answered"
    elif records and all(record.failed for record in records):
        what = f"every episode failed ({len(records)} of {len(records)})"
    else:
        return None
    return OrchestryError(
        f"{what}, so nothing was measured or learned: mend what the notes above name, then begin "
        "a new run"
    )


def summary_of(plan: Plan, store: Store, reason: Reason, seconds: float) -> Summary:
    """The summary over all committed episodes and all calls of the run."""
    backend, provider, ledger = plan.backend, plan.backend.provider, plan.backend.gateway.ledger
    books = Books(
        provider=provider.name,
        model=provider.model,
        usage=backend.gateway.usage(),
        cost_usd=ledger.spent,
        lost_usd=ledger.lost,
        failed_calls=backend.gateway.failed,
        refused_calls=backend.gateway.refused,
        updates=backend.updates,
        learning=summary.last_figures(backend.last_update),
        dev_rewards=backend.dev_rewards,
        best_update=backend.best_update,
        seconds=seconds,
    )
    finished = [store.episodes[number] for number in sorted(store.episodes)]
    config, learned = plan.config.model_dump(mode="json"), backend.prompt_change(plan.task)
    told = summary.summarise_journal(store.folder, config, books, finished)
    own = {
        "model_sha256": getattr(provider, "sha256", None),
        "stopped": reason,
        "solved": plan.task.solved,
        "schemes": plan.task.schemes,
        "taught": backend.taught,
        "accepted": learned.accepted,
        "prompt_diff": learned.diff,
        "power": learned.power,
    }
    return told.model_copy(update=own)


def unspoken(config: RunConfig, usage: Iterable[UsageRecord]) -> str:
    """How many answers were thoughts alone, and which limits to raise; '' if none was."""
    counts = Counter[str]()
    for row in usage:
        own = config.agents.get(row.agent)
        key, limit = "sampling.max_tokens", config.sampling.max_tokens
        if row.purpose in ("judge", "distil"):
            key, limit = "judge.max_tokens", config.judge.max_tokens
        elif own is not None and own.max_tokens is not None:
            key, limit = f"agents.{row.agent}.max_tokens", own.max_tokens
        counts[f"{key} (now {limit})"] += row.unspoken
    if not counts.total():
        return ""
    return (
        f"{counts.total()} answers reached their token limit before any visible text, since their "
        "thoughts used all of it, and count as empty: raise "
        + " and ".join(key for key, count in counts.items() if count)
    )


class _Manifest(BaseModel):
    """manifest.json: what the first process ran on, and what changed for each later one."""

    model_config = ConfigDict(frozen=True, extra="allow")

    resumed: tuple[dict[str, Any], ...] = ()


def write_manifest(
    store: Store, plan: Plan, sandbox_level: str, clock: Callable[[], float] = time.time
) -> None:
    """Adds this process to manifest.json: the first whole; a later one under `resumed`, with its
    UTC time and the differences from the process before it, if there are any.

    Raises StoreError for a damaged manifest.
    """
    record_ground(store, _manifest(plan, sandbox_level), clock)


def record_ground(
    store: Store, found: dict[str, Any], clock: Callable[[], float] = time.time
) -> None:
    """The same, of these facts."""
    path = store.folder / "manifest.json"
    if path.exists():
        kept = _read(path)
        before = dict(kept.model_extra or {})
        for entry in kept.resumed:
            before |= entry
        changed = {key: value for key, value in found.items() if before.get(key) != value}
        if not changed:
            return
        at = datetime.fromtimestamp(clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = {**(kept.model_extra or {}), "resumed": [*kept.resumed, {"at": at, **changed}]}
    store.write("manifest.json", to_json(found))


def _read(path: Path) -> _Manifest:
    try:
        return _Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise StoreError(
            f"{path} can't be read ({reason(error)}): restore it from a copy, "
            "or delete it, then resume; no answer is lost with it"
        ) from None


def _manifest(plan: Plan, sandbox_level: str) -> dict[str, Any]:
    """What this process runs on: versions, revision, prices, sandbox, model."""
    backend, provider = plan.backend, plan.backend.provider
    models = {role: own.model for role, own in plan.config.agents.items() if own.provider}
    asked = {role: backend.answering(role).provider for role in models}
    own = {role: {"provider": asked[role].name, "model": model} for role, model in models.items()}
    return {
        **ground(PACKAGES, getattr(provider, "gpu", None)),
        "prices": backend.prices.version,
        "sandbox": sandbox_level,
        "provider": provider.name,
        "model": provider.model,
        **({"agents": own} if own else {}),
        "deterministic": all(who.deterministic for who in (provider, *asked.values())),
        "model_sha256": getattr(provider, "sha256", None),
        **({"device": device} if (device := getattr(provider, "device", None)) else {}),
    }


def ground(packages: Sequence[str], gpu: str | None = None) -> dict[str, Any]:
    """Machine, versions and revision. `gpu`: the name of the one that computes, if any."""
    return {
        "orchestry": __version__,
        "run_directory_version": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "machine": {"cpu": processor(), "cores": cores(), **({"gpu": gpu} if gpu else {})},
        "packages": {name: found for name in packages if (found := _version(name))},
        "git_revision": _revision(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The git revision of the working folder, if there is one."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
