"""What a run ran on, as its manifest.json says: machine, versions, sandbox, weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestry.report.runs import Salvaged
from orchestry.store.journal import Opened


def manifest(folder: Path) -> Mapping[str, Any]:
    """A run's manifest.json; empty if it can't be read."""
    try:
        found = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def hardware(run: Salvaged) -> str:
    """The machine that a run began on, and those that it was resumed on; '' for a run of an earlier
    release, which kept none."""
    found = manifest(run.folder)
    resumed = found.get("resumed")
    entries = [found, *(resumed if isinstance(resumed, list) else [])]
    kept = (one.get("machine") for one in entries if isinstance(one, dict))
    machines = dict.fromkeys(_machine(one) for one in kept if isinstance(one, dict))
    return "; resumed on ".join(machines)


def _machine(kept: Mapping[str, Any]) -> str:
    cores = kept.get("cores")
    said = f"{kept.get('cpu')}, {cores} core{'' if cores == 1 else 's'}"
    return f"{kept['gpu']}; {said}" if kept.get("gpu") else said


def began(run: Salvaged) -> str:
    """The UTC time of its first process; '' without one."""
    opened = next((event for event in run.events if isinstance(event, Opened)), None)
    return datetime.fromtimestamp(opened.at, UTC).strftime("%Y-%m-%d %H:%M") if opened else ""


def grounds(run: Salvaged) -> dict[str, str]:
    """The facts in manifest.json, by name, as far as it can be read; date and hardware are
    elsewhere."""
    found = manifest(run.folder)
    packages = found.get("packages", {})
    if not found or not isinstance(packages, dict):
        return {"versions": "manifest.json is not there or not readable"}
    versions = {"orchestry": found.get("orchestry"), "python": found.get("python"), **packages}
    return {
        "git revision": said(found.get("git_revision"), "none: it ran outside a checkout"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "system": said(found.get("system"), "-"),
        "device": said(found.get("device"), "-"),
        **(_of_numbers(found) if run.neural else _of_models(found)),
    }


def said(value: Any, none: str) -> str:
    """A value as text."""
    return none if value is None else str(value)


def _of_numbers(found: Mapping[str, Any]) -> dict[str, str]:
    exact = found.get("device") == "cpu"
    return {
        "deterministic": "yes, with these versions on such a machine"
        if exact
        else "no: not shown on a GPU"
    }


def _of_models(found: Mapping[str, Any]) -> dict[str, str]:
    return {
        "sandbox": said(found.get("sandbox"), "-").partition(":")[0],
        "weights, sha256": said(found.get("model_sha256"), "-")[:16],
        "deterministic": "yes" if found.get("deterministic") else "no",
    }
