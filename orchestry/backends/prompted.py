"""The library of behaviours with which a run begins, for both backends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from orchestry.backends.library import Library, file_of
from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.types import Member
from orchestry.store.run import Store

KEPT = "behaviors/from.yaml"
"""The run's copy of its starting library."""


def with_source(config: RunConfig, folder: Path | None) -> RunConfig:
    """The config with its starting library as a file: the run's own copy if `folder`, the run to
    continue, has one."""
    source = config.behaviors.source
    if folder is not None and (folder / KEPT).exists():  # also after the run was moved
        source = folder / KEPT
    return config if source is None else beginning_with(config, file_of(source))


def beginning_with(config: RunConfig, library: Path) -> RunConfig:
    """The config with the starting library in that file."""
    learning = config.behaviors.model_copy(update={"source": library.absolute()})
    return config.model_copy(update={"behaviors": learning})


def keep(config: RunConfig, store: Store, text: str | None = None) -> RunConfig:
    """Copies the starting library into the run, so that a change between processes does not matter;
    the config that names the copy. `text`: what to write instead of the file's own text."""
    source, kept = config.behaviors.source, store.folder.absolute() / KEPT
    if source is None:
        return config
    if source != kept:
        store.write(KEPT, source.read_text(encoding="utf-8") if text is None else text)
    return beginning_with(config, kept)


def shown(library: Library, team: Mapping[str, Member]) -> dict[str, Member]:
    """The team with the library's accepted behaviours in its prompts."""
    return {
        role: replace(
            member,
            system_prompt=library.system(role, member.system_prompt),
            examples=(*member.examples, *library.examples(role)),
        )
        for role, member in team.items()
    }


def check_size(library: Library, source: Path, most: int) -> None:
    """Raises ConfigError for more behaviours than an agent's prompt may have."""
    for agent in sorted({b.agent for b in library.behaviors}):
        if (count := len(library.added(agent))) > most:
            raise ConfigError(
                f"{source} holds {count} accepted behaviours for {agent}, and "
                f"behaviors.max_per_agent={most} enter a prompt: retire some there (status: "
                f"retired), or set behaviors.max_per_agent, to 20 at most"
            )


def for_roles(library: Library, roles: Collection[str], task: str) -> tuple[Library, list[str]]:
    """The library without behaviours for agents that the task lacks, and a note if there are
    some."""
    strangers = sorted({b.agent for b in library.behaviors} - set(roles))
    if not strangers:
        return library, []
    return library.of(roles), [
        f"behaviors.from has behaviours for {', '.join(strangers)}, whom task {task} "
        f"lacks (it has {', '.join(sorted(roles))}): they are left out"
    ]
