"""The real learner on planted worlds: what it finds, and what it accepts falsely.

The Learner of `backends/api/learner.py` does all of it, with the default settings of everything.
The answers of its distiller are scripted, and its arena is a planted world (planted_prompts.py), in
which each rule has an effect, and effects of rules that stand together add up.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from benchmarks.quality.planted_prompts import (
    EFFECT_SD,
    NOISES,
    PROBLEMS,
    SPREAD,
    World,
    new_world,
)
from orchestry.backends.api.distil import Author
from orchestry.backends.api.learner import Learner, State
from orchestry.backends.api.pairs import Played
from orchestry.backends.gold import Move
from orchestry.backends.library import Behavior, Library, told
from orchestry.core.config import BehaviorsConfig, RunConfig, SearchConfig
from orchestry.core.seeds import derive
from orchestry.core.types import AgentSpec, Completion, Example, Message, Problem, Request, Turn
from orchestry.store.records import CreditRecord, EpisodeRecord, NodeRecord

TEAM = tuple(AgentSpec(role=role, goal=role) for role in ("writer", "reviewer", "refactorer"))
BLAMED = 1
"""Place in the team of the agent whom all rules are for: the middle one, so that a pair of episodes
takes the mean number of calls."""
PAIR_CALLS = len(TEAM) + len(TEAM) - BLAMED
"""The agents before the blamed one say the same in both arms, and are paid once."""
DEV = tuple(Problem(id=str(place), prompt="", split="dev") for place in range(PROBLEMS))


USELESS = 3
"""Rules without a gain that every update distils."""


@dataclass(frozen=True, slots=True)
class Script:
    """A run: the effects of the rules distilled in each update."""

    effects: tuple[tuple[float, ...], ...]
    spread: float = SPREAD
    """Sd of each rule's effect from problem to problem."""
    examples: bool = False
    """Whether they are no rules but examples, from gold."""

    def rules(self) -> dict[str, float]:
        """Effect by text, in order."""
        return {
            told(_shown(update, place)) if self.examples else _text(update, place): effect
            for update, effects in enumerate(self.effects)
            for place, effect in enumerate(effects)
        }


@dataclass(frozen=True, slots=True)
class Run:
    """What one run accepted."""

    found: bool
    """Whether it accepted a rule with the planted gain."""
    won_after: int
    """The pairs that rule was in."""
    accepted: tuple[float, ...]
    """The effects of all that it accepted."""
    calls: int
    """Of all pairs."""

    @property
    def false(self) -> int:
        """Accepted rules without a gain."""
        return sum(effect <= 0 for effect in self.accepted)


def default_calls() -> int:
    """Calls of one update's episodes by default: the team's first move is sampled k times, each
    later one k times for every state in the beam."""
    search, behaviors = SearchConfig(), BehaviorsConfig()
    episode = search.k_samples * (1 + (len(TEAM) - 1) * search.beam_width)
    return behaviors.every * episode


def default_updates() -> int:
    """Updates of a run of default length."""
    return RunConfig().episodes // BehaviorsConfig().every


def searched() -> int:
    """Calls of a default run's search."""
    return default_calls() * default_updates()


def found_script(gain: float, rng: random.Random, examples: bool = False) -> Script:
    """The rule with the gain comes once, in update 1 or 2, at a random place among useless ones,
    which come in every update."""
    updates = [[0.0] * USELESS for _ in range(default_updates())]
    updates[rng.randrange(2)].insert(rng.randrange(USELESS + 1), gain)
    return Script(tuple(map(tuple, updates)), examples=examples)


def null_script(kind: str, rng: random.Random) -> Script:
    """No rule has a gain: all have none (`equal`; `varied` from problem to problem), or most lose
    (`worse`)."""
    count = BehaviorsConfig().candidates
    effects = [
        [-abs(rng.gauss(0.0, EFFECT_SD)) if kind == "worse" else 0.0 for _ in range(count)]
        for _ in range(default_updates())
    ]
    spread = 2 * SPREAD if kind == "varied" else SPREAD
    return Script(tuple(map(tuple, effects)), spread)


def mixed_script(rng: random.Random) -> Script:
    """Effects drawn around 0."""
    count = BehaviorsConfig().candidates
    effects = [[rng.gauss(0.0, EFFECT_SD) for _ in range(count)] for _ in range(default_updates())]
    return Script(tuple(map(tuple, effects)))


class Arena:
    """A planted world. Rewards of two libraries on one draw are independent, as two answers are."""

    def __init__(
        self,
        world: World,
        rules: dict[str, tuple[float, ...]],
        golds: Callable[[], Sequence[Move]] = tuple,
    ) -> None:
        """`rules` has each text's chances of success, of shape (P,), were it the only one."""
        self._world, self._rules, self._golds = world, rules, golds
        self._turns = dict[tuple[str, ...], tuple[Turn, ...]]()

    async def play(
        self, library: Library, problem: Problem, seed: int, still: Collection[str]
    ) -> Played:
        texts = _present(library)
        value = self.reward(library, int(problem.id), random.Random(derive(seed, *texts)))
        return Played(value, self._turns.setdefault(texts, _turns(texts)))

    async def gold(self, seed: int, count: int) -> Sequence[Move]:
        """The planted examples of the update under way: only planted texts race."""
        return self._golds()

    def reward(self, library: Library, place: int, rng: random.Random) -> float:
        """Of one sample on the problem at that place."""
        base = self._world.chances_P[place]
        chance = base + sum(self._rules[text][place] - base for text in _present(library))
        return self._world.reward(chance, rng)


class Distiller:
    """A policy that answers with the rules of the update under way; the last one is a new prompt,
    which has that effect and those of all that was worked into it."""

    def __init__(self, script: Script) -> None:
        self._script, self.update = script, 0

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [[Completion(text=self._answer(each), model="planted")] * n for each in requests]

    def _answer(self, request: Request) -> str:
        texts = [_text(self.update, place) for place in range(len(self._now))]
        said = [{"why": "planted", "text": text} for text in texts]
        assert request.response_schema is not None
        whole = "behaviors" not in request.response_schema["properties"]
        return json.dumps(said[-1] if whole else {"behaviors": said[:-1]})

    def golds(self) -> list[Move]:
        """The examples of the update under way."""
        shown = (_shown(self.update, place) for place in range(len(self._now)))
        return [
            Move(TEAM[BLAMED].role, f"train{place}", one.asked, one.answered)
            for place, one in enumerate(shown)
        ]

    def block(self) -> list[EpisodeRecord]:
        """The episodes before this update; where nothing is to be distilled, without contrast."""
        return [_episode(default_calls(), contrast=bool(self._now))]

    @property
    def _now(self) -> tuple[float, ...]:
        return self._script.effects[self.update]


Episodes = Callable[[Learner, Arena, int], Sequence[EpisodeRecord]]
"""What the search has played since the update of that number."""


def play(
    script: Script,
    noise: int,
    number: int,
    episodes: Episodes = lambda learner, arena, update: (),
) -> Run:
    """One run of the learner, with the default settings of everything but its allowance."""
    rng = random.Random(derive("acceptance", "learner", noise, number))
    world, rules = new_world(NOISES[noise], rng), script.rules()
    chances = {text: world.shifted(effect, script.spread, rng) for text, effect in rules.items()}
    distiller = Distiller(script)
    arena = Arena(world, chances, distiller.golds)
    learner = Learner(
        BehaviorsConfig(enabled=True, propose=("gold",) if script.examples else None),
        derive("acceptance", "learner", noise, number),
        TEAM,
        prompts={spec.role: "" for spec in TEAM},
        dev=DEV,
        arena=arena,
        author=Author(distiller, "planted", 512),
        updates=len(script.effects),
        states=[State.first(Library(task="planted", model="planted"), BehaviorsConfig().alpha)],
    )
    asyncio.run(_learn(learner, distiller, script, lambda now: episodes(learner, arena, now)))
    return _outcome(learner.states[-1], rules)


async def _learn(
    learner: Learner,
    distiller: Distiller,
    script: Script,
    episodes: Callable[[int], Sequence[EpisodeRecord]],
) -> None:
    for update in range(len(script.effects)):
        distiller.update = update
        await learner.update([*distiller.block(), *episodes(update)], {})


def _outcome(state: State, rules: dict[str, float]) -> Run:
    accepted = [b for b in state.library.behaviors if b.status == "accepted"]
    effects = tuple(sum(rules[text] for text in _contained(state.library, [b])) for b in accepted)
    won = [b for b, effect in zip(accepted, effects, strict=True) if effect > 0]
    pairs = [b.evidence.pairs for b in won if b.evidence]
    return Run(bool(won), min(pairs, default=0), effects, state.calls)


def _present(library: Library) -> tuple[str, ...]:
    """The texts whose effects the blamed agent's prompt has."""
    return _contained(library, library.accepted(TEAM[BLAMED].role))


def _contained(library: Library, behaviors: Sequence[Behavior]) -> tuple[str, ...]:
    """Their texts, and all that was worked into those, each once."""
    shown = list(behaviors)
    for behavior in shown:  # it grows
        parents = (library.find(id) for id in behavior.parents)
        shown += [parent for parent in parents if parent and parent not in shown]
    return tuple(b.text for b in shown)


def _text(update: int, place: int) -> str:
    """Shares no word with another one, so that none is taken for a near-duplicate."""
    return f"first{update}x{place} second{update}x{place} third{update}x{place}"


def _shown(update: int, place: int) -> Example:
    """The same as an example."""
    asked, _, answered = _text(update, place).partition(" ")
    return Example(asked=asked, answered=answered)


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
