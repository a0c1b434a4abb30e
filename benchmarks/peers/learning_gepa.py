"""gepa.optimize on a team that another process plays: a peer of benchmarks.quality.learning.

Runs in .envs/gepa; see learning_line for the connection. The components are the agents' system
prompts. All strategies and the reflection prompt are GEPA's defaults; only the stopping rule, calls
of the model, is ours. A play that the calls no longer pay for earns 0, so a candidate that could
not be evaluated to its end is not the best one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import gepa
from gepa.core.adapter import EvaluationBatch

from benchmarks.peers.learning_line import Line, serve


class Team:
    """A GEPAAdapter: a batch is problem ids, a candidate the system prompts by role."""

    propose_new_texts = None  # GEPA's own proposer

    def __init__(self, line: Line) -> None:
        self._line = line
        self.over = False
        """Whether a play was not paid for any more."""

    def evaluate(
        self, batch: list[str], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Any, Any]:
        plays = self._line.play(candidate, batch)
        self.over = self.over or None in plays
        played = [play or {"reward": 0.0, "feedback": "", "turns": []} for play in plays]
        return EvaluationBatch(
            outputs=[play["turns"] for play in played],
            scores=[play["reward"] for play in played],
            trajectories=played if capture_traces else None,
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
                    "Inputs": turn["saw"],
                    "Generated Outputs": turn["answered"],
                    "Feedback": f"Reward {play['reward']:.2f} of 1. {play['feedback']}",
                }
                for play in eval_batch.trajectories or ()
                for turn in play["turns"]
                if turn["agent"] == role
            ]
            for role in components_to_update
        }


class Quiet:
    """A logger that writes to stderr."""

    def log(self, message: str) -> None:
        print(message, file=sys.stderr)


def optimise(line: Line) -> None:
    """Optimises until the calls are made, reports."""
    order, team = line.order, Team(line)

    def reflect(prompt: str | list[dict[str, Any]]) -> str:
        whole = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return line.reflect(whole)

    def spent(state: Any) -> bool:
        return team.over or line.calls >= order["calls"]

    result = gepa.optimize(
        seed_candidate=order["prompts"],
        trainset=[*order["train"]],
        valset=[*order["dev"]],
        adapter=team,
        reflection_lm=reflect,
        stop_callbacks=spent,
        logger=Quiet(),
        seed=order["seed"],
        raise_on_exception=True,
    )
    kept = zip(result.candidates, result.val_aggregate_scores, strict=True)
    line.done([{"prompts": prompts, "dev": reward} for prompts, reward in kept], result.best_idx)


if __name__ == "__main__":
    serve(optimise)
