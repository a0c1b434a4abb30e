"""A rehearsal: a part of a run on its real path, with models and rewards drawn from a seed.

Answers are filler, as long as those of earlier runs of the model, else as the prior says. Each is
priced as a real one would be.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from orchestry.backends.api.backend import ApiBackend, Dev
from orchestry.backends.api.learner import Learner
from orchestry.backends.base import Backend
from orchestry.backends.tools import WithTools
from orchestry.core.seeds import derive
from orchestry.core.thoughts import kind_of
from orchestry.core.tools import ToolCall
from orchestry.core.types import (
    AgentSpec,
    Completion,
    Part,
    Policy,
    Rate,
    Request,
    Score,
    Trajectory,
    Turn,
)
from orchestry.engine.lengths import FEWEST, KINDS, Length, Measured
from orchestry.engine.plan import Plan
from orchestry.models.fake import MEDIAN_SHARE, SIGMA, clip_tokens, filler, instance, output_prior
from orchestry.rollout.replay import give_credit
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.tree import episode_record
from orchestry.store.records import EpisodeRecord

CALLS = 80
"""Calls of episodes in a rehearsal; of one episode at least."""
BYTES_PER_TOKEN = 4.0
LEAST_MEAN = 0.1
"""Least mean length of a run's answers, as a share of max_tokens, that is still likely: below it
max_tokens is much too large, and at one it is the length itself."""
CENTRE = math.sqrt(LEAST_MEAN) / (MEDIAN_SHARE * math.exp(SIGMA**2 / 2))
"""Factor that puts the prior's mean length in the middle, on a log scale, of LEAST_MEAN and one."""
SPREADS = {
    "prior": (CENTRE, 0.8, 0.35),
    "schema": (1.4, 0.0, 0.4),
    "model": (1.0, 0.4, 0.35),
    "task": (1.0, 0.3, 0.25),
}
"""By what lengths are known from (the prior, a random answer by the schema, earlier runs of the
model, those of the same task): the factor on them in the median, and the spread of its log in what
all agents share and in each agent of its own. A judge's sentence of 25 words is longer than a
random one of up to 12."""
LOST = 0.02
"""Calls that are charged at their worst case and never answered, as a share of those answered."""
ALWAYS_TIE = 1 / 3
"""Share of the agents whose moves never change the score, such as a reviewer's."""
MALFORMED = 0.03
"""Share of the answers by a schema that can't be read."""
OFTEN = 0.7
"""Log odds that an answer of an agent with tools calls one: two of three."""
RESULT_BYTES = (math.log(50), math.log(5000))
"""Log of the least and greatest size of a tool's result, drawn evenly between."""
_FENCE = "```python\n{}\n```"
"""Form of an answer: tasks may show the next agent only its code."""
_TEXT = filler(1 << 13, random.Random(0))


class Standin:
    """A policy in place of all models of a run, and the bill for its answers.

    `level` says how talkative the models are, in standard deviations of what is not known of it.
    """

    def __init__(self, backend: Backend, known: Measured, level: float) -> None:
        self.rng = random.Random(derive(backend.config.seed, "rehearsal", f"{level:.6f}"))
        self.bill = defaultdict[tuple[str, ...], list[float]](lambda: [0.0] * 4)
        """By agent, purpose, provider and model: calls, tokens in, tokens out, dollars."""
        self.dearest = 0.0
        """Dollars that one call reserves, at most."""
        self.known = known
        self._backend, self._level = backend, level
        self._talks = dict[tuple[str, ...], tuple[Sequence[Length], float]]()
        self._said = dict[Any, list[Completion]]()

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy. What the plays of a trial ask alike is paid once, as the gateway does."""
        found = list[list[Completion]]()
        for request in requests:
            key = request.seed, n, request.messages
            if request.purpose != "trial" or key not in self._said:
                self._said[key] = self._answers(request, n)
            found.append(self._said[key])
        return found

    def _answers(self, request: Request, n: int) -> list[Completion]:
        """The samples of one request, written to the bill."""
        provider, prices = self._backend.asked(request)
        shared, bound = n > 1 and provider.leads(request), provider.input_bound(request)
        worst = prices.worst(request.model, bound, request.max_tokens, shared)
        row = self.bill[request.agent, request.purpose, provider.name, request.model]
        tokens, drawn = min(bound, _tokens(request)), list[Completion]()
        for index in range(n):
            calls = self._calls(request)
            text, output = self._answer(request)
            said = Completion(
                text=text,
                model=request.model,
                calls=calls,
                input_tokens=tokens,
                cache_write_tokens=tokens if shared and not index else 0,
                cached_tokens=tokens if shared and index else 0,
                output_tokens=output,
            )
            figures = (1, tokens, output, prices.cost(said) + LOST * worst)
            row[:] = [old + new for old, new in zip(row, figures, strict=True)]
            drawn.append(said)
        self.dearest = max(self.dearest, worst)
        return drawn

    def _calls(self, request: Request) -> tuple[ToolCall, ...]:
        """The call of a tool, if the answer is one; a talkative model calls more often."""
        often = 1 / (1 + math.exp(-OFTEN - self._level))
        if not request.may_call or self.rng.random() >= often:
            return ()
        return (ToolCall(id="call", name=request.tools[0].name, arguments="{}"),)

    def _answer(self, request: Request) -> tuple[str, int]:
        """An answer, and the tokens that it is billed."""
        rng, most = self.rng, request.max_tokens
        lengths, factor = self._talk(request)
        found = rng.choice(lengths) if lengths else None
        if request.response_schema is not None:
            text = json.dumps(instance(request.response_schema, rng))
            plain = len(text) / BYTES_PER_TOKEN
            length = factor * (found.tokens / found.size * text.count("{") if found else plain)
            wrong = length >= most or rng.random() < MALFORMED
            return text[: len(text) // 2] if wrong else text, clip_tokens(length, most)
        length = float(found.tokens) if found else rng.lognormvariate(*output_prior(most))
        if found and found.cut and length < most:  # it may go on for as long as it now may
            length = math.exp(rng.uniform(math.log(length), math.log(most)))
        tokens = clip_tokens(factor * length, most)
        size = tokens * (found.size / found.tokens if found else BYTES_PER_TOKEN)
        return _text(round(size), rng), tokens

    def _talk(self, request: Request) -> tuple[Sequence[Length], float]:
        """Lengths of answers like this one, none if nothing is known, and the factor on them."""
        key = request.model, KINDS[request.purpose], request.agent
        if key not in self._talks:
            ways = {
                "task": self.known.lengths.get(key, []),
                "model": self.known.lengths.get(key[:2], []),
            }
            prior = "prior" if request.response_schema is None else "schema"
            source = next((way for way, found in ways.items() if len(found) >= FEWEST), prior)
            centre, shared, own = SPREADS[source]
            factor = centre * math.exp(shared * self._level + self.rng.gauss(0.0, own))
            self._talks[key] = ways.get(source, []), factor
        return self._talks[key]


class DrawnResults:
    """Stands in for a team's tools: calls nothing, and gives filler of a drawn size."""

    def __init__(self, agents: Sequence[AgentSpec], seed: int) -> None:
        self.agents = {spec.role: spec for spec in agents}
        self._rng = random.Random(derive(seed, "results"))

    async def results(
        self, request: Request, made: Sequence[ToolCall], said: Completion
    ) -> tuple[str, ...]:
        """See Toolbox."""
        sizes = [math.exp(self._rng.uniform(*RESULT_BYTES)) for _ in said.calls]
        return tuple(_text(round(size), self._rng) for size in sizes)


def _tokens(request: Request) -> int:
    """Tokens of a prompt, by a rule of thumb."""
    sent = sum(len(message.content.encode()) for message in request.messages)
    sent += sum(len(json.dumps(one)) for one in request.schemas)
    return max(1, round(sent / BYTES_PER_TOKEN))


def _text(size: int, rng: random.Random) -> str:
    """Filler of so many bytes, its fence included."""
    first, inside = rng.randrange(len(_TEXT)), max(1, size - len(_FENCE.format("")))
    return _FENCE.format((_TEXT[first:] + _TEXT * (1 + inside // len(_TEXT)))[:inside])


def drawn_scores(
    rng: random.Random,
    earlier: Sequence[float] = (),
    ties: Mapping[str, float] = MappingProxyType({}),
    feedback: str = "",
) -> Rate:
    """Scores of states, drawn from those of earlier runs of the task, else evenly; by the agent
    that moved last, in a share of the cases a state scores what its siblings do."""
    seed = rng.random()

    def one(node: Trajectory[Any]) -> Score:
        place, said = (seed, node.problem.id, node.seed), [t.completion for t in node.turns]
        own = random.Random(derive(*place, node.id, *(one.output_tokens for one in said)))
        if node.turns and own.random() < _tying(node.turns[-1], ties):
            own = random.Random(derive(*place, node.id.parent))
        value = own.choice(earlier) if earlier else own.random()
        return Score(parts=(Part(name="drawn", value=value),), feedback=feedback)

    async def rate(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
        return [one(node) for node in nodes]

    return rate


def _tying(turn: Turn, ties: Mapping[str, float]) -> float:
    """How often siblings with such a last turn tie: always after a thought, which is no action."""
    return 1.0 if kind_of(turn.messages[-1].content) else ties.get(turn.agent, 0.0)


async def rehearse(plan: Plan, standin: Standin) -> Mapping[str, float]:
    """Plays some episodes in a row, and learns from them as the run would; how many calls of the
    run each call of a purpose stands for."""
    rng, asked, every = standin.rng, plan.config.episodes, learns_every(plan)
    ties = {spec.role: _ties(standin, spec.role) for spec in plan.task.agents}
    rate = drawn_scores(rng, standin.known.rewards, ties)
    size = max(1, min(every or asked, CALLS // plan.calls))
    first = rng.randrange(0, asked - size + 1, every or size)
    block = [await _episode(plan, standin, rate, n) for n in range(first, first + size)]
    if every:
        await _learner(plan, standin, rate, every / size).update(block, {})
    plays, updates = (asked + plan.backend.dev_plays) / size, asked // every if every else 0
    trials = updates * (every or 0) / size
    judged = plan.judged_episodes / size  # all that are rehearsed are judged, whatever judge.every
    learns = {"distil": updates, "trial": trials}
    return {"act": plays, "judge": judged, "credit": plays, **learns}


def _ties(standin: Standin, agent: str) -> float:
    """How often an agent's siblings tie, which decides how often a judge is asked. Where no earlier
    run tells, they tie always, or in a share of the cases, which often is none."""
    rng, known = standin.rng, standin.known.tying(agent)
    always, drawn = rng.random() < ALWAYS_TIE, max(0.0, rng.uniform(-1.0, 1.0))
    return (1.0 if always else drawn) if known is None else known


def learns_every(plan: Plan) -> int | None:
    """Episodes between two updates of behaviours; None where the run takes none."""
    every = plan.backend.every if plan.config.behaviors.enabled else None
    return every if every and every <= plan.config.episodes else None


async def _episode(plan: Plan, policy: Policy, rate: Rate, episode: int) -> EpisodeRecord:
    """Plays one, with judge and replays as the real run would."""
    rollout = rollout_of(plan, policy, rate, episode)
    tree = await rollout.play(plan.problem(episode), plan.seed(episode))
    await plan.backend.replay(rollout, tree)
    credited = await give_credit(rollout, tree, plan.config.credit)
    return episode_record(tree, episode, credited.records, credited.calls)


def rollout_of(plan: Plan, policy: Policy, rate: Rate, episode: int, **judge: Any) -> Rollout[Any]:
    """How the run would play an episode, with that policy in place of all models; `judge` has
    changes of the judge's settings."""
    critic = plan.judge(policy, **judge) if plan.backend.judges else None
    team, way = plan.backend.team(plan.task), plan.schedule(plan.problem(episode))
    return Rollout(plan.task, team, _with_tools(plan, policy), rate, way, critic)


def _with_tools(plan: Plan, policy: Policy) -> Policy:
    """The policy, for agents who may call tools; none is called."""
    agents = plan.task.agents
    if not any(spec.tools for spec in agents):
        return policy
    return WithTools(policy, DrawnResults(agents, plan.config.seed))


def _learner(plan: Plan, policy: Policy, rate: Rate, times: float) -> Learner:
    """The run's own, for one part in `times` of an update's episodes."""
    backend = plan.backend
    assert isinstance(backend, ApiBackend), "no other learns behaviours"
    arena = Dev(backend, plan.task, _with_tools(plan, policy), rate)
    return backend.new_learner(plan.task, arena, policy, times=times)
