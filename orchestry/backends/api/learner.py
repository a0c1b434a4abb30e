"""The learner: what an update makes of the episodes before it.

An update contrasts winners with losers of the same problems, and distils behaviours for the agents
who caused the loss. They enter a race (race.py): all candidates of all agents are tested at once,
in pairs of teams on dev. Who wins enters the prompts, and those who have no chance left leave. The
race goes on in the next update, since its test is valid at any time. One accepted behaviour is
always in it too, and is retired where it does harm.

What the next update depends on is a value (`State`): a function of the state before it, of the
episodes and of the answers. A killed update is done again from the journal, at no cost, with the
same result.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestry.backends.api.contrasts import Contrast, contrasts
from orchestry.backends.api.distil import Author, Brief, Distilled, distil
from orchestry.backends.api.pairs import (
    AHEAD,
    BATCH,
    Arena,
    Batch,
    behavior_of,
    coins,
    cost,
    together_now,
    tried_gains,
)
from orchestry.backends.api.race import (
    FIRST,
    HOPELESS,
    POWER,
    TYPICAL_SD,
    Entrant,
    Race,
    interval,
    kept_for,
    level_of,
    pairs_for,
    power_of,
    shown,
    spread_of,
)
from orchestry.backends.api.remarks import Remark, remarks
from orchestry.backends.gold import Move
from orchestry.backends.library import Behavior, Evidence, Library
from orchestry.core.choices import WITH_AUTHOR
from orchestry.core.concurrency import Outstanding, together
from orchestry.core.config import BehaviorsConfig
from orchestry.core.seeds import derive
from orchestry.core.types import AgentSpec, Frozen, Problem
from orchestry.rollout.credit import blame
from orchestry.store.records import MOST_POINTS, EpisodeRecord, Power

GAIN = 0.05
"""Mean gain that `behaviors.share: auto` spends to show."""
SIDE_COSTS = 1.5
"""What episodes cost in all, per dollar of their samples: judge, replays and distilling too."""
TYPICAL_LEFT = 100.0
"""Pairs that are taken to be left when the search chooses what to try, and before an update has
said how many are."""
MOST_SHARE = 3.0
"""The most that it spends, as a multiple of the search's calls."""


class State(Frozen):
    """Everything that the next update depends on."""

    library: Library
    race: Race = Race()
    draws: int = 0
    """Dev draws used so far: none is ever used twice."""
    pairs: int = 0
    calls: int = 0
    """Of all pairs so far."""
    squares: float = 0.0
    """The sum of the squared differences between the two teams of a pair, over all pairs."""
    known: tuple[int, ...] = ()
    """Digests of the moves on dev that later pairs may start from at no cost."""
    usd: float = 0.0
    """Of these calls."""
    searched: float = 0.0
    """Dollars of all samples of the episodes so far."""
    spare: float = 0.0
    """Calls that earlier updates might have spent, and had no use for."""
    ahead: float = TYPICAL_LEFT
    """Pairs that the run was about to play after this update. Bets on what the next episodes show
    are made for these, since a bet must not know their calls or dollars."""

    @classmethod
    def first(cls, library: Library, alpha: float) -> State:
        """Before the first update: all of alpha may be lent."""
        return cls(library=library, race=Race(pool=alpha))

    @classmethod
    def read(cls, written: Mapping[str, Any], alpha: float) -> State:
        """A state from the journal.

        Before there was a race, the trial after r rejected ones had the level
        alpha / ((r + 1) (r + 2)), so alpha / (r + 1) is left of alpha. An open trial begins anew.
        """
        if "race" in written:
            typical = TYPICAL_SD**2 * written["pairs"]  # of runs that did not sum them up
            return cls.model_validate({"squares": typical, **written})
        library = Library.model_validate(written["library"])
        left = alpha / (1 + written["rejections"])
        return cls(library=library.adopted(), race=Race(pool=left), draws=written["draws"])


class Learner:
    """Makes updates, one after another. `states[u]` is the state after update u."""

    def __init__(
        self,
        config: BehaviorsConfig,
        seed: int,
        agents: Sequence[AgentSpec],
        *,
        prompts: Mapping[str, str],
        dev: Sequence[Problem],
        arena: Arena,
        author: Author,
        updates: int,
        budget: float | None = None,
        times: float = 1.0,
        states: Sequence[State],
    ) -> None:
        """`prompts` are the agents' own; `author` writes behaviours. `updates`: how many the run
        takes in all, for which the race plans. `budget`: dollars that all of it may cost, where
        the learner decides how much it spends. A rehearsal has only one part in `times` of each
        update's episodes, and spends accordingly.
        """
        self.states = list(states)
        self._config, self._seed, self._agents, self._prompts = config, seed, agents, prompts
        self._dev, self._arena, self._author = dev, arena, author
        self._updates, self._budget, self._state = updates, budget, self.states[-1]
        self._times, self._left, self._to_come = times, 0.0, 0.0
        self._notes: list[str] = []

    async def update(
        self,
        block: Sequence[EpisodeRecord],
        ratings: Mapping[tuple[int, str], float],
        again: Sequence[EpisodeRecord] = (),
    ) -> list[str]:
        """Learns from the episodes of a block; returns lines for the user.

        Earlier episodes that people rated come `again`, for their word is rare and worth most.
        Spends about `share` times the calls of the block on dev, and what was spared before.
        """
        self._notes = []
        calls, usd = sum(record.calls for record in block), sum(record.usd for record in block)
        testable = self._allow(calls, usd)
        self._search(block)
        if testable:
            await self._propose([*block, *again], ratings)
        self._enter()
        await self._race()
        library = self._state.library.model_copy(update={"update": len(self.states)})
        self._set(library=library, spare=max(0.0, self._left), ahead=self._pairs_left)
        self.states.append(self._state)
        return self._notes

    def tried(self, update: int, episode: int) -> list[Behavior]:
        """One racing candidate of each agent, for an episode after that update to try: in half of
        the episodes the likeliest winner, else any of them."""
        state = self.states[update]
        if not self._config.in_search:
            return []
        mine = dict[str, list[Entrant]]()
        for one in state.race.candidates:
            mine.setdefault(behavior_of(state.library, one.behavior).agent, []).append(one)
        chosen = []
        for agent, found in mine.items():
            rng = random.Random(derive(self._seed, "tried", episode, agent))
            best = max(found, key=lambda one: (one.chance(TYPICAL_LEFT), one.behavior))
            chosen.append(best if rng.random() < 0.5 else rng.choice(found))
        return [behavior_of(state.library, one.behavior) for one in chosen]

    def _search(self, block: Sequence[EpisodeRecord]) -> None:
        """Tells the race what the search's samples showed of the candidates that it tried."""
        played_with = self.states[max(0, len(self.states) - 1 - self._config.overlap)]
        for record in block:
            for behavior, gain in tried_gains(record).items():
                race = self._state.race
                racing = (one for one in race.candidates if one.since <= played_with.draws)
                one = next((one for one in racing if one.behavior == behavior), None)
                source = self._get(behavior).evidence
                known = bool(source and record.problem in source.problems)
                if one and one.worth < 1.0 and not known:
                    self._set(race=race.put(one.seen(gain, self._state.ahead)))
        self._decide(self._state.race.candidates)

    def _allow(self, calls: int, usd: float) -> bool:
        """Sets what this update may spend on dev, and what later ones are likely to. Returns
        whether the budget leaves a pair, without which a new candidate is not worth its call."""
        updates, whole = max(self._updates, len(self.states)), self._times * calls
        self._set(searched=self._state.searched + usd)
        ahead = updates - len(self.states)
        payable = self._payable(ahead, usd / max(1, calls))
        share = min(self._share(whole, updates), payable / max(1.0, calls))
        self._left = min(share * calls + self._state.spare, payable)
        self._to_come = share * (whole * ahead + whole - calls)
        pairs = self._pairs_left
        points = 100 * shown(self._sd, pairs, self._level)
        able = f"show a gain of {points:.0f} points with a chance of {POWER:.0%}"
        if pairs < 1.0 or points >= MOST_POINTS:
            able = "can't show any gain; a larger budget leaves more, or a larger behaviors.share"
        self._notes.append(f"about {pairs:.0f} pairs are left to play: they {able}")
        return payable >= self._pair_calls

    def _payable(self, ahead: int, each: float) -> float:
        """Calls on dev that the budget leaves for this update, with as many for each one `ahead`,
        once the episodes to come are set aside. A call costs `each`, until some were paid."""
        if self._budget is None or self._config.share is not None:
            return math.inf
        searched, so_far = SIDE_COSTS * self._state.searched, len(self.states)
        left = self._budget - searched * (1 + ahead / so_far) - self._state.usd
        if self._state.calls:
            each = self._state.usd / self._state.calls
        return max(0.0, left) / each / (1 + ahead) if each else math.inf

    def _share(self, calls: float, updates: int) -> float:
        """What an update spends, as a multiple of its episodes' calls: see BehaviorsConfig."""
        if self._config.share is not None:
            return self._config.share
        wanted = pairs_for(GAIN, self._sd, self._level) * self._pair_calls
        return min(MOST_SHARE, wanted / max(1, calls * updates))

    @property
    def power(self) -> Power | None:
        """What the pairs played so far could show; None before the first update."""
        if len(self.states) == 1:
            return None
        return power_of(self._config, self._updates, self._state.calls, self._pair_calls, self._sd)

    @property
    def _level(self) -> float:
        return level_of(self._config, self._updates)

    @property
    def _sd(self) -> float:
        """Of a pair's gain, as far as seen."""
        return spread_of(self._state.pairs, self._state.squares)

    @property
    def _pair_calls(self) -> float:
        """Calls that a pair takes: in the mean so far, else of two teams."""
        if self._state.pairs:
            return max(1.0, self._state.calls / self._state.pairs)
        return 2.0 * len(self._agents)

    @property
    def _pairs_left(self) -> float:
        """About as many as the run may still play."""
        return (self._left + self._to_come) / self._pair_calls

    async def _propose(
        self, block: Sequence[EpisodeRecord], ratings: Mapping[tuple[int, str], float]
    ) -> None:
        """Distils behaviours for the agents that caused the loss."""
        blamed = blame(block)
        roles = blamed or [spec.role for spec in self._agents]
        found = {role: contrasts(block, role, self._config.top, ratings) for role in roles}
        kinds = self._config.propose or WITH_AUTHOR
        said = remarks(block, ratings) if "feedback" in kinds else []
        gold = await self._gold() if "gold" in kinds else ()
        taught = {one.agent for one in gold}
        taught |= {role for role in roles if any(one.concerns(role, roles) for one in said)}
        able = [role for role in roles if found[role] or role in taught]
        counts = _shares({role: blamed.get(role, 0.0) for role in able}, self._config.candidates)
        contrasted = [role for role in counts if found[role]]
        most = max(contrasted, key=lambda role: blamed.get(role, 0.0), default=None)
        distilled = await together(
            distil(
                self._author,
                self._brief(role, found[role], blamed, gold, said),
                kinds,
                count,
                rewrite=role == most,
            )
            for role, count in counts.items()
        )
        for role, one in zip(counts, distilled, strict=True):
            self._put(*one.behaviors)
            self._notes.append(_told(role, one))
        if not counts:
            self._notes.append(
                "nothing to contrast: no two trajectories of a problem differ in value"
            )

    async def _gold(self) -> Sequence[Move]:
        """Gold of other train problems in each update."""
        seed = derive(self._seed, "gold", len(self.states))
        return await self._arena.gold(seed, self._config.candidates)

    def _brief(
        self,
        role: str,
        found: Sequence[Contrast],
        blamed: Mapping[str, float],
        gold: Sequence[Move],
        said: Sequence[Remark],
    ) -> Brief:
        return Brief(
            agents=self._agents,
            library=self._state.library,
            agent=role,
            prompt=self._prompts[role],
            contrasts=found,
            blame=blamed,
            gold=gold,
            remarks=said,
            update=len(self.states),
            seed=derive(self._seed, "distil", len(self.states), role),
        )

    def _enter(self) -> None:
        """All new candidates enter the race; and the accepted behaviour that was tested longest
        ago, of those that no candidate would replace, if no other one is tested again."""
        race, library = self._state.race, self._state.library
        waiting = [b.id for b in library.behaviors if b.status == "candidate"]
        race = race.entered(waiting, self._kept)
        for id in waiting:
            self._put(self._get(id).model_copy(update={"status": "trial"}))
        self._set(race=race)
        for one in race.entrants:
            if one.kind == "retest" and self._contested(one.behavior):
                race = race.without(one, 0.0)
        accepted = [b for b in library.behaviors if b.status == "accepted"]
        free = [b for b in accepted if not self._contested(b.id)]
        oldest = min(free, key=lambda b: (b.tested, b.id), default=None)
        if oldest is not None and all(one.kind == "candidate" for one in race.entrants):
            race = race.retested(oldest.id)
        self._set(race=race)

    def _contested(self, id: str) -> bool:
        """Whether one that races would replace this accepted behaviour. A retest beside it would
        set the newcomer against a team that lacks what it replaces."""
        return any(id in self._replaced(one) for one in self._state.race.candidates)

    def _replaced(self, one: Entrant, library: Library | None = None) -> frozenset[str]:
        library = library or self._state.library
        return library.replaced(self._get(one.behavior), self._config.max_per_agent)

    async def _race(self) -> None:
        """Plays pairs until nobody is left in the race or the update can't pay for another one."""
        played, flying = set[str](), deque[Batch]()
        async with Outstanding() as outstanding:
            while True:
                spare = self._left - sum(batch.calls for batch in flying)
                affordable = self._state.race.entrants and spare >= self._pair_calls
                if affordable and len(flying) < AHEAD:
                    entrants = self._next_to_play(flying)
                    flying.append(self._pairs(entrants, spare, outstanding))
                    played |= {one.behavior for one in entrants}
                    continue
                if not flying:
                    break
                await self._take_in(flying.popleft())
                self._decide(self._state.race.entrants)
                self._set(race=self._state.race.backed(self._pairs_left, self._kept))
        for one in self._state.race.entrants:
            if one.behavior in played:
                self._record(one, "continues")

    @property
    def _kept(self) -> float:
        """The part of alpha that the candidates of later updates may borrow."""
        return self._config.alpha * kept_for(len(self.states), self._updates)

    def _next_to_play(self, flying: Iterable[Batch]) -> list[Entrant]:
        """Who plays the next batch, beside those in flight."""
        pairs = Counter[str]()
        for batch in flying:
            pairs.update({one.behavior: len(batch.sides) for one in batch.entrants})
        most = self._config.max_per_agent
        return together_now(self._state.race, self._state.library, self._pairs_left, most, pairs)

    def _pairs(self, entrants: Sequence[Entrant], calls: float, outstanding: Outstanding) -> Batch:
        """Starts pairs of teams for at most so many calls, each on a fresh draw."""
        count = min(BATCH, int(calls / self._pair_calls))
        first = self._state.draws
        draws = self._draw(count)
        sides = [coins(seed, [one.behavior for one in entrants]) for _, seed in draws]
        arms = [
            [(self._team(entrants, side, arm), problem, seed) for arm in (1, -1)]
            for side, (problem, seed) in zip(sides, draws, strict=True)
        ]
        moving = {self._get(one.behavior).agent for one in entrants}
        still = [spec.role for spec in self._agents if spec.role not in moving]
        asked = (self._arena.play(*one, still) for pair in arms for one in pair)
        problems = [problem.id for problem, _ in draws]
        each = self._pair_calls
        plays = outstanding.start(together(asked))
        return Batch(entrants, moving, problems, sides, plays, count * each, first)

    async def _take_in(self, batch: Batch) -> None:
        """Tells every entrant that is still in the race its gains in these pairs."""
        plays = await batch.plays
        pairs = list(zip(plays[::2], plays[1::2], strict=True))
        calls, usd, known = cost(batch.problems, pairs, batch.moving, frozenset(self._state.known))
        left = self._pairs_left
        self._left -= max(calls, len(pairs))  # a server that refuses all pairs ends the race too
        whole = [
            (side, first.value - second.value)
            for side, (first, second) in zip(batch.sides, pairs, strict=True)
            if first.value is not None and second.value is not None
        ]
        self._set(
            pairs=self._state.pairs + len(whole),
            calls=self._state.calls + calls,
            usd=self._state.usd + usd,
            squares=self._state.squares + sum(gain * gain for _, gain in whole),
            known=tuple(sorted(known)),
        )
        there = {one.behavior for one in batch.entrants}
        for one in self._state.race.entrants:
            if one.behavior not in there or batch.draw < one.since:
                continue
            for side, gain in whole:
                if one.worth < 1.0:
                    one = one.seen(side[one.behavior] * gain, left)
            paid = {"calls": one.calls + calls, "usd": one.usd + usd}
            self._set(race=self._state.race.put(one.model_copy(update=paid)))

    def _team(self, entrants: Sequence[Entrant], side: Mapping[str, int], arm: int) -> Library:
        """The library of one arm of a pair: with the candidates on its side, and without the
        accepted behaviours on the other. In a full prompt one takes the place of the weakest, also
        where a retest has left room."""
        library, most = self._state.library, dict[str, int]()
        for one in entrants:
            if one.kind == "candidate" and side[one.behavior] == arm:
                behavior = self._get(one.behavior)
                room = most.setdefault(behavior.agent, self._config.max_per_agent)
                library = library.accept(behavior, room)
                most[behavior.agent] = room + 1
        for one in entrants:
            if one.kind == "retest" and side[one.behavior] != arm:
                retired = self._get(one.behavior).model_copy(update={"status": "retired"})
                library = library.put(retired)
        return library

    def _decide(self, entrants: Iterable[Entrant]) -> None:
        """Takes those who have won, or have no chance left, out of the race."""
        for id in [one.behavior for one in entrants]:
            (one,) = (one for one in self._state.race.entrants if one.behavior == id)
            before = self._state.library
            if one.kind == "candidate":
                self._decide_candidate(one)
            else:
                self._decide_retest(one)
            if self._state.library is not before:
                self._begin_anew(before)

    def _begin_anew(self, before: Library) -> None:
        """All candidates who would replace others than in the library of before."""
        for one in self._state.race.candidates:
            if self._replaced(one) != self._replaced(one, before):
                self._set(race=self._state.race.put(one.anew(self._state.draws)))
                self._notes.append(f"candidate {one.behavior} begins anew, in a new prompt")

    def _decide_candidate(self, one: Entrant) -> None:
        race = self._state.race
        if one.worth >= 1.0:
            tested = self._record(one, "accepted")
            library = self._state.library.accept(tested, self._config.max_per_agent)
            self._set(library=library, race=race.accepted(one))
        elif len(one.gains) >= FIRST and one.chance(self._pairs_left, race.pool) < HOPELESS:
            self._record(one, "rejected", f"too little to win, after {len(one.gains)} pairs")
            self._set(race=race.left(one))

    def _decide_retest(self, one: Entrant) -> None:
        race = self._state.race
        if self._get(one.behavior).status != "accepted" or self._contested(one.behavior):
            self._set(race=race.without(one, 0.0))  # it gave way to a better one, or may do so
        elif one.worth >= 1.0:
            self._record(one, "retired", "clear loss")
            self._set(race=race.without(one, 0.0))
        elif len(one.gains) >= FIRST and one.chance(self._pairs_left, race.pool) < HOPELESS:
            self._record(one, "kept")
            self._set(race=race.without(one, 0.0))

    def _record(self, one: Entrant, outcome: str, why: str = "") -> Behavior:
        """Writes what the race showed of a behaviour into the library, and tells the user."""
        behavior = self._get(one.behavior)
        low, high = interval(one.gains)
        found = Evidence(
            pairs=len(one.gains),
            lift=one.lift,
            low=low,
            high=high,
            e_value=one.e_value,
            level=one.borrowed,
            update=len(self.states),
            calls=one.calls,
            usd=one.usd,
        )
        if one.kind == "retest":
            changes: dict[str, object] = {"retest": found}
        else:
            episodes = behavior.evidence.episodes if behavior.evidence else ()
            problems = behavior.evidence.problems if behavior.evidence else ()
            source = {"episodes": episodes, "problems": problems}
            changes = {"evidence": found.model_copy(update=source)}
        if outcome in ("rejected", "retired"):
            changes |= {"status": outcome, "note": why}
        tested = behavior.model_copy(update=changes)
        self._put(tested)
        kind = "retest" if one.kind == "retest" else "candidate"
        self._notes.append(f"{kind} {behavior.id} for {behavior.agent}: {found}, {outcome}")
        return tested

    def _draw(self, count: int) -> list[tuple[Problem, int]]:
        """Fresh dev problems, drawn evenly with replacement, each with its episode's seed."""
        first = self._state.draws
        self._set(draws=first + count)
        numbers = range(first, first + count)
        seeds = [derive(self._seed, "dev", number) for number in numbers]
        return [(random.Random(seed).choice(self._dev), seed) for seed in seeds]

    def _get(self, id: str) -> Behavior:
        return behavior_of(self._state.library, id)

    def _put(self, *behaviors: Behavior) -> None:
        library = self._state.library
        for behavior in behaviors:
            library = library.put(behavior)
        self._set(library=library)

    def _set(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)


def _told(role: str, distilled: Distilled) -> str:
    """One line on what was proposed for an agent."""
    made = [b.kind for b in distilled.behaviors if b.status == "candidate"]
    counts = [f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in Counter(made).items()]
    answers = f" (answers: {distilled.outcome})" if distilled.outcome else ""
    return f"proposed for {role}: {', '.join(counts) or 'nothing new'}{answers}"


def _shares(blamed: Mapping[str, float], count: int) -> dict[str, int]:
    """How many of `count` candidates each agent gets: in proportion to its blame (largest
    remainders), at least one in total. Blame is estimated from few episodes, so the second agent
    gets a chance too.
    """
    weights = {role: max(0.0, blame) for role, blame in blamed.items()}
    total = sum(weights.values())
    if not total:  # all moves had the same value, or nobody measured it: blame is equal
        weights, total = dict.fromkeys(weights, 1.0), float(len(weights))
    parts = {role: count * weight / total for role, weight in weights.items()}
    given = {role: int(part) for role, part in parts.items()}
    ranked = sorted(parts, key=lambda role: (given[role] - parts[role], role))
    for role in ranked[: count - sum(given.values())]:
        given[role] += 1
    return {role: number for role, number in given.items() if number}
