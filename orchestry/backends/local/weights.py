"""The providers of weights of this machine, and the team of adapters that a folder holds."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from orchestry.backends.local.model import gpu_name, require_installed, source_of
from orchestry.core.digests import file_digest, text_digest
from orchestry.core.errors import (
    ConfigError,
    Interrupted,
    PromptTooLong,
    ProviderError,
    StoreError,
    reason,
    unknown,
)
from orchestry.core.files import refused, to_json
from orchestry.core.learning import LearnConfig
from orchestry.core.types import Completion, Member, Request
from orchestry.store.checkpoints import checkpoint, chosen_update
from orchestry.store.run import Run, check_texts

if TYPE_CHECKING:
    from orchestry.backends.local.trainer import Trainer

START = "start"
"""A run's copy of the adapters that it began with."""
ADAPTER, FULL = "adapter_config.json", "full_digests.json"
"""The file that an agent's folder has with an adapter, and with weights that are all trained."""
_FACTS, _SHARED = "adapter_digests.json", "shared"
_TEMPLATE_TOKENS = 64  # upper bound on what a chat template adds per message
_GATHER_S = 0.01
"""Calls that arrive within this time of each other are drawn in one batch."""
_NAME_DIGITS = 12


class Weights:
    """Backend local's provider. It is never called: answers come through Lockstep, one batch at a
    time."""

    name, base_url = "local", ""
    cacheable, bills_unanswered = False, False
    slots: int | None = None
    device: str | None = None
    """Their device, once they are loaded."""
    gpu: str | None = None
    """The name of that device, if it is a GPU."""
    sha256: str | None = None
    """Digest of their file, if known."""

    def __init__(self, model: str, deterministic: bool) -> None:
        self.model, self.deterministic = model, deterministic

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """Never called: moves are drawn in lockstep, and another provider judges."""
        raise AssertionError(f"the agents' weights were asked for {request.purpose}")

    def input_bound(self, request: Request) -> int:
        """A token is at least a byte."""
        texts = [message.content.encode() for message in request.messages]
        return sum(len(text) + _TEMPLATE_TOKENS for text in texts)

    def leads(self, request: Request) -> bool:
        return False

    async def __aenter__(self) -> Weights:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Team:
    """The adapters in a folder that has one folder per agent."""

    folder: Path
    adapters: Mapping[str, Mapping[str, Any]]
    """By agent, or `shared`: adapter_config.json."""
    digest: str
    """Of all weights and their bases; empty for a base that nothing was trained on."""

    @classmethod
    def untrained(cls, model: str) -> Team:
        """A base as it is, for every agent; it has no folder."""
        return cls(Path(), {_SHARED: {"base_model_name_or_path": model}}, "")

    @property
    def shared(self) -> bool:
        """Whether all agents have the same adapter."""
        return list(self.adapters) == [_SHARED]

    @property
    def name(self) -> str:
        """The team's model name: its base and its weights' digest."""
        if not self.digest:
            return self._bases[0]
        return f"{Path(self._bases[0]).name}+{self.digest[:_NAME_DIGITS]}"

    @property
    def _bases(self) -> list[str]:
        return list(dict.fromkeys(str(one["base_model_name_or_path"]) for one in self._all))

    @property
    def _all(self) -> list[Mapping[str, Any]]:
        return list(self.adapters.values())

    @property
    def sizes(self) -> dict[str, Any]:
        """The keys of `learn` that the adapters themselves decide."""
        first = self._all[0]
        found = {"rank": first["r"], "alpha": first["lora_alpha"], "shared": self.shared}
        if isinstance(names := first.get("target_modules"), list):
            found["targets"] = sorted({str(name).rpartition(".")[2] for name in names})
        return {**found, "rslora": bool(first.get("use_rslora"))}

    def check_sizes(self, learn: LearnConfig) -> None:
        """Raises ConfigError if a run with these settings can't begin with the adapters."""
        names = [
            key for key in ("rank", "alpha", "rslora") if self.sizes[key] != getattr(learn, key)
        ]
        if names:
            asked = ", ".join(f"learn.{key}={getattr(learn, key)}" for key in names)
            fix = " ".join(f"--set learn.{key}={self.sizes[key]}" for key in names)
            raise ConfigError(
                f"the adapters in {self.folder} have other sizes than {asked}: {fix.lower()}, or "
                "start from other adapters"
            )

    def lacks(self, roles: Sequence[str]) -> list[str]:
        """The agents that have no adapter here."""
        return [] if self.shared else [role for role in roles if role not in self.adapters]

    def base(self, role: str | None) -> str:
        """The base that the agent's adapter was trained on (None: the first agent's); raises
        ConfigError if it is a folder that is gone."""
        found = self._all[0] if self.shared or role is None else self.adapters[role]
        return source_of(str(found["base_model_name_or_path"]))

    def copy(self, kept: Path) -> None:
        """Copies the adapters, whole or not at all, because a run may delete its checkpoints."""
        part = kept.with_name(kept.name + ".part")
        try:
            for old in (part, kept):
                shutil.rmtree(old, ignore_errors=True)
            for file in self.folder.glob(f"*/{ADAPTER}"):
                shutil.copytree(file.parent, part / file.parent.name)
            part.replace(kept)
        except OSError as error:
            raise refused(kept, error) from None

    def copy_agent(self, role: str, into: Path) -> None:
        """Copies what answers for one agent, under its name."""
        from orchestry.backends.local.adapters import folder_of

        own = folder_of(_SHARED if self.shared else role)
        try:
            shutil.copytree(self.folder / own, into / folder_of(role))
        except OSError as error:
            raise refused(into, error) from None


def run_of(place: Path) -> Run | None:
    """The run that a folder is, or is a checkpoint or the start of."""
    homes = {"checkpoints": place.parent.parent, START: place.parent}
    for folder in (place, homes.get(place.parent.name, place), homes.get(place.name, place)):
        if (folder / "config.yaml").is_file() and (folder / "journal.jsonl").is_file():
            return Run(folder)
    return None


def team_of(place: Path) -> Team:
    """The team of a run as its last update left it, or that of a checkpoint.

    Raises ConfigError for a folder without adapters, StoreError for damaged ones.
    """
    folder = place
    if (run := run_of(place)) is not None and run.folder == place:
        check_texts(run)
        if run.config.get("backend") != "local":
            raise ConfigError(
                f"provider local: {place} is a run of backend api, whose team has no weights of "
                "its own: give a run of backend local, or start from this one's prompts with "
                "behaviors.from"
            )
        learned = chosen_update(run, None)
        folder = checkpoint(run, learned) if learned else place / START
    found = {unquote(path.parent.name): path for path in sorted(folder.glob(f"*/{ADAPTER}"))}
    if not found:
        what = "holds no adapters" if folder.is_dir() else "is not a folder here"
        if any(folder.glob(f"*/{FULL}")):
            raise ConfigError(
                f"{place} holds full weights (learn.method=full), and only adapters can be taken "
                "over here: give a run that trained adapters; full weights go on with "
                "`orchestry run --backend local --set learn.method=full --set learn.from=...`"
            )
        why = "has no update yet, and no adapters to start from" if folder != place else what
        raise ConfigError(
            f"provider local: {place} {why}: give a run of backend local that learned, or a "
            "checkpoint, with a folder per agent, such as RUN/checkpoints/000020"
        )
    files = [file for path in found.values() for file in _weights(path.parent)]
    digests = {path.relative_to(folder).as_posix(): file_digest(path) for path in files}
    return Team(
        folder, {r: _read(path) for r, path in found.items()}, text_digest(to_json(digests))
    )


def _weights(folder: Path) -> list[Path]:
    """An adapter's weights, and the file with its base's digest."""
    return [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob(_FACTS))]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if missing := {"base_model_name_or_path", "r", "lora_alpha"} - found.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except (OSError, ValueError, AttributeError) as error:
        raise StoreError(
            f"the adapter {path} can't be read ({reason(error)}): restore it from a copy, or take "
            "another checkpoint"
        ) from None
    return dict(found)


def starting(learn: LearnConfig, roles: Sequence[str]) -> dict[str, str | None]:
    """By agent, whose weights in `learn.from` it starts with; None: fresh ones. Empty where it
    holds one adapter for all.

    Raises ConfigError where `learn.roles` names nobody there, and for an agent without weights
    where it does not say that this is meant.
    """
    assert learn.source is not None
    file, asked = (FULL if learn.method == "full" else ADAPTER), learn.roles or {}
    there = sorted(unquote(path.parent.name) for path in learn.source.glob(f"*/{file}"))
    if learn.shared or (_SHARED in there and not asked):
        return {}
    where = f"learn.from: {learn.source} holds weights of {', '.join(there)}"
    if odd := [one for one in asked.values() if one is not None and one not in there]:
        raise ConfigError(f"{where}, and learn.roles names {', '.join(odd)}: name one of these")
    found = {role: asked.get(role, role if role in there else None) for role in roles}
    lacking = [role for role, one in found.items() if one is None]
    if lacking and learn.roles is None:
        raise ConfigError(
            f"{where}, and none of {', '.join(lacking)}: say whose the agent starts with, such as "
            f"learn.roles.{lacking[0]}={there[0]} (null: nobody's), or name another checkpoint"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Asked:
    request: Request
    answer: asyncio.Future[Completion]


class TrainedWeights(Weights):
    """A trained team, or an untrained base, as a provider for backend api. Calls that wait at the
    same time are drawn in one batch, each by its own seed, so an answer depends on the others only
    up to rounding."""

    def __init__(self, team: Team, roles: Sequence[str], settings: LearnConfig, seed: int) -> None:
        """`roles`: the agents that it answers for. `settings`: how weights are loaded and answers
        drawn. Raises ConfigError for a missing package, base or adapter; loads nothing."""
        require_installed()
        super().__init__(team.name, deterministic=False)
        self.team, self.sha256 = team, team.digest or None
        self.cacheable = bool(team.digest)  # a base's name does not say which numbers it holds
        self.warn: Callable[[str], None] = lambda text: None
        """Told when memory runs out."""
        taken = {role: (settings.roles or {}).get(role, role) for role in roles}
        self._members = {r: Member(r, "", team.base(one), 1) for r, one in taken.items()}
        self._settings, self._seed = settings, seed
        self._waiting = list[_Asked]()
        self._batch = list[_Asked]()
        self._work: asyncio.Task[None] | None = None
        self._trainer: Trainer | None = None

    async def __aenter__(self) -> TrainedWeights:
        self._trainer = await asyncio.to_thread(self._load)
        return self

    def _load(self) -> Trainer:
        from orchestry.backends.local.trainer import Trainer

        settings, seed = self._settings.model_copy(update={"enabled": False}), self._seed
        trainer = Trainer(self._members, settings, 1, seed, self._told, self._beat)
        if self.team.digest:
            trainer.start_from(self.team.folder, roles=settings.roles)
        place = trainer.crews[0].base.device
        self.device, self.gpu = str(place), gpu_name(place)
        return trainer

    @property
    def bases(self) -> set[str]:
        """The bases of the team's adapters."""
        return {member.model for member in self._members.values()}

    def _told(self, text: str) -> None:
        self.warn(text)

    def _beat(self, tokens: int) -> None:
        """Ends a batch whose answers nobody waits for any more."""
        if self._batch and all(one.answer.done() for one in self._batch):
            raise Interrupted("nobody waits for these answers any more")

    async def __aexit__(self, *exc: object) -> None:
        for one in (*self._waiting, *self._batch):
            one.answer.cancel()
        if self._work is not None:
            await asyncio.wait([self._work])
        self._trainer = None

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """See Provider. Raises PromptTooLong, and ProviderError, permanent, for another model."""
        if request.model != self.model:
            why = unknown("model of the team", request.model, [self.model])
            raise ProviderError(why, transient=False, billed=False)
        mine = _Asked(request, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._draw_waiting())
        return await mine.answer

    async def _draw_waiting(self) -> None:
        while self._waiting:
            await asyncio.sleep(_GATHER_S)
            batch = [one for one in self._waiting if not one.answer.done()]
            self._batch = sorted(batch, key=lambda one: one.request.seed)
            self._waiting = []
            if self._batch:
                await self._answer(self._batch)

    async def _answer(self, batch: Sequence[_Asked]) -> None:
        try:
            answers = await asyncio.to_thread(self._draw, [one.request for one in batch])
        except Exception as error:
            answers = [error] * len(batch)
        for one, answer in zip(batch, answers, strict=True):
            if one.answer.done():
                continue
            if isinstance(answer, Exception):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)

    def _draw(self, requests: Sequence[Request]) -> list[Completion | Exception]:
        assert self._trainer is not None, "enter the provider before asking it"
        drawn = self._trainer.draw([self._by_a_member(one) for one in requests], 1)
        return [
            self._settled(request, completion)
            for request, (completion,) in zip(requests, drawn, strict=True)
        ]

    def _by_a_member(self, request: Request) -> Request:
        """An untrained base answers whoever asks, as each of its agents does."""
        if self.team.digest or request.agent in self._members:
            return request
        return request.model_copy(update={"agent": next(iter(self._members))})

    def _settled(self, request: Request, drawn: Completion) -> Completion | Exception:
        """Under the team's name, and without token ids, which only gradients need."""
        if drawn.stop == "too_long":
            return PromptTooLong(
                f"a prompt and {request.max_tokens:,} tokens for its answer pass the context of "
                f"{drawn.model}: lower max_tokens, or shorten the prompt"
            )
        if drawn.failed:
            return ProviderError(drawn.failed, transient=False, billed=False, refused=True)
        return drawn.model_copy(update={"model": self.model, "tokens": None})
