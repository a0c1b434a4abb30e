"""What runs were: their configuration, what they ran on, and the commands that make them again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from orchestry.core.resolve import leaves
from orchestry.report.experiment import Experiment
from orchestry.report.held import Held, baselines, evaluations
from orchestry.report.salvage import Salvaged
from orchestry.store.journal import Opened

_SEARCH = {
    "samples an agent and state (k)": "search.k_samples",
    "beam width": "search.beam_width",
}
_LEARN = {
    "trajectories of a problem (G)": "learn.group_size",
    "episodes an update": "learn.every",
    "learning rate": "learn.learning_rate",
    "adapter rank": "learn.rank",
    "top-p": "learn.top_p",
    "base in": "learn.dtype",
}
_ALL = {
    "split": "split",
    "seed": "seed",
    "temperature": "sampling.temperature",
    "longest answer, tokens": "sampling.max_tokens",
}


def setup(experiment: Experiment) -> dict[str, str]:
    """What decides the run, by name, in order."""
    run, config = experiment.run, dict(leaves(experiment.run.config))
    local = config.get("backend") == "local"
    keys = {**_ALL, **(_LEARN if local else _SEARCH)}
    opened = next((event for event in run.events if isinstance(event, Opened)), None)
    model = f"{opened.provider}/{opened.model}" if opened else "-"
    strategy = str(config.get("search.strategy"))
    return {
        "run": str(run.folder),
        "task": str(config.get("task")),
        "backend": f"{config.get('backend')}, {strategy}",
        "model": model,
        **_agents(run.config),
        "episodes": f"{len(run.episodes)} of {config.get('episodes')}",
        **({"episodes that failed": str(len(run.failed))} if run.failed else {}),
        **{name: _said(config.get(key)) for name, key in keys.items()},
        **_parts(config, local=local),
        "budget, USD": _said(config.get("budget.usd"), "no cap"),
        **_machine(run),
    }


def _agents(config: Mapping[str, Any]) -> dict[str, str]:
    """The models of the agents that have one of their own."""
    found = {}
    for role, own in (config.get("agents") or {}).items():
        if own.get("model"):
            provider = (own.get("provider") or {}).get("name")
            found[f"model of {role}"] = f"{provider}/{own['model']}" if provider else own["model"]
    return found


def _said(value: Any, none: str = "the provider's own") -> str:
    return none if value is None else str(value)


def _parts(config: dict[str, Any], *, local: bool) -> dict[str, str]:
    """Judge and behaviours, which a run may be without."""
    judge = config.get("judge.enabled")
    found = {"judge": "as its provider allows" if judge is None else "on" if judge else "off"}
    if local:
        return found
    behaves = config.get("behaviors.enabled")
    every = f"every {config.get('behaviors.every')} episodes"
    allowed = every if behaves else "as its judge allows"
    return {**found, "behaviours learned": "off" if behaves is False else allowed}


def _machine(run: Salvaged) -> dict[str, str]:
    """What manifest.json says, as far as it can be read."""
    try:
        manifest = json.loads((run.folder / "manifest.json").read_bytes())
        packages = dict(manifest.get("packages", {}))
    except (OSError, ValueError, AttributeError):
        return {"versions": "manifest.json is not there or not readable", **_began(run)}
    versions = {
        "orchestry": manifest.get("orchestry"),
        "python": manifest.get("python"),
        **packages,
    }
    return {
        **_began(run),
        "git revision": _said(manifest.get("git_revision"), "none: it ran outside a checkout"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "system": _said(manifest.get("system"), "-"),
        "device": _said(manifest.get("device"), "-"),
        "sandbox": _said(manifest.get("sandbox"), "-").partition(":")[0],
        "weights, sha256": _said(manifest.get("model_sha256"), "-")[:16],
        "deterministic": "yes" if manifest.get("deterministic") else "no",
    }


def _began(run: Salvaged) -> dict[str, str]:
    opened = next((event for event in run.events if isinstance(event, Opened)), None)
    if opened is None:
        return {}
    return {"began, UTC": datetime.fromtimestamp(opened.at, UTC).strftime("%Y-%m-%d %H:%M")}


def commands(experiment: Experiment, new: str) -> Iterator[str]:
    """What plays the run and all that was measured around it again, into the folder `new`."""
    run = shlex.quote(str(experiment.run.folder / "config.yaml"))
    yield f"orchestry run --config {run} --run-dir {new}"
    for held in evaluations(experiment):
        update = "" if held.update is None else f" --update {held.update} --no-compare"
        yield f"orchestry evaluate {new}{update}{_flags(held)}"
    for held in baselines(experiment):
        yield f"orchestry baselines run {shlex.quote(held.name)} --of {new}{_flags(held)}"


def _flags(held: Held) -> str:
    samples = f" --samples {held.samples}" if held.samples else ""
    return f" --split {held.split}{samples} --episodes {held.run.config.get('episodes')}"
