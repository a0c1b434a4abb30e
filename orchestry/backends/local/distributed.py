"""A trainer whose work is divided among the processes of a launch (`accelerate launch`, torchrun).

Process 0 is the run: only it has journal, rewards, ledger and terminal, and saves. The others hold
the same team: each draws and learns from its share, and all take the same step. The result equals
that of a single process, up to rounding.

They communicate by `backends.launch`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from orchestry.backends.launch import CLOSE, LOAD, Processes, joined
from orchestry.backends.local.batch import Batch
from orchestry.backends.local.diagnostics import Learnt, Tally
from orchestry.backends.local.optimizer import Step
from orchestry.backends.local.sampler import Beat, Drawn, Prompt, still
from orchestry.backends.local.trainer import Trainer
from orchestry.core.learning import LearnConfig
from orchestry.core.machine import launched
from orchestry.core.seeds import derive
from orchestry.core.types import Member


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

    def start_from(
        self, folder: Path, any_base: bool = False, roles: Mapping[str, str | None] | None = None
    ) -> None:
        """See Trainer; every process reads the folder."""
        self._processes.tell("start_from", folder.absolute(), any_base, roles)
        start = super().start_from
        self._processes.together(lambda: start(folder, any_base, roles))

    def close(self) -> None:
        """The other processes release the weights; raises OrchestryError if one of them has died.

        Its launcher then asked this process to stop, which would look like an interrupt by the
        user.
        """
        self._processes.tell(CLOSE)


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
    processes = joined()
    processes.warn, processes.beat = warn, beat
    processes.tell(LOAD, _loaded, team, settings, updates, seed)
    trainer = _loaded(processes, team, settings, updates, seed)
    warn(f"{processes.count} processes draw and learn together")
    return trainer


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
