"""A trainer whose work is dealt to the processes of a launch: `accelerate launch`, torchrun.

Process 0 is the run: it alone has journal, rewards, books and terminal, and saves. The others hold
the same team and follow: each draws and learns from its share, and all take the same step. What is
drawn and learned is what one process alone would draw and learn, up to rounding.

They talk through torch.distributed by gloo, beside GPUs too. What they exchange is small (ids of
tokens, gradients of adapters); a process that died is an error at once; and waiting costs nothing,
however long process 0 waits for a reward, where NCCL would spin and give up.
"""

from __future__ import annotations

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
from orchestry.backends.local.optimizer import Step
from orchestry.backends.local.sampler import Beat, Drawn, Prompt, still
from orchestry.backends.local.trainer import Learnt, Trainer
from orchestry.core.errors import ConfigError, LearnError, OrchestryError, reason
from orchestry.core.learn_config import LearnConfig
from orchestry.core.machine import Launch, launched
from orchestry.core.seeds import derive
from orchestry.core.types import Member

FoundT = TypeVar("FoundT")
Command = tuple[str, tuple[Any, ...]]
_JOIN = timedelta(minutes=30)
_WAIT = timedelta(days=365)
"""For a command, or another process's part: how long that takes is for rewards and weights to say,
and a process that is gone is noticed without it."""
_LOAD, _CLOSE = "load", "close"


class ParallelTrainer(Trainer):
    """A Trainer in each process. Called in process 0, a method runs in all of them at once."""

    def __init__(
        self,
        processes: Processes,
        team: Mapping[str, Member],
        settings: LearnConfig,
        updates: int,
        seed: int,
    ) -> None:
        """`settings.threads` are those of a machine, for all of its processes together."""
        threads = max(1, (settings.threads or 1) // processes.local_count)
        own = settings.model_copy(update={"threads": threads})
        super().__init__(team, own, updates, seed, processes.warn, processes.beat)
        self._processes = processes
        if processes.rank:  # adapters are the same everywhere, dropout is not
            self._seed = derive(seed, "process", processes.rank)

    def answer(self, crew: int, prompts: Sequence[Prompt], n: int) -> list[list[Drawn]]:
        """See Trainer; each process draws its share."""
        if self._settings.vllm_url:  # a server has GPUs of its own: process 0 asks it
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
    ) -> tuple[float, list[torch.Tensor]]:
        """The gradient and loss of the whole batch; of its own share the log-probabilities."""
        share, logprobs = self._share(batch), list[torch.Tensor]()

        def part() -> float:
            loss, mine = super(ParallelTrainer, self)._backward(share, olds)
            logprobs.extend(mine)
            return loss

        try:
            losses = self._processes.together(part)
        except Exception:
            self.optimizer.drop()  # another process failed, and this one has its part
            raise
        self._processes.add_up([w for crew in self.crews for w in crew.adapters.parameters()])
        return sum(losses), logprobs

    def _step(self) -> Step:
        """See Trainer; taken by every process, or all end."""
        return self._processes.together(super()._step)[0]

    def _share(self, batch: Batch) -> Batch:
        """What this process learns from; the mean is over the actions of all."""
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
        """The others let go of the weights; raises OrchestryError where one of them has died.

        Its launcher will have asked this process to stop then, which looks like the user's wish.
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
    """The run's team, in all processes of the launch where there are several; see Trainer."""
    if launched().processes == 1:
        return Trainer(team, settings, updates, seed, warn, beat)
    processes = _joined()
    processes.warn, processes.beat = warn, beat
    processes.tell(_LOAD, team, settings, updates, seed)
    trainer = _loaded(processes, team, settings, updates, seed)
    warn(f"{processes.count} processes draw and learn together")
    return trainer


def follow() -> None:
    """The work of every process after the first: it writes no file, has no terminal and does not
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
    """Once per process: they part when process 0 ends."""
    return Processes(launched())


def _loaded(processes: Processes, *arguments: Any) -> ParallelTrainer:
    """The trainer of this process, once all processes have loaded theirs; else all raise."""
    made = list[ParallelTrainer]()
    processes.together(lambda: made.append(ParallelTrainer(processes, *arguments)))
    return made[0]


def dealt(
    keys: Sequence[Hashable], prompts: Iterable[int], answers: Iterable[int], processes: int
) -> list[int]:
    """Which process takes each item, so that their tokens are about as many.

    Items of one key stay together: they share a prompt, of `prompts` tokens, which is computed
    once; `answers` is the tokens of each item behind it. The heaviest key goes first, each to
    whoever has least.
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
        """Process 0 has the others do what it is about to do; in the others it does nothing."""
        if self.rank == 0:
            with self._linked():
                command: Command = (name, arguments)
                dist.broadcast_object_list([command], src=0, group=self._commands)

    def commands(self) -> Iterator[Command]:
        """The commands of process 0. When it ends, this process ends too, whatever it is doing.

        This process ignores SIGTERM and Ctrl-C: process 0 answers them, and may need the others
        to the end of an update.
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
        """Where the link to another process breaks, process 0 raises and the others end."""
        try:
            yield
        except RuntimeError as error:
            if self.rank:
                os._exit(0)  # from any thread, in the middle of whatever the others do
            raise OrchestryError(
                f"another process of this launch has ended ({_short(error)}): its launcher says "
                "how; `orchestry resume`, launched in the same way, continues the run"
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
