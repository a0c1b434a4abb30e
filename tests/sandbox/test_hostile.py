"""The hostile bank at each level: every verdict is right, nothing is left, the host goes on.

The bank proves something only if its attacks work: with confinement off they must be seen to.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestry.cli.sandbox import judge
from orchestry.core.errors import SandboxError
from orchestry.core.files import cache
from orchestry.core.types import Limits, Sandbox
from orchestry.sandbox import open_sandbox
from tests.sandbox.bank import KEY, SECRET, Case, Targets, cases, targets

BANK = cases()
CACHE = cache().parent
"""Before a test has a home of its own."""
CONTROLS = [case for case in BANK if case.theme == "controls"]
TEETH = [case for case in BANK if case.teeth]
VERDICTS = {"pass", "fail", "error", "timeout", "memory"}
WASI = {
    "chmod": "fail",  # says that it worked; there is no file, and none is changed
    "huge-list": "timeout",  # code runs several times slower
    "stack-smash": "timeout",  # no CPU time is counted, so the clock ends it
    **dict.fromkeys(["asyncio-run", "busy-left", "daemon-left"], "error"),  # no thread, no socket
    **dict.fromkeys(["array-bomb", "bytes-bomb", "memory-recovered"], "error"),  # beyond 32 bits
    **dict.fromkeys(["thread-left", "thread-pool", "threads-joined"], "error"),
}
"""What may be judged otherwise at level 3, where an interpreter for WASI runs the code."""
PLACEHOLDER = re.compile(r"\{(?:secret|victim|host|udp|http|unix)_\w+\}")


def test_the_bank_is_whole() -> None:
    assert len(BANK) - len(CONTROLS) >= 130
    assert len(CONTROLS) >= 30
    assert len(TEETH) >= 30
    assert len({case.id for case in BANK}) == len(BANK)
    for case in BANK:
        assert case.expect, case.id
        assert VERDICTS.issuperset(case.expect), case.id
        assert case.tests, case.id
        assert case.why.endswith("."), case.id
        assert not (case.teeth and case.danger), case.id
    assert all(case.expect == ["pass"] for case in CONTROLS)


@pytest.fixture
def aims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Targets]:
    """The targets, in a home and working folder of the test's own; an attack must spare them."""
    monkeypatch.setenv(KEY, SECRET)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    with targets(tmp_path) as found:
        yield found


@asynccontextmanager
async def opened(level: int) -> AsyncIterator[Sandbox]:
    try:
        async with open_sandbox(Limits(), level, allow_unsafe=level == 4) as sandbox:
            yield sandbox
    except SandboxError as error:
        if "can't confine" not in str(error):
            raise
        pytest.skip(str(error))


async def played(sandbox: Sandbox, bank: Sequence[Case], aims: Targets) -> dict[str, Any]:
    """Each case's report, by its id."""
    aims.lay(bank)
    reports = await asyncio.gather(*(judge(aims.program(case), sandbox) for case in bank))
    text = str(reports)
    assert SECRET not in text
    assert not PLACEHOLDER.search(text)
    return {report["id"]: report for report in reports}


def wrong(bank: Sequence[Case], reports: dict[str, Any]) -> list[str]:
    """What was not judged as it should be, a line a case."""
    return [
        f"{case.theme}/{case.id}: {reports[case.id]['verdict']}, not {' or '.join(case.expect)}: "
        f"{reports[case.id]['why']}"
        for case in bank
        if reports[case.id]["verdict"] not in case.expect
    ]


def children() -> set[int]:
    """This process's children, and theirs."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        state, parent = text.rpartition(")")[2].split()[:2]
        if state != "Z":
            parents[int(path.parent.name)] = int(parent)
    found = {os.getpid()}
    for _ in parents:
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


async def attack(level: int, bank: Sequence[Case], aims: Targets) -> None:
    """Plays the bank and asserts that nothing came of it."""
    mild = [case for case in bank if not case.danger]
    grave = [case for case in bank if case.danger]
    before = children()
    async with opened(level) as sandbox:
        reports = await played(sandbox, mild, aims)
        assert wrong(mild, reports) == []
        reports = await played(sandbox, grave, aims)
        assert wrong(grave, reports) == []
        last = await played(sandbox, CONTROLS[:5], aims)
        assert wrong(CONTROLS[:5], last) == []
    assert children() == before
    assert aims.harmed() == []


@pytest.mark.parametrize("level", [1, 2])
async def test_attacks_on_others_come_to_nothing(level: int, aims: Targets) -> None:
    await attack(level, TEETH, aims)


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
async def test_the_whole_bank_is_judged_rightly(level: int, aims: Targets) -> None:
    await attack(level, BANK, aims)


@pytest.mark.slow
async def test_the_interpreter_for_wasi_holds_what_reaches_outside(
    aims: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the controls. The whole bank would take it a quarter of an hour."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))  # where the interpreter is compiled already
    bank = [
        dataclasses.replace(case, expect=[*case.expect, WASI[case.id]]) if case.id in WASI else case
        for case in (*TEETH, *CONTROLS)
    ]
    async with opened(3) as sandbox:
        assert wrong(bank, await played(sandbox, bank, aims)) == []
    assert aims.harmed() == []


@pytest.mark.slow
async def test_the_attacks_work_where_nothing_confines_them(aims: Targets) -> None:
    bank = [case for case in TEETH if os.geteuid() == 0 or not case.root]
    async with opened(4) as sandbox:
        reports = await played(sandbox, bank, aims)
    assert [case.id for case in bank if reports[case.id]["verdict"] in case.expect] == []
