"""Four questions of Bucket Brigade's authors, by figures: evolved agents beside PPO, policies in
scenarios that they did not learn in, diverse partners, and Nash equilibria.

    python -m benchmarks.quality.bucket_questions [--only PART...] [--runs DIR] [--folder DIR]
        [--list] [--kept] [--write]

The work is cut into parts, the most telling first (--list). A finished part is a line of
benchmarks/kept/bucket_questions.jsonl and is not played again; one that was stopped goes on. Parts
that need what `bucket_ppo` learned look for it in --runs, and wait if it isn't there.

What upstream published is in bucket_upstream.json, each with its path in upstream's repository.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import page
from benchmarks.kept import KEPT, keep_line, kept_lines, to_its_end
from benchmarks.peers.bucket_speed import module
from benchmarks.quality import bucket_ppo
from benchmarks.stats import played
from orchestry.core.config import validate
from orchestry.core.files import is_run
from orchestry.core.resolve import merge
from orchestry.core.seeds import derive
from orchestry.engine.arena import Arena, arena
from orchestry.engine.games import play_games
from orchestry.engine.session import Silent
from orchestry.engine.tournament import Entry, Tournament
from orchestry.task.vector import Player, Script

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILE = KEPT / "bucket_questions.jsonl"
FACTS = Path(__file__).with_name("bucket_upstream.json")
GAMES, DEALS = 1000, 200
STEPS = {
    "runs": 10_000_000,
    "partners": 1_000_000,
    "reward": 10_000_000,
    "response": 1_000_000,
    "deviate": 4_000_000,
}
"""Of bucket_ppo's runs, and of those that are learned here."""
SEEDS = 3
MIXES: Mapping[str, tuple[str, ...]] = {
    "one": ("firefighter",),
    "mix": ("firefighter", "free_rider", "hero", "coordinator"),
    "self": ("self",),
}
"""Beside whom PPO learns."""
MET = ("firefighter",)
UNMET = ("guard", "liar", "always_rest", "random")
"""Who plays beside it afterwards."""
SOCIAL = ("rest_trap", "minimal_specialization")
"""Upstream searched these for equilibria of unlike agents, and trained PPO in them."""
LONGEST = 100
"""Nights after which upstream's Rust stops a game."""

Returns = list[list[float]]


class Part(NamedTuple):
    """What is played, kept and resumed as one."""

    question: str
    scenario: str
    kind: str = ""
    seed: int = 0

    def __str__(self) -> str:
        return ":".join(str(part) for part in self if part != "")


@dataclass(frozen=True, slots=True)
class Places:
    """Folders."""

    runs: Path
    """What `bucket_ppo` learned."""
    own: Path


class Waits(Exception):
    """A part needs a run that isn't finished."""


def parts() -> Iterator[Part]:
    """All, the most telling first."""
    facts = upstream()
    yield from (Part("nash", one["scenario"]) for one in facts["equilibria"])
    yield from (Part("deviate", "rest_trap", seat) for seat in ("0", "3"))
    yield Part("deviate", "minimal_specialization", "0")
    for seed in range(SEEDS):
        rewards = [Part("reward", name, kind, seed) for kind in ("own", "team") for name in SOCIAL]
        mixes = [Part("partners", "rest_trap", kind, seed) for kind in MIXES]
        yield from (*rewards, *mixes)
    yield from (Part("evolved", name) for name in facts["evolved"]["v6"])
    yield from (Part("transfer", name) for name in rings())
    for seed in range(SEEDS):
        yield from (Part("partners", "mixed_motivation", kind, seed) for kind in MIXES)


@cache
def upstream() -> dict[str, Any]:
    """The facts."""
    found: dict[str, Any] = json.loads(FACTS.read_bytes())
    return found


def rings() -> list[str]:
    """Scenarios whose observations have as many numbers as those of `default`."""
    scenario = module("scenario")
    return [name for name in scenario.names() if scenario.scenario(name, {}).num_houses == 10]


def steps_of(part: Part) -> int:
    """Steps of what the part learns or looks at."""
    by_question = {"evolved": "runs", "transfer": "runs", "nash": "response"}
    return STEPS[by_question.get(part.question, part.question)]


def settings(part: Part) -> str:
    """A digest of all that the part's result depends on."""
    facts = [upstream()["evolved"], upstream()["equilibria"]]
    own = {
        "nash": [LONGEST, facts],
        "evolved": [DEALS, facts],
        "deviate": facts,
        "partners": [MIXES, MET, UNMET],
        "reward": [STEPS["response"], "begins as the player"],
        "transfer": rings(),
    }[part.question]
    text = bucket_ppo.settings(part.scenario, steps_of(part)) + json.dumps([GAMES, own])
    return blake2b(text.encode(), digest_size=6).hexdigest()


def fitting() -> list[dict[str, Any]]:
    """The kept lines of today's settings."""
    by_name = {str(part): part for part in parts()}
    return [
        line
        for line in kept_lines(FILE)
        if line["part"] in by_name and line["settings"] == settings(by_name[line["part"]])
    ]


def known() -> dict[str, Any]:
    """Their results, by part."""
    return {line["part"]: line["result"] for line in fitting()}


# --- players and games ----------------------------------------------------------------------------


def enlist(scenario: str) -> None:
    """Adds to the scripted players: the agents that upstream evolved (`v6`), and them and the
    archetypes as upstream's Rust plays them, by four of their ten numbers (`v6-4`, `hero-4`)."""
    experts = module("experts")
    evolved = upstream()["evolved"]
    genomes = {version: evolved[version].get(scenario) for version in evolved}
    bred = {version: experts.Traits(*numbers) for version, numbers in genomes.items() if numbers}
    for name, traits in {**experts.ARCHETYPES, **bred}.items():
        experts.EXPERTS[name] = traits.act
        experts.EXPERTS[f"{name}-4"] = by_four(traits)


def by_four(traits: Any) -> Callable[[Any, Any], Any]:
    """An agent that works with a fixed chance, at its burning home or at any fire."""
    game = module("game")

    def act(seat: Any, ring: Any) -> Any:
        draw = seat.source.random
        house, mode = seat.home, int(draw() < traits.work * (1.0 - traits.rest))
        fires = [place for place, state in enumerate(ring.houses) if state == game.BURNING]
        if mode and fires and not (house in fires and draw() < traits.own_house):
            house = seat.source.choice(fires)
        return game.Action(house, mode, mode if draw() < traits.honesty else 1 - mode)

    return act


def ground(part: Part, changes: Mapping[str, Any] = {}) -> Arena:
    """The scenario's games, with the luck of bucket_ppo's."""
    enlist(part.scenario)
    config = merge(bucket_ppo.config(part.scenario, part.seed, steps_of(part)), changes)
    return arena(validate(config), lambda text: None)


def seated(names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Each player's seats, from who sits where."""
    return {one: tuple(seat for seat, name in enumerate(names) if name == one) for one in names}


def cast(found: Arena, names: Sequence[str], games: int) -> list[Player]:
    """The players of these names, seat by seat: scripted ones, or folders of runs."""
    return [
        Player(found.player(name, own, games, derive(found.config.seed, "measured", name)), own)
        for name, own in seated(names).items()
    ]


def earned(found: Arena, names: Sequence[str]) -> Returns:
    """Returns by game and agent, in the same games for all."""
    return play_games(found.games(GAMES, "measured"), cast(found, names, GAMES))


def team(returns: Returns) -> float:
    """Mean per agent."""
    return round(fmean(map(fmean, returns)), 2)


def spread(figures: Sequence[float]) -> list[float]:
    """Mean and half a 95 % interval over games."""
    return [round(fmean(figures), 2), round(1.96 * stdev(figures) / len(figures) ** 0.5, 2)]


def learned(part: Part, found: Arena, places: Places) -> Path:
    """A run of this config, to its end."""
    place = places.own / f"{str(part).replace(':', '-')}-{settings(part)}"
    to_its_end(found.config, place)
    return place


def shipped(scenario: str, seed: int, places: Places) -> Path:
    """What bucket_ppo learned there; raises Waits if it didn't yet."""
    digest = bucket_ppo.settings(scenario, STEPS["runs"])
    place = places.runs / f"{scenario}-{seed}-{digest}"
    if not is_run(place) or played(place) is None:
        raise Waits(f"no finished run in {place}: bucket_ppo --only {scenario} {seed} makes it")
    return place


class Wrapped:
    """A player, watched or misled."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def state(self) -> Mapping[str, Any]:
        """See `Script`."""
        return self.script.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Script`."""
        self.script.restore(state)


class Tally(Wrapped):
    """How often each seat works on nights on which something burns, in the first game at each
    place."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._begun: Any = 0
        self._nights: list[NDArray[np.int8]] = []

    def act(self, observations: NDArray[np.float32], begun: NDArray[np.bool_]) -> NDArray[np.int8]:
        """As the player itself."""
        actions = self.script.act(observations, begun)
        self._begun = self._begun + begun
        fires = (observations[:, 0, :10] == module("game").BURNING).any(axis=1)
        self._nights.extend(actions[fires & (self._begun == 1), :, 1])
        return actions

    @property
    def works(self) -> list[float]:
        """Of each seat, the share of these nights."""
        return [round(fmean(map(int, own)), 3) for own in zip(*self._nights, strict=True)]


class Told(Wrapped):
    """A policy that is told the numbers of another scenario than the one that is played."""

    def __init__(self, script: Script, scenario: str) -> None:
        super().__init__(script)
        self._facts = module("arrays").facts(module("scenario").scenario(scenario, {}))

    def act(self, observations: NDArray[np.float32], begun: NDArray[np.bool_]) -> NDArray[np.int8]:
        """As the policy would there."""
        seen, agents = observations.copy(), observations.shape[1]
        seen[..., -agents - len(self._facts) : -agents] = self._facts
        return self.script.act(seen, begun)


# --- the questions --------------------------------------------------------------------------------


def nash(part: Part, places: Places) -> dict[str, Any]:
    """Upstream's equilibrium, played by our rules and with the ending of upstream's Rust."""
    enlist(part.scenario)
    players = profile(part.scenario)
    fours, tens = [f"{name}-4" for name in players], players
    theirs, nights, works = by_hand(part.scenario, fours, True)
    return {
        "theirs": spread(theirs),
        "their_nights": round(fmean(nights), 1),
        "works": works,
        "ours": spread(by_hand(part.scenario, fours, False)[0]),
        "ours_by_ten": spread(by_hand(part.scenario, tens, False)[0]),
    }


def profile(scenario: str) -> list[str]:
    """Who plays in upstream's equilibrium."""
    found = next(one for one in upstream()["equilibria"] if one["scenario"] == scenario)
    return list(found["players"])


def by_hand(
    name: str, players: Sequence[str], theirs: bool
) -> tuple[list[float], list[int], list[float]]:
    """By game the mean return per agent, and the nights; by seat the share of nights with a fire on
    which it works. `theirs`: a game ends when all houses are safe, or all are ruined."""
    game, experts = module("game"), module("experts")
    scenario = module("scenario").scenario(name, {})
    earned, nights, worked = list[float](), list[int](), list[list[int]]()
    for number in range(GAMES):
        source = Random(f"{name}:{number}")
        seats = [experts.Seat(scenario, seat, source) for seat in range(len(players))]
        ring, total = game.begin(scenario, game.draws(f"{number}", -1, scenario.num_houses)), 0.0
        over = False
        while not over:
            acts = [
                experts.EXPERTS[who](seat, ring) for who, seat in zip(players, seats, strict=True)
            ]
            if game.BURNING in ring.houses:
                worked.append([act.mode for act in acts])
            luck = game.draws(f"{number}", ring.night, scenario.num_houses)
            ring, rewards = game.play(scenario, ring, acts, luck)
            total += fmean(rewards)
            settled = not theirs or len(set(ring.houses)) == 1
            over = ring.night >= LONGEST or (ring.done and settled)
        earned.append(total)
        nights.append(ring.night)
    return earned, nights, [round(fmean(own), 3) for own in zip(*worked, strict=True)]


def reward(part: Part, places: Places) -> dict[str, Any]:
    """PPO with a policy per agent that learns from its own or the team's reward; and what a best
    response in one seat gains."""
    found = ground(part, {"ppo": {"reward": part.kind, "policies": "own"}})
    place = learned(part, found, places)
    (player,) = cast(found, [str(place)] * 4, GAMES)
    watched = Tally(player.script)
    returns = play_games(found.games(GAMES, "measured"), [Player(watched, player.seats)])
    config = validate(bucket_ppo.config(part.scenario, part.seed, STEPS["response"]))
    entry = Entry(str(place), place.name)
    folder = places.own / f"response-{place.name}"
    against = Tournament(config, [entry], GAMES, 1, True, folder, Silent()).play(None)
    (best,) = against.responses
    pairs = zip(best.earned_G, best.itself_G, strict=True)
    return {
        "team": team(returns),
        "by_agent": [round(fmean(own), 1) for own in zip(*returns, strict=True)],
        "works": watched.works,
        "gain": spread([one - other for one, other in pairs]),
    }


def deviate(part: Part, places: Places) -> dict[str, Any]:
    """PPO in one seat of upstream's equilibrium, for its own reward."""
    players, seat = [f"{name}-4" for name in profile(part.scenario)], int(part.kind)
    enlist(part.scenario)
    plays = {f"agent_{n}": {"plays": who} for n, who in enumerate(players) if n != seat}
    found = ground(part, {"agents": plays, "ppo": {"reward": "own"}})
    place = learned(part, found, places)
    there = [str(place) if n == seat else who for n, who in enumerate(players)]
    learner, before = (earned(found, names) for names in (there, players))
    gains = [one[seat] - other[seat] for one, other in zip(learner, before, strict=True)]
    return {
        "before": round(fmean(one[seat] for one in before), 2),
        "gain": spread(gains),
        "team": [team(before), team(learner)],
    }


def partners(part: Part, places: Places) -> dict[str, Any]:
    """PPO in the first seat beside these partners; then beside others."""
    plays = {f"agent_{seat}": {"plays": list(MIXES[part.kind])} for seat in (1, 2, 3)}
    found = ground(part, {"agents": plays})
    place = str(learned(part, found, places))
    return {kind: team(earned(found, [place, *[kind] * 3])) for kind in (*MET, *UNMET)}


def evolved(part: Part, places: Places) -> dict[str, Any]:
    """Teams of evolved agents in bucket_ppo's games; and one of them beside PPO, and one PPO beside
    them."""
    names = [f"{version}{way}" for version in upstream()["evolved"] for way in ("", "-4")]
    run = shipped(part.scenario, part.seed, places)
    found = ground(part)
    entries = [Entry(str(run), "PPO"), *(Entry(name, name) for name in names if "-" in name)]
    folder = places.own / str(part).replace(":", "-")
    cells = Tournament(found.config, entries, DEALS, 1, False, folder, Silent()).play(None).cells
    seeds = [ground(part._replace(seed=seed)) for seed in range(SEEDS)]
    return {
        "teams": {name: [team(earned(one, [name] * 4)) for one in seeds] for name in names},
        "cells": {f"{one.one} {one.other}": spread(one.earned_D) for one in cells},
    }


def transfer(part: Part, places: Places) -> dict[str, Any]:
    """What was learned in one scenario, in all others: as it is, and told its own numbers."""
    run = shipped(part.scenario, part.seed, places)
    found: dict[str, dict[str, float]] = {"as it is": {}, "told its own": {}}
    for name in rings():
        there = ground(part._replace(scenario=name))
        for way, figures in found.items():
            (player,) = cast(there, [str(run)] * 4, GAMES)
            if way == "told its own":
                player = player._replace(script=Told(player.script, part.scenario))
            figures[name] = team(play_games(there.games(GAMES, "measured"), [player]))
    return found


PLAYS: Mapping[str, Callable[[Part, Places], dict[str, Any]]] = {
    "nash": nash,
    "reward": reward,
    "deviate": deviate,
    "partners": partners,
    "evolved": evolved,
    "transfer": transfer,
}


def keep(part: Part, places: Places) -> None:
    """Plays a part and keeps its result."""
    line = {
        "part": str(part),
        "settings": settings(part),
        "result": PLAYS[part.question](part, places),
    }
    keep_line(FILE, line)


def main() -> None:
    """Plays what is missing, then prints or writes the section; --only plays some."""
    from benchmarks.quality.bucket_answers import report

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PART", help="such as nash or partners:rest_trap"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-bucket-ppo"))
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-bucket-questions"))
    parser.add_argument("--list", action="store_true", help="name the parts, and play none")
    parser.add_argument("--kept", action="store_true", help="play nothing that is missing")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    chosen = [one for one in parts() if args.only is None or asked(one, args.only)]
    if args.list:
        done = known()
        print("\n".join(f"{one}{' (done)' * (str(one) in done)}" for one in chosen))
        return
    for part in [] if args.kept else chosen:
        if str(part) not in known():
            try:
                keep(part, Places(args.runs, args.folder))
                print(f"{part}: done", flush=True)
            except Waits as error:
                print(f"{part} waits: {error}", flush=True)
    if args.only is None:
        body = report(known())
        print(body)
        if args.write:
            page.write(
                "bucket_questions", "python -m benchmarks.quality.bucket_questions --write", body
            )


def asked(part: Part, names: Sequence[str]) -> bool:
    """Whether a part is one of those, or below one."""
    return any(f"{part}:".startswith(f"{name}:") for name in names)


if __name__ == "__main__":
    main()
