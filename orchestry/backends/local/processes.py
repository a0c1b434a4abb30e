"""The processes of one launch: process 0 commands, all work, what they found is put together.

They talk through torch.distributed by gloo, beside GPUs too. What they exchange is small (ids of
tokens, gradients of adapters); a process that died is an error at once; and waiting costs nothing,
however long process 0 waits for a reward, where NCCL would spin and give up.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.nn import Parameter

from orchestry.core.errors import ConfigError, LearnError, OrchestryError, reason
from orchestry.core.launch import Launch

FoundT = TypeVar("FoundT")
Command = tuple[str, tuple[Any, ...]]
_JOIN = timedelta(minutes=30)
_WAIT = timedelta(days=365)
"""For a command, or another process's part: how long that takes is for rewards and weights to say,
and a process that is gone is noticed without it."""


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of one process's part."""

    found: Any
    error: str | None
    trace: str
    notes: tuple[str, ...]


class Processes:
    """All processes of this launch, seen from one of them."""

    def __init__(self, here: Launch) -> None:
        """Waits until all have joined. Raises ConfigError where they can't meet."""
        self.rank, self.count = here.rank, here.processes
        self.local_count = here.local_processes
        self.warn: Callable[[str], None] = self._remember
        """Where this process's notes go; those of the others follow at the end of their part."""
        self.beat: Callable[[int], None] = lambda tokens: None  # process 0 alone is watched
        self._notes = list[str]()
        if here.local_processes == here.processes:  # then nothing needs to listen to a network
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        try:
            dist.init_process_group("gloo", timeout=_JOIN)
            self._commands = dist.new_group(backend="gloo", timeout=_WAIT)
            self._parts = dist.new_group(backend="gloo", timeout=_WAIT)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"process {here.rank} can't meet the other {here.processes - 1} of its launch "
                f"({reason(error)}): start with `accelerate launch`, or unset WORLD_SIZE"
            ) from error

    def _remember(self, note: str) -> None:
        self._notes.append(note)

    def tell(self, name: str, *arguments: Any) -> None:
        """Process 0 has the others do what it is about to do; elsewhere it is nothing."""
        if self.rank == 0:
            with self._linked():
                command: Command = (name, arguments)
                dist.broadcast_object_list([command], src=0, group=self._commands)

    def commands(self) -> Iterator[Command]:
        """What process 0 tells, for as long as it lives: this process ends with it.

        Whatever the process is doing then; a polite kill or Ctrl-C is for process 0 to answer,
        which may need the others to the end of an update.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        heard = SimpleQueue[Command]()
        Thread(target=self._listen, args=(heard,), daemon=True).start()
        while True:
            yield heard.get()

    def _listen(self, heard: SimpleQueue[Command]) -> None:
        while True:
            with self._linked():
                told: list[Any] = [None]
                dist.broadcast_object_list(told, src=0, group=self._commands)
            heard.put(told[0])

    def together(self, work: Callable[[], FoundT]) -> list[FoundT]:
        """Every process's part, by rank; all of them must call it at the same place.

        Where one failed, all raise: process 0 its own error, or LearnError with that of another.
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
        """Each gradient becomes the sum over all processes, the same to the last bit in all."""
        flat = torch.cat([_gradient(parameter).flatten().cpu() for parameter in parameters])
        with self._linked():
            dist.all_reduce(flat, group=self._parts)
        parts = torch.split(flat, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter)

    @contextmanager
    def _linked(self) -> Iterator[None]:
        """A broken link: process 0 fails, the others have nothing left to follow."""
        try:
            yield
        except RuntimeError as error:
            if self.rank:
                os._exit(0)  # from any thread, in the middle of whatever the others do
            raise OrchestryError(
                f"another process of this launch has ended ({_short(error)}): its launcher says "
                "how; `orchestry resume`, launched in the same way, goes on"
            ) from error


def _gradient(parameter: Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _short(error: RuntimeError) -> str:
    """What gloo says, without the place in its source and the advice."""
    return reason(error).rpartition(".cc:")[2].partition("] ")[2].partition(". ")[0] or reason(
        error
    )


def _said(error: Exception) -> str:
    if isinstance(error, OrchestryError):
        return str(error)
    return f"unforeseen {type(error).__name__}: {reason(error)}"
