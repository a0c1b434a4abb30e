"""A run in one object, and what it ran on."""

from __future__ import annotations

import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestry import __version__
from orchestry.core.errors import (
    BudgetExceeded,
    Interrupted,
    OrchestryError,
    ServerAway,
    StoreError,
    reason,
)
from orchestry.core.files import to_json
from orchestry.engine.session import Plan
from orchestry.store.journal import VERSION
from orchestry.store.records import EpisodeRecord, Summary, UsageRecord
from orchestry.store.run import Store

USES = {"act": "search", "judge": "judge", "credit": "credit"}
"""What a call's purpose counts as in the summary; all others are learning."""
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
    """Why a process ended, in the journal's word."""
    if failure is None:
        return "done"
    if isinstance(failure, BudgetExceeded):
        return "budget"
    if isinstance(failure, ServerAway):
        return "away"
    return "interrupted" if isinstance(failure, Interrupted) else "failed"


def fruitless(plan: Plan, records: Collection[EpisodeRecord] = ()) -> OrchestryError | None:
    """A run that came to its end failed all the same, if no call was answered, whatever empty
    answers scored, or if every episode failed.

    Answers from the cache, and those of earlier processes, count.
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


def summarise(plan: Plan, store: Store, reason: Reason, seconds: float) -> Summary:
    """All committed episodes, and what the whole run's calls came to."""
    records = [store.episodes[number] for number in sorted(store.episodes)]
    finished, records = len(records), [record for record in records if not record.failed]
    best = max(records, key=lambda record: (record.reward, -record.episode), default=None)
    gateway, provider = plan.backend.gateway, plan.backend.provider
    tags: Counter[str] = sum((record.tags() for record in records), Counter())
    judgements: Counter[str] = sum((Counter(record.judgements) for record in records), Counter())
    usage = gateway.usage()
    learned = plan.backend.prompt_change(plan.task)
    return Summary(
        run_dir=str(store.folder),
        task=plan.config.task,
        backend=plan.config.backend,
        strategy=plan.config.search.strategy,
        baseline=plan.config.baseline,
        provider=provider.name,
        model=provider.model,
        model_sha256=getattr(provider, "sha256", None),
        stopped=reason,
        episodes=finished,
        failed_episodes=finished - len(records),
        failed_calls=gateway.failed,
        episodes_asked=plan.config.episodes,
        calls=sum(row.calls for row in usage),
        cache_hits=sum(row.cache_hits for row in usage),
        input_tokens=sum(row.input_tokens for row in usage),
        output_tokens=sum(row.output_tokens for row in usage),
        cost_usd=gateway.ledger.spent,
        lost_usd=gateway.ledger.lost,
        budget_usd=plan.config.budget.usd,
        mean_reward=sum(r.reward for r in records) / len(records) if records else None,
        mean_trajectory_reward=fmean(r.mean_leaf_reward for r in records) if records else None,
        best_reward=best.reward if best else None,
        best_episode=best.episode if best else None,
        tags=dict(sorted(tags.items())),
        leaves=sum(len(list(record.leaves())) for record in records),
        solved=plan.task.solved,
        cost_by_use=_by_use(usage),
        judgements=dict(sorted(judgements.items())),
        updates=plan.backend.updates,
        taught=plan.backend.taught,
        dev_rewards=plan.backend.dev_rewards,
        best_update=plan.backend.best_update,
        accepted=learned.accepted,
        prompt_diff=learned.diff,
        usage=usage,
        seconds=seconds,
    )


def _by_use(usage: Sequence[UsageRecord]) -> dict[str, float]:
    dollars = dict.fromkeys(("search", "judge", "credit", "learning"), 0.0)
    for row in usage:
        dollars[USES.get(row.purpose, "learning")] += row.usd
    return dollars


class _Manifest(BaseModel):
    """manifest.json: what the first process ran on, and what changed for each later one."""

    model_config = ConfigDict(frozen=True, extra="allow")

    resumed: tuple[dict[str, Any], ...] = ()


def write_manifest(
    store: Store, plan: Plan, sandbox_level: str, clock: Callable[[], float] = time.time
) -> None:
    """Adds this process to manifest.json: the first one whole, a later one under `resumed` with
    its UTC time and what differs from the process before it, or not at all where nothing does.

    Raises StoreError for a manifest that is damaged.
    """
    found = _manifest(plan, sandbox_level)
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
    provider = plan.backend.provider
    return {
        "orchestry": __version__,
        "run_directory_version": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "git_revision": _revision(),
        "prices": plan.backend.prices.version,
        "sandbox": sandbox_level,
        "provider": provider.name,
        "model": provider.model,
        "deterministic": provider.deterministic,
        "model_sha256": getattr(provider, "sha256", None),
        **({"device": device} if (device := getattr(provider, "device", None)) else {}),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The revision of the folder the user works in, where git knows one."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
