"""A team on local weights: draws moves, takes MAGRPO steps, saves and resumes.

Agents with the same base are a crew: they share one copy of its weights, and each has its own
adapter.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError

from orchestry.backends.local.adapters import folder_of
from orchestry.backends.local.batch import (
    COMLRL_TEMPERATURE,
    Batch,
    Packed,
    Sample,
    as_comlrl,
    packed,
)
from orchestry.backends.local.beginnings import Beginning
from orchestry.backends.local.critic import Critic
from orchestry.backends.local.diagnostics import Learnt, Tally, tally_of
from orchestry.backends.local.full import check_memory, worn
from orchestry.backends.local.importance import Weighing
from orchestry.backends.local.logprobs import completion_logprobs, micro_batches
from orchestry.backends.local.magrpo import policy_loss
from orchestry.backends.local.memory import MicroBatches, checkpoint_layers, fitting, out_of_memory
from orchestry.backends.local.model import load_base
from orchestry.backends.local.optimizer import Step, TeamOptimizer
from orchestry.backends.local.sampler import Beat, Drawn, Draws, Prompt, Sampler, still
from orchestry.backends.local.selfcheck import check_base
from orchestry.backends.local.sizes import JOINED_ON_A_CPU, ON_A_CPU, ON_A_GPU, crewed
from orchestry.core import extensions
from orchestry.core.errors import (
    ConfigError,
    LearnError,
    NotFiniteError,
    PromptTooLong,
    StoreError,
    reason,
)
from orchestry.core.files import sync
from orchestry.core.learning import LearnConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Member, Request, Tokens
from orchestry.models.hermes import call_begun, read_calls
from orchestry.store.checkpoints import OPTIMIZER

BARE = -1
"""The row index without adapter: the reference policy."""
_Draw = Callable[[Sequence[Prompt], int], list[list[Drawn]]]
"""Draws `n` answers per prompt, in order; see Sampler.draw."""
_PART = ".part"
_AGAIN = "begin another run from an earlier checkpoint (learn.from)"


class Trainer:
    """One crew per base model, and one optimizer. Not thread-safe."""

    def __init__(
        self,
        team: Mapping[str, Member],
        settings: LearnConfig,
        updates: int,
        seed: int,
        warn: Callable[[str], None],
        beat: Beat = still,
    ) -> None:
        """`updates`: number of updates of the whole run. Raises ConfigError if something can't be
        loaded."""
        torch.set_num_threads(settings.threads or 1)
        self._beat = beat
        self.crews = _crews(team, settings, seed, warn, beat)
        self.optimizer = TeamOptimizer(
            {
                role: crew.adapters.parameters(index)
                for crew in self.crews
                for index, role in enumerate(crew.roles)
                if not team[role].frozen
            },
            rate=settings.learning_rate,
            updates=updates * settings.epochs,
            max_norm=settings.max_grad_norm,
            decay=settings.decay,
        )
        self._settings, self._seed, self._warn = settings, seed, warn
        self._micro = MicroBatches(self.crews[0].micro_tokens, warn)
        agents, tokens = self.crews[0].adapters, self.crews[0].micro_tokens
        if settings.learns_values:
            _check_tokenizers(self.crews)
        self.critic = (
            Critic(agents, settings, seed, tokens, warn, beat) if settings.learns_values else None
        )
        """The critic, on the first crew's base; None: groups of actions are compared."""

    @property
    def sizes(self) -> str:
        """How many parameters there are and how many of them are trained, in a sentence."""
        whole = sum(crew.base.model.num_parameters() for crew in self.crews)
        if self._settings.method == "full":
            return f"{whole:,} parameters, of which {self.optimizer.size:,} are trained"
        return f"{whole:,} parameters in the base, and {self.optimizer.size:,} trained in adapters"

    def draw(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """`n` answers per request, in one batch per crew; see Crew.draw."""
        found: dict[int, list[Completion]] = {}
        for number, crew in enumerate(self.crews):
            places = [i for i, request in enumerate(requests) if request.agent in crew.roles]
            asked = [requests[place] for place in places]
            answers = crew.draw(asked, n, partial(self.answer, number))
            found.update(zip(places, answers, strict=True))
        return [found[place] for place in range(len(requests))]

    def answer(self, crew: int, prompts: Sequence[Prompt], n: int) -> list[list[Drawn]]:
        """Draws with the crew of that number; see Sampler.draw."""
        return self.crews[crew].sampler.draw(prompts, n)

    def learn(self, batch: Batch) -> Learnt:
        """Takes `learn.epochs` gradient steps of equation 2, each agent's mean over its actions.

        Raises LearnError for non-finite numbers, before the step changes a weight.
        """
        olds, figures = list[torch.Tensor](), Tally()
        for epoch in range(self._settings.epochs):
            loss, logprobs, tally = self._backward(batch, olds if epoch else None)
            step = self._step()
            olds = olds or logprobs
            figures = Tally({**tally.sums, **figures.of("kl")})
        return Learnt(
            step=step,
            loss=loss,
            samples=sum(not sample.later for sample in batch.samples),
            skipped=batch.skipped,
            tokens=sum(len(sample.ids) for sample in batch.samples),
            means=figures.means(),
        )

    def loss(self, batch: Batch) -> float:
        """The loss of equation 2, without gradient and dropout; no weight changes."""
        with explained(self.crews), torch.no_grad():
            return self._micro.run(
                lambda tokens: sum(
                    part.loss.item()
                    for crew in self.crews
                    for part in crew.parts(batch, tokens, None)
                )
            )

    def logprobs(self, samples: Sequence[Sample]) -> list[float]:
        """The log-probability of each answer, in nats; without gradient and dropout."""
        with explained(self.crews), torch.no_grad():
            totals = self._micro.run(
                lambda tokens: {
                    place: total
                    for crew in self.crews
                    for place, total in crew.totals(samples, tokens)
                }
            )
        return [totals[place] for place in range(len(samples))]

    def _step(self) -> Step:
        """Raises LearnError if memory runs out; the last checkpoint stays intact."""
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
    ) -> tuple[float, list[torch.Tensor], Tally]:
        """Accumulates the gradient; returns the loss, the actions' log-probabilities and figures.

        If memory runs out, smaller micro-batches give the same sum.
        """
        with explained(self.crews), self._training():
            return self._micro.run(
                lambda tokens: self._added_up(batch, olds, tokens), self.optimizer.drop
            )

    def _added_up(
        self, batch: Batch, olds: Sequence[torch.Tensor] | None, micro_tokens: int
    ) -> tuple[float, list[torch.Tensor], Tally]:
        self._reseed()
        total, logprobs, tally = 0.0, list[torch.Tensor](), Tally()
        known = iter(olds) if olds is not None else None
        for crew in self.crews:
            for part in crew.parts(batch, micro_tokens, known):
                self._beat(0)
                self.optimizer.backward(part.loss)
                total += part.loss.item()
                logprobs += part.logprobs
                tally.join(part.tally)
        return total, logprobs, tally

    def _reseed(self) -> None:
        """Makes dropout masks depend only on the run's seed and the step."""
        for number, crew in enumerate(self.crews):
            crew.adapters.reseed(derive(self._seed, "dropout", self.optimizer.update, number))

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Switches dropout on."""
        for crew in self.crews:
            crew.base.model.train()
        try:
            yield
        finally:
            for crew in self.crews:
                crew.base.model.train(False)

    def save(self, folder: Path, keep: int, spared: Collection[str] = ()) -> None:
        """Saves everything that a resume needs, whole or not at all; then deletes older
        checkpoints, except the last `keep` and those named in `spared`.

        The previous one stays even with `keep=1`: until the journal names the new one, a killed run
        resumes from it.
        """
        part = folder.with_name(folder.name + _PART)
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            for crew in self.crews:
                crew.adapters.save(part)
            torch.save(self.optimizer.state_dict(), part / OPTIMIZER)
            if self.critic is not None:
                self.critic.save(part)
            for file in part.rglob("*"):
                sync(file)
            if folder.exists():  # left by a process that was killed before the journal named it
                shutil.rmtree(folder)
            part.replace(folder)
            sync(folder.parent)
            ours = [path for path in folder.parent.iterdir() if path.name.isdecimal()]
            for old in sorted(ours, key=lambda path: int(path.name))[: -max(2, keep)]:
                if old.name not in spared:
                    shutil.rmtree(old)
        except (
            OSError,
            RuntimeError,
            SafetensorError,
        ) as error:  # the latter two: raised for a full disk
            shutil.rmtree(part, ignore_errors=True)
            raise StoreError(
                f"the checkpoint {folder} can't be written ({reason(error)}): free space there, "
                "then resume the run"
            ) from None
        for crew in self.crews:
            crew.publish(folder)

    def resume(self, folder: Path) -> None:
        """Continues exactly from the checkpoint; the caller has compared the base."""
        self._take_over(folder, any_base=True)
        try:
            state = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise StoreError(
                f"{folder / OPTIMIZER} can't be read ({reason(error)}): restore it from a copy"
            ) from None
        self.optimizer.load_state_dict(state)
        if self.critic is not None:
            self.critic.load(folder)

    def start_from(
        self, folder: Path, any_base: bool = False, roles: Mapping[str, str | None] | None = None
    ) -> None:
        """Takes over a checkpoint's adapters, with a fresh optimizer; see Adapters.load. `roles`:
        by agent, whose adapter it takes (None: it stays fresh); without it each takes its own."""
        self._take_over(folder, any_base, roles or {})

    def _take_over(
        self, folder: Path, any_base: bool, roles: Mapping[str, str | None] = MappingProxyType({})
    ) -> None:
        for crew in self.crews:
            names = crew.folders(roles) if roles else ()
            crew.adapters.load(folder, any_base, names)
            crew.publish(folder, names)

    def close(self) -> None:
        """The run is over. A single process does nothing here; see ParallelTrainer."""


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
            f"a vLLM server serves one base (learn.vllm_url), found {', '.join(models)}: "
            "name one base for all agents, or leave out learn.vllm_url"
        )
    crews = crewed(team, settings)
    return tuple(
        Crew(
            next(iter(mine.values())).model,
            {role: 1.0 if m.temperature is None else m.temperature for role, m in mine.items()},
            settings,
            seed,
            warn,
            beat,
            0 if number else len(crews),
        )
        for number, mine in enumerate(crews)
    )


def _check_tokenizers(crews: Sequence[Crew]) -> None:
    """Raises ConfigError if the first crew's base can't read what agents of another one said."""
    first, *others = [crew.base for crew in crews]
    known = first.tokenizer.get_vocab()
    for base in others:
        if base.tokenizer.get_vocab() != known:
            raise ConfigError(
                "learn.baseline=critic reads what all agents saw and said on the base of the first "
                f"one, so all need one tokenizer, and {base.name} has another than {first.name}: "
                "name bases of one family in agents.ROLE.model, or leave out learn.baseline"
            )


@dataclass(frozen=True, slots=True)
class _Part:
    """One micro-batch of one agent: its share of the loss, and its actions' log-probabilities."""

    loss: torch.Tensor
    logprobs: tuple[torch.Tensor, ...]
    """(T,) per action, without gradient."""
    tally: Tally


class Crew:
    """One copy of a base's weights with an adapter per agent."""

    def __init__(
        self,
        model: str,
        temperatures: Mapping[str, float],
        settings: LearnConfig,
        seed: int,
        warn: Callable[[str], None],
        beat: Beat = still,
        copies: int = 0,
    ) -> None:
        """`temperatures`, by agent: at which its answers are drawn, and are learned from. `copies`:
        with learn.method=full, of the whole team, for the first crew; they must fit together."""
        dtype = "float32" if settings.method == "full" else settings.dtype
        self.base = load_base(model, dtype, settings.quantize, settings.device)
        with fitting(f"a first pass of {model}"):
            check_base(self.base, settings, warn)
        self.roles = tuple(temperatures)
        on_gpu = self.base.device.type == "cuda"
        self.micro_tokens = settings.micro_tokens or (ON_A_GPU if on_gpu else ON_A_CPU)
        self._joined = None if on_gpu else JOINED_ON_A_CPU
        if settings.method == "full" and copies:
            check_memory(self.base, copies, settings.enabled)
        with fitting(f"the adapters on {model}"):
            self.adapters = worn(self.base, self.roles, settings, seed)
        if settings.gradient_checkpointing:
            checkpoint_layers(self.base)
        self.sampler: Draws
        if settings.vllm_url is None:
            self.sampler = Sampler(self.base, self.adapters, warn=warn, beat=beat)
        else:
            self.sampler = extensions.find("samplers", "vllm")(
                *(self.base, self.adapters, settings.vllm_url),
                micro_tokens=self.micro_tokens,
                warn=warn,
            )
        self._fitted = False
        """Whether any prompt so far left room for its answer; if not, a setting is wrong."""
        self._told = set[str]()
        """Why programs' messages were refused."""
        self._temperatures, self._settings, self._warn = temperatures, settings, warn
        self._weighing = Weighing(settings.importance, settings.importance_of == "answer")

    def publish(self, folder: Path, names: Sequence[str | None] = ()) -> None:
        """Names the folder of the current adapters, for a server that reads them. `names`: as in
        Adapters.load."""
        self.sampler.publish(folder, names)

    def folders(self, roles: Mapping[str, str | None]) -> list[str | None]:
        """Each agent's folder in a checkpoint of other agents; None: it has none there."""
        taken = [roles.get(agent, agent) for agent in self.adapters.agents]
        return [None if agent is None else folder_of(agent) for agent in taken]

    def draw(self, requests: Sequence[Request], n: int, answer: _Draw) -> list[list[Completion]]:
        """`n` answers per request in one batch; sample j of a request by its own seed.

        A prompt that leaves no room for its answer gets an empty answer and a warning; raises
        PromptTooLong if no prompt has fitted yet. A program's messages that the chat template
        refuses get one with the reason, for that program.
        """
        prompts = self._prompts(requests, n)
        with explained([self]):
            drawn = iter(answer([one for one in prompts if isinstance(one, Prompt)], n))
        return [
            [self._completion(request, prompt, sample) for sample in next(drawn)]
            if isinstance(prompt, Prompt)
            else [prompt] * n
            for request, prompt in zip(requests, prompts, strict=True)
        ]

    def _prompts(self, requests: Sequence[Request], n: int) -> list[Prompt | Completion]:
        found, errors = list[Prompt | Completion](), list[PromptTooLong]()
        empty = Completion(text="", model=self.base.name, stop="too_long")
        for request in requests:
            try:
                found.append(self._prompt(request, n))
            except PromptTooLong as error:
                found.append(empty)
                errors.append(error)
            except ConfigError as error:
                if not request.programmed:
                    raise
                if (text := reason(error)) not in self._told:
                    self._told.add(text)
                    self._warn(f"{request.agent}'s answer is missing, and its program told: {text}")
                why = {"stop": "refused", "failed": text}
                found.append(empty.model_copy(update=why))
        self._fitted |= any(isinstance(one, Prompt) for one in found)
        if errors and not self._fitted:
            raise errors[0]
        if errors:
            self._warn(
                f"answers to {len(errors)} of {len(requests)} prompts are empty: {errors[0]}"
            )
        return found

    def _prompt(self, request: Request, n: int) -> Prompt:
        usual = self._temperatures[request.agent]
        begun = self.base.answer_ids(call_begun(request), ended=False)
        room = request.max_tokens + len(begun)
        return Prompt(
            agent_index=self.roles.index(request.agent),
            prompt_ids=(*self.base.render(request.messages, room, request.offered), *begun),
            max_tokens=request.max_tokens,
            temperature=usual if request.temperature is None else request.temperature,
            top_p=self._settings.top_p,
            top_k=self._settings.top_k,
            stop=request.stop,
            seeds=tuple(derive(request.seed, index) for index in range(n)),
        )

    def _completion(self, request: Request, prompt: Prompt, drawn: Drawn) -> Completion:
        before, said = request.messages, call_begun(request) + drawn.text
        text, calls = read_calls(said, before) if request.tools else (said, ())
        return Completion(
            text=text,
            calls=calls,
            model=self.base.name,
            input_tokens=len(prompt.prompt_ids),
            output_tokens=len(drawn.ids),
            stop=drawn.stop,
            tokens=Tokens(
                prompt_ids=prompt.prompt_ids,
                ids=drawn.ids,
                logprobs=drawn.logprobs,
                served=drawn.served,
            ),
        )

    def parts(
        self, batch: Batch, micro_tokens: int, olds: Iterator[torch.Tensor] | None
    ) -> Iterator[_Part]:
        """The batch in micro-batches, whose losses add up to the loss of equation 2.

        `olds`: the log-probabilities of an earlier pass, action by action; with them the loss is
        clipped (`learn.clip`).
        """
        for index, role in enumerate(self.roles):
            groups, samples = packed(index, [s for s in batch.samples if s.agent == role])
            advantages, drawn = [sample.advantage for sample in samples], iter(samples)
            if self._settings.comlrl_compat:
                pad_id: Any = self.base.tokenizer.pad_token_id
                groups, advantages = as_comlrl(groups, advantages, pad_id)
            left, begun = iter(advantages), self._begun(groups, index)
            bare = self._begun(groups, BARE) if self._settings.kl else None
            with begun.learned():
                for micro in micro_batches(groups, micro_tokens, self._joined, len(begun.ids)):
                    logprobs = self._logprobs(micro, role, begun)
                    before = [next(olds) for _ in logprobs] if olds else None
                    reference = self._reference(micro, role, bare) if bare else None
                    ratios = self._weighing.ratios(before or logprobs, drawn)
                    loss = policy_loss(
                        logprobs,
                        [next(left) for _ in logprobs],
                        reduce=self._settings.reduce,
                        actions=batch.actions[role],
                        clip=self._settings.clip if olds else None,
                        old_logprobs=before,
                        kl=self._settings.kl,
                        reference_logprobs=reference,
                        weights=self._weighing.weights(ratios),
                    )
                    found = tuple(each.detach() for each in logprobs)
                    tally = tally_of(role, found, before, reference, self._settings.clip)
                    self._weighing.note(tally, role, ratios)
                    yield _Part(loss, found, tally)

    def totals(self, samples: Sequence[Sample], micro_tokens: int) -> Iterator[tuple[int, float]]:
        """The log-probability of each answer of this crew's agents, after its place among them."""
        for index, role in enumerate(self.roles):
            # `packed` puts them in the order of their groups, and carries a number of each along.
            mine = [
                replace(sample, advantage=float(place))
                for place, sample in enumerate(samples)
                if sample.agent == role
            ]
            groups, placed = packed(index, mine)
            left = (int(sample.advantage) for sample in placed)
            begun = self._begun(groups, index)
            for micro in micro_batches(groups, micro_tokens, self._joined, len(begun.ids)):
                for logprobs_T in self._logprobs(micro, role, begun):
                    yield next(left), logprobs_T.double().sum().item()

    def _begun(self, groups: Sequence[Packed], agent_index: int) -> Beginning:
        """What all these prompts begin with, by this adapter; of no tokens where each prompt is
        computed whole."""
        whole = self._settings.gradient_checkpointing or self._settings.comlrl_compat
        prompts = [] if whole else [group.prompt_ids for group in groups]
        return Beginning.of(prompts, self.base, self.adapters, agent_index)

    def _logprobs(self, micro: Sequence[Packed], role: str, begun: Beginning) -> list[torch.Tensor]:
        compat = self._settings.comlrl_compat
        temperature = COMLRL_TEMPERATURE if compat else self._temperatures[role]
        return completion_logprobs(self.base, self.adapters, micro, temperature, begun)

    @torch.no_grad()
    def _reference(self, micro: Sequence[Packed], role: str, bare: Beginning) -> list[torch.Tensor]:
        """The log-probabilities of the base without adapter, where the team started."""
        return self._logprobs([replace(group, agent_index=BARE) for group in micro], role, bare)


@contextmanager
def explained(crews: Sequence[Crew]) -> Iterator[None]:
    """Finds the weights at fault. A resume would compute the same numbers again, so the advice is
    to start another run."""
    try:
        yield
    except NotFiniteError as error:
        raise LearnError(f"{error}; {_why(crews)}") from error


def _why(crews: Sequence[Crew]) -> str:
    for crew in crews:
        for name, weight in crew.base.model.named_parameters():
            if not _finite(weight):
                return (
                    f"the base {crew.base.name} is damaged, its {name} holds NaN or infinity: "
                    "fetch it again, or name another in provider.model"
                )
        for index, role in enumerate(crew.roles):
            if not all(map(_finite, crew.adapters.parameters(index))):
                return f"the adapter of {role} holds NaN or infinity: {_AGAIN}"
    dtypes = {crew.base.model.dtype for crew in crews} - {torch.float32, torch.float64}
    sizes = [w.detach().abs().max().item() for crew in crews for w in crew.adapters.parameters()]
    told = f"all weights are finite (the adapters' largest number is {max(sizes):.2g})"
    if dtypes:
        return f"{told}, and {str(dtypes.pop())[6:]} is too narrow: set learn.dtype=float32"
    return (
        f"{told}, and what they compute overflows float32: {_AGAIN} or without learn.from, with a "
        "lower learn.learning_rate or learn.alpha"
    )


def _finite(weight: torch.Tensor) -> bool:
    return not weight.is_floating_point() or bool(weight.isfinite().all())
