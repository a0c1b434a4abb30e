"""A trainer whose work is dealt to the processes of a launch: `accelerate launch`, torchrun.

Process 0 is the run: it alone has journal, rewards, books and terminal, and saves. The others hold
the same team and follow: each draws and learns from its share, and all take the same step. What is
drawn and learned is what one process alone would draw and learn, up to rounding.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from orchestry.backends.local.groups import Batch
from orchestry.backends.local.optimizer import Step
from orchestry.backends.local.processes import Processes
from orchestry.backends.local.sampling import Beat, Drawn, Prompt, still
from orchestry.backends.local.trainer import Learnt, Trainer
from orchestry.core.errors import OrchestryError
from orchestry.core.launch import launched
from orchestry.core.learn_config import LearnConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Member

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
        self._alone = [crew.answer for crew in self.crews]
        for number, crew in enumerate(self.crews):
            if settings.vllm_url is None:  # a server has GPUs of its own: process 0 asks it
                crew.answer = partial(self.answer, number)

    def answer(self, crew: int, prompts: Sequence[Prompt], n: int) -> list[list[Drawn]]:
        """Draws for the crew of that number; see Sampler.draw."""
        self._processes.tell("answer", crew, prompts, n)
        owners = dealt(
            [(prompt.agent_index, prompt.prompt_ids) for prompt in prompts],
            [len(prompt.prompt_ids) for prompt in prompts],
            [n * prompt.max_tokens for prompt in prompts],
            self._processes.count,
        )
        mine = [prompt for prompt, rank in zip(prompts, owners, strict=True) if self._is_me(rank)]
        parts = self._processes.together(lambda: self._alone[crew](mine, n))
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
    """What every process but the first does: no file, no terminal, and no return."""
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
    """Once a process: they part when process 0 ends."""
    return Processes(launched())


def _loaded(processes: Processes, *arguments: Any) -> ParallelTrainer:
    """Loaded everywhere, or nowhere."""
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
