"""What a GPU computes in bfloat16 and in 4 bits, beside float32: gradients, and the padding of a
batch.

    python -m benchmarks.peers.gpu_exact [--models NAME,NAME] [--tokens N] [--write]

A model is `embedded`, or a shape of benchmarks.peers.gpu_work with random weights.
"""
# ruff: noqa: TID253

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks import page
from benchmarks.peers.gpu import told
from benchmarks.peers.gpu_work import make, name_of
from benchmarks.peers.reference_work import AGENTS, ALPHA, RANK, TEMPERATURE, TOP_P, Work
from benchmarks.peers.with_local import learned_from, requests
from benchmarks.stats import columns
from orchestry.backends.local.batch import Batch, Sample
from orchestry.backends.local.model import EMBEDDED
from orchestry.backends.local.trainer import Trainer
from orchestry.core.config import LearnConfig
from orchestry.core.types import Completion, Member, Request

EXACT, HALF, BITS = "float32", "bfloat16", "nf4"
PROBLEMS, SAMPLES = 2, 4
Row = dict[str, str]


def trainer(model: str, way: str) -> Trainer:
    """Adapters away from zero, the same for every way: A has a gradient only if B is not 0."""
    settings = LearnConfig(
        dtype="float32" if way == EXACT else "bfloat16",
        quantize="nf4" if way == BITS else None,
        top_p=TOP_P,
        rank=RANK,
        alpha=ALPHA,
    )
    team = {name: Member(name, "", model, 0, TEMPERATURE) for name in AGENTS}
    made = Trainer(team, settings, 1, 0, lambda text: print(text, file=sys.stderr))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in made.crews[0].adapters.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=generator).to(weight))
    return made


def gradient(made: Trainer, batch: Batch) -> torch.Tensor:
    """Both agents', in one row, float64, on the CPU."""
    (crew,) = made.crews
    for part in crew.parts(batch, crew.micro_tokens, None):
        torch.autograd.backward(part.loss)
    grads = [weight.grad for weight in crew.adapters.parameters()]
    found = torch.cat([grad.flatten().double().cpu() for grad in grads if grad is not None])
    for weight in crew.adapters.parameters():
        weight.grad = None
    return found


@torch.no_grad()
def unpack(made: Trainer, bits: Trainer) -> None:
    """Gives a team in float32 the weights that the other's four bits stand for."""
    import bitsandbytes

    packed: Any = bitsandbytes  # which leaves its functions untyped
    layers: dict[str, Any] = dict(made.crews[0].base.model.named_modules())
    for name, layer in bits.crews[0].base.model.named_modules():
        if isinstance(layer, packed.nn.Linear4bit):
            weight: Any = layer.weight
            exact = packed.functional.dequantize_4bit(weight.data, weight.quant_state)
            layers[name].weight.data.copy_(exact)


def gradients(team: Mapping[str, Trainer], batch: Batch) -> Iterator[Row]:
    """The same answers learned from in every way, beside float32; its weights are those of the
    four bits afterwards."""
    found = {way: gradient(made, batch) for way, made in team.items()}
    unpack(team[EXACT], team[BITS])
    unpacked = gradient(team[EXACT], batch)
    for way, ours, beside in (
        ("bfloat16", found[HALF], found[EXACT]),
        ("nf4, computed in bfloat16", found[BITS], found[EXACT]),
        ("the same, beside the float32 that its bits stand for", found[BITS], unpacked),
    ):
        yield {
            "numbers": way,
            "relative error": f"{float((ours - beside).norm() / beside.norm()):.1e}",
            "cosine": f"{float(torch.cosine_similarity(ours, beside, dim=0)):.5f}",
        }


def padding(made: Trainer, way: str, asked: list[Request]) -> Row:
    """Prompts of several lengths drawn in one batch, beside each drawn alone, and beside what the
    learner makes of the same answers one by one."""
    together = made.draw(asked, SAMPLES)
    alone = [made.draw([request], SAMPLES)[0] for request in asked]
    pairs = [
        (request.agent, *pair)
        for request, *both in zip(asked, together, alone, strict=True)
        for pair in zip(*both, strict=True)
    ]
    lengths = sorted(one[0].input_tokens for one in together)
    return {
        "numbers": way,
        "prompts, tokens": f"{lengths[0]} to {lengths[-1]}",
        "same answers": f"{sum(a.text == b.text for _, a, b in pairs)} of {len(pairs)}",
        "drawn together or alone": f"{max(_apart(a, b) for _, a, b in pairs):.1e}",
        "drawn or learned from": f"{max(_learned(made, who, a) for who, a, _ in pairs):.1e}",
    }


def _apart(one: Completion, other: Completion) -> float:
    """The largest difference of a log-probability, in nats, up to the first unequal token."""
    assert one.tokens is not None
    assert other.tokens is not None
    most = 0.0
    drawn = zip(one.tokens.ids, other.tokens.ids, strict=False)
    logprobs = zip(one.tokens.logprobs, other.tokens.logprobs, strict=False)
    for (a, b), (p, q) in zip(drawn, logprobs, strict=False):
        if a != b:
            break
        most = max(most, abs(p - q))
    return most


def _learned(made: Trainer, agent: str, answer: Completion) -> float:
    """The same, between drawing and learning."""
    (crew,), tokens = made.crews, answer.tokens
    assert tokens is not None
    sample = Sample(agent, tokens.prompt_ids, tokens.ids, tokens.logprobs, 1.0, 0)
    with torch.no_grad():
        (part,) = crew.parts(Batch((sample,), {agent: 1}), crew.micro_tokens, None)
    drawn = torch.tensor(tokens.logprobs)
    return float((part.logprobs[0].float().cpu() - drawn).abs().max())


def measure(name: str, model: str, tokens: int) -> str:
    """A model's two tables."""
    asked = requests(Work(model, tuple(told(PROBLEMS)), (), SAMPLES, tokens, 1), tokens, 0)
    team = {way: trainer(model, way) for way in (EXACT, HALF, BITS)}
    batch = learned_from(team[EXACT].draw(asked, SAMPLES))
    if not any(sample.advantage for sample in batch.samples):
        raise RuntimeError(f"{name}: all answers earn the same, so there is no gradient")
    drawn = [padding(made, way, asked) for way, made in team.items()]
    learnt = [*gradients(team, batch)]
    what = "the embedded model" if name == EMBEDDED else f"the shape {name}, random weights"
    return (
        f"**{what}**, gradients of one update from {len(batch.samples)} answers that float32 drew:"
        f"\n\n{columns(learnt, figures=False)}\n\nAnswers drawn in one batch; differences are the "
        f"largest of a token's log-probability, in nats:\n\n{columns(drawn, figures=False)}"
    )


def report(names: list[str], tokens: int) -> str:
    """The section's text."""
    parts = list[str]()
    with tempfile.TemporaryDirectory(prefix="gpu-exact-") as folder:
        for name in names:
            model = EMBEDDED
            if name != EMBEDDED:
                model = str(make(name, Path(folder) / name, torch.float32))
            parts.append(measure(name, model, tokens))
            print(parts[-1], file=sys.stderr)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return (
        f"On one **{name_of(device)}**, torch {torch.__version__}: {len(AGENTS)} agents, "
        f"{PROBLEMS} problems of `tldr`, {SAMPLES} answers of up to {tokens} tokens each; LoRA of "
        f"rank {RANK} on q, k, v and o, with numbers other than 0.\n\n" + "\n\n".join(parts)
    )


def main(argv: list[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="embedded")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer, at most")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    text = report(args.models.split(","), args.tokens)
    print(text)
    if args.write:
        page.write("gpu_exact", " ".join(["python -m benchmarks.peers.gpu_exact", *given]), text)


if __name__ == "__main__":
    main()
