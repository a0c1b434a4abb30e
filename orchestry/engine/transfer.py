"""A run's team on another task: who plays which role there, and with what it learned.

Behaviours go into the prompts as they are, and adapters answer for the roles that they are given.
Nothing is learned or tested there, so that the other task's reward is the measure of transfer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

from orchestry.backends.library import Library, read_library, to_yaml
from orchestry.backends.local.weights import ADAPTER, FULL
from orchestry.backends.prompted import KEPT
from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError, unknown
from orchestry.core.files import write_atomic
from orchestry.core.resolve import leaves, merge
from orchestry.store.checkpoints import DISTILLED
from orchestry.store.measurements import SHARED, TRANSFER, Transfer, transfer_of
from orchestry.store.run import Run
from orchestry.task.registry import load_task

SECTIONS = ("options", "weights", "sampling")
"""The config's sections that may be given for another task."""
_KEPT = ("model", "provider", "max_tokens", "temperature", "frozen", "infer", "chain")
"""How an agent answers; the rest of its settings is about the task that it learned."""
_OF_TASK = ("options", "weights", "agents")
Left = Callable[[Path], Mapping[str, Any]]
"""Gives the team's own config, and puts the library into that folder."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A run's team on another task, or on its own with other options."""

    source: Run
    own: RunConfig
    how: Transfer

    @property
    def same(self) -> bool:
        """Whether it is the run's own task."""
        return self.how.task == self.own.task

    def plain(self, left: Left, folder: Path, note: Callable[[str], None]) -> dict[str, Any]:
        """The config of the measurement in that folder, which takes the library.

        Who learned nothing there is played by the run's own model or base."""
        with TemporaryDirectory() as aside:
            team = dict(left(Path(aside)))
            library = team.get("behaviors", {}).get("from")
            if library is not None:
                self._keep(read_library(Path(library)), folder / KEPT, note)
                team = merge(team, {"behaviors": {"from": str((folder / KEPT).absolute())}})
        agents = {role: self._agent(role, agent) for role, agent in self.how.roles.items()}
        agents = {role: own for role, own in agents.items() if own}
        if not self.same:
            team = {key: value for key, value in team.items() if key not in _OF_TASK}
            team = merge(team, {"judge": {"rubric": ""}})
        found = merge(team, {"task": self.how.task, **self.how.changes})
        return self._with_weights({**found, "agents": agents})

    def _keep(self, library: Library, place: Path, note: Callable[[str], None]) -> None:
        roles = {role: role if a == SHARED else a for role, a in self.how.roles.items()}
        found = library.carried(self.how.task, roles)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, to_yaml(found).encode("utf-8"))
        if found.behaviors:
            prompts = [b.agent for b in found.behaviors if b.kind == "prompt"]
            instead = f"; a learned prompt stands in place of that of {', '.join(prompts)}"
            note(
                f"{len(found.behaviors)} behaviours that were accepted on {library.task} are in "
                f"the prompts, untested on {self.how.task}{instead if prompts else ''}"
            )

    def _agent(self, role: str, agent: str | None) -> dict[str, Any]:
        """The settings of a role: those of the agent that plays it."""
        own = self.own.plain().get("agents", {}).get(role if agent == SHARED else agent, {})
        if self.same and agent in (role, SHARED, None):
            return dict(self.own.plain().get("agents", {}).get(role, {}))
        return {key: own[key] for key in _KEPT if key in own}

    def _with_weights(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Which adapter answers for each role, where adapters do."""
        learn, provider = plain.get("learn", {}), plain.get("provider", {})
        trained = provider.get("team") if self.own.backend == "api" else learn.get("from")
        if trained is None or self.own.learn.shared:
            return plain
        files = (path for name in (ADAPTER, FULL) for path in Path(trained).glob(f"*/{name}"))
        there, before = {unquote(path.parent.name) for path in files}, learn.get("roles") or {}
        taken = {role: before.get(a, a) if a else None for role, a in self.how.roles.items()}
        roles = {role: agent if agent in there else None for role, agent in taken.items()}
        # A cached answer does not tell which adapter gave it.
        alone = {"cache": {"enabled": False}} if self.own.backend == "api" else {}
        return {**plain, "learn": {**learn, "roles": roles}, **alone}

    def write(self, folder: Path) -> None:
        """Says in the measurement's folder how it is played. Raises ConfigError if another one lies
        there."""
        before = transfer_of(folder)
        if before is not None and before != self.how:
            raise ConfigError(
                f"{folder} was played with {before.words or before.roles}: choose another run, or "
                "remove that folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / TRANSFER, self.how.model_dump_json(indent=2).encode("utf-8"))

    @property
    def said(self) -> str:
        """Who plays what."""
        if SHARED in self.how.roles.values():
            return f"{self.how.task}: the one adapter of all agents plays every role"
        parts = [
            f"{role} is played by {agent}" if agent else f"{role} plays untrained"
            for role, agent in self.how.roles.items()
        ]
        return f"{self.how.task}: {', '.join(parts)}"


def elsewhere(
    source: Run,
    own: RunConfig,
    task: str | None,
    roles: Mapping[str, str] | None,
    changes: Mapping[str, Any] | None,
) -> Elsewhere | None:
    """How a run's team plays another task; None if it is to play its own as it did.

    `roles`: by role of that task, the agent that plays it; others are played by the agent of their
    own name. `changes`: the task's own settings. Raises ConfigError for roles and agents that do
    not exist, if nobody would play, and for other settings.
    """
    if task is None and not roles and not changes:
        return None
    changes, name = changes or {}, task or own.task
    _check(own, changes)
    options = merge(own.options if name == own.task else {}, changes.get("options", {}))
    known = [spec.role for spec in load_task(name, own.task_path, options=options).agents]
    known = [*own.team] if own.team and name == own.task else known
    found = _roles(agents_of(source, own), known, roles or {}, name, shared=own.learn.shared)
    if not any(found.values()):
        raise ConfigError(
            f"no agent of {source.folder} has the name of a role of {name}: say who plays what, "
            f"such as --map {_first(agents_of(source, own))}={known[0]} (it learned "
            f"{', '.join(agents_of(source, own))}; {name} has {', '.join(known)})"
        )
    plain = {"task": name, "roles": found, "changes": changes}  # as it is read back
    how = Transfer.model_validate_json(json.dumps(plain, default=str))
    return Elsewhere(source, own, how)


def _first(agents: Iterable[str]) -> str:
    return next(iter(agents), "AGENT")


def _check(own: RunConfig, changes: Mapping[str, Any]) -> None:
    """Raises ConfigError for a run, or settings, that another task can't take."""
    if own.baseline is not None:
        raise ConfigError(
            f"a run of baseline {own.baseline} has no team that could play another task: "
            f"`orchestry baselines run {own.baseline} --task OTHER` plays it there, untrained"
        )
    if odd := [key for key, _ in leaves(changes) if key.partition(".")[0] not in SECTIONS]:
        raise ConfigError(
            f"{', '.join(odd)} would make another team of it: on another task it takes "
            f"{', '.join(f'{section}.NAME' for section in SECTIONS)}"
        )


def agents_of(source: Run, own: RunConfig) -> list[str]:
    """The agents that learned in a run, in the order in which they first spoke."""
    if (source.folder / DISTILLED).is_file():
        return [*json.loads((source.folder / DISTILLED).read_bytes())["agents"]]
    turns = (turn for one in source.episodes for node in one.nodes for turn in node.turns)
    seated = {role for role, agent in own.agents.items() if agent.plays}
    return [role for role in dict.fromkeys(turn.agent for turn in turns) if role not in seated]


def _roles(
    agents: list[str], known: list[str], asked: Mapping[str, str], task: str, *, shared: bool
) -> dict[str, str | None]:
    if not isinstance(asked, Mapping):
        raise ConfigError(
            f"roles is {asked!r}: give the run's agent by role, such as "
            f"{{'{known[0]}': '{_first(agents)}'}}"
        )
    for role, agent in asked.items():
        if role not in known:
            raise ConfigError(unknown(f"role of task {task}", str(role), known))
        if agent not in agents:
            raise ConfigError(unknown("agent of the run", str(agent), agents))
    if shared:
        if asked:
            raise ConfigError("learn.shared: one adapter plays every role: leave out --map")
        return dict.fromkeys(known, SHARED)
    return {role: asked.get(role, role if role in agents else None) for role in known}
