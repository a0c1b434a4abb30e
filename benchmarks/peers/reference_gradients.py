"""Our gradients beside the reference's, on the same adapters and actions."""
# ruff: noqa: TID253

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.peers.reference_work import AGENTS, MICRO_TOKENS
from benchmarks.peers.with_local import trainer
from orchestry.backends.local.batch import Batch, Sample
from orchestry.backends.local.magrpo import group_advantages
from orchestry.backends.local.model import Base

SIZES = (7, 24, 1, 15)
"""Tokens of the answers to each prompt."""


def plant(folder: Path, model: str) -> None:
    """Adapters away from zero and answers of several lengths, saved for both contestants."""
    (crew,) = trainer(model, 1).crews
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in crew.adapters.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=generator))
    crew.adapters.save(folder)
    rng = random.Random(5)
    problems = [{name: _planted(rng, crew.base, length) for name in AGENTS} for length in (12, 31)]
    case = {"model": model, "problems": problems}
    (folder / "case.json").write_text(json.dumps(case), encoding="utf-8")


def _planted(rng: random.Random, base: Base, prompt: int) -> dict[str, Any]:
    """One agent's prompt, answers that end by the model's end token, and their returns."""
    ordinary = range(100, base.model.config.vocab_size)
    ends = base.tokenizer.eos_token_id
    return {
        "prompt": rng.choices(ordinary, k=prompt),
        "answers": [[*rng.choices(ordinary, k=size - 1), ends] for size in SIZES],
        "returns": [rng.random() for _ in SIZES],
    }


def compare(folder: Path) -> dict[str, float]:
    """Our gradients against those that the reference left in the folder, with each loss."""
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    theirs = torch.cat([_flat(load_file(folder / f"{name}.safetensors")) for name in AGENTS])
    found = {}
    for name, compat in (("compat", True), ("own", False)):
        ours = gradient(folder, case, compat)
        found[name] = float((ours - theirs).norm() / theirs.norm())
        found[f"{name}_cosine"] = float(torch.cosine_similarity(ours, theirs, dim=0))
    return found


def gradient(folder: Path, case: dict[str, Any], compat: bool) -> torch.Tensor:
    """Both agents', in one row, float64."""
    (crew,) = trainer(case["model"], 1, compat).crews
    crew.adapters.load(folder)
    samples = [
        Sample(name, tuple(one["prompt"]), tuple(ids), (0.0,) * len(ids), advantage, group)
        for group, (problem, name) in enumerate((p, n) for p in case["problems"] for n in AGENTS)
        for one in [problem[name]]
        for ids, advantage in zip(
            one["answers"], group_advantages(one["returns"], normalise=compat), strict=True
        )
    ]
    batch = Batch(tuple(samples), dict.fromkeys(AGENTS, len(samples) // len(AGENTS)))
    for part in crew.parts(batch, MICRO_TOKENS, None):
        torch.autograd.backward(part.loss)
    grads = [weight.grad for weight in crew.adapters.parameters()]
    return torch.cat([grad.flatten().double() for grad in grads if grad is not None])


def _flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensors[str(i)].flatten().double() for i in range(len(tensors))])
