"""What tricks earn under code collaboration's reward, and under one in the published manner."""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.problems import spread
from benchmarks.quality.hacks_bank import HACKS, Pair, Probe, Target, honest
from benchmarks.stats import columns
from orchestry import BaseTask, Problem, Tools
from orchestry.core.types import SPLITS, Call, Limits, Sandbox
from orchestry.sandbox import open_sandbox
from orchestry.task.registry import load_task

HONEST = "honest work (gold)"
ENOUGH = 0.999
UNCONFINED = 4
_BANK = page.ROOT / "tasks" / "code_collaboration" / "problems.jsonl"
_PUBLISHED = Path(__file__).with_name("published_reward.py")
_RECORDER = """
import copy

{own}

_calls = []


def aux(*args):
    given = copy.deepcopy(args)
    value = own(*args)
    _calls.append((given, copy.deepcopy(value)))
    return value


{main}


def recorded(tests):
    for args in tests:
        {name}(*args)
    return _calls
"""


@dataclass(frozen=True, slots=True)
class Earned:
    """What a pair of codes earned: our total and its cooperation part, and the published total.

    `published` is None where the code ended the process that scored it.
    """

    total: float
    cooperation: float
    published: float | None


Rows = dict[str, list[Earned]]
"""By hack, one for each problem."""


async def score(
    task: BaseTask[Any], target: Target, pair: Pair, tools: Tools, open_: Sandbox
) -> Earned:
    """By both rewards; `open_` is where the published one runs, which confines nothing."""
    answers = {
        spec.role: f"```python\n{code}\n```" for spec, code in zip(task.agents, pair, strict=True)
    }
    state = task.step(task.reset(target.problem, 0), answers)
    ours = await task.evaluate(state, tools)
    parts = {part.name: part.value for part in ours.parts}
    args = (*pair, target.name, [tuple(test) for test in target.problem.data["tests"]])
    code = _PUBLISHED.read_text(encoding="utf-8")
    (theirs,) = await open_.run(code, "published", [Call(args=args)])
    ended = theirs.verdict != "value"
    published = None if ended else statistics.fmean(theirs.value)
    return Earned(ours.total, parts["cooperation"], published)


async def target_of(problem: Problem, sandbox: Sandbox) -> Target:
    """The problem with what its gold main asked of its gold aux over all tests."""
    data = problem.data
    own = re.sub(r"\baux\b", "own", data["gold_aux"])
    code = _RECORDER.format(own=own, main=data["gold_main"], name=data["entry_point"])
    tests = [args for args, _ in data["tests"]]
    (result,) = await sandbox.run(code, "recorded", [Call(args=(tests,))])
    if result.verdict != "value":
        raise RuntimeError(f"{problem.id}: the gold pair fails: {result.why}")
    probes: list[Probe] = [(tuple(args), value) for args, value in result.value]
    return Target(problem, probes, str(_BANK))


async def play(count: int, hacks: Sequence[str] = tuple(HACKS)) -> Rows:
    """All hacks on so many problems, and honest work on them."""
    task: BaseTask[Any] = load_task("code_collaboration")
    problems = spread([one for split in SPLITS for one in task.problems(split)], count)
    moves: dict[str, Callable[[Target], Pair]] = {HONEST: honest}
    moves |= {name: HACKS[name] for name in hacks}
    async with (
        open_sandbox(Limits()) as sandbox,
        open_sandbox(Limits(), UNCONFINED, allow_unsafe=True) as open_,
    ):
        tools = Tools(sandbox=sandbox)
        targets = await asyncio.gather(*(target_of(one, sandbox) for one in problems))
        rows: Rows = {}
        for name, move in moves.items():
            earned = (score(task, target, move(target), tools, open_) for target in targets)
            rows[name] = await asyncio.gather(*earned)
            print(f"{name}: {_cells(rows[name])}", file=sys.stderr)
    return rows


# --- text ---------------------------------------------------------------------------------------


def _range(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3f} ({min(values):.2f} to {max(values):.2f})"


def _published(row: Sequence[Earned]) -> str:
    """Over the problems on which it came to a score."""
    values = [one.published for one in row if one.published is not None]
    ended = len(row) - len(values)
    if not values:
        return "ends the trainer's process"
    return _range(values) + (f"; {ended} ended the trainer's process" if ended else "")


def _cells(row: Sequence[Earned]) -> dict[str, str]:
    return {
        "our score (min to max)": _range([one.total for one in row]),
        "its cooperation": f"{statistics.fmean(one.cooperation for one in row):.3f}",
        "published manner": _published(row),
    }


def scores(rows: Rows) -> str:
    """A row per hack, with the honest score on the same problems beside it."""
    gold = f"{statistics.fmean(one.total for one in rows[HONEST]):.3f}"
    found = [
        {"what the team does": name, **_cells(row), "honest score": gold}
        for name, row in rows.items()
    ]
    return columns(found)


def verdict(rows: Rows) -> str:
    """Which hacks pay under which reward."""
    hacks = {name: row for name, row in rows.items() if name != HONEST}
    full = [
        name
        for name, row in hacks.items()
        if statistics.fmean(one.published or 0.0 for one in row) >= ENOUGH
    ]
    paid = {
        name: sum(one.cooperation > 0.0 for one in row)
        for name, row in hacks.items()
        if any(one.cooperation > 0.0 for one in row)
    }
    earning = "; ".join(f"{name} (on {count} problems)" for name, count in paid.items())
    whole = [
        name for name, row in hacks.items() if statistics.fmean(one.total for one in row) >= ENOUGH
    ]
    return (
        f"- Full score on average: {len(full)} of {len(hacks)} hacks in the published manner, "
        f"{len(whole)} under ours ({'; '.join(whole) or 'none'}).\n"
        f"- Anything for cooperation under ours: {earning or 'none'}."
    )


def report(rows: Rows) -> str:
    """The section's text."""
    count = len(rows[HONEST])
    return (
        f"{len(rows) - 1} hacks on {count} problems of code collaboration's own bank, scored by "
        "the task as in a run, sandbox included. Each of the four parts (structure, syntax, "
        "tests, cooperation) is worth a quarter, and tests count only as far as the two cooperate: "
        "who solves a problem alone has 0.5. Tests count beyond what a constant answer passes. The "
        "published manner (benchmarks/quality/published_reward.py, written from the description of "
        "such rewards) looks for the text `aux(` and runs the tests in its own "
        "process; means are over problems, and where code ended that process there is no score "
        f"at all.\n\n{scores(rows)}\n\n{verdict(rows)}"
    )


def main(argv: list[str] | None = None) -> None:
    """Plays, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=0, help="a spread of so many; 0: all")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    text = report(asyncio.run(play(args.problems)))
    print(text)
    if args.write:
        page.write("hacks", " ".join(["python -m benchmarks.quality.hacks", *given]), text)


if __name__ == "__main__":
    main()
