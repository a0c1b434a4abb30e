"""What the gradients are taken of: a tiny model with random weights, and letters that agents write.

Model, task, rollout and trainer are real ones; the model is small enough for float64 and for one
plain forward pass a sample, and its 16 tokens make it end many answers by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from orchestry import AgentSpec, BaseTask, Problem, Score, Split, Tools
from orchestry.backends.local.lockstep import InStep, Lockstep
from orchestry.backends.local.trainer import Crew, Trainer
from orchestry.core.concurrency import together
from orchestry.core.learning import LearnConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Limits, Member, Request, Tree
from orchestry.rollout.rollout import task_rater
from orchestry.rollout.schedule import Chains, Joint
from orchestry.sandbox import open_sandbox

PAD, BEGIN, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
LETTERS = "abcdefghijklm"
WORDS = (PAD, BEGIN, END, *LETTERS)
PAD_ID, END_ID = WORDS.index(PAD), WORDS.index(END)
ROLES = "abc"
"""An agent is called by a letter, so that its prompt can name it."""
TEMPERATURE = 0.8
ANSWER = 8
"""Most tokens in an answer."""
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


@contextmanager
def saved_model(seed: int) -> Iterator[Path]:
    """The folder of a model of two layers: a Llama for even seeds, a Qwen2 for odd ones."""
    sizes: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,  # as peaked as a trained model is
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
    }
    with torch.random.fork_rng(devices=[]), TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        model: Any = (
            Qwen2ForCausalLM(Qwen2Config(**sizes))
            if seed % 2
            else LlamaForCausalLM(LlamaConfig(**sizes))
        )
        model.save_pretrained(folder)
        _tokenizer().save_pretrained(folder)
        yield Path(folder)


def _tokenizer() -> Any:
    """A letter is a token."""
    plain = Tokenizer(models.BPE({word: number for number, word in enumerate(WORDS)}, []))
    plain.decoder = decoders.Fuse()
    plain.add_special_tokens([PAD, BEGIN, END])
    build: Any = PreTrainedTokenizerFast  # transformers leaves it untyped
    fast = build(
        tokenizer_object=plain,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[BEGIN],
        padding_side="left",
    )
    fast.chat_template = _TEMPLATE
    return fast


def to_float64(model: Any) -> Any:
    """The model in float64 throughout: transformers' norms round to float32, torch's own do not."""
    model.to(torch.float64)
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            exact = torch.nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon)
            exact.weight = module.weight
            model.set_submodule(name, exact)
    return model


def new_trainer(folder: Path, agents: int, seed: int, **settings: Any) -> Trainer:
    """The trainer of a local run, in float32, on one thread."""
    chosen = {
        "device": "cpu",
        "threads": 1,
        "rank": 4,
        "alpha": 8,
        "max_grad_norm": 1e9,
        **settings,
    }
    team = {role: _member(role, str(folder), ANSWER) for role in ROLES[:agents]}
    return Trainer(team, LearnConfig.model_validate(chosen), 1, seed, print)


def _member(role: str, model: str, max_tokens: int) -> Member:
    return Member(role, "", model, max_tokens, TEMPERATURE)


def crew_of(trainer: Trainer) -> Crew:
    """All agents here have one base."""
    (crew,) = trainer.crews
    return crew


def as_if_trained(trainer: Trainer, seed: int, dtype: torch.dtype = torch.float64) -> Trainer:
    """The trainer with base and adapters in another precision, and no adapter's B zero any more."""
    crew = crew_of(trainer)
    model: Any = crew.base.model
    if dtype == torch.float64:
        to_float64(model)
    else:
        model.to(dtype)
    generator = torch.Generator().manual_seed(derive(seed, "noise") % 2**32)
    for weight in crew.adapters.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        exact = weight.data.double() + 0.1 * noise
        weight.data = exact.to(torch.promote_types(dtype, torch.float32))
    return trainer


# --- the task -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What the agents wrote so far, turn after turn."""

    problem: Problem
    texts: tuple[str, ...] = ()


class Letters(BaseTask[Said]):
    """Agents write letters at once, turn after turn; each sees all that was written before.

    A problem says how many agents and turns, and how the score comes about: drawn anew for every
    text (`random`), always the same (`flat`), or from a table of two agents' letters (`table`).
    """

    name: ClassVar[str] = "letters"
    agents: ClassVar[tuple[AgentSpec, ...]] = tuple(AgentSpec(role=role) for role in ROLES)

    def problems(self, split: Split) -> Sequence[Problem]:
        return [problem(0, agents=2, turns=1)]

    def reset(self, problem: Problem, seed: int) -> Said:
        return Said(problem)

    def to_act(self, state: Said) -> tuple[str, ...]:
        agents, turns = state.problem.data["agents"], state.problem.data["turns"]
        return () if len(state.texts) == agents * turns else tuple(ROLES[:agents])

    def observe(self, state: Said, agent: str) -> str:
        return "".join([agent, *([state.problem.prompt] if agent == "b" else []), *state.texts])

    def step(self, state: Said, actions: Mapping[str, str]) -> Said:
        return replace(state, texts=(*state.texts, *(actions[a] for a in sorted(actions))))

    async def evaluate(self, state: Said, tools: Tools) -> Score:
        data = state.problem.data
        if data["score"] == "table":
            return self.score(quality=data["table"].get("".join(state.texts), 0.0))
        parts = state.texts if data["score"] == "random" else ()
        return self.score(quality=random.Random(derive(state.problem.id, *parts)).random())


def problem(
    seed: int, *, agents: int, turns: int, score: str = "random", **data: object
) -> Problem:
    """A problem with a prompt of its own."""
    rng = random.Random(derive(seed, "prompt"))
    prompt = "".join(rng.choices(LETTERS, k=rng.randint(1, 12)))
    known = {"agents": agents, "turns": turns, "score": score, **data}
    return Problem(id=f"{seed}", prompt=prompt, data=known)


async def played(
    trainer: Trainer,
    problems: Sequence[Problem],
    seed: int,
    *,
    group: int = 4,
    joint: Joint = "aligned",
    max_tokens: int = ANSWER,
) -> list[Tree[Any]]:
    """An episode a problem, all in step, as backend local plays those of an update."""

    async def draw(requests: Sequence[Request], n: int) -> list[list[Completion]]:
        return trainer.draw(requests, n)

    task, lockstep = Letters(), Lockstep(draw)
    rollout = InStep(
        task=task,
        team={role: _member(role, "tiny", max_tokens) for role in ROLES},
        policy=lockstep,
        rate=task_rater(task, Tools(sandbox=open_sandbox(Limits()))),
        schedule=Chains(group, joint),
        lockstep=lockstep,
    )
    return await together(rollout.play(one, derive(seed, one.id)) for one in problems)
