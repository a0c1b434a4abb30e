"""A trainer whose work is divided among the processes of a launch (`accelerate launch`, torchrun).

Process 0 is the run: only it has journal, rewards, ledger and terminal, and saves. The others hold
the same team: each draws and learns from its share, and all take the same step. The result equals
that of a single process, up to rounding.

They communicate through torch.distributed with gloo, also with GPUs. Messages are small (token ids,
gradients of adapters), a dead process is an error at once, and waiting for a reward costs nothing,
while NCCL would spin and give up.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.nn import Parameter

from orchestry.backends.local.batch import Batch
from orchestry.backends.local.diagnostics import Learnt, Tally
from orchestry.backends.local.optimizer import Step
from orchestry.backends.local.sampler import Beat, Drawn, Prompt, still
from orchestry.backends.local.trainer import Trainer
from orchestry.core.errors import ConfigError, LearnError, OrchestryError, reason
from orchestry.core.learning import LearnConfig
from orchestry.core.machine import Launch, launched
from orchestry.core.seeds import derive
from orchestry.core.types import Member

FoundT = TypeVar("FoundT")
_Command = tuple[str, tuple[Any, ...]]
_JOIN = timedelta(minutes=30)
_WAIT = timedelta(days=365)
"""Timeout for commands and other processes' parts; rewards and loading may take long, and a dead
process is noticed anyway."""
_LOAD, _CLOSE = "load", "close"


class ParallelTrainer(Trainer):
    """A Trainer in each process. A method called in process 0 runs in all of them."""

    def __init__(
        self,
        processes: Processes,
        team: Mapping[str, Member],
        settings: LearnConfig,
        updates: int,
        seed: int,
    ) -> None:
        """`settings.threads` are for all processes of a machine together."""
        threads = max(1, (settings.threads or 1) // processes.local_count)
        own = settings.model_copy(update={"threads": threads})
        super().__init__(team, own, updates, seed, processes.warn, processes.beat)
        self._processes = processes
        if processes.rank:  # adapters are equal in all processes, dropout is not
            self._seed = derive(seed, "process", processes.rank)

    def answer(self, crew: int, prompts: Sequence[Prompt], n: int) -> list[list[Drawn]]:
        """See Trainer; each process draws its share."""
        if self._settings.vllm_url:  # a vLLM server has its own GPUs; only process 0 calls it
            return super().answer(crew, prompts, n)
        self._processes.tell("answer", crew, prompts, n)
        owners = dealt(
            [(prompt.agent_index, prompt.prompt_ids) for prompt in prompts],
            [len(prompt.prompt_ids) for prompt in prompts],
            [n * prompt.max_tokens for prompt in prompts],
            self._processes.count,
        )
        mine = [prompt for prompt, rank in zip(prompts, owners, strict=True) if self._is_me(rank)]
        parts = self._processes.together(lambda: super(ParallelTrainer, self).answer(crew, mine, n))
        answers = list(map(iter, parts))
        return [next(answers[rank]) for rank in owners]

    def learn(self, batch: Batch) -> Learnt:
        """See Trainer."""
        self._processes.tell("learn", batch)
        return super().learn(batch)

    def _backward(
        self, batch: Batch, olds: Sequence[torch.Tensor] | None
    ) -> tuple[float, list[torch.Tensor], Tally]:
        """The gradient, loss and figures of the whole batch, and the log-probabilities of its own
        share."""
        share, logprobs = self._share(batch), list[torch.Tensor]()

        def part() -> tuple[float, Tally]:
            loss, mine, tally = super(ParallelTrainer, self)._backward(share, olds)
            logprobs.extend(mine)
            return loss, tally

        try:
            parts = self._processes.together(part)
        except Exception:
            self.optimizer.drop()  # another process failed, and this one has its part
            raise
        self._processes.add_up([w for crew in self.crews for w in crew.adapters.parameters()])
        whole = Tally()
        for _, tally in parts:
            whole.join(tally)
        return sum(loss for loss, _ in parts), logprobs, whole

    def _step(self) -> Step:
        """See Trainer; every process takes the step, or all end."""
        return self._processes.together(super()._step)[0]

    def _share(self, batch: Batch) -> Batch:
        """This process's share; the mean is over all processes' actions."""
        owners = dealt(
            [sample.group for sample in batch.samples],
            [len(sample.prompt_ids) for sample in batch.samples],
            [len(sample.ids) for sample in batch.samples],
            self._processes.count,
        )
        pairs = zip(batch.samples, owners, strict=True)
        return replace(batch, samples=tuple(s for s, rank in pairs if self._is_me(rank)))

    def _is_me(self, rank: int) -> bool:
        return rank == self._processes.rank

    def resume(self, folder: Path) -> None:
        """See Trainer; every process reads the folder."""
        self._processes.tell("resume", folder.absolute())
        self._processes.together(lambda: super(ParallelTrainer, self).resume(folder))

    def start_from(self, folder: Path, any_base: bool = False) -> None:
        """See Trainer; every process reads the folder."""
        self._processes.tell("start_from", folder.absolute(), any_base)
        self._processes.together(lambda: super(ParallelTrainer, self).start_from(folder, any_base))

    def close(self) -> None:
        """The other processes release the weights; raises OrchestryError if one of them has died.

        Its launcher then asked this process to stop, which would look like an interrupt by the
        user.
        """
        self._processes.tell(_CLOSE)


def load_trainer(
    team: Mapping[str, Member],
    settings: LearnConfig,
    updates: int,
    seed: int,
    warn: Callable[[str], None],
    beat: Beat = still,
) -> Trainer:
    """The run's team, in all processes of the launch; see Trainer."""
    if launched().processes == 1:
        return Trainer(team, settings, updates, seed, warn, beat)
    processes = _joined()
    processes.warn, processes.beat = warn, beat
    processes.tell(_LOAD, team, settings, updates, seed)
    trainer = _loaded(processes, team, settings, updates, seed)
    warn(f"{processes.count} processes draw and learn together")
    return trainer


def follow() -> None:
    """The work of every process except the first: it writes no file, has no terminal and does not
    return."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # waiting for the others can be interrupted
    processes, trainer = _joined(), None
    for name, arguments in processes.commands():
        with suppress(OrchestryError):  # process 0 raises it too
            if name in (_LOAD, _CLOSE):
                trainer = None  # which makes room
            if name == _LOAD:
                trainer = _loaded(processes, *arguments)
            elif name != _CLOSE:
                getattr(trainer, name)(*arguments)


@cache
def _joined() -> Processes:
    """Called once per process; the link lasts until process 0 ends."""
    return Processes(launched())


def _loaded(processes: Processes, *arguments: Any) -> ParallelTrainer:
    """This process's trainer, after all processes have loaded theirs; if one fails, all raise."""
    made = list[ParallelTrainer]()
    processes.together(lambda: made.append(ParallelTrainer(processes, *arguments)))
    return made[0]


def dealt(
    keys: Sequence[Hashable], prompts: Iterable[int], answers: Iterable[int], processes: int
) -> list[int]:
    """The process of each item, so that all have about the same number of tokens.

    Items of one key stay together, because they share a prompt of `prompts` tokens, which is
    computed once; `answers` has each item's further tokens. The largest key goes first, each to the
    process with the fewest tokens.
    """
    tokens = dict(zip(keys, prompts, strict=True))
    for key, answer in zip(keys, answers, strict=True):
        tokens[key] += answer
    loads, owners = [0] * processes, dict[Hashable, int]()
    for key in sorted(tokens, key=lambda key: -tokens[key]):
        owners[key] = loads.index(min(loads))
        loads[owners[key]] += tokens[key]
    return [owners[key] for key in keys]


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
            dist.init_process_group("gloo", timeout=_JOIN)
            self._commands = dist.new_group(backend="gloo", timeout=_WAIT)
            self._parts = dist.new_group(backend="gloo", timeout=_WAIT)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"process {here.rank} can't meet the other {here.processes - 1} of its launch "
                f"({reason(error)}): start with `accelerate launch`, or unset WORLD_SIZE"
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
        while True:
            with self._linked():
                told: list[Any] = [None]
                dist.broadcast_object_list(told, src=0, group=self._commands)
            heard.put(told[0])

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
        with self._linked():
            dist.all_reduce(flat, group=self._parts)
        parts = torch.split(flat, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter)

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
