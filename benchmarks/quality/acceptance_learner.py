"""The real learner on planted worlds: what it finds, and what it accepts falsely.

Trials are only half of an acceptance: a candidate first has to pass the screening. Here the Learner
of `behaviors/learner.py` does all of it, distilling included. The answers of its distiller are
scripted, and its arena is a planted world (planted_prompts.py), where each rule has an effect.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.quality.planted_prompts import GAIN, NOISES, PROBLEMS, SPREAD, World, new_world
from orchestry.backends.api.learner import Learner, Played, State
from orchestry.backends.api.library import Behavior, Library
from orchestry.core.config import BehaviorsConfig, RunConfig, SearchConfig
from orchestry.core.seeds import derive
from orchestry.core.types import AgentSpec, Completion, Message, Problem, Request, Turn
from orchestry.store.records import CreditRecord, EpisodeRecord, NodeRecord

TEAM = tuple(AgentSpec(role=role, goal=role) for role in ("writer", "reviewer", "refactorer"))
BLAMED = 1
"""Place in the team of the agent whom all rules are for: the middle one, so that a pair of episodes
takes the mean number of calls."""
PAIR_CALLS = len(TEAM) + len(TEAM) - BLAMED
"""The agents before the blamed one say the same in both arms, and are paid once."""
ABUNDANT = 1_000_000
"""Calls of an update's episodes that let every trial end in its update."""
DEV = tuple(Problem(id=str(place), prompt="", split="dev") for place in range(PROBLEMS))


@dataclass(frozen=True, slots=True)
class Script:
    """A run: the effects of the rules distilled in each update, and what an update may spend."""

    effects: tuple[tuple[float, ...], ...]
    calls: int = ABUNDANT
    spread: float = SPREAD
    """Sd of each rule's effect from problem to problem."""

    def rules(self) -> dict[str, float]:
        """Effect by text, in order."""
        return {
            _text(update, place): effect
            for update, effects in enumerate(self.effects)
            for place, effect in enumerate(effects)
        }


@dataclass(frozen=True, slots=True)
class Run:
    """What one run accepted, and did with the first rule with an effect above 0."""

    found: bool
    tried: bool
    """Whether its trial began."""
    false: bool
    """Whether any rule without a gain was accepted."""
    pairs: int
    """Pairs of all trials."""


def default_calls() -> int:
    """Calls of one update's episodes by default: the team's first move is sampled k times, each
    later one k times for every state in the beam."""
    search, behaviors = SearchConfig(), BehaviorsConfig()
    episode = search.k_samples * (1 + (len(TEAM) - 1) * search.beam_width)
    return behaviors.every * episode


def default_updates() -> int:
    """Updates of a run of default length."""
    return RunConfig().episodes // BehaviorsConfig().every


def scripts() -> dict[str, Script]:
    """The runs that are played."""
    three, none = (GAIN, 0.0, 0.0), (0.0, 0.0, 0.0)
    return {
        "alone": Script(((GAIN,), (), ())),
        "among": Script((three, (), ())),
        "more": Script((three, none, none)),
        "default": Script((three, *[none] * (default_updates() - 1)), default_calls()),
        "null": Script((none,) * 8, spread=2 * SPREAD),
    }


class Arena:
    """A planted world. Rewards of two libraries on one draw are independent, as two answers are."""

    def __init__(self, world: World, rules: dict[str, tuple[float, ...]]) -> None:
        """`rules` has each text's chances of success, of shape (P,), were it the only one."""
        self._world, self._rules = world, rules
        self._turns = dict[tuple[str, ...], tuple[Turn, ...]]()

    async def play(self, library: Library, problem: Problem, seed: int) -> Played:
        texts = tuple(b.text for b in library.accepted(TEAM[BLAMED].role))
        place = int(problem.id)
        base = self._world.chances_P[place]
        chance = base + sum(self._rules[text][place] - base for text in texts)
        value = self._world.reward(chance, random.Random(derive(seed, *texts)))
        return Played(value, self._turns.setdefault(texts, _turns(texts)))


class Distiller:
    """A policy that answers with the rules of the update under way."""

    def __init__(self, script: Script) -> None:
        self._script, self.update = script, 0

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        texts = [_text(self.update, place) for place in range(len(self._now))]
        answer = json.dumps({"behaviors": [{"why": "planted", "text": text} for text in texts]})
        return [[Completion(text=answer, model="planted")] * n for _ in requests]

    def block(self) -> list[EpisodeRecord]:
        """The episodes before this update; where nothing is to be distilled, without contrast."""
        return [_episode(self._script.calls, contrast=bool(self._now))]

    @property
    def _now(self) -> tuple[float, ...]:
        return self._script.effects[self.update]


def play(script: Script, noise: int, number: int) -> Run:
    """One run of the learner, with the default settings of everything but its allowance."""
    rng = random.Random(derive("acceptance", "learner", noise, number))
    world, rules = new_world(NOISES[noise], rng), script.rules()
    chances = {text: world.shifted(effect, script.spread, rng) for text, effect in rules.items()}
    distiller = Distiller(script)
    learner = Learner(
        BehaviorsConfig(enabled=True),
        derive("acceptance", "learner", noise, number),
        TEAM,
        prompts={spec.role: "" for spec in TEAM},
        dev=DEV,
        arena=Arena(world, chances),
        policy=distiller,
        model="planted",
        max_tokens=512,
        states=[State(library=Library(task="planted", model="planted"))],
    )
    asyncio.run(_learn(learner, distiller, script))
    return _outcome(learner.states[-1].library, rules)


async def _learn(learner: Learner, distiller: Distiller, script: Script) -> None:
    """Update by update, until one accepts something."""
    for update in range(len(script.effects)):
        distiller.update = update
        await learner.update(distiller.block(), {})
        if any(b.status == "accepted" for b in learner.states[-1].library.behaviors):
            return


def _outcome(library: Library, rules: dict[str, float]) -> Run:
    planted = next((b for b in library.behaviors if rules[b.text] > 0), None)
    accepted = [b for b in library.behaviors if b.status == "accepted"]
    return Run(
        found=planted in accepted,
        tried=planted is not None and _pairs(planted) > 0,
        false=any(rules[b.text] <= 0 for b in accepted),
        pairs=sum(map(_pairs, library.behaviors)),
    )


def _pairs(behavior: Behavior) -> int:
    return behavior.evidence.pairs if behavior.evidence else 0


def _text(update: int, place: int) -> str:
    """Shares no word with another one, so that none is taken for a near-duplicate."""
    return f"first{update}x{place} second{update}x{place} third{update}x{place}"


def _turns(texts: tuple[str, ...]) -> tuple[Turn, ...]:
    """One turn an agent; from the blamed one on, they depend on the rules."""
    return tuple(
        Turn(
            agent=spec.role,
            messages=(Message(role="user", content=" ".join(texts) if place >= BLAMED else ""),),
            completion=Completion(text="", model="planted"),
        )
        for place, spec in enumerate(TEAM)
    )


def _episode(calls: int, *, contrast: bool) -> EpisodeRecord:
    """An episode of so many calls, whose best leaf differs from its worst by the blamed agent.

    The winner said nothing, since else its answer would become an example, thus a candidate more.
    """
    role = TEAM[BLAMED].role
    nodes = [_node("0", None, "", 0.5)]
    if contrast:
        nodes += [_node("0.0", "0", "", 1.0), _node("0.1", "0", "nothing", 0.0)]
    credit = CreditRecord(agent=role, leaf="0.0", credit=0.5, low=0.4, high=0.6)
    return EpisodeRecord(
        episode=0,
        problem="train",
        split="train",
        seed=0,
        best=nodes[-1].id if not contrast else "0.0",
        reward=1.0,
        mean_leaf_reward=0.5,
        calls=calls,
        usd=0.0,
        input_tokens=0,
        output_tokens=0,
        nodes=tuple(nodes),
        groups=(),
        credits=(credit,) if contrast else (),
    )


def _node(id: str, parent: str | None, said: str, value: float) -> NodeRecord:
    answer = Completion(text=said, model="planted")
    turn = Turn(agent=TEAM[BLAMED].role, messages=(), completion=answer)
    turns = () if parent is None else (turn,)
    return NodeRecord(id=id, parent=parent, turns=turns, value=value, source="task", survived=True)


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Counts over runs of one script."""
    return {
        "runs": len(runs),
        "tried": sum(run.tried for run in runs),
        "found": sum(run.found for run in runs),
        "false": sum(run.false for run in runs),
        "pairs": fmean(run.pairs for run in runs),
    }
