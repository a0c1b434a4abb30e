"""What the agents read: short and plain, for small models too."""

from __future__ import annotations

from collections.abc import Sequence

from orchestry import Problem, Score, show_call

from .options import Feedback

LEVELS = ("structure", "syntax", "tests", "cooperation")
MAX_HELPER_CHARS = 2400  # what main sees of the helper's code: small models have small contexts
MAX_FAILURE_CHARS = 300


def for_helper(problem: Problem) -> str:
    """The problem, and what aux is to do."""
    data = problem.data
    return (
        f"{problem.prompt}\n\nAnother programmer writes {data['entry_point']} and calls your "
        f"helper aux. {data['aux_goal']}\n\n{block(data['aux_signature'])}"
    )


def for_main(problem: Problem, helper: str | None = None) -> str:
    """The problem with its one example, which is not among the tests, and the promise of aux.

    `helper` is the helper's code where main may see it.
    """
    data = problem.data
    example = ""
    if "example" in data:
        args, expected = data["example"]
        example = f"\nExample: {show_call(data['entry_point'], args)} returns {expected!r}."
    promised = f"# already defined\n{data['aux_signature']} ..."
    if helper is not None:
        promised = f"# already defined\n{helper[:MAX_HELPER_CHARS] or '# no code'}"
    return (
        f"{problem.prompt}{example}\n\n{data['main_goal']} Do not define aux yourself.\n\n"
        f"{block(promised)}\n\n{block(_signature(problem))}"
    )


def with_history(task: str, codes: Sequence[str], results: Sequence[str]) -> str:
    """The task, then the agent's own code of each earlier turn with its result, if it is shown."""
    turns = []
    for index, code in enumerate(codes):
        told = f"\n{results[index]}" if index < len(results) else ""
        turns.append(f"Your code of turn {index + 1}:\n{block(code or '# no code')}{told}")
    again = ["Write your whole function again, and better."] if codes else []
    return "\n\n".join([task, *turns, *again])


def result(score: Score, mode: Feedback) -> str:
    """How a turn went, for both agents; the lengths of its lines do not depend on the score.

    The first paragraph of a score's feedback tells the first failing call, and shows no code.
    """
    if mode == "none":
        return ""
    found = {part.name: part.value for part in score.parts}
    levels = ", ".join(f"{level} {found.get(level, 0.0):.2f}" for level in LEVELS)
    failure = score.feedback.partition("\n\n")[0][:MAX_FAILURE_CHARS]
    return "\n".join([f"Result of both: {levels} (1.00 is all).", *[failure] * (mode == "failure")])


def block(code: str) -> str:
    """A fenced block of Python."""
    return f"```python\n{code.strip()}\n```"


def _signature(problem: Problem) -> str:
    preamble = problem.data.get("preamble", "")
    return f"{preamble}\n\n{problem.data['signature']}".strip()
