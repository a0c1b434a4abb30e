"""Every error a user can cause or meet, with its exit code.

A message names the cause, what was found, and the fix; the command line prints it as one line.
"""

from __future__ import annotations


class OrchestryError(Exception):
    """Base of all errors that are reported without a traceback."""

    exit_code = 1


class ConfigError(OrchestryError):
    """Bad usage or configuration; nothing was started and nothing was spent."""

    exit_code = 2


class TaskError(OrchestryError):
    """A task broke its contract: it raised, or returned what no reward can be."""


class TaskFault(TaskError):
    """The task's own code raised, or gave no score. Where an answer led there, it costs that
    trajectory and not the run."""


class Endless(TaskError):
    """A game of a task does not end."""


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
    """A call cost more than was reserved for it: no cap can be kept, so nothing more is asked."""


class ServerAway(OrchestryError):
    """A provider's server did not come back within `retry.patience_s`; the run can be resumed."""

    exit_code = 4


class SandboxError(OrchestryError):
    """The sandbox itself failed; a candidate's failure is a verdict, never this."""


class ProviderError(OrchestryError):
    """One attempt at a model failed.

    `transient`: the same request may succeed later. `refused`: it will not, but others may; where
    neither holds, none will. `billed`: the vendor may have charged for it although no answer came.
    `retry_after`: seconds the server asked us to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        transient: bool,
        billed: bool,
        refused: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.billed = billed
        self.refused = refused
        self.retry_after = retry_after


class PromptTooLong(ProviderError):
    """The request is longer than the model's context: a bad rollout, not a broken run."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False, billed=False, refused=True)


class LearnError(OrchestryError):
    """No gradient step can be made of what was drawn or computed; nothing of it is saved."""


class NotFiniteError(LearnError):
    """What was computed holds NaN or infinity; the message says where, and not yet why."""


def fault(error: Exception) -> OrchestryError:
    """Our own error for one that nobody foresaw, raised by Orchestry or by what it builds on."""
    found = OrchestryError(
        f"unforeseen {type(error).__name__}: {reason(error)}: --verbose shows where; please report "
        "it. Answers that had arrived are kept, and `orchestry resume` continues with them"
    )
    found.__cause__ = error
    return found


def too_long(error: OSError) -> ConfigError:
    """The one wording for a name that no disk takes, which it does not repeat whole."""
    name = max(str(error.filename).split("/"), key=len)[:40]
    return ConfigError(f"the name {name}... is longer than this disk takes: give a shorter one")


def reason(error: BaseException) -> str:
    """What an error says, for a message of ours: its first line, at most 300 characters; of a
    validation error the first field at fault, with what is wrong there."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}"[:300] if place else first["msg"][:300]
    try:
        return (str(error).splitlines() or ["no message"])[0][:300]
    except Exception:  # a stranger's error that can't be put into words either
        return "no message"


def unknown(kind: str, found: str, known: list[str]) -> str:
    """The one wording for a name that does not exist, with the nearest known one.

    >>> unknown("task", "code_reviw", ["code_review"])
    "unknown task 'code_reviw': did you mean 'code_review'? Known: code_review"
    """
    import difflib

    near = difflib.get_close_matches(found, known, n=1)
    hint = f" did you mean '{near[0]}'?" if near else ""
    return f"unknown {kind} '{found}':{hint} Known: {', '.join(known) or 'none'}"
