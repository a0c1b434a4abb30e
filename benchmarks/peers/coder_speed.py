"""CPU time and memory of one update of two Qwen2.5-Coder-0.5B agents, beside TRL and CoMLRL."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.peers.reference import SAMPLES, endless, play, work
from benchmarks.peers.reference_report import Measured, Results, costs, cpu_s, ratios, verdicts
from benchmarks.peers.reference_work import AGENTS, RANK, TEMPERATURE, TOP_P, Work
from benchmarks.stats import columns, ranged
from orchestry.backends.local.sizes import JOINED_ON_A_CPU, Shape, shape_of
from orchestry.core.machine import computes_bfloat16

MODEL = "qwen2.5-coder-0.5b"
TASK = "code_collaboration"
HALF = "half"
NAMES = {
    "ours": "Orchestry",
    HALF: "Orchestry, `learn.dtype=bfloat16`",
    "trl": "TRL's GRPOTrainer with LoRA, a run per agent",
    "lora": "CoMLRL, LoRA agents made by peft",
}
SHARE_GOAL = 0.6
"""Of what the machine's matrix products allow, while drawing."""
HEAD = "output layer"
_SETS = 4
"""Weights that are multiplied by turns, so that no cache holds them."""


@dataclass(frozen=True, slots=True)
class Products:
    """What a model's matrix products take alone, in float32 on one thread."""

    shape: Shape
    rows: int
    """Of a decoding step; a pass over prompts has JOINED_ON_A_CPU."""
    seconds: Mapping[tuple[str, int], tuple[float, float]]
    """By layer and number of rows: CPU seconds per row, by BLAS and by oneDNN."""

    def drawing_s(self, prompt_tokens: int, tokens: int) -> float:
        """All that drawing has to multiply, each by the faster kernel: prompts without padding and
        each once, answers with the output layer."""
        names = self.shape.linears
        prompt_token_s = sum(min(self.seconds[name, JOINED_ON_A_CPU]) for name in names)
        token_s = sum(min(self.seconds[name, self.rows]) for name in names)
        layers_s = self.shape.layers * (prompt_tokens * prompt_token_s + tokens * token_s)
        return layers_s + tokens * min(self.seconds[HEAD, self.rows])

    def table(self) -> str:
        """Billions of operations per CPU second, by layer, rows and kernel."""
        sizes = sizes_of(self.shape)
        rows = [
            {
                "layer": f"{name}, {sizes[name][1]:,} x {sizes[name][0]:,}",
                "rows": str(count),
                "BLAS, GFLOPS": f"{2 * math.prod(sizes[name]) / blas / 1e9:.0f}",
                "oneDNN, GFLOPS": f"{2 * math.prod(sizes[name]) / onednn / 1e9:.0f}",
            }
            for (name, count), (blas, onednn) in self.seconds.items()
            if name in (HEAD, "gate_proj", "down_proj")
        ]
        return columns(rows)


def sizes_of(shape: Shape) -> dict[str, tuple[int, int]]:
    """(in, out) of each linear layer."""
    return {**shape.linears, HEAD: (shape.hidden, shape.vocab)}


def products(shape: Shape, rows: int) -> Products:
    """Measured here."""
    import torch

    torch.set_num_threads(1)
    found = {}
    for name, (high, wide) in sizes_of(shape).items():
        weights = [torch.rand(wide, high) for _ in range(1 if name == HEAD else _SETS)]
        for count in (rows, JOINED_ON_A_CPU)[: 1 if name == HEAD else 2]:
            blas, onednn = (_per_row(way, weights, count) for way in _kernels())
            found[name, count] = blas, onednn
    return Products(shape, rows, found)


def _kernels() -> tuple[Callable[..., object], Callable[..., object]]:
    import torch

    def onednn(x: object, weight: object) -> object:
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    return torch.nn.functional.linear, onednn


def _per_row(way: Callable[..., object], weights: Sequence[Any], rows: int) -> float:
    """The least CPU seconds of some tries, with weights by turns."""
    import torch

    tries = list[float]()
    x = torch.rand(rows, weights[0].shape[1])
    with torch.inference_mode():
        for weight in [*weights, *weights]:
            began = time.process_time()
            way(x, weight)
            tries.append(time.process_time() - began)
    return min(tries) / rows


def run(tokens: int, problems: int, rounds: int, ways: Sequence[str]) -> tuple[Results, Products]:
    """All ways in turn, round after round, a process each."""
    from orchestry.backends.local.model import loadable

    results = Results(SAMPLES, tokens)
    with tempfile.TemporaryDirectory(prefix="coder-speed-") as name:
        folder = Path(name)
        endless(Path(loadable(MODEL)), folder / "endless")
        one = replace(work(folder / "endless", tokens, 1, TASK, problems), own=True)
        halves = replace(one, model=str(folder / HALF))
        if HALF in ways:  # a GGUF file's weights lie in the type that they are computed in
            endless(Path(loadable(MODEL, half=True)), folder / HALF)
        for _ in range(rounds):
            for way in ways:
                measured = play(way, halves if way == HALF else one, folder)
                results.add(("0.5B", 1), way, measured)
                print(f"{way}: {measured}", file=sys.stderr)
    return results, products(shape_of(MODEL), rows_of(one))


def rows_of(one: Work) -> int:
    """Answers drawn at once."""
    return len(AGENTS) * len(one.prompts) * one.samples


def report(results: Results, allowed: Products) -> str:
    """The section's text."""
    ways = results.rows["0.5B", 1]
    every = [one for found in ways.values() for one in found]
    prompts = sorted(ways["ours"][0].prompt_tokens)
    if any(sorted(one.prompt_tokens) != prompts for one in every):
        raise ValueError("the contestants saw other prompts")
    rows = len(prompts) * results.samples
    ideal_s = allowed.drawing_s(sum(prompts), rows * results.tokens)
    shares = [ideal_s / step.generate_s for one in ways["ours"] for step in one.steps]
    met = "met" if statistics.median(shares) >= SHARE_GOAL else "missed"
    pins = Path(__file__).with_name("requirements-trl.txt").read_text(encoding="utf-8").split()
    peers = replace(results, rows={("0.5B", 1): {w: ways[w] for w in ways if w != HALF}})
    comlrl = f"CoMLRL is run as in {page.link('reference')}. " if "lora" in ways else ""
    others = statistics.median(one.others for one in every)
    return (
        f"One update of a team of two on {MODEL} in float32, one thread: {len(prompts)} prompts "
        f"of `{TASK}` ({min(prompts)} to {max(prompts)} tokens, the same for all), "
        f"{results.samples} answers to each of exactly {results.tokens} tokens (no end token can "
        f"be drawn), then one step per agent. Temperature {TEMPERATURE}, top-p {TOP_P}; LoRA of "
        f"rank {RANK} on q, k, v and o; a reward that takes no time. Ours has its own loss and "
        f"default passes. TRL ({', '.join(pins)}) trains one agent after the other, so its memory "
        f"is that of one run; gradient checkpointing is off, which saves it time. {comlrl}"
        "CPU time is user and system, without loading and a first "
        "step of two tokens for one problem. Peak memory is the process's, imports included.\n\n"
        f"{costs(results, NAMES)}\n\n{_in_half(ways)}{verdicts(peers, NAMES)}\n"
        f"- Drawing: the matrix products alone (prompts once, without padding, "
        f"{JOINED_ON_A_CPU} tokens at a time; {rows} rows per decoding step; the faster of torch's "
        f"two kernels for each) take {ideal_s:.1f} CPU s here, which is {ranged(shares, '.2f')} "
        f"of what our drawing takes, goal {SHARE_GOAL:g}: {met}.\n"
        f"- Other processes took {others:.0%} of the machine meanwhile (median); they share its "
        "cache and memory, which slows all contestants.\n\n"
        f"Single products on this machine, weights from memory:\n\n{allowed.table()}"
    )


def _in_half(ways: dict[str, list[Measured]]) -> str:
    """What ours takes in bfloat16 over what it takes in float32; '' where that was not played."""
    if HALF not in ways:
        return ""
    cpu, memory = (ratios(ways, HALF, one) for one in (cpu_s, lambda one: one.peak_bytes))
    here = "has instructions for it" if computes_bfloat16() else "has no instructions for it"
    return (
        f"- In bfloat16 ours takes {ranged(cpu, '.2f')} times the CPU time and "
        f"{ranged(memory, '.2f')} times the peak memory (this processor {here}).{_peer_of(ways)}\n"
    )


def _peer_of(ways: dict[str, list[Measured]]) -> str:
    """TRL in float32 beside it."""
    if "trl" not in ways:
        return ""
    sides = {"ours": ways[HALF], "trl": ways["trl"]}
    cpu, memory = (ratios(sides, "trl", one) for one in (cpu_s, lambda one: one.peak_bytes))
    return (
        f" TRL in float32 takes {ranged(cpu, '.2f')} times that CPU time and "
        f"{ranged(memory, '.2f')} times that memory."
    )


def main(argv: list[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=24, help="of each answer")
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=NAMES, nargs="+", help="contestants beside ours")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    ways = ["ours", *(args.only or [])] if args.only else [*NAMES]
    text = report(*run(args.tokens, args.problems, args.rounds, [*dict.fromkeys(ways)]))
    print(text)
    if args.write:
        command = " ".join(["python -m benchmarks.peers.coder_speed", *given])
        page.write("coder_speed", command, text)


if __name__ == "__main__":
    main()
