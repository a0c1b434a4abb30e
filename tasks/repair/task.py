"""Repair: a coder mends a broken module with tools, a reviewer checks the change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from orchestry import (
    AgentSpec,
    Call,
    Problem,
    Score,
    Split,
    TeamTask,
    Tools,
    Transcript,
    read_problems,
    show_call,
    show_value,
    tools,
)

from .tree import (
    EDIT,
    TESTS,
    Files,
    changed,
    diff,
    edit,
    edited,
    failing,
    mutating,
    program,
    test_names,
)

BANK = Path(__file__).with_name("problems.jsonl")
APPROVED = "LGTM"
READ = "read_file"
_SHOWN = 2
_SAID_CHARS = 1200


def read_file(path: str, here: tools.ToolContext) -> str:
    """Returns a file's text."""
    files = _now(here)
    if path not in files:
        return f"error: there is no file '{path}', only {', '.join(files)}"
    return files[path]


def edit_file(path: str, old: str, new: str, here: tools.ToolContext) -> str:
    """Replaces a piece of a file. `old` must occur exactly once in it, with its white space."""
    return edit(_now(here), path, old, new)[1]


async def run_tests(here: tools.ToolContext) -> str:
    """Runs tests.py: each test that passes, and what the others raised."""
    files = _now(here)
    try:
        names = test_names(files)
    except (SyntaxError, ValueError) as error:
        return f"error: {TESTS} is no Python: {error}"
    results = await here.sandbox.run(program(files), "tried", [Call((name,)) for name in names])
    lines = [
        f"{name}: {one.value if one.verdict == 'value' else f'failed: {one.why}'}"
        for name, one in zip(names, results, strict=True)
    ]
    return "\n".join(lines) or f"{TESTS} has no tests"


_READ = tools.tool(read_file, effects=False)
_RUN = tools.tool(run_tests, effects=False)
CODER = AgentSpec(
    role="coder",
    goal="Repair the module so that it does what its docstrings say.",
    system_prompt="You repair Python modules. Read the files with read_file, find the bug, change "
    "as little as you can with edit_file, and check with run_tests. Then say in one sentence what "
    "was wrong. Tests that nobody sees decide, so repair the code and leave tests.py alone.",
    tools=(_READ, tools.tool(edit_file, effects=False), _RUN),
    max_calls=12,
)
REVIEWER = AgentSpec(
    role="reviewer",
    goal="Find what the coder's change leaves wrong.",
    system_prompt="You review a change to a Python module. Read the files with read_file and check "
    "them against their docstrings; run_tests runs the tests that everybody sees. If all is right, "
    f"answer only {APPROVED}. Else say in a few sentences what is still wrong, and where.",
    tools=(_READ, _RUN),
    max_calls=6,
)


class Repair(TeamTask):
    """The coder edits, the reviewer approves or objects, and the coder edits once more."""

    name = "repair"
    agents = (CODER, REVIEWER)
    observe_fixed = TeamTask.observe_single
    weights: ClassVar[Mapping[str, float]] = {"repaired": 0.8, "small": 0.2}
    solved = "solved"
    rubric = "The change removes the cause of the bug, and changes nothing else."

    def problems(self, split: Split) -> Sequence[Problem]:
        return read_problems(BANK, split)

    def to_act(self, state: Transcript) -> tuple[str, ...]:
        turn = len(state.said)
        approved = re.fullmatch(rf"\W*{APPROVED}\W*", state.last("reviewer"))
        return () if turn > 2 or approved else (("coder", "reviewer", "coder")[turn],)

    def observe(self, state: Transcript, agent: str) -> str:
        before, after = state.problem.data["files"], tree(state)
        listed = ", ".join(f"{path} ({text.count(chr(10))} lines)" for path, text in before.items())
        parts = [state.problem.prompt, f"Files: {listed}."]
        if state.said:
            parts.append(f"The coder's change:\n{diff(before, after) or '(none)'}")
            parts.append(f"The coder wrote:\n{state.last('coder')[:_SAID_CHARS]}")
        if review := state.last("reviewer"):
            parts.append(f"The reviewer wrote:\n{review[:_SAID_CHARS]}")
        return "\n\n".join(parts)

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        before, after = state.problem.data["files"], tree(state)
        tests = state.problem.data["tests"]
        wrong = await failing(after, tests, tools)
        known, whole = state.problem.data["passed"], len(tests)
        passed = whole - len(wrong)
        floor, size = state.problem.data["floor"], changed(before, after)
        mutated = mutating(after)
        repaired = 0.0 if mutated else max(0.0, (passed - floor) / (whole - floor))
        tags = {
            "solved": passed == whole and not mutated,
            "worse": passed < known,
            "edited": after != before,
            "edited_tests": after[TESTS] != before[TESTS],
            "mutates": bool(mutated),
        }
        return self.score(
            repaired=repaired,
            small=repaired * min(1.0, state.problem.data["changed"] / size) if size else 0.0,
            feedback=" ".join(
                [
                    f"{passed} of {whole} hidden tests pass, {known} before.",
                    *([f"{mutated} replaces code when it runs: repair it."] if mutated else []),
                    *(_told(tests[one.place], one.gave) for one in wrong[:_SHOWN]),
                ]
            ),
            tags=[tag for tag, holds in tags.items() if holds],
        )

    def single(self) -> AgentSpec:
        return CODER

    def delivered(self, state: Transcript) -> str:
        return diff(state.problem.data["files"], tree(state))

    def gold(self, problem: Problem) -> Mapping[str, str]:
        """The files are read before they are edited, as an agent has to."""
        edits = problem.data["gold"]
        return _delivered(edits, reads=dict.fromkeys(path for path, _, _ in edits))

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """The repair, the repair with lines that it does not need, and none."""
        edits = problem.data["gold"]
        path, _, new = edits[0]
        noisy = [*edits, [path, new, f"{new}\n\n# was broken\n# now repaired"]]
        return [_delivered(edits), _delivered(noisy), _delivered([])]


def tree(state: Transcript) -> Files:
    """The files after all edits so far; only the coder's count."""
    files: Files = state.problem.data["files"]
    for text in state.by(CODER.role):
        files = edited(files, tools.calls_of(text))
    return files


def _now(here: tools.ToolContext) -> Files:
    """The files as the calling agent finds them; a reviewer edits none, whatever it calls."""
    return edited(tree(here.state), () if here.agent == REVIEWER.role else here.made)


def _told(test: Any, gave: str) -> str:
    """A hidden test that failed."""
    _, name, args, expected = test
    return f"{show_call(name, args)} {gave}, expected {show_value(expected)}."


def _delivered(edits: Sequence[Sequence[str]], reads: Iterable[str] = ()) -> Mapping[str, str]:
    """What the team does and says for these edits."""
    given: list[tuple[str, dict[str, str]]] = [(READ, {"path": path}) for path in reads]
    given += [(EDIT, {"path": path, "old": old, "new": new}) for path, old, new in edits]
    calls = [
        tools.ToolCall(id=f"call_{place}", name=name, arguments=json.dumps(arguments))
        for place, (name, arguments) in enumerate(given)
    ]
    done = tools.Said("The code now does what its docstrings say.", calls)
    return {"coder": done, "reviewer": APPROVED}
