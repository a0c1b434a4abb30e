"""gepa.optimize on a team that another process plays: the peer of benchmarks.quality.learning.

Runs in .envs/gepa and needs nothing of Orchestry. It asks by lines of JSON on stdout and is
answered by lines on stdin, so that the same gateway answers, counts and keeps all its calls. The
first line in is the order: `seed`, `calls` (when to stop), `prompts` by role, `train` and `dev`
(problem ids). The last line out is `done`, with every candidate kept and its mean reward on dev.

The components are the agents' system prompts. All strategies and the reflection prompt are GEPA's
defaults; only the stopping rule, calls of the model, is ours.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import gepa
from gepa.core.adapter import EvaluationBatch


class Line:
    """The connection to the process that plays. `calls` is what the model was asked so far."""

    def __init__(self, replies: TextIO, asks: TextIO) -> None:
        self._replies, self._asks = replies, asks
        self.calls = 0

    def send(self, **message: Any) -> None:
        self._asks.write(json.dumps(message) + "\n")
        self._asks.flush()

    def read(self) -> Any:
        line = self._replies.readline()
        if not line:
            raise EOFError("the process that plays has gone away")
        return json.loads(line)

    def ask(self, **message: Any) -> Any:
        self.send(**message)
        reply = self.read()
        self.calls = reply["calls"]
        return reply


class Team:
    """A GEPAAdapter: a batch is problem ids, a candidate the system prompts by role."""

    propose_new_texts = None  # GEPA's own proposer

    def __init__(self, line: Line) -> None:
        self._line = line

    def evaluate(
        self, batch: list[str], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Any, Any]:
        plays = self._line.ask(ask="play", prompts=candidate, problems=batch)["plays"]
        return EvaluationBatch(
            outputs=[play["moves"] for play in plays],
            scores=[play["reward"] for play in plays],
            trajectories=plays if capture_traces else None,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Any, Any],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What each agent saw and answered, and what the task says of the whole work."""
        return {
            role: [
                {
                    "Inputs": play["moves"][role]["saw"],
                    "Generated Outputs": play["moves"][role]["answered"],
                    "Feedback": f"Reward {play['reward']:.2f} of 1. {play['feedback']}",
                }
                for play in eval_batch.trajectories or ()
            ]
            for role in components_to_update
        }


class Quiet:
    """A logger that writes to stderr."""

    def log(self, message: str) -> None:
        print(message, file=sys.stderr)


def optimise(line: Line) -> None:
    """Takes the order, optimises until the calls are made, reports."""
    order = line.read()

    def reflect(prompt: str | list[dict[str, Any]]) -> str:
        return str(line.ask(ask="reflect", prompt=prompt)["text"])

    def spent(state: Any) -> bool:
        return bool(line.calls >= order["calls"])

    result = gepa.optimize(
        seed_candidate=order["prompts"],
        trainset=order["train"],
        valset=order["dev"],
        adapter=Team(line),
        reflection_lm=reflect,
        stop_callbacks=spent,
        logger=Quiet(),
        seed=order["seed"],
        raise_on_exception=True,
    )
    kept = zip(result.candidates, result.val_aggregate_scores, strict=True)
    line.send(
        ask="done",
        kept=[{"prompts": prompts, "dev": reward} for prompts, reward in kept],
        best=result.best_idx,
    )


def main() -> None:
    """Keeps the real stdout for the connection: whatever prints, prints to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as asks:
        os.dup2(2, 1)
        optimise(Line(sys.stdin, asks))


if __name__ == "__main__":
    main()
