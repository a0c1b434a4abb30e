"""Every error a user can cause or meet, with its exit code.

A message names the cause, what was found, and the fix; the command line prints it as one line.
"""

from __future__ import annotations


class OrchestryError(Exception):
    """Base of all errors that are reported without a traceback."""

    exit_code = 1


class ConfigError(OrchestryError):
    """Bad usage or configuration. Nothing was started or spent."""

    exit_code = 2


class TaskError(OrchestryError):
    """A task broke its contract: it raised, or returned an invalid reward."""


class TaskFault(TaskError):
    """The task's own code raised, or returned no score. If an answer caused it, only that
    trajectory is lost, not the run."""


class RewardFault(TaskFault):
    """What the task or its program gave is no reward in [0, 1]."""


class Endless(TaskError):
    """An episode of a task does not end."""


class StoreError(OrchestryError):
    """The run directory can't be read or written."""


class LockedError(StoreError):
    """Another process writes this run directory."""


class BudgetExceeded(OrchestryError):
    """The next call could pass the cap; all results so far are kept."""

    exit_code = 3


class Interrupted(OrchestryError):
    """The user asked to stop; the run can be resumed."""

    exit_code = 130


class Overbilled(BudgetExceeded):
    """A call cost more than its reservation, so the cap can't be guaranteed: the run stops."""


class ServerAway(OrchestryError):
    """A provider's server did not come back within `retry.patience_s`; the run can be resumed."""

    exit_code = 4


class SandboxError(OrchestryError):
    """The sandbox itself failed. A candidate's failure is an outcome, never this error."""


class ProviderError(OrchestryError):
    """One attempt at a model failed.

    `transient`: the same request may succeed later. `refused`: this request can't succeed, but
    others may. If neither is set, no request will succeed. `billed`: the vendor may have charged
    for it although no answer came. `busy`: the server says that it is too busy just now.
    `retry_after`: seconds that the server asked us to wait. `bad_draw`: the server works, but what
    the model wrote can't be read; another draw may be.
    """

    def __init__(
        self,
        message: str,
        *,
        transient: bool,
        billed: bool,
        refused: bool = False,
        busy: bool = False,
        retry_after: float | None = None,
        bad_draw: bool = False,
    ) -> None:
        super().__init__(message)
        self.bad_draw = bad_draw
        self.transient = transient
        self.billed = billed
        self.refused = refused
        self.busy = busy
        self.retry_after = retry_after


class PromptTooLong(ProviderError):
    """The request is longer than the model's context. This ends a trajectory, not the run."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False, billed=False, refused=True)


class CallTooDear(ProviderError):
    """A call's worst case is more than what is left of the cap, though other calls still fit. This
    ends a sample, or is told to the program that asked."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False, billed=False, refused=True)


class LearnError(OrchestryError):
    """No gradient step is possible with what was drawn or computed. Nothing of it is saved."""


class NotFiniteError(LearnError):
    """A result has NaN or infinity. The message says where, not yet why."""


class LeftOut(UserWarning):
    """A part of the user's data was left out, and the rest is used."""


TRACEBACK = "ORCHESTRY_TRACEBACK"
"""Environment variable: the command line shows tracebacks, as --verbose does where a command has
it."""


def fault(error: Exception) -> OrchestryError:
    """Wraps an unforeseen error, raised by Orchestry or by a library."""
    found = OrchestryError(
        f"unforeseen {type(error).__name__}: {reason(error)}: {TRACEBACK}=1 shows where; please "
        "report it. A run keeps the answers that had arrived: `orchestry resume` continues it"
    )
    found.__cause__ = error
    return found


def too_long(error: OSError) -> ConfigError:
    """The message for a name that is too long for the disk; it quotes only the beginning."""
    name = max(str(error.filename).split("/"), key=len)[:40]
    return ConfigError(f"the name {name}... is longer than this disk takes: give a shorter one")


def reason(error: BaseException) -> str:
    """An error's text for our messages: its first line, at most 300 characters. For a validation
    error: the first wrong field, and what is wrong with it. Of what was found only a number is
    said: a text might be a key."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place, found = ".".join(map(str, first["loc"])), first["input"]
        said = first["msg"].removeprefix("Value error, ")
        said += f", found {found}" if isinstance(found, int | float) else ""
        return (f"{place}: {said}" if place else said)[:300]
    try:
        return (str(error).splitlines() or ["no message"])[0][:300]
    except Exception:  # the error's own __str__ raises
        return "no message"


def unknown(kind: str, found: str, known: list[str]) -> str:
    """The message for an unknown name, with the nearest known one.

    >>> unknown("task", "code_reviw", ["code_review"])
    "unknown task 'code_reviw': did you mean 'code_review'? Known: code_review"
    """
    import difflib

    near = difflib.get_close_matches(found, known, n=1)
    hint = f" did you mean '{near[0]}'?" if near else ""
    return f"unknown {kind} '{found}':{hint} Known: {', '.join(known) or 'none'}"
