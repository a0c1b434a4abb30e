"""The central judge: one call of a model rates a whole sibling set; a critic that sees all agents.

With several calls a set, each shows the siblings in another order, and a fitted model takes what
their places did to the ratings out again (orders.py, ranking.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestry.config import JudgeConfig
from orchestry.search import rating
from orchestry.search.orders import Order, balanced
from orchestry.search.ranking import fit
from orchestry.search.rating import Malformed, Rating
from orchestry.search.values import undecided
from orchestry.seeds import derive
from orchestry.types import (
    AgentSpec,
    Completion,
    Judgement,
    Message,
    Outcome,
    Policy,
    Request,
    Siblings,
    Value,
)

AGENT = PURPOSE = "judge"
SCALES = ("quality", "collaboration", "efficiency")


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What one call came to: ratings by place, or the fault that left it without."""

    order: Order
    request: Request
    answer: Completion
    ratings: tuple[Rating, ...] = ()
    fault: Malformed | None = None


class ListwiseJudge:
    """A Judge over a policy: the run's own gateway, or another one.

    `agents` is the team, whose goals the judge is told. `calibrate` maps a number in [0, 1] to
    what a person would have said.
    """

    def __init__(
        self,
        policy: Policy,
        model: str,
        config: JudgeConfig,
        agents: Sequence[AgentSpec],
        calibrate: Callable[[float], float] = lambda number: number,
        temperature: float | None = None,
    ) -> None:
        self._policy = policy
        self._model = model
        self._config = config
        self._agents = tuple(agents)
        self._calibrate = calibrate
        self._temperature = temperature
        self._weights = _weights(config)

    async def values(self, siblings: Siblings[Any]) -> Judgement | None:
        """The judgement of one sibling set; see Judge. Raises what the policy raises.

        None where config.when is "undecided" and the task's scores tell all siblings apart. A
        malformed verdict is asked for once more; what is still malformed then is left out.
        """
        if self._config.when == "undecided" and not undecided(siblings):
            return None
        first = await self._ask(siblings)
        verdicts = await self._repaired(first)
        outcome: Outcome = "repaired" if any(verdict.fault for verdict in first) else "rated"
        usable = [verdict for verdict in verdicts if verdict.fault is None]
        if not usable:
            return Judgement(weight=self._config.weight, outcome="malformed")
        return self._judgement(usable, outcome)

    async def _ask(self, siblings: Siblings[Any]) -> list[_Verdict]:
        """All repeats in one batch."""
        parent, config = siblings.parent, self._config
        seed = derive("judge", parent.problem.id, parent.seed, parent.id)
        orders = balanced(len(siblings.children), config.repeats, seed)
        requests = [
            self._request(
                rating.question(siblings, order, self._agents, config, seed),
                len(order),
                derive(seed, repeat),
            )
            for repeat, order in enumerate(orders)
        ]
        return await self._sample(orders, requests)

    async def _repaired(self, verdicts: Sequence[_Verdict]) -> list[_Verdict]:
        """The verdicts, those with a fault asked for once more in one batch."""
        faulty = [
            (verdict, fault)
            for verdict in verdicts
            if (fault := verdict.fault) and verdict.answer.stop != "too_long"  # it would be longer
        ]
        requests = [
            self._request(
                rating.repair(verdict.request.messages, verdict.answer.text, fault, self._config),
                len(verdict.order),
                derive(verdict.request.seed, "repair"),
            )
            for verdict, fault in faulty
        ]
        orders = [verdict.order for verdict, _ in faulty]
        again = await self._sample(orders, requests) if requests else []
        return [*(verdict for verdict in verdicts if verdict.fault is None), *again]

    def _request(self, messages: tuple[Message, ...], size: int, seed: int) -> Request:
        return Request(
            agent=AGENT,
            purpose=PURPOSE,
            model=self._model,
            messages=messages,
            max_tokens=self._config.max_tokens,
            temperature=self._temperature,
            seed=seed,
            response_schema=rating.schema(size),
        )

    async def _sample(self, orders: Sequence[Order], requests: Sequence[Request]) -> list[_Verdict]:
        answers = await self._policy.sample(requests, 1)
        return [
            _read(order, request, answer)
            for order, request, (answer,) in zip(orders, requests, answers, strict=True)
        ]

    def _judgement(self, usable: Sequence[_Verdict], outcome: Outcome) -> Judgement:
        """One value a child, from all usable verdicts; feedback is the first one's."""
        ratings_R_G = [self._numbers(verdict) for verdict in usable]  # noqa: N806
        worths_G = fit(ratings_R_G, [verdict.order for verdict in usable])  # noqa: N806
        first = usable[0]
        said = {child: first.ratings[place].feedback for place, child in enumerate(first.order)}
        values = tuple(
            Value(number=self._number(worth), source="judge", feedback=said[child])
            for child, worth in enumerate(worths_G)
        )
        return Judgement(
            values=values,
            opinions=tuple(worths_G),
            weight=self._config.weight,
            relative=self._config.when == "undecided",
            outcome=outcome,
        )

    def _number(self, worth: float) -> float:
        return min(1.0, max(0.0, self._calibrate(worth)))

    def _numbers(self, verdict: _Verdict) -> list[float]:
        """The weighted mean of a verdict's scales, in [0, 1], by child."""
        numbers = [0.0] * len(verdict.order)
        for child, rated in zip(verdict.order, verdict.ratings, strict=True):
            numbers[child] = sum(
                weight * getattr(rated, scale) / rating.TOP
                for scale, weight in self._weights.items()
            )
        return numbers


def _read(order: Order, request: Request, answer: Completion) -> _Verdict:
    try:
        ratings = rating.parse(answer.text, len(order))
    except Malformed as error:
        cut = Malformed(f"it was cut off after {request.max_tokens} tokens: be brief")
        fault = cut if answer.stop == "length" else error
        return _Verdict(order, request, answer, fault=fault)
    return _Verdict(order, request, answer, ratings)


def _weights(config: JudgeConfig) -> dict[str, float]:
    """The weight of each scale, all together one."""
    weights = {scale: float(getattr(config, scale)) for scale in SCALES}
    total = sum(weights.values())  # above zero, as the config has checked
    return {scale: weight / total for scale, weight in weights.items()}
