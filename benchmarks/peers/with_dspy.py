"""DSPy's Evaluate over a program of three predictors in order. Runs in .envs/dspy.

DSPy's own defaults, but for its cache, which is off as in all contestants.
"""

from __future__ import annotations

import dspy

from benchmarks.peers.contest import MAX_TOKENS, MODEL, Heat, compete


class Team(dspy.Module):  # type: ignore[misc]
    """Writer, reviewer and refactorer, each seeing what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = dspy.Predict("task -> answer")
        self.reviewer = dspy.Predict("task, draft -> answer")
        self.refactorer = dspy.Predict("task, draft, review -> answer")

    def forward(self, task: str) -> dspy.Prediction:
        draft = self.writer(task=task).answer
        review = self.reviewer(task=task, draft=draft).answer
        return self.refactorer(task=task, draft=draft, review=review)


def play(heat: Heat) -> int:
    """Evaluates a third as many examples as calls: each is a chain of three."""
    lm = dspy.LM(
        f"anthropic/{MODEL}",
        api_base=f"{heat.url}/v1",
        api_key="test",
        max_tokens=MAX_TOKENS,
        cache=False,
    )
    dspy.configure(lm=lm)
    examples = [
        dspy.Example(task=f"Task {i}: reverse a string.").with_inputs("task")
        for i in range(heat.calls // 3)
    ]
    evaluate = dspy.Evaluate(
        devset=examples,
        metric=lambda _, answer: len(answer.answer) % 2,
        num_threads=heat.concurrency,
    )
    evaluate(Team())
    return 3


if __name__ == "__main__":
    compete(play)
