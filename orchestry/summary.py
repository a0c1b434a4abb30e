"""A run in one object, and what it ran on."""

from __future__ import annotations

import platform
import subprocess
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from orchestry import __version__
from orchestry.errors import BudgetExceeded, Interrupted, OrchestryError
from orchestry.journal import VERSION
from orchestry.records import Summary
from orchestry.session import Plan
from orchestry.store import Store

Reason = Literal["done", "budget", "interrupted", "failed"]
PACKAGES = ("anthropic", "openai", "xllamacpp", "genai-prices", "pydantic")


def stop_reason(failure: OrchestryError | None) -> Reason:
    """Why a process ended, in the journal's word."""
    if failure is None:
        return "done"
    if isinstance(failure, BudgetExceeded):
        return "budget"
    return "interrupted" if isinstance(failure, Interrupted) else "failed"


def summarise(plan: Plan, store: Store, reason: Reason, seconds: float) -> Summary:
    """All committed episodes, and what the whole run's calls came to."""
    records = [store.episodes[number] for number in sorted(store.episodes)]
    best = max(records, key=lambda record: (record.reward, -record.episode), default=None)
    gateway, provider = plan.backend.gateway, plan.backend.provider
    tags: Counter[str] = sum((record.tags() for record in records), Counter())
    usage = gateway.usage()
    return Summary(
        run_dir=str(store.folder),
        task=plan.config.task,
        backend=plan.config.backend,
        strategy=plan.config.search.strategy,
        provider=provider.name,
        model=provider.model,
        model_sha256=getattr(provider, "sha256", None),
        stopped=reason,
        episodes=len(records),
        episodes_asked=plan.config.episodes,
        calls=sum(row.calls for row in usage),
        cache_hits=sum(row.cache_hits for row in usage),
        input_tokens=sum(row.input_tokens for row in usage),
        output_tokens=sum(row.output_tokens for row in usage),
        cost_usd=gateway.ledger.spent,
        lost_usd=gateway.ledger.lost,
        budget_usd=plan.config.budget.usd,
        mean_reward=sum(r.reward for r in records) / len(records) if records else None,
        best_reward=best.reward if best else None,
        best_episode=best.episode if best else None,
        tags=dict(sorted(tags.items())),
        usage=usage,
        seconds=seconds,
    )


def manifest(plan: Plan, sandbox_level: str) -> dict[str, Any]:
    """What a run was made with: versions, revision, prices, sandbox, model."""
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
        "model_sha256": getattr(provider, "sha256", None),
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
