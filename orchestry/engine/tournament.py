"""Cross-play: every player beside every other in the same games, and best responses to each.

A player is a scripted one of the task's, what a run of backend ppo learned, or the team of a run of
backend api or local, whose language models play by text.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import permutations, product
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock, Timeout

from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError, LockedError
from orchestry.core.files import is_run, refuse_pipes, write_atomic
from orchestry.core.ppo import check_settings
from orchestry.core.resolve import merge
from orchestry.core.seeds import derive
from orchestry.engine.arena import Arena, arena
from orchestry.engine.changes import config_digests
from orchestry.engine.evaluate import as_left, held_out_config, left_of, play_measurement
from orchestry.engine.games import play_games
from orchestry.engine.meeting import apart, together
from orchestry.engine.plan import Plan
from orchestry.engine.run import prepare, resume, train
from orchestry.engine.session import Observer
from orchestry.engine.trust import Trust, of_run
from orchestry.store.run import Run, existing, load_run, read_config
from orchestry.task.vector import Player, run_named

FILE = "tournament.json"
Games = list[list[float]]
"""Returns by game and agent."""
Teams = dict[str, Plan]
"""Of runs of backend api or local, as their last update left them, by label."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A player of a tournament."""

    name: str
    """A scripted player's, or the run's folder."""
    label: str
    folder: Path | None = None
    """None: a scripted player."""
    team: RunConfig | None = None
    """Of a run of backend api or local; None for players by numbers."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One player in one seat, and one in all others. D deals, each played once per seat."""

    one: str
    other: str
    earned_D: tuple[float, ...]
    """What the one seat earned, the mean over seats: raw returns."""
    others_D: tuple[float, ...]
    """What the other seats earned, the mean of them."""


@dataclass(frozen=True, slots=True)
class Response:
    """What a best response learned by PPO earns in the first seat beside a player, and what that
    player earns there beside itself: raw returns in the same G games."""

    to: str
    earned_G: tuple[float, ...]
    itself_G: tuple[float, ...]


@dataclass(slots=True)
class Results:
    """A tournament so far."""

    labels: list[str]
    game: Mapping[str, Any]
    """Task, options, seed, and steps of best responses."""
    cells: list[Cell] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """What was not played, and why."""
    stopped: str = "done"
    """Why the rest waits for another call."""


@dataclass(frozen=True, slots=True)
class Tournament:
    """Entries that play each other in the games of a config, and how many."""

    config: RunConfig
    """Task, options, seed, and `ppo` of best responses."""
    entries: Sequence[Entry]
    deals: int
    """Games per cell and seat, the same in all cells. A game's luck does not depend on what is
    done in it."""
    text_deals: int
    """The same, of cells with language models."""
    responses: bool
    """Whether a best response to each player by numbers learns, for `ppo.steps`."""
    folder: Path
    """Runs of best responses and of games by text lie here; a second call goes on with them."""
    watch: Observer

    def play(self, budget_usd: float | None) -> Results:
        """Plays everything. `budget_usd` caps all games by text together. Raises ConfigError before
        anything is played."""
        self._refuse_others()
        check_settings(self.config)
        ground = arena(self.config, self.watch.note)
        if len(ground.roles) < 2:
            raise ConfigError("a tournament is played beside others: found one agent, needs two")
        numbers, teams = self._checked(ground, budget_usd)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / "tournament.lock").acquire(timeout=0):
                return self._played(ground, numbers, teams, budget_usd)
        except Timeout:
            raise LockedError(
                f"{self.folder} is being written by another tournament: wait for it, or choose "
                "another --run-dir"
            ) from None

    def _played(
        self, ground: Arena, numbers: Sequence[Entry], teams: Teams, budget_usd: float | None
    ) -> Results:
        found = Results(self._labels(), self._game())
        for place, one in enumerate(numbers, 1):
            self.watch.note(f"{one.label} beside the others ({place} of {len(numbers)})")
            found.cells += [self._cell(ground, one, other) for other in numbers]
        for one in numbers if self.responses else []:
            if found.stopped == "done":
                self._respond(found, ground, one)
        if teams:
            self._by_text(found, ground, teams, budget_usd)
        write_atomic(self.folder / FILE, f"{json.dumps(asdict(found), indent=1)}\n".encode())
        return found

    def _refuse_others(self) -> None:
        """Raises ConfigError if the folder holds a run, or a tournament in another game or with
        players that would be lost. More players may come, and best responses learn for longer.
        Raises StoreError for a pipe in it."""
        if is_run(self.folder) or (self.folder / "config.yaml").exists():
            raise ConfigError(f"{self.folder} holds a run: choose another --run-dir")
        refuse_pipes(self.folder)
        if not (file := self.folder / FILE).exists():
            return
        try:
            kept = json.loads(file.read_bytes())
            before, lost = dict(kept["game"]), {*kept["labels"]} - {*self._labels()}
        except (ValueError, LookupError, TypeError):
            raise ConfigError(f"{file} is no tournament's: choose another --run-dir") from None
        if kept.get("responses") and not self.responses:
            raise ConfigError(
                f"{self.folder} holds best responses, which this call would drop: give "
                "--best-response too, or choose another --run-dir"
            )
        there = f"{self.folder} holds a tournament with"
        now = json.loads(json.dumps(self._game()))
        for key in ("task", "options", "seed"):
            if before.get(key) != now[key]:
                raise ConfigError(
                    f"{there} {key} {before.get(key)}, not {now[key]}: choose another --run-dir"
                )
        if lost:
            raise ConfigError(
                f"{there} {', '.join(sorted(lost))} too: name them, or choose another --run-dir"
            )

    def _labels(self) -> list[str]:
        return [one.label for one in self.entries]

    def _checked(self, ground: Arena, cap: float | None) -> tuple[list[Entry], Teams]:
        """The players by numbers, and by text; that each can play is seen before anything is."""
        numbers = [one for one in self.entries if one.team is None]
        texts = [one for one in self.entries if one.team is not None]
        teams: Teams = {}
        for one in numbers:
            ground.player(one.name, tuple(range(len(ground.roles))), 1, 0)
        for one in texts:
            assert one.team is not None
            if one.team.task != self.config.task:
                raise ConfigError(
                    f"{one.label} plays {one.team.task}, and the others play {self.config.task}: "
                    "leave it out, or name another --task"
                )
            place = self.folder / "teams" / one.label
            shutil.rmtree(place, ignore_errors=True)  # a library of an earlier call
            teams[one.label] = self._prepared(_as_left(one, place), cap)
        for one, other in permutations(texts, 2):
            if not apart(teams[one.label], teams[other.label]):
                self._plan(ground, teams, one, other, 0, None)
        return numbers, teams

    def _game(self) -> dict[str, Any]:
        plain = self.config.plain()
        kept: dict[str, Any] = {key: plain.get(key) for key in ("task", "options")}
        steps = {"response_steps": self.config.ppo.steps} if self.responses else {}
        return {**kept, "seed": self.config.seed, **steps}

    def _cell(self, ground: Arena, one: Entry, other: Entry) -> Cell:
        seats = tuple(range(len(ground.roles)))
        if one == other:
            whole = self._games(ground, {one.name: seats})
            return _cell(one, other, [whole] * len(seats))
        parts = [
            self._games(ground, {one.name: (seat,), other.name: _without(seats, seat)})
            for seat in seats
        ]
        return _cell(one, other, parts)

    def _games(self, ground: Arena, seats: Mapping[str, tuple[int, ...]]) -> Games:
        players = []
        for name, own in seats.items():
            seed = derive(self.config.seed, "cross", name, *own)
            players.append(Player(ground.player(name, own, self.deals, seed), own))
        return play_games(ground.games(self.deals, "cross"), players)

    # --- best responses ---------------------------------------------------------------------------

    def _respond(self, found: Results, ground: Arena, to: Entry) -> None:
        """Learns from its own reward, in the first seat: what it earns more than the player itself
        is a lower bound of how exploitable that player is."""
        self.watch.note(f"a best response to {to.label} learns")
        rest = tuple(range(1, len(ground.roles)))
        changes = {
            "agents": {ground.roles[seat]: {"plays": to.name} for seat in rest},
            "ppo": {"reward": "own", **_start(ground, to)},
        }
        place = self.folder / "responses" / to.label
        run = self._learned(validate(merge(self.config.plain(), changes)), place)
        if run.summary.stopped != "done":
            found.stopped = run.summary.stopped
            found.missing.append(f"the best response to {to.label}: {run.summary.stopped}")
            return
        learned = self._games(ground, {str(place): (0,), to.name: rest})
        itself = self._games(ground, {to.name: (0, *rest)})
        first = (tuple(one[0] for one in games) for games in (learned, itself))
        found.responses.append(Response(to.label, *first))

    def _learned(self, config: RunConfig, place: Path) -> Run:
        """Begins, or goes on. Raises ConfigError if another response lies there."""
        if not is_run(place):
            return train(config, place, self.watch)
        if config_digests(validate(read_config(place))) != config_digests(config):
            raise ConfigError(
                f"{place} learned in another game or with other settings: choose another --run-dir"
            )
        agents = {role: {"plays": [*own.plays]} for role, own in config.agents.items() if own.plays}
        now = {"ppo": {"steps": config.ppo.steps}, "agents": agents}
        return resume(place, now, self.watch)  # which tells another run of that name by its content

    # --- language models --------------------------------------------------------------------------

    def _by_text(self, found: Results, ground: Arena, teams: Teams, cap: float | None) -> None:
        """Cells with language models."""
        for one, other in self._text_pairs(found, teams):
            name = f"{one.label} beside {other.label}"
            if found.stopped != "done":
                found.missing.append(f"{name}: not begun")
                continue
            parts = list[dict[str, list[float]]]()
            for seat in range(len(ground.roles) if one != other else 1):
                plan, place = self._plan(ground, teams, one, other, seat, cap)
                run = play_measurement(plan, place, self.watch)
                cap, found.stopped = left_of(run.summary), run.summary.stopped
                self._tell_tags(f"{name}, {ground.roles[seat]}", run)
                if found.stopped != "done":
                    break
                parts.append(_returns(run))
            deals = sorted(set.intersection(*map(set, parts))) if parts else []
            if found.stopped != "done" or not deals:
                found.missing.append(f"{name}: {found.stopped}, {len(deals)} games in all seats")
                continue
            games = [[part[deal] for deal in deals] for part in parts]
            found.cells.append(_cell(one, other, games * (len(ground.roles) // len(games))))

    def _tell_tags(self, name: str, run: Run) -> None:
        """Of what is true of every game, such as an answer that could not be read."""
        tags = [{*one.best_node.score.tags} for one in run.episodes if not one.failed]
        if tags and (common := set.intersection(*tags)):
            self.watch.note(f"{name}: each of {len(tags)} games has {', '.join(sorted(common))}")

    def _text_pairs(self, found: Results, teams: Teams) -> Iterator[tuple[Entry, Entry]]:
        for one, other in product(self.entries, repeat=2):
            both = [teams[entry.label] for entry in (one, other) if entry.team is not None]
            if len(both) == 2 and one != other and (why := apart(*both)):
                found.missing.append(f"{one.label} beside {other.label}: {why}")
            elif both:
                yield one, other

    def _plan(
        self, ground: Arena, teams: Teams, one: Entry, other: Entry, seat: int, cap: float | None
    ) -> tuple[Plan, Path]:
        """Of games by text with `one` in a seat, and their folder, which takes what a team learned.
        They are the tournament's game: seats that a team's own run gave to others are its own."""
        name = Path(one.label, other.label, str(seat))  # a label may hold any separator
        place = self.folder / "texts" / name
        sits = {role: one if n == seat else other for n, role in enumerate(ground.roles)}
        if one != other and one.team is not None and other.team is not None:
            plans = {role: teams[entry.label] for role, entry in sits.items()}
            both = [teams[entry.label] for entry in self.entries if entry in (one, other)]
            plain = together(both, plans, self.folder / "teams" / name)
            return self._prepared(plain, cap), place
        left = _as_left(one if one.team is not None else other, place)
        agents = {
            role: {"plays": entry.name} if entry.team is None else left["agents"].get(role, {})
            for role, entry in sits.items()
        }
        return self._prepared({**left, "agents": agents}, cap), place

    def _prepared(self, plain: Mapping[str, Any], cap: float | None) -> Plan:
        """Of a team in the tournament's game."""
        ours = {"seed": self.config.seed, "options": self.config.plain().get("options", {})}
        config = held_out_config({**plain, **ours}, "test", cap, 1, self.text_deals)
        return prepare(config, self.watch.note, held_out=True)


# --- teams by text --------------------------------------------------------------------------------


def _as_left(one: Entry, place: Path) -> dict[str, Any]:
    """The config of a run's team as its last update left it, in seats that are all its own."""
    assert one.team is not None
    assert one.folder is not None
    plain = as_left(load_run(one.folder), one.team, place)
    agents = {
        role: {key: value for key, value in own.items() if key != "plays"}
        for role, own in plain.get("agents", {}).items()
    }
    return {**plain, "agents": agents}


def _returns(run: Run) -> dict[str, list[float]]:
    """By problem, of games that were finished."""
    return {one.problem: [*one.best_node.score.returns] for one in run.episodes if not one.failed}


def _start(ground: Arena, to: Entry) -> dict[str, Any]:
    """The settings by which a best response begins as the learned player to which it responds."""
    if to.name not in ground.learned:
        return {}
    settings, _ = ground.learned[to.name]
    return {"from": to.name, "hidden": settings.hidden, "normalise": settings.normalise}


def _without(seats: Sequence[int], seat: int) -> tuple[int, ...]:
    return tuple(one for one in seats if one != seat)


def _cell(one: Entry, other: Entry, parts: Sequence[Games]) -> Cell:
    """From the games with `one` in each seat by turns, seat by seat."""
    seats = range(len(parts))
    deals = range(len(parts[0]))
    earned = [fmean(parts[seat][deal][seat] for seat in seats) for deal in deals]
    others = [
        fmean(parts[seat][deal][n] for seat in seats for n in _without(seats, seat))
        for deal in deals
    ]
    return Cell(one.label, other.label, tuple(earned), tuple(others))


def entries(names: Sequence[str], trust: Trust, watch: Observer) -> list[Entry]:
    """The players of these names. Raises ConfigError for two of one label, and for runs of which
    nothing can play."""
    found = list[Entry]()
    for name in names:
        folder = run_named(name)
        if folder is None:
            found.append(Entry(name, name))
            continue
        folder = existing(folder).resolve()  # no checkpoint's file
        config = of_run(folder, {}, trust, watch.note)
        team = None if config.backend == "ppo" else config
        found.append(Entry(str(folder), folder.name, folder, team))
    labels = [one.label for one in found]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(
            f"two players are called {', '.join(twice)}: name each once, or rename a run's folder"
        )
    return found
