"""What the agents read: short and plain, for small models too."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from orchestry import Problem, Score, show_call

from .options import ROLES, Feedback
from .program import AUX, HELPERS

RUBRIC = """\
The work is shared: each helper function computes the part that its description names, for any \
arguments, and the main function builds on what it returns. It is a fault if either does the \
other's part, if main only unpacks what a helper has solved, if it solves all by itself and merely \
asks the helper, or if it looks into the helper in place of calling it.
The program is right on the edges of the problem: nothing, one item, equal items, negative \
numbers."""
"""What the reward can't tell (README, "Not caught"), for the judge."""
LEVELS = ("structure", "syntax", "tests", "cooperation")
MAX_HELPER_CHARS = 2400  # what main sees of the helper's code: small models have small contexts
MAX_FAILURE_CHARS = 300


def for_helper(problem: Problem, aux: str = AUX) -> str:
    """The problem, and what the helper's function is to do."""
    data = problem.data
    return (
        f"{problem.prompt}\n\nAnother programmer writes {data['entry_point']} and calls your "
        f"helper {aux}. {data[f'{aux}_goal']}\n\n{block(data[f'{aux}_signature'])}"
    )


def for_main(problem: Problem, shown: Sequence[str] = (), helpers: int = 1) -> str:
    """The problem with its one example, which is not among the tests, and the promise of aux.

    `shown` is the helpers' code where main may see it.
    """
    data, names = problem.data, HELPERS[:helpers]
    told = [f"{data[f'{name}_signature']} ..." for name in names]
    if shown:
        told = [code[: MAX_HELPER_CHARS // helpers] or "# no code" for code in shown]
    promised = "\n".join(["# already defined", *told])
    return (
        f"{_problem(problem)}\n\n{data['main_goal']} Do not define {' or '.join(names)} "
        f"yourself.\n\n{block(promised)}\n\n{block(_signature(problem))}"
    )


def for_one(problem: Problem) -> str:
    """The problem alone, for one who writes the whole function. Where the text is a function's
    docstring, it stands in the function, as in the data set."""
    asked, signature = f"Write the function {problem.data['entry_point']}.", _signature(problem)
    if "check" not in problem.data:
        return f"{_problem(problem)}\n\n{asked}\n\n{block(signature)}"
    quote = "'''" if '"""' in problem.prompt else '"""'
    text = problem.prompt.replace("\\", "\\\\")
    docstring = indent(f"{quote}\n{text}\n{quote}", " " * 4)
    function = f"{signature}\n{docstring}"
    return f"{asked}\n\n{block(function)}"


def for_all(problem: Problem, helpers: int = 1, reviewer: bool = False) -> str:
    """The problem and each part of the program, for one who writes all of them."""
    data = problem.data
    parts = [
        f"{role} is the function {name}: {data[f'{name}_goal']}\n{block(data[f'{name}_signature'])}"
        for role, name in zip(ROLES, HELPERS[:helpers], strict=False)
    ]
    parts += [
        f"main is the function {data['entry_point']}, which calls {' and '.join(HELPERS[:helpers])}"
        f" and uses what comes back.\n{block(_signature(problem))}"
    ]
    said = ["reviewer says in a few sentences what is wrong in these."] if reviewer else []
    return "\n\n".join([_problem(problem), *parts, *said])


def for_reviewer(problem: Problem, codes: Sequence[tuple[str, str]], results: Sequence[str]) -> str:
    """The problem, the latest code of each, and how the latest program did, if that is shown."""
    whole = [f"Code of {role}:\n{block(code or '# no code')}" for role, code in codes]
    asked = (
        f"Main calls what the helpers define. Say in a few sentences what main should change in "
        f"{problem.data['entry_point']}; only main writes again."
    )
    return "\n\n".join([problem.prompt, *whole, *results[-1:], asked])


def with_history(task: str, codes: Sequence[str], results: Sequence[str], review: str = "") -> str:
    """The task, then the agent's own code of each earlier turn with its result, if it is shown, and
    a reviewer's latest words."""
    turns = []
    for index, code in enumerate(codes):
        told = f"\n{results[index]}" if index < len(results) else ""
        turns.append(f"Your code of turn {index + 1}:\n{block(code or '# no code')}{told}")
    again = ["Write your whole function again, and better."] if codes else []
    reviewed = [f"A reviewer of your code says:\n{review}"] if review else []
    return "\n\n".join([task, *turns, *reviewed, *again])


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


def _problem(problem: Problem) -> str:
    """Its text with its one example."""
    if "example" not in problem.data:
        return problem.prompt
    args, expected = problem.data["example"]
    call = show_call(problem.data["entry_point"], args)
    return f"{problem.prompt}\nExample: {call} returns {expected!r}."


def _signature(problem: Problem) -> str:
    preamble = problem.data.get("preamble", "")
    return f"{preamble}\n\n{problem.data['signature']}".strip()
