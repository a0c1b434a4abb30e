"""What stands in for models and rewards in a dry run: drawn from a seed, priced as the real ones.

Answers are filler as long as those of earlier runs of the model, else as the prior says. What a
provider's own settings say of its answers is not read.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from orchestry.backends.api.learner import Played
from orchestry.backends.api.library import Library
from orchestry.core.types import (
    Completion,
    Message,
    NodeId,
    Part,
    Policy,
    Problem,
    Rate,
    Request,
    Score,
    Trajectory,
    Tree,
    Turn,
    sample_of,
)
from orchestry.engine.lengths import FEWEST, Length, Measured
from orchestry.engine.plan import Plan
from orchestry.models.fake import MEDIAN_SHARE, SIGMA, clip_tokens, filler, instance, output_prior
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.schedule import Schedule

BYTES_PER_TOKEN = 4.0
INPUT_SIGMA = 0.08
"""Spread of the tokens that a model makes of a text, between models."""
LEAST_MEAN = 0.1
"""Least mean length of a run's answers, as a share of max_tokens, that is still likely: below it
max_tokens is much too large, and at one it is the length itself."""
VERBOSITY = math.sqrt(LEAST_MEAN) / (MEDIAN_SHARE * math.exp(SIGMA**2 / 2))
"""Factor that puts the prior's mean length in the middle, on a log scale, of LEAST_MEAN and one."""
PRIOR_SIGMA, TASK_SIGMA, OWN_SIGMA = (0.8, 0.35), (0.35, 0.25), (0.2, 0.12)
"""Spread of the log of the mean length, in what all agents of a run share and in each agent of its
own: without an earlier run; with one of the model on another task; with one of the same task. So 95
of 100 runs were held without an earlier run, and 94 with one, whose seeds the benchmark does not
use."""
MOST_REPEATS = 0.4
"""Share of samples that repeat the one before: none in half of the runs, else evenly drawn below
this. Siblings in equal states are one in a beam; independent chains tie and are judged."""
MOST_IDLE = 0.6
"""Chance that an agent's moves leave the score as it is: one draw a run, at most this."""
LOST_SHARE = 0.02
"""Share of attempts that are charged at their worst case and never answered: the mean of an
exponential, one draw a run."""
STRUCTURED_CENTRE, STRUCTURED_SIGMA = 1.4, 0.4
"""Factor by which structured answers are longer than random ones of the same schema: a lognormal,
one draw a run. A verdict with sentences of 25 words is twice as long as one of the random words
that `fake` answers with."""
MALFORMED_SHARE = 0.03
"""Share of structured answers that can't be read: the mean of an exponential, one draw a run."""
MOST_LIFT = 0.1
"""Most that a candidate gains or loses, in the mean of the dev plays in which it changes anything:
evenly drawn between the two for each candidate."""
FENCE = "```python\n{}\n```"
"""Form of an answer: tasks may show the next agent only its code."""
_TEXT = filler(1 << 13, random.Random(0))


@dataclass(frozen=True, slots=True)
class Paid:
    """One answered call. `usd` has the attempts that were lost before it."""

    agent: str
    purpose: str
    input_tokens: int
    output_tokens: int
    usd: float


@dataclass(frozen=True, slots=True)
class Talk:
    """How long one agent's answers are in a rehearsed run: those of earlier runs, times a factor.

    Without any, the prior's."""

    earlier: Sequence[Length]
    factor: float

    def draw(self, rng: random.Random, most: int) -> tuple[int, float]:
        """The tokens of one answer, and its bytes. One that was cut may have gone on for as long as
        it now may."""
        if not self.earlier:
            tokens = clip_tokens(rng.lognormvariate(*output_prior(most)) * self.factor, most)
            return tokens, tokens * BYTES_PER_TOKEN
        found = rng.choice(self.earlier)
        length = float(found.tokens)
        if found.cut and length < most:
            length = math.exp(rng.uniform(math.log(length), math.log(most)))
        tokens = clip_tokens(length * self.factor, most)
        return tokens, found.size * tokens / found.tokens


class Drawn:
    """A policy whose answers are filler of random length, and that knows what they would cost.

    Where a schema is asked for, the answer keeps to it, most times. `level` says how talkative the
    model is, in standard deviations of what is not known of it. What was paid is in `paid`.
    """

    def __init__(self, plan: Plan, measured: Measured, rng: random.Random, level: float) -> None:
        self.rng, self.level = rng, level
        self.paid: list[Paid] = []
        self.dearest = 0.0
        """The most that one call reserves, in dollars."""
        self._backend, self._measured = plan.backend, measured
        self._attempts = plan.config.retry.attempts
        self._input_factor = rng.lognormvariate(0.0, INPUT_SIGMA)
        self._repeats = max(0.0, rng.uniform(-MOST_REPEATS, MOST_REPEATS))
        self._lost_share = min(0.5, rng.expovariate(1 / LOST_SHARE))
        self._malformed = min(0.5, rng.expovariate(1 / MALFORMED_SHARE))
        self._wordy = STRUCTURED_CENTRE * rng.lognormvariate(0.0, STRUCTURED_SIGMA)
        self._talk = dict[tuple[str, str], Talk]()

    def aside(self) -> Drawn:
        """The same policy with books of its own."""
        other = copy(self)
        other.paid = []
        return other

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [self._samples(request, n) for request in requests]

    def _samples(self, request: Request, n: int) -> list[Completion]:
        provider, prices = self._backend.asked(request)
        shared = n > 1 and provider.leads(request)
        bound = provider.input_bound(request)
        worst = prices.worst(request.model, bound, request.max_tokens, shared)
        self.dearest = max(self.dearest, worst)
        angled = provider.input_bound(sample_of(request, 1)) - bound if n > 1 else 0
        plain, drawn = self._tokens(request, bound), list[Completion]()
        for index in range(n):
            prompt = plain + round(angled / BYTES_PER_TOKEN) * (index > 0)
            text, output = self._text(request)
            if drawn and self.rng.random() < self._repeats:  # equal answers meet in one state
                text = drawn[-1].text
            completion = Completion(
                text=text,
                model=request.model,
                input_tokens=prompt,
                cache_write_tokens=plain if shared and not index else 0,
                cached_tokens=plain if shared and index else 0,
                output_tokens=output,
            )
            usd = prices.cost(completion) + self._lost() * worst
            self.paid.append(Paid(request.agent, request.purpose, prompt, output, usd))
            drawn.append(completion)
        return drawn

    def _tokens(self, request: Request, bound: int) -> int:
        """Those of the prompt."""
        sent = sum(len(message.content.encode()) for message in request.messages)
        if request.response_schema is not None:
            sent += len(json.dumps(request.response_schema))
        return max(1, min(bound, round(sent / BYTES_PER_TOKEN * self._input_factor)))

    def _text(self, request: Request) -> tuple[str, int]:
        """An answer, and the tokens that it is billed."""
        if request.response_schema is not None:
            return self._structured(
                request, json.dumps(instance(request.response_schema, self.rng))
            )
        key = request.model, request.agent
        if key not in self._talk:
            self._talk[key] = self._new_talk(*key)
        output, room = self._talk[key].draw(self.rng, request.max_tokens)
        size = max(1, round(room) - len(FENCE) + 2)
        start = self.rng.randrange(len(_TEXT))
        text = (_TEXT[start:] + _TEXT * (1 + size // len(_TEXT)))[:size]
        return FENCE.format(text), output

    def _structured(self, request: Request, text: str) -> tuple[str, int]:
        """JSON by the schema; half of it where it is cut off, or comes out wrong."""
        length = len(text) / BYTES_PER_TOKEN * self._wordy
        wrong = length >= request.max_tokens or self.rng.random() < self._malformed
        output = clip_tokens(length, request.max_tokens)
        return text[: len(text) // 2] if wrong else text, output

    def _new_talk(self, model: str, agent: str) -> Talk:
        own, anyone = self._measured.own[model, agent], self._measured.any[model]
        known = own if len(own) >= FEWEST else anyone if len(anyone) >= FEWEST else []
        centre, spread = (1.0, OWN_SIGMA) if known is own else (1.0, TASK_SIGMA)
        if not known:
            centre, spread = VERBOSITY, PRIOR_SIGMA
        shared, each = spread
        return Talk(known, centre * math.exp(shared * self.level + self.rng.gauss(0.0, each)))

    def _lost(self) -> int:
        """Attempts before the one that is answered."""
        lost = 0
        while lost < self._attempts - 1 and self.rng.random() < self._lost_share:
            lost += 1
        return lost


class Rewards:
    """Scores of one rehearsed run's states, of those that an earlier run of the task met.

    Nobody knows how often siblings tie, which decides how often the judge is asked. So what an
    agent's moves do to the score is drawn once for each agent, though not for all: nothing (a
    review leaves the code as it is), or another score a state. Without an earlier run they are of
    few (tests that pass) or of many.
    """

    def __init__(self, rng: random.Random, roles: Sequence[str], earlier: Sequence[float]) -> None:
        self._rng, self._earlier = rng, earlier
        self._fine = rng.random() < 0.5
        share, matters = rng.uniform(0.0, MOST_IDLE), rng.choice(roles)
        self._idle = {role: rng.random() < share and role != matters for role in roles}

    def of_episode(self) -> Rate:
        """Rates the nodes of one episode."""
        by_id: dict[NodeId | None, float] = {}
        by_state: dict[Any, float] = {}

        def one(node: Trajectory[Any]) -> Score:
            before = by_id.setdefault(node.id.parent, self.draw(self._rng))
            idle = self._idle[node.turns[-1].agent]
            number = by_state.setdefault(node.state, before if idle else self.draw(self._rng))
            return score_of(by_id.setdefault(node.id, number))

        async def rate(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
            return [one(node) for node in nodes]

        return rate

    def draw(self, rng: random.Random) -> float:
        """One reward."""
        if self._earlier:
            return rng.choice(self._earlier)
        return rng.random() if self._fine else rng.choice((0.0, 0.25, 0.5, 0.75, 1.0))


def score_of(value: float, feedback: str = "") -> Score:
    """A score of one part."""
    return Score(parts=(Part(name="drawn", value=value),), feedback=feedback)


@dataclass(frozen=True, slots=True)
class Move:
    """One call of a chain, and the agents whose prompts decide what it asks: all before, and its
    own."""

    paid: Paid
    heard: tuple[str, ...]


def chain_of(tree: Tree[Any], paid: Sequence[Paid]) -> list[Move]:
    """The calls of an episode without search, in order."""
    moves, before = list[Move](), tuple[str, ...]()
    for group in tree.groups:
        moves += [
            Move(one, (*before, agent))
            for one, agent in zip(paid[len(moves) :], group.agents, strict=False)
        ]
        before += group.agents
    return moves


class DevPlays:
    """An arena in which a library's gain is drawn: nothing is played, and each play costs what one
    of a few chains did.

    What two libraries ask alike is paid once, as the gateway does.
    """

    def __init__(
        self, chains: Sequence[Sequence[Move]], rewards: Rewards, rng: random.Random
    ) -> None:
        self.paid: list[Paid] = []
        self._chains, self._rewards = chains, rewards
        self._seed, self._alike = rng.random(), rng.random()
        self._asked = set[tuple[int, int, str]]()
        self._lifts = defaultdict[str, float](lambda: rng.uniform(-MOST_LIFT, MOST_LIFT))

    async def play(self, library: Library, problem: Problem, seed: int) -> Played:
        """See Arena."""
        turns = list[Turn]()
        for place, move in enumerate(self._chains[seed % len(self._chains)]):
            prompts = " ".join(b.id for role in move.heard for b in library.accepted(role))
            if (seed, place, prompts) not in self._asked:
                self._asked.add((seed, place, prompts))
                self.paid.append(move.paid)
            said = Completion(text="", model="", usd=move.paid.usd)
            asked = Message(role="user", content=prompts)
            turns.append(Turn(agent=move.paid.agent, messages=(asked,), completion=said))
        everything = " ".join(turn.messages[0].content for turn in turns)
        return Played(self._value(seed, everything), tuple(turns))

    def _value(self, seed: int, prompts: str) -> float:
        """The same for all libraries in a share of the plays, else drawn for each."""
        own = random.Random(f"{self._seed} {seed} {prompts}")
        if own.random() < self._alike:
            return self._rewards.draw(random.Random(f"{self._seed} {seed}"))
        return min(1.0, max(0.0, self._rewards.draw(own) + self._lifts[prompts]))


def rollout_of(plan: Plan, policy: Policy, rate: Rate, schedule: Schedule) -> Rollout[Any]:
    """The rollout that the real run would take, with that policy in place of the models."""
    return Rollout(plan.task, plan.backend.team(plan.task), policy, rate, schedule)


def updates_of(plan: Plan) -> int:
    """How often the run learns behaviours: after every whole block of episodes."""
    every = plan.backend.every if plan.config.behaviors.enabled else None
    return plan.config.episodes // every if every else 0
