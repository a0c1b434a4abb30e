"""The learner: what an update makes of the episodes before it.

An update contrasts winners with losers of the same problems, distils behaviours for the agents who
caused the loss, screens them on dev, puts the best of the front on trial, and lets the trial's
sequential test decide. A trial may need more pairs than one update may pay for; it then
goes on in the next one, since its test is valid at any time. With nothing to try, the accepted
behaviour whose evidence is the oldest is tested again, and retired where it no longer helps.

What the next update depends on is a value (`State`): a function of the state before it, of the
episodes and of the answers. A killed update is done again from the journal, at no cost, with the
same result.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, Protocol

from orchestry.backends.api.distil import contrasts, distil
from orchestry.backends.api.library import Behavior, Evidence, Library
from orchestry.backends.api.trial import LOSS_LEVEL, Ruling, best, front, level, retire, rule
from orchestry.core.concurrency import together
from orchestry.core.config import BehaviorsConfig
from orchestry.core.seeds import derive
from orchestry.core.types import AgentSpec, Frozen, Policy, Problem, Turn
from orchestry.rollout.credit import blame
from orchestry.store.records import EpisodeRecord

BATCH = 8
"""Pairs played at once; the test looks after each of them."""
DOUBT = 0.15
"""A candidate that lost less than this in its screening may go on trial: a screening is short, and
it is the trial that decides. A stricter gate, or a screening of fewer draws, loses too many gains
of five points before their trial (docs/benchmarks.md, "Which prompt changes are accepted")."""


@dataclass(frozen=True, slots=True)
class Played:
    """One dev episode: its value in [0, 1], and the turns that led there.

    None for one of which a call failed: it can't be compared.
    """

    value: float | None
    turns: tuple[Turn, ...]


class Arena(Protocol):
    """Where libraries are compared."""

    async def play(self, library: Library, problem: Problem, seed: int) -> Played:
        """One episode, without search, of a team with that library."""
        ...


class Trial(Frozen):
    """A comparison under way: reward with the behaviour less reward without it, pair by pair."""

    behavior: str
    kind: Literal["candidate", "retest"]
    level: float
    """Chance of a false acceptance, or of a false loss in a retest."""
    most: int
    """Most pairs. Like the level it stays what it was at the first pair."""
    differences: tuple[float, ...] = ()
    calls: int = 0
    usd: float = 0.0


class State(Frozen):
    """All that the next update depends on."""

    library: Library
    trial: Trial | None = None
    rejections: int = 0
    """Candidates that lost their trial so far: they set the next trial's level."""
    draws: int = 0
    """Dev draws used so far: none is ever used twice."""


class Learner:
    """Takes updates, one after another. `states[u]` is what was known after update u."""

    def __init__(
        self,
        config: BehaviorsConfig,
        seed: int,
        agents: Sequence[AgentSpec],
        *,
        prompts: Mapping[str, str],
        dev: Sequence[Problem],
        arena: Arena,
        policy: Policy,
        model: str,
        max_tokens: int,
        states: Sequence[State],
    ) -> None:
        """`prompts` are the agents' own; `policy` and `model` distil."""
        self.states = list(states)
        self._config, self._seed, self._agents, self._prompts = config, seed, agents, prompts
        self._dev, self._arena, self._policy = dev, arena, policy
        self._model, self._max_tokens = model, max_tokens
        self._state = self.states[-1]
        self._left = 0.0
        self._notes: list[str] = []

    async def update(
        self,
        block: Sequence[EpisodeRecord],
        ratings: Mapping[tuple[int, str], float],
        again: Sequence[EpisodeRecord] = (),
    ) -> list[str]:
        """Learns from the episodes of a block; returns lines for the user.

        Earlier episodes that people rated come `again`, for their word is rare and worth most.
        Spends about `share` times the calls of the block on dev.
        """
        self._left = self._config.share * sum(record.calls for record in block)
        self._notes = []
        if self._state.trial is None:
            await self._propose([*block, *again], ratings)
            await self._race()
            self._begin()
        if self._state.trial is not None:
            await self._go_on(self._state.trial)
        self._set(library=self._state.library.model_copy(update={"update": len(self.states)}))
        self.states.append(self._state)
        return self._notes

    async def _propose(
        self, block: Sequence[EpisodeRecord], ratings: Mapping[tuple[int, str], float]
    ) -> None:
        """Distils behaviours for the agents to blame."""
        blamed = blame(block)
        found = {role: contrasts(block, role, self._config.top, ratings) for role in blamed}
        counts = shares(
            {role: blamed[role] for role in blamed if found[role]}, self._config.candidates
        )
        for role, count in counts.items():
            distilled = await distil(
                self._policy,
                self._model,
                self._agents,
                self._state.library,
                role,
                found[role],
                blamed,
                prompt=self._prompts[role],
                count=count,
                update=len(self.states),
                max_tokens=self._max_tokens,
                seed=derive(self._seed, "distil", len(self.states), role),
            )
            self._put(*distilled.behaviors)
            made = sum(b.status == "candidate" for b in distilled.behaviors)
            plural = "" if made == 1 else "s"
            self._notes.append(f"{made} candidate{plural} for {role} ({distilled.outcome})")
        if not counts:
            self._notes.append(
                "nothing to contrast: no two trajectories of a problem differ in value"
            )

    async def _race(self) -> None:
        """Screens what is new, drops what is off the front, and looks at the front once more."""
        await self._screen([b for b in self._candidates() if not b.screened])
        gains = self._gains()
        kept = front(gains)
        for id in gains.keys() - set(kept):
            changed = {"status": "rejected", "note": "off the front of its screening"}
            self._put(self._get(id).model_copy(update=changed))
        ranked = sorted(kept, key=lambda id: (-fmean(gains[id].values()), id))
        if len(kept) > 1 and self._left > 0:
            await self._screen([self._get(id) for id in ranked[: self._config.candidates]])

    async def _screen(self, candidates: Sequence[Behavior]) -> None:
        """Plays a few dev problems with each candidate and without, all on the same draws."""
        if not candidates:
            return
        draws = self._draw(self._config.screen)
        arms = [self._state.library, *(self._with(candidate) for candidate in candidates)]
        bases, *others = await together(self._play(arm, draws) for arm in arms)
        self._left -= cost([bases, *others])[0]
        for candidate, arm in zip(candidates, others, strict=True):
            found: dict[str, list[float]] = {id: [gain] for id, gain in candidate.screened.items()}
            for (problem, _), base, own in zip(draws, bases, arm, strict=True):
                for gain in differences([own], [base]):
                    found.setdefault(problem.id, []).append(gain)
            screened = {problem: fmean(gains) for problem, gains in found.items()}
            self._put(candidate.model_copy(update={"screened": screened}))

    def _begin(self) -> None:
        """Opens the next trial: the best of the front where it may gain, else a retest."""
        gains = self._gains()
        chosen = best(gains, gains) if gains else None
        if chosen is not None and fmean(gains[chosen].values()) > -DOUBT:
            self._put(self._get(chosen).model_copy(update={"status": "trial"}))
            granted = level(self._config.alpha, self._state.rejections + 1)
            self._open(chosen, "candidate", granted)
            return
        accepted = [b for b in self._state.library.behaviors if b.status == "accepted"]
        oldest = min(accepted, key=lambda b: (b.tested, b.id), default=None)
        if oldest is not None:
            self._open(oldest.id, "retest", LOSS_LEVEL)

    def _open(self, behavior: str, kind: Literal["candidate", "retest"], granted: float) -> None:
        most = self._config.pairs
        self._set(trial=Trial(behavior=behavior, kind=kind, level=granted, most=most))

    async def _go_on(self, trial: Trial) -> None:
        """Plays pairs until the trial is decided or the update's calls are used up."""
        behavior = self._get(trial.behavior)
        ruling = self._rule(trial)
        while ruling.verdict == "open" and self._left > 0:
            trial = await self._pairs(trial, behavior, min(BATCH, trial.most - ruling.pairs))
            ruling = self._rule(trial)
        self._set(trial=trial if ruling.verdict == "open" else None)
        self._settle(trial, behavior, ruling)

    async def _pairs(self, trial: Trial, behavior: Behavior, count: int) -> Trial:
        """The trial with `count` more pairs, each a fresh draw played by both libraries."""
        draws, library = self._draw(count), self._state.library
        arms = library, library.put(behavior.model_copy(update={"status": "retired"}))
        if trial.kind == "candidate":
            arms = self._with(behavior), library
        own, base = await together(self._play(arm, draws) for arm in arms)
        calls, usd = cost([own, base])
        self._left -= max(calls, count)  # a server that refuses all pairs ends the trial too
        return trial.model_copy(
            update={
                "differences": (*trial.differences, *differences(own, base)),
                "calls": trial.calls + calls,
                "usd": trial.usd + usd,
            }
        )

    def _settle(self, trial: Trial, behavior: Behavior, ruling: Ruling) -> None:
        """Writes what a trial showed so far into the library, and acts on its end."""
        if not ruling.pairs:
            return
        tested, evidence = self._tested(trial, behavior, ruling)
        candidate = trial.kind == "candidate"
        kept, lost = ("accepted", "rejected") if candidate else ("kept", "retired")
        if ruling.verdict == "reject":
            self._put(tested.model_copy(update={"status": lost, "note": ruling.why}))
            self._set(rejections=self._state.rejections + candidate)
        elif ruling.verdict == "accept" and candidate:
            self._set(library=self._state.library.accept(tested, self._config.max_per_agent))
        else:
            self._put(tested)
        verdict = {"accept": kept, "reject": lost}.get(ruling.verdict, "continues")
        self._notes.append(
            f"{trial.kind} {behavior.id} for {behavior.agent}: {evidence}, {verdict}"
        )

    def _tested(
        self, trial: Trial, behavior: Behavior, ruling: Ruling
    ) -> tuple[Behavior, Evidence]:
        """The behaviour with what its trial showed so far; a retest leaves what it was accepted
        for on record.
        """
        shown = ruling.model_dump(include={"pairs", "lift", "low", "high", "e_value"})
        shown |= {"level": trial.level, "calls": trial.calls, "usd": trial.usd}
        shown["update"] = len(self.states)
        if trial.kind == "retest":
            evidence = Evidence(**shown)
            return behavior.model_copy(update={"retest": evidence}), evidence
        evidence = (behavior.evidence or Evidence()).model_copy(update=shown)
        return behavior.model_copy(update={"evidence": evidence}), evidence

    def _rule(self, trial: Trial) -> Ruling:
        if trial.kind == "retest":
            return retire(trial.differences, trial.most)
        return rule(trial.differences, trial.level, trial.most)

    def _draw(self, count: int) -> list[tuple[Problem, int]]:
        """Fresh dev problems, drawn evenly with replacement, each with its episode's seed."""
        first = self._state.draws
        self._set(draws=first + count)
        numbers = range(first, first + count)
        seeds = [derive(self._seed, "dev", number) for number in numbers]
        return [(random.Random(seed).choice(self._dev), seed) for seed in seeds]

    async def _play(self, library: Library, draws: Sequence[tuple[Problem, int]]) -> list[Played]:
        return await together(self._arena.play(library, problem, seed) for problem, seed in draws)

    def _with(self, behavior: Behavior) -> Library:
        return self._state.library.accept(behavior, self._config.max_per_agent)

    def _candidates(self) -> list[Behavior]:
        return [b for b in self._state.library.behaviors if b.status == "candidate"]

    def _gains(self) -> dict[str, Mapping[str, float]]:
        """By candidate that was screened: its mean gain on each dev problem."""
        return {b.id: b.screened for b in self._candidates() if b.screened}

    def _get(self, id: str) -> Behavior:
        found = self._state.library.find(id)
        assert found is not None, f"the state names a behaviour that its library lacks: {id}"
        return found

    def _put(self, *behaviors: Behavior) -> None:
        library = self._state.library
        for behavior in behaviors:
            library = library.put(behavior)
        self._set(library=library)

    def _set(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)


def shares(blamed: Mapping[str, float], count: int) -> dict[str, int]:
    """How many of `count` candidates each agent gets: in proportion to its blame, at least one in
    all (largest remainders). A blame is an estimate from few episodes, so the second gets a chance.
    """
    weights = {role: max(0.0, blame) for role, blame in blamed.items()}
    total = sum(weights.values())
    if not total:  # all moves were worth the same: nobody is to blame more than another
        weights, total = dict.fromkeys(weights, 1.0), float(len(weights))
    parts = {role: count * weight / total for role, weight in weights.items()}
    given = {role: int(part) for role, part in parts.items()}
    ranked = sorted(parts, key=lambda role: (given[role] - parts[role], role))
    for role in ranked[: count - sum(given.values())]:
        given[role] += 1
    return {role: number for role, number in given.items() if number}


def differences(own: Sequence[Played], base: Sequence[Played]) -> list[float]:
    """What one arm earned more than the other, draw by draw; one that failed makes no pair."""
    pairs = zip(own, base, strict=True)
    return [a.value - b.value for a, b in pairs if a.value is not None and b.value is not None]


def cost(arms: Sequence[Sequence[Played]]) -> tuple[int, float]:
    """Calls and dollars of arms that play the same draws.

    Up to the first agent whose prompt differs, the arms of a draw ask the same, and share the
    answer: it is counted once, as it is paid once.
    """
    paid = {
        (draw, place, turn.agent, turn.messages): turn.completion.usd
        for arm in arms
        for draw, played in enumerate(arm)
        for place, turn in enumerate(played.turns)
    }
    return len(paid), sum(paid.values())
