"""A team on the weights of this machine: draws its moves, takes MAGRPO steps, saves and goes on."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from orchestry.backends.local.crew import Crew
from orchestry.backends.local.finite import explained
from orchestry.backends.local.groups import Batch
from orchestry.backends.local.memory import MicroBatches, out_of_memory
from orchestry.backends.local.optimizer import Step, TeamOptimizer
from orchestry.backends.local.sampling import Beat, still
from orchestry.core.errors import ConfigError, LearnError, StoreError, reason
from orchestry.core.files import sync
from orchestry.core.learn_config import LearnConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Member, Request
from orchestry.store.checkpoints import OPTIMIZER

_PART = ".part"


@dataclass(frozen=True, slots=True)
class Learnt:
    """What one update came to."""

    step: Step
    loss: float
    """Of all agents together; its gradient is the point, its size says little."""
    samples: int
    """Actions learned from."""
    skipped: int
    """Actions of zero advantage, which cost nothing."""
    tokens: int
    """Answers' tokens learned from."""

    def figures(self) -> dict[str, Any]:
        """For the journal."""
        return {
            "loss": self.loss,
            "rate": self.step.rate,
            "norms": dict(self.step.norms),
            "samples": self.samples,
            "skipped": self.skipped,
            "tokens": self.tokens,
        }

    def line(self) -> str:
        """For the user."""
        norms = ", ".join(f"{agent} {norm:.2g}" for agent, norm in self.step.norms.items())
        return (
            f"{self.samples} actions learned from and {self.skipped} without variance, "
            f"gradient norms {norms}"
        )


class Trainer:
    """A crew a base model, and one optimizer. Not safe to use from two threads at once."""

    def __init__(
        self,
        team: Mapping[str, Member],
        settings: LearnConfig,
        updates: int,
        seed: int,
        warn: Callable[[str], None],
        beat: Beat = still,
    ) -> None:
        """`updates`: how many the whole run makes. Raises ConfigError for what can't be loaded."""
        torch.set_num_threads(settings.threads or 1)
        self._beat = beat
        self.crews = _crews(team, settings, seed, warn, beat)
        self.optimizer = TeamOptimizer(
            {
                role: crew.adapters.parameters(index)
                for crew in self.crews
                for index, role in enumerate(crew.roles)
            },
            rate=settings.learning_rate,
            updates=updates * settings.epochs,
            max_norm=settings.max_grad_norm,
        )
        self._settings, self._seed, self._warn = settings, seed, warn
        self._micro = MicroBatches(self.crews[0].micro_tokens, warn)

    def draw(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """`n` answers a request, in one batch a crew; see Crew.draw."""
        found: dict[int, list[Completion]] = {}
        for crew in self.crews:
            places = [i for i, request in enumerate(requests) if request.agent in crew.roles]
            answers = crew.draw([requests[place] for place in places], n)
            found.update(zip(places, answers, strict=True))
        return [found[place] for place in range(len(requests))]

    def learn(self, batch: Batch) -> Learnt:
        """`learn.epochs` steps up the gradient of equation 2, each agent's mean over its actions.

        Raises LearnError, before that step moves a weight, for numbers that are none.
        """
        olds = list[torch.Tensor]()
        for epoch in range(self._settings.epochs):
            loss, logprobs = self._backward(batch, olds if epoch else None)
            step = self._step()
            olds = olds or logprobs
        return Learnt(
            step=step,
            loss=loss,
            samples=len(batch.samples),
            skipped=batch.skipped,
            tokens=sum(len(sample.ids) for sample in batch.samples),
        )

    def _step(self) -> Step:
        """Raises LearnError where memory runs out; the last checkpoint is untouched by it."""
        try:
            with explained(self.crews):
                return self.optimizer.step()
        except Exception as error:
            self.optimizer.drop()
            if not out_of_memory(error):
                raise
            raise LearnError(
                f"AdamW's two moments of each of the team's {self.optimizer.size:,} numbers do not "
                f"fit into memory ({reason(error)}): free some and resume the run, or begin "
                "another with less learn.rank, a smaller base or learn.quantize=nf4"
            ) from None

    def _backward(
        self, batch: Batch, olds: Sequence[torch.Tensor] | None
    ) -> tuple[float, list[torch.Tensor]]:
        """Adds up the gradient; the loss, and the actions' log-probabilities.

        Smaller micro-batches, where memory runs out, add up to the same.
        """
        with explained(self.crews), self._training():
            return self._micro.run(
                lambda tokens: self._added_up(batch, olds, tokens), self.optimizer.drop
            )

    def _added_up(
        self, batch: Batch, olds: Sequence[torch.Tensor] | None, micro_tokens: int
    ) -> tuple[float, list[torch.Tensor]]:
        self._reseed()
        total, logprobs = 0.0, list[torch.Tensor]()
        known = iter(olds) if olds is not None else None
        for crew in self.crews:
            for part in crew.parts(batch, micro_tokens, known):
                self._beat(0)
                self.optimizer.backward(part.loss)
                total += part.loss.item()
                logprobs += part.logprobs
        return total, logprobs

    def _reseed(self) -> None:
        """Dropout's masks are a function of the run's seed and the step."""
        for number, crew in enumerate(self.crews):
            crew.adapters.reseed(derive(self._seed, "dropout", self.optimizer.update, number))

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Dropout is on."""
        for crew in self.crews:
            crew.base.model.train()
        try:
            yield
        finally:
            for crew in self.crews:
                crew.base.model.train(False)

    def save(self, folder: Path, keep: int, spared: Collection[str] = ()) -> None:
        """All that a run needs to go on, whole or not at all; older checkpoints but `keep` go, and
        but those whose names are `spared`.

        The one before stays even at `keep=1`: until the journal names the new one, a run that is
        killed goes on from there.
        """
        part = folder.with_name(folder.name + _PART)
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            for crew in self.crews:
                crew.adapters.save(part)
            torch.save(self.optimizer.state_dict(), part / OPTIMIZER)
            for file in part.rglob("*"):
                sync(file)
            if folder.exists():  # left by a process that was killed before it counted
                shutil.rmtree(folder)
            part.replace(folder)
            sync(folder.parent)
            ours = [path for path in folder.parent.iterdir() if path.name.isdecimal()]
            for old in sorted(ours, key=lambda path: int(path.name))[: -max(2, keep)]:
                if old.name not in spared:
                    shutil.rmtree(old)
        except (OSError, RuntimeError, SafetensorError) as error:  # the latter two: of a full disk
            shutil.rmtree(part, ignore_errors=True)
            raise StoreError(
                f"the checkpoint {folder} can't be written ({reason(error)}): free space there, "
                "then resume the run"
            ) from None
        for crew in self.crews:
            crew.publish(folder)

    def resume(self, folder: Path) -> None:
        """Goes on exactly where the checkpoint was saved, on a base that the caller compared."""
        Trainer.start_from(self, folder, any_base=True)
        try:
            state = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise StoreError(
                f"{folder / OPTIMIZER} can't be read ({reason(error)}): restore it from a copy"
            ) from None
        self.optimizer.load_state_dict(state)

    def start_from(self, folder: Path, any_base: bool = False) -> None:
        """Takes over a checkpoint's adapters, with a fresh optimizer; see Adapters.load."""
        for crew in self.crews:
            crew.adapters.load(folder, any_base)
            crew.publish(folder)

    def close(self) -> None:
        """The run is over. Alone there is nobody to tell; see ParallelTrainer."""


def _crews(
    team: Mapping[str, Member],
    settings: LearnConfig,
    seed: int,
    warn: Callable[[str], None],
    beat: Beat,
) -> tuple[Crew, ...]:
    """The agents by base, in the order of the team."""
    models = list(dict.fromkeys(member.model for member in team.values()))
    if settings.shared and len(models) > 1:
        raise ConfigError(
            f"learn.shared=true needs one base for all agents, found {', '.join(models)}: name "
            "one, or set learn.shared=false"
        )
    if settings.vllm_url and len(models) > 1:
        raise ConfigError(
            f"learn.vllm_url names one server, which serves one base, found {', '.join(models)}: "
            "name one base for all agents, or leave learn.vllm_url"
        )
    return tuple(
        Crew(
            model,
            {
                role: 1.0 if member.temperature is None else member.temperature
                for role, member in team.items()
                if member.model == model
            },
            settings,
            seed,
            warn,
            beat,
        )
        for model in models
    )
