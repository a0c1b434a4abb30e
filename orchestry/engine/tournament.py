"""Cross-play: every player beside every other in the same games, and best responses to each.

A player is a scripted one of the task's, what a run of backend ppo learned, or the team of a run of
backend api or local, whose language models play by text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

from orchestry.backends import backend_of
from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError
from orchestry.core.files import write_atomic
from orchestry.core.resolve import merge
from orchestry.core.seeds import derive
from orchestry.engine.arena import Arena, arena
from orchestry.engine.evaluate import held_out_config, left_of, play_measurement
from orchestry.engine.games import play_games
from orchestry.engine.run import prepare, resume, train
from orchestry.engine.session import Observer
from orchestry.engine.trust import Trust, of_run
from orchestry.store.checkpoints import chosen_update
from orchestry.store.run import load_run
from orchestry.task.vector import Player

FILE = "tournament.json"
Games = list[list[float]]
"""Returns by game and agent."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A player of a tournament."""

    name: str
    """A scripted player's, or the run's folder."""
    label: str
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
    cells: list[Cell] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """What was not played, and why."""


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
        """Plays everything. `budget_usd` caps all games by text together."""
        found, ground = (
            Results([one.label for one in self.entries]),
            arena(self.config, self.watch.note),
        )
        by_numbers = [one for one in self.entries if one.team is None]
        for one in by_numbers:  # names that are none are told before anything is written
            ground.player(one.name, (0,), 1, 0)
        self.folder.mkdir(parents=True, exist_ok=True)
        for one in by_numbers:
            self.watch.note(f"{one.label} beside the others")
            found.cells += [self._cell(ground, one, other) for other in by_numbers]
        for one in by_numbers if self.responses else []:
            found.responses.append(self._response(ground, one))
        self._by_text(found, ground, budget_usd)
        content = json.dumps(asdict(found), indent=1)
        write_atomic(self.folder / FILE, f"{content}\n".encode())
        return found

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

    def _response(self, ground: Arena, to: Entry) -> Response:
        """Learns from its own reward, in the first seat: what it earns more than the player itself
        is a lower bound of how exploitable that player is."""
        self.watch.note(f"a best response to {to.label} learns")
        rest = tuple(range(1, len(ground.roles)))
        changes = {
            "agents": {ground.roles[seat]: {"plays": to.name} for seat in rest},
            "ppo": {"reward": "own"},
        }
        place = self.folder / "responses" / to.label
        if (place / "journal.jsonl").exists():
            resume(place, observer=self.watch)
        else:
            train(validate(merge(self.config.plain(), changes)), place, self.watch)
        learned = self._games(ground, {str(place): (0,), to.name: rest})
        itself = self._games(ground, {to.name: (0, *rest)})
        first = (tuple(one[0] for one in games) for games in (learned, itself))
        return Response(to.label, *first)

    # --- language models --------------------------------------------------------------------------

    def _by_text(self, found: Results, ground: Arena, budget_usd: float | None) -> None:
        """Cells of language models beside players by numbers, and beside themselves."""
        cap = budget_usd
        for one, other in self._text_pairs(found):
            parts = list[Games]()
            for seat in range(len(ground.roles) if one != other else 1):
                games, cap, stopped = self._texts(ground, one, other, seat, cap)
                if stopped != "done":
                    found.missing.append(f"{one.label} beside {other.label}: stopped ({stopped})")
                    return
                parts.append(games)
            if one == other:
                parts *= len(ground.roles)
            found.cells.append(_cell(one, other, parts))

    def _text_pairs(self, found: Results) -> Iterator[tuple[Entry, Entry]]:
        for one in self.entries:
            for other in self.entries:
                teams = [entry.team for entry in (one, other) if entry.team is not None]
                if len(teams) == 2 and one != other:
                    found.missing.append(
                        f"{one.label} beside {other.label}: the models of two runs don't play in "
                        "one game"
                    )
                elif teams:
                    yield one, other

    def _texts(
        self, ground: Arena, one: Entry, other: Entry, seat: int, cap: float | None
    ) -> tuple[Games, float | None, str]:
        """Games with `one` in a seat; what is left of the cap; and how they stopped."""
        plays = {
            role: {"plays": entry.name}
            for number, role in enumerate(ground.roles)
            if (entry := one if number == seat else other).team is None
        }
        team = one if one.team is not None else other
        assert team.team is not None
        place = self.folder / "texts" / f"{one.label}--{other.label}--{seat}"
        run, backend = load_run(team.name), backend_of(team.team)
        changes = {
            **backend.as_left(run, chosen_update(run, None), place),
            "options": self.config.options,
            "agents": plays,
            "seed": self.config.seed,
        }
        plain = merge(team.team.plain(), changes)
        config = held_out_config(plain, "test", cap, 1, self.text_deals)
        plan = prepare(config, self.watch.note, held_out=True)
        played = play_measurement(plan, place, self.watch)
        games = [list(one.best_node.score.returns) for one in played.episodes if not one.failed]
        return games, left_of(played.summary), played.summary.stopped


def _without(seats: Sequence[int], seat: int) -> tuple[int, ...]:
    return tuple(one for one in seats if one != seat)


def _cell(one: Entry, other: Entry, parts: Sequence[Games]) -> Cell:
    """From the games with `one` in each seat by turns, seat by seat."""
    seats = range(len(parts))
    deals = range(min(len(games) for games in parts))
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
        folder = Path(name)
        if not folder.is_dir():
            found.append(Entry(name, name))
            continue
        config = of_run(folder, {}, trust, watch.note)
        found.append(
            Entry(name, folder.resolve().name, None if config.backend == "ppo" else config)
        )
    labels = [one.label for one in found]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise ConfigError(f"{', '.join(sorted(twice))} plays twice: name each player once")
    return found
