"""Settings that a resume may change, and digests by which it finds what else has changed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestry.core.config import RENAMED, RunConfig
from orchestry.core.digests import folder_digest, text_digest
from orchestry.core.errors import ConfigError
from orchestry.core.files import to_json
from orchestry.core.resolve import Mark, leaves, marked, marks
from orchestry.store.journal import Event, Opened
from orchestry.task.base import BaseTask
from orchestry.task.registry import folder_of


def names_base(backend: str, key: str) -> bool:
    """Whether a key says where a base of backend local lies, which is known by its content."""
    owner, _, name = key.rpartition(".")
    there = owner == "provider" or owner.startswith("agents.")
    return backend == "local" and there and name == "model"


def check_changes(changes: Mapping[str, Any], backend: str = "api") -> None:
    """Raises ConfigError for changes, nested like the config, of anything else; backend local's
    base may have moved."""
    for key, _ in leaves(changes):
        if Mark.RESUMABLE not in marks(RunConfig, key) and not names_base(backend, key):
            raise ConfigError(
                f"{key} can't be changed on a resume, since what was played and learned "
                f"depends on it: begin another run with it (learn.from or behaviors.from take "
                f"over what was learned); a resume takes {_resumable()}"
            )


def _resumable() -> str:
    return ", ".join(sorted(marked(RunConfig, Mark.RESUMABLE)))


def config_digests(config: RunConfig) -> dict[str, str]:
    """Of all that may not change, as `config`, and of each section that says something else than
    the defaults, as `config.SECTION`."""
    raw = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    sections: dict[str, dict[str, Any]] = {}
    for key, value in leaves(raw):
        moves = names_base(config.backend, key) and Path(value).is_absolute()
        if not marks(RunConfig, key) & {Mark.RESUMABLE, Mark.MOVABLE} and not moves:
            before = {new: old for old, new in RENAMED.get(key, {}).items()}
            sections.setdefault(key.partition(".")[0], {})[key] = before.get(str(value), value)
    return _with_whole("config", ".", {name: to_json(found) for name, found in sections.items()})


def task_digests(task: BaseTask[Any]) -> dict[str, str]:
    """Of the task's code and data, as `task`, and of each of these files, as `task/FILE`."""
    folder = folder_of(task)
    if folder is None:
        file = Path(sys.modules[type(task).__module__].__file__ or "")
        folder, files = file.parent, [file]
    else:
        files = list(_files(folder))
    return _with_whole(
        "task", "/", {str(one.relative_to(folder)): folder_digest(folder, [one]) for one in files}
    )


def changed(events: Iterable[Event], now: Mapping[str, str]) -> list[str]:
    """What differs from the digests that the last process of a journal left: parts by name, or
    the whole where no part does. What one of the two does not know is left out.
    """
    before: Mapping[str, str] = {}
    for event in events:
        if isinstance(event, Opened) and event.digests:
            before = event.digests
    names = {name for name in before.keys() & now.keys() if before[name] != now[name]}
    for whole in names & {"config", "task"}:
        parts = {n for n in before.keys() | now.keys() if n.startswith((f"{whole}.", f"{whole}/"))}
        names |= {name for name in parts if before.get(name) != now.get(name)}
    told = {name.replace("/", ".").partition(".")[0] for name in names - {"config", "task"}}
    return sorted(names - ({"config", "task"} & told))


def worded(names: Iterable[str]) -> str:
    """Names of digests as a person is told them.

    >>> worded(["base", "config.seed", "task/task.py"])
    'base, seed in config.yaml, task.py of the task'
    """
    said = []
    for name in names:
        kind, _, part = name.replace("/", ".", 1).partition(".")
        where = {"config": "in config.yaml", "task": "of the task"}.get(kind)
        said.append(f"{part} {where}" if part and where else name)
    return ", ".join(said)


def _with_whole(name: str, mark: str, parts: Mapping[str, str]) -> dict[str, str]:
    found = {f"{name}{mark}{part}": text_digest(text) for part, text in sorted(parts.items())}
    return {name: text_digest(to_json(found)), **found}


def _files(folder: Path) -> Iterator[Path]:
    """Code and data: no documents, caches or hidden files."""
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith((".", "__pycache__")) for part in parts)
        if path.is_file() and not hidden and path.suffix != ".md":
            yield path
