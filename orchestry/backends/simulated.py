"""One simulated run of a backend: answers and rewards drawn from the prior, and what they cost.

Nothing is asked of a model, and nothing is waited for. What a provider's own settings say of its
answers is not read.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from orchestry.backends.base import Backend
from orchestry.core.types import Completion, NodeId, Part, Rate, Request, Score, Trajectory
from orchestry.models.fake import instance
from orchestry.models.prior import (
    AGENT_SIGMA,
    BYTES_PER_TOKEN,
    INPUT_SIGMA,
    LOST_SHARE,
    MALFORMED_SHARE,
    MOST_REPEATS,
    SHAPES,
    STRUCTURED_CENTRE,
    STRUCTURED_SIGMA,
    clip_tokens,
    filler,
    output_prior,
)


@dataclass(slots=True)
class Tally:
    """Sums of simulated calls."""

    calls: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    usd: float = 0.0

    def add(self, other: Tally, share: float = 1.0) -> None:
        self.calls += other.calls * share
        self.input_tokens += other.input_tokens * share
        self.output_tokens += other.output_tokens * share
        self.usd += other.usd * share


Tallies = defaultdict[tuple[str, str], Tally]


@dataclass(slots=True)
class Books:
    """What the calls of one simulated run came to."""

    tallies: Tallies = field(default_factory=lambda: Tallies(Tally))
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Dollars by purpose, those for lost attempts included."""
    dearest: float = 0.0
    """The most that one call reserves, in dollars."""

    def calls(self, purpose: str) -> float:
        """How many were made for that purpose."""
        return sum(tally.calls for (_, known), tally in self.tallies.items() if known == purpose)


class Simulated:
    """A policy that answers with filler of a random length and knows what it would have cost.

    Where a schema is asked for, the answer keeps to it, most times. `verbosity` multiplies the
    length of all other answers of the run.
    """

    def __init__(self, backend: Backend, rng: random.Random, verbosity: float) -> None:
        self.rng, self.books = rng, Books()
        self._backend = backend
        self._attempts = backend.config.retry.attempts
        self._input_factor = rng.lognormvariate(0.0, INPUT_SIGMA)
        self._repeats = max(0.0, rng.uniform(-MOST_REPEATS, MOST_REPEATS))
        self._lost_share = min(0.5, rng.expovariate(1 / LOST_SHARE))
        self._malformed = min(0.5, rng.expovariate(1 / MALFORMED_SHARE))
        self._wordy = STRUCTURED_CENTRE * rng.lognormvariate(0.0, STRUCTURED_SIGMA)
        self._factors: defaultdict[str, float] = defaultdict(
            lambda: verbosity * rng.lognormvariate(0.0, AGENT_SIGMA)
        )

    def critic(self) -> Simulated:
        """The policy that judges and distils, in the same run's books."""
        return copy(self)

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return [self._samples(request, n) for request in requests]

    def _samples(self, request: Request, n: int) -> list[Completion]:
        books, drawn = self.books, list[Completion]()
        provider, prices = self._backend.asked(request)
        shared = n > 1 and provider.leads(request)
        bound = provider.input_bound(request)
        worst = prices.worst(request.model, bound, request.max_tokens, shared)
        books.dearest = max(books.dearest, worst)
        prompt = self._tokens(request, bound)
        for index in range(n):
            completion = self._answer(request, prompt, index if shared else None)
            if drawn and self.rng.random() < self._repeats:  # equal answers meet in one state
                completion = completion.model_copy(update={"text": drawn[-1].text})
            drawn.append(completion)
            books.spent[request.purpose] += completion.usd + self._lost() * worst
            books.tallies[request.agent, request.purpose].add(_tally(completion))
        return drawn

    def _tokens(self, request: Request, bound: int) -> int:
        sent = sum(len(message.content.encode()) for message in request.messages)
        if request.response_schema is not None:
            sent += len(json.dumps(request.response_schema))
        return max(1, min(bound, round(sent / BYTES_PER_TOKEN * self._input_factor)))

    def _answer(self, request: Request, prompt: int, place: int | None) -> Completion:
        """`place` is the sample's among those that share a prompt in the vendor's cache."""
        schema = request.response_schema
        text, output = self._prose(request) if schema is None else self._structured(request, schema)
        completion = Completion(
            text=text,
            model=request.model,
            input_tokens=prompt,
            cache_write_tokens=prompt if place == 0 else 0,
            cached_tokens=prompt if place else 0,
            output_tokens=output,
        )
        _, prices = self._backend.asked(request)
        return completion.model_copy(update={"usd": prices.cost(completion)})

    def _prose(self, request: Request) -> tuple[str, int]:
        mu, sigma = output_prior(request.max_tokens)
        length = self.rng.lognormvariate(mu, sigma) * self._factors[request.agent]
        output = clip_tokens(length, request.max_tokens)
        text = SHAPES[1].format(filler(max(1, output - 4), self.rng))  # a fence is four tokens
        return text, output

    def _structured(self, request: Request, schema: Mapping[str, Any]) -> tuple[str, int]:
        """JSON by the schema; half of it where it is cut off, or comes out wrong."""
        text = json.dumps(instance(schema, self.rng))
        length = len(text) / BYTES_PER_TOKEN * self._wordy
        wrong = length >= request.max_tokens or self.rng.random() < self._malformed
        output = clip_tokens(length, request.max_tokens)
        return text[: len(text) // 2] if wrong else text, output

    def _lost(self) -> int:
        """Attempts before the one that is answered."""
        lost = 0
        while lost < self._attempts - 1 and self.rng.random() < self._lost_share:
            lost += 1
        return lost


class Rewards:
    """Scores of one run's simulated states.

    Nobody knows how often siblings tie, which decides how often the judge is asked. So what an
    agent's moves do to the score is drawn once for each agent, though not for all: nothing (a
    review leaves the code as it is), or another score a state, of few (tests that pass) or of many.
    """

    def __init__(self, rng: random.Random, roles: Sequence[str]) -> None:
        self._rng = rng
        self._fine = rng.random() < 0.5
        share, matters = rng.random(), rng.choice(roles)
        self._idle = {role: rng.random() < share and role != matters for role in roles}

    def of_episode(self) -> Rate:
        """Rates the nodes of one episode."""
        by_id: dict[NodeId | None, float] = {}
        by_state: dict[Any, float] = {}

        def one(node: Trajectory[Any]) -> Score:
            before = by_id.setdefault(node.id.parent, self._draw())
            idle = self._idle[node.turns[-1].agent]
            number = by_state.setdefault(node.state, before if idle else self._draw())
            return simulated_score(by_id.setdefault(node.id, number))

        async def rate(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
            return [one(node) for node in nodes]

        return rate

    def _draw(self) -> float:
        return self._rng.random() if self._fine else self._rng.choice((0.0, 0.25, 0.5, 0.75, 1.0))


def simulated_score(value: float) -> Score:
    """A score of one part."""
    return Score(parts=(Part(name="simulated", value=value),))


def _tally(completion: Completion) -> Tally:
    return Tally(1.0, completion.input_tokens, completion.output_tokens, completion.usd)
