"""The central judge: one model call rates a whole sibling set and sees what all agents said.

With several calls per set, each shows the siblings in another order, and a fitted model removes the
effect of their positions (ranking.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from orchestry.core.config import JudgeConfig
from orchestry.core.seeds import derive
from orchestry.core.types import (
    AgentSpec,
    Completion,
    Judgement,
    Message,
    Outcome,
    Policy,
    Purpose,
    Request,
    Siblings,
    Value,
)
from orchestry.judge import prompt as rating
from orchestry.judge import structured
from orchestry.judge.prompt import Rating
from orchestry.judge.ranking import Order, balanced, fit
from orchestry.judge.structured import Malformed
from orchestry.task.base import BaseTask

PURPOSE: Purpose = "judge"
SCALES = ("quality", "collaboration", "efficiency")
_Verdict = tuple[Order, tuple[Rating, ...]]
"""The order in which one call showed the siblings, and its ratings by place."""


class ListwiseJudge:
    """A Judge over a policy: the run's own gateway, or another one.

    `agents` is the team, whose goals the judge is told. `calibrate` maps a number in [0, 1] to a
    person's expected rating.
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

        None if the task's scores distinguish all siblings, unless config.when is "always". A
        malformed answer is repaired once; if that fails, it is left out.
        """
        if self._config.when != "always" and not undecided(siblings):
            return None
        orders, requests = self._questions(siblings)
        replies = await structured.ask(
            self._policy,
            requests,
            partial(self._read, len(siblings.children)),
            noun="verdict",
            clip=partial(structured.head, most=self._config.max_chars),
        )
        found = sorted(zip(orders, replies, strict=True), key=lambda pair: not pair[1].at_once)
        verdicts = [(order, reply.value) for order, reply in found if reply.value is not None]
        outcome = structured.outcome(replies)
        if not verdicts:
            return Judgement(weight=self._config.weight, outcome=outcome)
        return self._judgement(verdicts, outcome)

    def _questions(self, siblings: Siblings[Any]) -> tuple[Sequence[Order], list[Request]]:
        """The orders in which the siblings are shown, and one request per order."""
        config, seed = self._config, seed_of(siblings)
        orders = balanced(len(siblings.children), config.repeats, seed)
        requests = [
            self._request(
                rating.question(siblings, order, self._agents, config, seed),
                len(order),
                derive(seed, repeat),
            )
            for repeat, order in enumerate(orders)
        ]
        return orders, requests

    def _request(self, messages: tuple[Message, ...], size: int, seed: int) -> Request:
        return Request(
            agent=PURPOSE,
            purpose=PURPOSE,
            model=self._model,
            messages=messages,
            max_tokens=rating.limit(size, self._config),
            temperature=self._temperature,
            seed=seed,
            response_schema=rating.schema(size),
        )

    def _read(self, size: int, answer: Completion) -> tuple[Rating, ...]:
        try:
            return rating.parse(answer.text, size)
        except Malformed:
            if answer.stop != "length":
                raise
            most = rating.limit(size, self._config)
            raise Malformed(f"it was cut off after {most} tokens: be brief") from None

    def _judgement(self, verdicts: Sequence[_Verdict], outcome: Outcome) -> Judgement:
        """One value per child, from all answers; feedback is the first one's."""
        ratings_R_G = [self._numbers(*verdict) for verdict in verdicts]
        worths_G = fit(ratings_R_G, [order for order, _ in verdicts])
        said = {child: rated.feedback for child, rated in zip(*verdicts[0], strict=True)}
        values = tuple(
            Value(number=self._number(worth), source="judge", feedback=said[child])
            for child, worth in enumerate(worths_G)
        )
        return Judgement(
            values=values,
            opinions=tuple(worths_G),
            weight=self._config.weight,
            relative=self._config.when != "always",
            outcome=outcome,
        )

    def _number(self, worth: float) -> float:
        return min(1.0, max(0.0, self._calibrate(worth)))

    def _numbers(self, order: Order, ratings: Sequence[Rating]) -> list[float]:
        """The weighted mean of a verdict's scales, in [0, 1], by child."""
        numbers = [0.0] * len(order)
        for child, rated in zip(order, ratings, strict=True):
            numbers[child] = sum(
                weight * getattr(rated, scale) / rating.TOP
                for scale, weight in self._weights.items()
            )
        return numbers


def for_task(config: JudgeConfig, task: BaseTask[Any]) -> JudgeConfig:
    """The judge's settings for a task: with the task's own rubric, unless the config has one."""
    return config.model_copy(update={"rubric": config.rubric or task.rubric})


def seed_of(siblings: Siblings[Any]) -> int:
    """The seed for the orders and fences of a sibling set."""
    parent = siblings.parent
    return derive("judge", parent.problem.id, parent.seed, parent.id)


def _weights(config: JudgeConfig) -> dict[str, float]:
    """The weight of each scale; they sum to one."""
    weights = {scale: float(getattr(config, scale)) for scale in SCALES}
    total = sum(weights.values())  # the config has checked that it is above zero
    return {scale: weight / total for scale, weight in weights.items()}


def undecided(siblings: Siblings[Any]) -> bool:
    """Whether the task's scores tie two siblings that do not end the episode."""
    going = [child for child in siblings.children if child.id not in siblings.ended]
    scores = [child.score.total for child in going if child.score]
    return len(set(scores)) < len(scores)
