"""The settings that a resume may change, and digests that show what else has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestry.core.config import RENAMED, RunConfig
from orchestry.core.digests import text_digest, with_whole
from orchestry.core.errors import ConfigError
from orchestry.core.files import to_json
from orchestry.core.ppo import reads
from orchestry.core.resolve import Mark, leaves, marked, marks
from orchestry.engine.plan import Plan
from orchestry.store.journal import Event, Opened
from orchestry.store.run import Store

_ONCE_DEFAULT = {"learn.rewards": "turns"}
"""Defaults that a later version changed. Runs before it have them in config.yaml, but not in their
digests, which held no defaults. So these keys are out of the sections, and have digests of their
own, which such runs lack."""


def names_base(backend: str, key: str) -> bool:
    """Whether a key is the path of a base model of backend local, which is identified by its
    content."""
    owner, _, name = key.rpartition(".")
    there = owner == "provider" or owner.startswith("agents.")
    return backend == "local" and there and name == "model"


def names_players(key: str) -> bool:
    """Whether a key names who plays an agent: scripted players, and runs that may move."""
    return key.startswith("agents.") and key.endswith(".plays")


def players(names: Sequence[str]) -> list[str]:
    """Who plays an agent, by kind: scripted players by name, and any run, whose content has a
    digest of its own."""
    return ["a run" if len(Path(name).parts) > 1 else name for name in names]


def check_changes(changes: Mapping[str, Any], backend: str = "api") -> None:
    """Raises ConfigError for changes (nested like the config) of any other key, and of one that
    the backend does not read. Backend local's base, and runs that play, may have moved: digests
    tell whether they are the same."""
    for key, _ in leaves(changes):
        moves = names_base(backend, key) or names_players(key)
        if not reads(backend, key):
            why = f"{key} has no effect in backend {backend}: leave it out"
        elif Mark.RESUMABLE not in marks(RunConfig, key) and not moves:
            taken = " (learn.from or behaviors.from take over what was learned)"
            why = (
                f"{key} can't be changed on a resume, since what was played and learned depends on "
                f"it: begin another run with it{'' if backend == 'ppo' else taken}"
            )
        else:
            continue
        raise ConfigError(f"{why}; a resume takes {_resumable(backend)}")


def _resumable(backend: str) -> str:
    found = sorted(marked(RunConfig, Mark.RESUMABLE))
    return ", ".join(key for key in found if reads(backend, key))


def config_digests(config: RunConfig) -> dict[str, str]:
    """Digests of everything that may not change (`config`) and of each section with non-default
    values (`config.SECTION`)."""
    raw = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    sections: dict[str, dict[str, Any]] = {}
    for key, value in leaves(raw):
        moves = names_base(config.backend, key) and Path(value).is_absolute()
        moves |= _ONCE_DEFAULT.get(key) == value
        moves |= bool(marks(RunConfig, key) & {Mark.RESUMABLE, Mark.MOVABLE})
        if names_players(key):
            sections.setdefault("agents", {})[key] = players(value)
        elif not moves:
            before = {new: old for old, new in RENAMED.get(key, {}).items()}
            sections.setdefault(key.partition(".")[0], {})[key] = before.get(str(value), value)
    whole = with_whole("config", ".", {name: to_json(found) for name, found in sections.items()})
    if config.backend != "local":
        return whole
    return {**whole, "learn.rewards": text_digest(config.learn.rewards)}


def ground_of(plan: Plan, store: Store, accept: bool) -> dict[str, Any]:
    """What this process runs on, as the fields `digests` and `accepted` of its first event.

    Raises ConfigError where the process before ran on something else, and nobody accepts that.
    """
    digests = {**config_digests(plan.config), **plan.digests, **plan.backend.digests()}
    return grounded(digests, store, accept)


def grounded(digests: dict[str, str], store: Store, accept: bool) -> dict[str, Any]:
    """See `ground_of`: of these digests."""
    found = changed(store.events, digests)
    if found and not accept:
        raise ConfigError(
            f"{store.folder} was played with other contents of {worded(found)}: put that back, or "
            f"accept the new ones: `orchestry resume {store.folder} --accept-changes`"
        )
    return {"digests": digests, "accepted": tuple(found)}


def changed(events: Iterable[Event], now: Mapping[str, str]) -> list[str]:
    """The names that differ from the last process's digests in the journal: parts, or the whole if
    no part differs. Names that only one side has are skipped.
    """
    before: Mapping[str, str] = {}
    for event in events:
        if isinstance(event, Opened) and event.digests:
            before = event.digests
    return differing(before, now)


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """See `changed`: of two processes' digests."""
    names = {name for name in before.keys() & now.keys() if before[name] != now[name]}
    for whole in names & {"config", "task"}:
        parts = {n for n in before.keys() | now.keys() if n.startswith((f"{whole}.", f"{whole}/"))}
        names |= {name for name in parts if before.get(name) != now.get(name)}
    told = {name.replace("/", ".").partition(".")[0] for name in names - {"config", "task"}}
    return sorted(names - ({"config", "task"} & told))


def worded(names: Iterable[str]) -> str:
    """Digest names in words.

    >>> worded(["base", "config.seed", "task/task.py"])
    'base, seed in config.yaml, task.py of the task'
    """
    said = []
    for name in names:
        kind, _, part = name.replace("/", ".", 1).partition(".")
        where = {"config": "in config.yaml", "task": "of the task"}.get(kind)
        said.append(f"{part} {where}" if part and where else name)
    return ", ".join(said)
