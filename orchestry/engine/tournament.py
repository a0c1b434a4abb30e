"""Cross-play: every player beside every other in the same games, and best responses to each.

A player is a scripted one of the task's, what a run of backend ppo learned, or the team of a run of
backend api or local, whose language models play by text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestry.backends import backend_of
from orchestry.backends.local.weights import team_of
from orchestry.core.config import AgentConfig, RunConfig, validate
from orchestry.core.errors import ConfigError
from orchestry.core.files import is_run, write_atomic
from orchestry.core.resolve import merge
from orchestry.core.seeds import derive
from orchestry.engine.arena import Arena, arena
from orchestry.engine.changes import config_digests
from orchestry.engine.evaluate import held_out_config, left_of, play_measurement
from orchestry.engine.games import play_games
from orchestry.engine.plan import Plan
from orchestry.engine.run import prepare, resume, train
from orchestry.engine.session import Observer
from orchestry.engine.trust import Trust, of_run
from orchestry.store.checkpoints import chosen_update
from orchestry.store.run import Run, load_run, read_config
from orchestry.task.vector import Player, run_named

FILE = "tournament.json"
Games = list[list[float]]
"""Returns by game and agent."""


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
        ground = arena(self.config, self.watch.note)
        numbers, texts = self._checked(ground)
        self.folder.mkdir(parents=True, exist_ok=True)
        found = Results([one.label for one in self.entries], self._game())
        for one in numbers:
            self.watch.note(f"{one.label} beside the others")
            found.cells += [self._cell(ground, one, other) for other in numbers]
        for one in numbers if self.responses else []:
            if found.stopped == "done":
                self._respond(found, ground, one)
        if texts:
            self._by_text(found, ground, budget_usd)
        write_atomic(self.folder / FILE, f"{json.dumps(asdict(found), indent=1)}\n".encode())
        return found

    def _checked(self, ground: Arena) -> tuple[list[Entry], list[Entry]]:
        """The players by numbers, and by text; that each can play is seen before anything is."""
        numbers = [one for one in self.entries if one.team is None]
        texts = [one for one in self.entries if one.team is not None]
        for one in numbers:
            ground.player(one.name, tuple(range(len(ground.roles))), 1, 0)
        for one in texts:
            assert one.team is not None
            if one.team.task != self.config.task:
                raise ConfigError(
                    f"{one.label} plays {one.team.task}, and the others play {self.config.task}: "
                    "leave it out, or name another --task"
                )
            self._plan(ground, one, one, 0, None)
        for one, other in combinations(texts, 2):
            if not _apart(one, other):
                self._plan(ground, one, other, 0, None)
        return numbers, texts

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
            "ppo": {"reward": "own"},
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
        return resume(place, {"ppo": {"steps": config.ppo.steps}}, self.watch)

    # --- language models --------------------------------------------------------------------------

    def _by_text(self, found: Results, ground: Arena, cap: float | None) -> None:
        """Cells of language models beside players by numbers, and beside themselves."""
        for one, other in self._text_pairs(found):
            name = f"{one.label} beside {other.label}"
            if found.stopped != "done":
                found.missing.append(f"{name}: not begun")
                continue
            parts = list[dict[str, list[float]]]()
            for seat in range(len(ground.roles) if one != other else 1):
                run = self._texts(ground, one, other, seat, cap)
                cap, found.stopped = left_of(run.summary), run.summary.stopped
                if found.stopped != "done":
                    break
                parts.append(_returns(run))
            deals = sorted(set.intersection(*map(set, parts))) if parts else []
            if found.stopped != "done" or not deals:
                found.missing.append(f"{name}: {found.stopped}, {len(deals)} games in all seats")
                continue
            games = [[part[deal] for deal in deals] for part in parts]
            found.cells.append(_cell(one, other, games * (len(ground.roles) // len(games))))

    def _text_pairs(self, found: Results) -> Iterator[tuple[Entry, Entry]]:
        for one, other in product(self.entries, repeat=2):
            if one.team is None and other.team is None:
                continue
            if why := _apart(one, other):
                found.missing.append(f"{one.label} beside {other.label}: {why}")
            else:
                yield one, other

    def _texts(self, ground: Arena, one: Entry, other: Entry, seat: int, cap: float | None) -> Run:
        """Games with `one` in a seat."""
        plan, place = self._plan(ground, one, other, seat, cap)
        return play_measurement(plan, place, self.watch)

    def _plan(
        self, ground: Arena, one: Entry, other: Entry, seat: int, cap: float | None
    ) -> tuple[Plan, Path]:
        """Of games by text, and their folder, which takes what a team learned. They are the
        tournament's game: seats that a team's own run gave to others are its own here."""
        place = self.folder / "texts" / f"{one.label}--{other.label}--{seat}"
        if one != other and one.team is not None and other.team is not None:
            return self._prepared(self._two_teams(ground, one, other, seat), cap), place
        left = _as_left(one if one.team is not None else other, place)
        agents = dict[str, Any]()
        for number, role in enumerate(ground.roles):
            sits = one if number == seat else other
            plays = {"plays": sits.name} if sits.team is None else _of_its_own(left, role)
            agents[role] = plays
        return self._prepared({**left, "agents": agents}, cap), place

    def _two_teams(self, ground: Arena, one: Entry, other: Entry, seat: int) -> dict[str, Any]:
        """The config of a game of two teams by text."""
        plans = [
            self._prepared(_as_left(entry, self.folder / "teams" / entry.label), None)
            for entry in (one, other)
        ]
        seats = [plans[number != seat] for number in range(len(ground.roles))]
        by_role = dict(zip(ground.roles, seats, strict=True))
        folder = self.folder / "teams" / f"{one.label}--{other.label}--{seat}"
        agents = {role: _spelled_out(plan, role) for role, plan in by_role.items()}
        return {**_together([plan.config for plan in plans], by_role, folder), "agents": agents}

    def _prepared(self, plain: Mapping[str, Any], cap: float | None) -> Plan:
        """Of a team in the tournament's game."""
        ours = {"seed": self.config.seed, "options": self.config.plain().get("options", {})}
        config = held_out_config({**plain, **ours}, "test", cap, 1, self.text_deals)
        return prepare(config, self.watch.note, held_out=True)


# --- teams by text --------------------------------------------------------------------------------


def _as_left(one: Entry, place: Path) -> dict[str, Any]:
    """The config of a run's team as its last update left it."""
    assert one.team is not None
    assert one.folder is not None
    run = load_run(one.folder)
    left = backend_of(one.team).as_left(run, chosen_update(run, None), place)
    plain = merge(one.team.plain(), left)
    return {**plain, "agents": {role: _of_its_own(plain, role) for role in plain.get("agents", {})}}


def _of_its_own(plain: Mapping[str, Any], role: str) -> dict[str, Any]:
    """An agent's settings, in a seat that is the team's."""
    own = plain.get("agents", {}).get(role, {})
    return {key: value for key, value in own.items() if key != "plays"}


_DRAWN = ("learn.top_p", "learn.top_k", "learn.dtype", "learn.quantize")
_ON = ("learn.device", "learn.threads")
"""How answers are drawn from weights, and where."""


def _has_weights(*teams: RunConfig) -> bool:
    return all("local" in (team.backend, team.provider.name) for team in teams)


def _apart(one: Entry, other: Entry) -> str:
    """Why two teams can't sit in one game; "" if they can."""
    if one.team is None or other.team is None or one == other:
        return ""
    for key in ("sampling.stop", *(_DRAWN if _has_weights(one.team, other.team) else ())):
        section, _, name = key.partition(".")
        if len({getattr(getattr(team, section), name) for team in (one.team, other.team)}) > 1:
            return f"{key} of the two runs differs, and a game has one"
    return ""


def _together(
    teams: Sequence[RunConfig], by_role: Mapping[str, Plan], folder: Path
) -> dict[str, Any]:
    """What a game of two teams has once: the provider of a team that has weights, which answer in
    backend api as well; prices of both; and no learned prompts, since its agents bring them."""
    host = next((team for team in teams if _has_weights(team)), teams[0])
    found = host.plain()
    if _has_weights(host):  # whose other settings come with the weights
        weights = {"name": "local", "team": str(_adapters(by_role, folder))}
        names = [key.removeprefix("learn.") for key in (*_DRAWN, *_ON)]
        drawn = _only(found.get("learn", {}), names)
        kept = _only(found, ("task", "task_path", "retry"))
        found = {**kept, "backend": "api", "provider": weights, "learn": drawn}
    found["prices"] = merge(*(team.plain().get("prices", {}) for team in teams))
    found["sampling"] = {"stop": list(host.sampling.stop), "temperature": None}  # of who has none
    found["behaviors"] = {"enabled": False}
    return found


def _adapters(by_role: Mapping[str, Plan], folder: Path) -> Path:
    """A folder with the trained adapter of each agent that has one; of one size, as a game has."""
    for role, plan in by_role.items():
        config = plan.config
        if config.agents.get(role, AgentConfig()).provider or not _has_weights(config):
            continue
        source = config.learn.source if config.backend == "local" else config.provider.team
        if source is None:
            raise ConfigError(
                "weights that were never trained don't play beside another run's models: leave "
                "out that run of backend local, or give one that learned"
            )
        team_of(source).copy_agent(role, folder)
    if not team_of(folder).even:
        raise ConfigError(
            "adapters of two sizes (learn.rank, learn.alpha, learn.targets, learn.rslora) don't "
            "play in one game: leave one of the runs out"
        )
    return folder


def _only(plain: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: plain[key] for key in keys if key in plain}


def _spelled_out(plan: Plan, role: str) -> dict[str, Any]:
    """An agent as its own run asks it, with what it learned, in a game of two teams."""
    config, member = plan.config, plan.backend.team(plan.task)[role]
    own = config.agents.get(role, AgentConfig())
    asked = {} if _has_weights(config) and own.provider is None else _who_answers(config, own)
    return {
        **asked,
        "system_prompt": member.system_prompt,
        "examples": [example.model_dump() for example in member.examples],
        "max_tokens": member.max_tokens,
        "temperature": member.temperature,
        "infer": own.infer,
        "chain": own.chain,
        "plays": (),  # whatever the run that trained the weights had there
    }


def _who_answers(config: RunConfig, own: AgentConfig) -> dict[str, Any]:
    provider = own.provider or config.provider
    return {"provider": provider.model_dump(mode="json"), "model": own.model}


def _returns(run: Run) -> dict[str, list[float]]:
    """By problem, of games that were finished."""
    return {one.problem: [*one.best_node.score.returns] for one in run.episodes if not one.failed}


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
        folder = folder.resolve()
        config = of_run(folder, {}, trust, watch.note)
        team = None if config.backend == "ppo" else config
        found.append(Entry(str(folder), folder.name, folder, team))
    labels = [one.label for one in found]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(
            f"two players are called {', '.join(twice)}: name each once, or rename a run's folder"
        )
    return found
