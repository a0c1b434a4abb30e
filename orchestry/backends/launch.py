"""The processes of a launch (`accelerate launch`, torchrun), and the link between them.

Process 0 is the run; the others `follow` it, and do what it tells them. They communicate through
torch.distributed with gloo, also with GPUs. Messages are small (token ids, gradients of adapters or
of small networks), a dead process is an error at once, and waiting for a reward costs nothing,
while NCCL would spin and give up.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.nn import Parameter

from orchestry.core.errors import ConfigError, LearnError, OrchestryError, reason
from orchestry.core.machine import Launch, launched

FoundT = TypeVar("FoundT")
_Command = tuple[str, tuple[Any, ...]]
_JOIN = timedelta(minutes=30)
"""Of other processes, which wait until process 0 has checked its config and fetched its model."""
_MEET = timedelta(minutes=5)
"""Of process 0, for which the others only have to import torch."""
_WAIT = timedelta(days=365)
"""Timeout for commands and other processes' parts; rewards and loading may take long, and a dead
process is noticed anyway."""
LOAD, CLOSE = "load", "close"
"""The commands to make a trainer, by a function of a module, and to let it go. All others are
methods of that trainer."""


def follow() -> None:
    """The work of every process except the first: it writes no file, has no terminal and does not
    return. It needs no config: process 0 tells what to load."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # waiting for the others can be interrupted
    processes, trainer = joined(), None
    for name, arguments in processes.commands():
        with suppress(OrchestryError):  # process 0 raises it too
            if name in (LOAD, CLOSE):
                trainer = None  # which makes room
            if name == LOAD:
                make, *rest = arguments
                trainer = make(processes, *rest)
            elif name != CLOSE:
                getattr(trainer, name)(*arguments)


@cache
def joined() -> Processes:
    """The link of this process. It lasts until process 0 ends."""
    return Processes(launched())


@dataclass(frozen=True, slots=True)
class _Done:
    """The result of one process's part."""

    found: Any
    error: str | None
    trace: str
    notes: tuple[str, ...]


class Processes:
    """The link of this process to all others of the launch."""

    def __init__(self, here: Launch) -> None:
        """Waits until all have joined. Raises ConfigError if they can't connect."""
        self.rank, self.count = here.rank, here.processes
        self.local_count = here.local_processes
        self.warn: Callable[[str], None] = self._remember
        """Where notes go; other processes' notes are shown at the end of their part."""
        self.beat: Callable[[int], None] = lambda tokens: None  # only process 0 is watched
        self._notes = list[str]()
        if here.local_processes == here.processes:  # then no port has to listen on a network
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        try:
            dist.init_process_group("gloo", timeout=_JOIN if here.rank else _MEET)
            self._commands = dist.new_group(backend="gloo", timeout=_WAIT)
            self._parts = dist.new_group(backend="gloo", timeout=_WAIT)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"process {here.rank} can't meet the other {here.processes - 1} of its launch "
                f"({reason(error)}): install the backend's extra on all machines, and start with "
                "--on, `accelerate launch` or torchrun, or unset WORLD_SIZE"
            ) from error
        atexit.register(self._leave)

    def _leave(self) -> None:
        """Ends gloo's threads while Python still runs: one that drops its last message later
        aborts the process (pytorch/pytorch#179291)."""
        del self._commands, self._parts
        dist.destroy_process_group()

    def _remember(self, note: str) -> None:
        self._notes.append(note)

    def tell(self, name: str, *arguments: Any) -> None:
        """Process 0 tells the others to do what it does next; in other processes this does
        nothing."""
        if self.rank == 0:
            with self._linked():
                command: _Command = (name, arguments)
                dist.broadcast_object_list([command], src=0, group=self._commands)

    def commands(self) -> Iterator[_Command]:
        """Yields the commands of process 0. When process 0 ends, this process ends too.

        This process ignores SIGTERM and Ctrl-C: process 0 handles them, and may need the others
        until the end of an update.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        heard = SimpleQueue[_Command]()
        Thread(target=self._listen, args=(heard,), daemon=True).start()
        while True:
            yield heard.get()

    def _listen(self, heard: SimpleQueue[_Command]) -> None:
        try:
            while True:
                with self._linked():
                    told: list[Any] = [None]
                    dist.broadcast_object_list(told, src=0, group=self._commands)
                heard.put(told[0])
        except Exception:  # such as a package that this machine lacks; else all would wait
            traceback.print_exc()
            os._exit(1)

    def together(self, work: Callable[[], FoundT]) -> list[FoundT]:
        """Every process's part, by rank; all must call it at the same place.

        If one failed, all raise: process 0 its own error, or LearnError with another's.
        """
        mine, failure = self._done(work)
        parts = cast(list[_Done], [None] * self.count)
        with self._linked():
            dist.all_gather_object(parts, mine, group=self._parts)
        self._pass_on(parts)
        if failure is not None and self.rank == 0:
            raise failure
        for rank, done in enumerate(parts):
            if done.error is not None:
                raise LearnError(f"process {rank}: {done.error}") from RuntimeError(done.trace)
        return [done.found for done in parts]

    def _done(self, work: Callable[[], Any]) -> tuple[_Done, Exception | None]:
        try:
            found = work()
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            return _Done(None, _said(error), trace, self._noted()), error
        return _Done(found, None, "", self._noted()), None

    def _noted(self) -> tuple[str, ...]:
        notes = tuple(self._notes)
        self._notes.clear()
        return notes

    def _pass_on(self, parts: Sequence[_Done]) -> None:
        for rank, done in enumerate(parts):
            for note in done.notes if self.rank == 0 else ():
                self.warn(f"process {rank}: {note}")

    def add_up(self, parameters: Sequence[Parameter]) -> None:
        """Sums each gradient over all processes; the result is bit-identical in all."""
        flat = torch.cat([_gradient(parameter).flatten().cpu() for parameter in parameters])
        self.sum_up(flat)
        parts = torch.split(flat, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter)

    def sum_up(self, part: torch.Tensor) -> None:
        """Sums a tensor on the CPU over all processes, in place; bit-identical in all."""
        with self._linked():
            dist.all_reduce(part, group=self._parts)

    def gathered(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Every process's tensor by rank; all have one shape and lie on the CPU."""
        found = [torch.empty_like(part) for _ in range(self.count)]
        with self._linked():
            dist.all_gather(found, part, group=self._parts)
        return found

    @contextmanager
    def _linked(self) -> Iterator[None]:
        """If the link to another process breaks, process 0 raises and the others end."""
        try:
            yield
        except RuntimeError as error:
            if self.rank:
                os._exit(0)  # from any thread, at any moment
            raise OrchestryError(
                f"another process of this launch has ended ({_short(error)}): its launcher says "
                "how; `orchestry resume`, launched in the same way, continues the run"
            ) from error


def _gradient(parameter: Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _short(error: RuntimeError) -> str:
    """Gloo's message, without its source line and advice."""
    return reason(error).rpartition(".cc:")[2].partition("] ")[2].partition(". ")[0] or reason(
        error
    )


def _said(error: Exception) -> str:
    if isinstance(error, OrchestryError):
        return str(error)
    return f"unforeseen {type(error).__name__}: {reason(error)}"
