"""gepa.optimize with its default adapter. Runs in .envs/gepa.

What a user would write: a task model through the default adapter, whose own parallelism
(max_litellm_workers) is set to the concurrency, a reflection model, and a cap on metric calls.
All strategies stay at their defaults: one proposal an iteration, minibatches of three.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import gepa
from gepa.adapters.default_adapter.default_adapter import DefaultAdapter, EvaluationResult
from gepa.lm import LM

from benchmarks.peers.contest import MAX_TOKENS, MODEL, Heat, compete

EXAMPLES = 64


class CountingAdapter(DefaultAdapter):  # type: ignore[misc]
    """The default adapter; counts the rounds of its batches, which follow one another."""

    rounds = 0

    def evaluate(self, batch: list[Any], *args: Any, **kwargs: Any) -> Any:
        self.rounds += math.ceil(len(batch) / self.max_litellm_workers)
        return super().evaluate(batch, *args, **kwargs)


class Quiet:
    """A logger that drops GEPA's lines, whose printing would count against it."""

    def log(self, *args: Any, **kwargs: Any) -> None:
        pass


def judge(data: dict[str, Any], response: str) -> EvaluationResult:
    """A score that differs by answer, so that some candidates win."""
    score = hashlib.sha256(response.encode()).digest()[0] / 255
    return EvaluationResult(score=score, feedback=f"Scored {score:.2f}: be more exact.")


def play(heat: Heat) -> int:
    """Optimises until the calls are made; each batch and each reflection waits for the last."""
    settings = {"api_base": heat.url, "api_key": "test", "max_tokens": MAX_TOKENS}
    adapter = CountingAdapter(
        f"anthropic/{MODEL}",
        evaluator=judge,
        max_litellm_workers=heat.concurrency,
        litellm_batch_completion_kwargs=settings,
    )
    reflections = 0
    reflect = LM(f"anthropic/{MODEL}", **settings)

    def counted(prompt: Any) -> str:
        nonlocal reflections
        reflections += 1
        return str(reflect(prompt))

    examples = [
        {"input": f"Task {i}: reverse a string.", "additional_context": {}, "answer": "x"}
        for i in range(EXAMPLES if heat.calls > EXAMPLES else 3)
    ]
    gepa.optimize(
        seed_candidate={"system_prompt": "You write code."},
        trainset=examples,
        valset=examples,
        adapter=adapter,
        reflection_lm=counted,
        max_metric_calls=heat.calls,
        logger=Quiet(),
        raise_on_exception=True,
    )
    return adapter.rounds + reflections


if __name__ == "__main__":
    compete(play)
