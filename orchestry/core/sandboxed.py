"""Code that a language model wrote, and what runs it: calls, their results and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import Field

from orchestry.core.values import Frozen

Verdict = Literal["value", "error", "timeout", "memory", "output"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a candidate's function. Arguments are JSON values; tuples and sets survive."""

    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of one sandboxed call: its value, or why there is none."""

    verdict: Verdict
    value: Any = None
    why: str = ""
    trace: str = ""
    """The candidate's own frames of what it raised, one per line."""


class Limits(Frozen):
    """Limits of one run of a candidate, for all its calls together."""

    wall_s: float = Field(6.0, ge=0.1, le=3600.0, allow_inf_nan=False)
    """Wall-clock seconds of a run that sleeps. One that uses CPU time may take 10 times as long, so
    that a busy machine changes no verdict."""
    cpu_s: float = Field(2.0, ge=0.1, le=3600.0, allow_inf_nan=False)
    """CPU seconds. One call may use half of them, so that time is left for the others."""
    memory_mb: int = Field(256, ge=64, le=1 << 20)
    """MiB of address space, in addition to what the interpreter itself maps."""
    output_kb: int = Field(256, ge=1, le=1 << 16)
    """KiB that all calls of a run return and raise together; in `check`, per call."""
    processes: int = Field(16, ge=1, le=4096)
    """Threads, including the first. Confined code may never start other processes."""
    recursion: int = Field(1000, ge=50, le=1_000_000)
    """Nested calls in the candidate, as `sys.setrecursionlimit` counts them."""


class Sandbox(Protocol):
    """Runs code that a language model wrote. Results are compared by the caller, never in the
    child."""

    async def run(
        self, code: str, entry_point: str, calls: Sequence[Call], limits: Limits | None = None
    ) -> list[CallResult]:
        """One result per call, in order."""
        ...

    async def check(
        self, code: str, entry_point: str, test: str, limits: Limits | None = None
    ) -> CallResult:
        """Runs `check(candidate)` of `test`, as in HumanEval.

        The test has its own process. Its `candidate` calls the code's `entry_point` in another
        process, so the code never sees the asserts. What a call changes in its arguments is changed
        for the test too. The value is (asserts that held, all asserts);
        `why` names the first that failed.
        """
        ...

    async def pytest(self, code: str, test: str, limits: Limits | None = None) -> CallResult:
        """Runs a pytest file that imports the code as `solution`.

        As in `check`, the test has its own process. The value is (tests that passed, all tests);
        `why` names the first that failed, `trace` the first five. Raises ConfigError if pytest is
        not installed.
        """
        ...
