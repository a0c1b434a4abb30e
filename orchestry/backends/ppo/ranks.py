"""A learner whose games are divided among the processes of a launch.

Each process plays its share, with random numbers of its own, and all take the same steps: gradients
are averaged, and what is normalised is normalised by the statistics of all. So the team is
bit-identical in all processes (data-parallel PPO, as DD-PPO without preemption: Wijmans et al.,
arXiv 1911.00357).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from orchestry.backends.launch import CLOSE, Processes
from orchestry.backends.ppo.checkpoint import packed, unpacked
from orchestry.backends.ppo.learner import Batch, Learner, Played, Seats, Spread
from orchestry.backends.ppo.running import Moments
from orchestry.core.errors import LearnError
from orchestry.core.ppo import PpoConfig
from orchestry.core.seeds import derive
from orchestry.task.vector import Vectors

_SAME = ("steps", "team", "adam")
"""Parts of a learner's state that all processes have in common."""


class Shared(Moments):
    """Statistics of what all processes see. Own rows count at once, those of others at `settle`."""

    def __init__(self, processes: Processes, width: int, device: torch.device) -> None:
        super().__init__(width, device)
        self._processes = processes
        self._settled()

    def _settled(self) -> None:
        self._before = self.state()
        self._own = Moments(len(self.mean), self.mean.device)

    def join(self, count: int | Tensor, mean: Tensor, square: Tensor) -> None:
        """See Moments."""
        super().join(count, mean, square)
        self._own.join(count, mean, square)

    def settle(self) -> None:
        """See Moments. All count all rows in the order of processes: bit-identical in all."""
        own = torch.cat((self._own.count[None], self._own.mean, self._own.square))
        super().restore(self._before)
        for part in self._processes.gathered(own.cpu()):
            count, mean, square = part.to(own.device).tensor_split((1, 1 + len(self.mean)))
            super().join(count[0], mean, square)
        self._settled()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """See Moments."""
        super().restore(state)
        self._settled()


class ParallelLearner(Learner):
    """A Learner in each process. A method called in process 0 runs in all of them."""

    def __init__(
        self,
        processes: Processes,
        games: Vectors,
        settings: PpoConfig,
        seats: Seats,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        """`games` and `seats.others` are this process's share, `settings` those of all."""
        super().__init__(games, settings, seats, seed, device)
        self._processes, self.sharers = processes, processes.count
        if settings.normalise:
            self.team.seen = Shared(processes, len(self.team.seen.mean), self.device)
        self._scale.moments = Shared(processes, 1, self.device)
        if processes.rank:  # weights are equal in all processes, games and draws are not
            self._seed = derive(seed, "actions", "process", processes.rank)
            self._random.manual_seed(self._seed)

    def iterate(self, whole: int | None = None) -> tuple[dict[str, float], Played]:
        """See Learner; games and figures are those of all processes."""
        self._processes.tell("iterate", whole)
        return super().iterate(whole)

    def _play(self) -> tuple[Batch, Played]:
        """See Learner: this process's batch, and the games of all. If one fails, all raise."""
        batches = list[Batch]()

        def part() -> Played:
            batch, played = super(ParallelLearner, self)._play()
            batches.append(batch)
            return played

        parts = self._processes.together(part)
        whole = Played([], [], [])
        for played in parts:
            whole.returns += played.returns
            whole.own += played.own
            whole.lengths += played.lengths
        return batches[0], whole

    def _learn(self, batch: Batch) -> dict[str, float]:
        """See Learner; the means of all processes' figures."""
        figures = super()._learn(batch)
        sums = torch.tensor([*figures.values()], dtype=torch.float64)
        self._processes.sum_up(sums)
        return dict(zip(figures, (sums / self.sharers).tolist(), strict=True))

    def _spreads(self, parts: Sequence[Tensor]) -> list[Spread]:
        """See Learner: of whole minibatches, of which each process has as many rows. One message
        for all of them: the steps between have one each, and processes wait at every message."""
        own = [torch.stack(torch.var_mean(raw.to(torch.float64), 1, correction=0)) for raw in parts]
        found = torch.stack(self._processes.gathered(torch.stack(own).cpu()), 2)
        spreads = list[Spread]()
        for raw_PM, (vars_NP, means_NP) in zip(parts, found, strict=True):
            rows = self.sharers * raw_PM.shape[1]
            square_P = vars_NP.mean(0) + means_NP.var(0, correction=0)
            deviation_P = (square_P * rows / (rows - 1)).sqrt()
            spreads.append((deviation_P[:, None].to(raw_PM), means_NP.mean(0)[:, None].to(raw_PM)))
        return spreads

    def _agree(self) -> None:
        """See Learner: the mean over processes, added in their order: bit-identical in all. To hand
        a small gradient to all and add it there waits for less than gloo's sum does."""
        parts = self._processes.gathered(self._grad_PW.cpu())
        self._grad_PW.copy_(torch.stack(parts).sum(0)).div_(self.sharers)

    def state(self) -> dict[str, Any]:
        """See Learner: process 0's, and in `ranks` what each other one has of its own. Raises
        LearnError if a process's team is no longer that of process 0."""
        self._processes.tell("state")
        parts = self._processes.together(self._own_state)
        for rank, (digest, _) in enumerate(parts):
            if digest != parts[0][0]:
                raise LearnError(
                    f"process {rank} no longer has process 0's weights, so no checkpoint was "
                    "written: `orchestry resume`, launched in the same way, goes on from the last"
                )
        others = [unpacked(own) for _, own in parts[1:]]
        return {**super().state(), "ranks": others}

    def _own_state(self) -> tuple[str, bytes]:
        """The digest of what is equal in all processes, and what is this one's own."""
        found = super().state()
        adam, scale = found["adam"], self._scale.moments.state()
        team = (found["team"]["weights"], *found["team"]["seen"].values())
        digest = _digest([*team, adam["mean"], adam["square"], *scale.values()])
        return digest, packed({k: v for k, v in found.items() if k not in _SAME})

    def restore(self, state: Mapping[str, Any]) -> bool:
        """See Learner; `state` is of as many processes."""
        self._processes.tell("restored", packed(state))
        return self.restored(state)

    def restored(self, state: bytes | Mapping[str, Any]) -> bool:
        """This process's part of `restore`."""
        state = unpacked(state) if isinstance(state, bytes) else state
        rank = self._processes.rank
        own = {**state, **state["ranks"][rank - 1]} if rank else state
        return all(self._processes.together(lambda: super(ParallelLearner, self).restore(own)))

    def close(self) -> None:
        """The other processes let their games go; raises OrchestryError if one of them has died.

        Its launcher then asked this process to stop, which would look like an interrupt by the
        user.
        """
        self._processes.tell(CLOSE)


def _digest(tensors: Sequence[Tensor]) -> str:
    return sha256(b"".join(one.cpu().numpy().tobytes() for one in tensors)).hexdigest()
