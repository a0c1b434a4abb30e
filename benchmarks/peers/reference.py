"""CPU time per step and peak memory of MAGRPO, beside CoMLRL on the same work and gradients."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import load, page
from benchmarks.peers.overhead import python_of
from benchmarks.peers.reference_report import MODELS, WAYS, Measured, Results, report
from benchmarks.peers.reference_work import AGENTS, Step, Work, rendered
from orchestry import BaseTask
from orchestry.task.registry import load_task

PROBLEMS = 2
"""An update: what the reference waits for by default."""
SAMPLES = 4
TOKENS = 32
NEVER = "<|never|>"
"""An end token beyond the model's vocabulary."""
_SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
_SPREAD = 0.3
"""Of the tiny model's random weights: its answers are about as peaked as a trained model's."""


def tiny(folder: Path, tokenizer: Any) -> None:
    """A Llama of random weights with the embedded model's tokenizer and vocabulary."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **_SIZES,
        initializer_range=_SPREAD,
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: Any = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def endless(source: Path, folder: Path) -> None:
    """The same model, with an end token that it can't draw: every answer is full length."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(source)  # type: ignore[no-untyped-call]
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    unused = range(len(tokenizer), model.config.vocab_size)
    tokenizer.add_tokens([f"<|unused {number}|>" for number in unused])
    tokenizer.add_special_tokens({"eos_token": NEVER, "pad_token": NEVER})
    assert tokenizer.eos_token_id >= model.config.vocab_size
    model.config.pad_token_id = model.config.eos_token_id = None
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def sources(folder: Path) -> dict[str, Path]:
    """Both models as they are, by name."""
    from orchestry.backends.local.model import load_base

    embedded = load_base()
    tiny(folder / "tiny", embedded.tokenizer)
    return {"tiny": folder / "tiny", "135M": Path(embedded.model.name_or_path)}


def work(
    model: Path, tokens: int, threads: int, name: str = "tldr", problems: int = PROBLEMS
) -> Work:
    """A task's first problems, as each agent is told them and as text for the reference."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    task: BaseTask[Any] = load_task(name)
    asked = []
    for problem in task.problems("train")[:problems]:
        state = task.reset(problem, 0)
        told = ((spec.system_prompt, task.observe(state, spec.role)) for spec in task.agents)
        asked.append(tuple(told))
    prompts = tuple(tuple(rendered(tokenizer, *told) for told in each) for each in asked)
    return Work(str(model), tuple(asked), prompts, SAMPLES, tokens, threads)


def play(way: str, one: Work, folder: Path) -> Measured:
    """One contestant once, in a process of its own."""
    half = replace(one, dtype="bfloat16") if way == "half" else one
    path = replace(half, lora=way != "full").save(folder / "work.json")
    contestant = {"ours": "local", "half": "local", "trl": "trl"}.get(way, "comlrl")
    before = load.read()
    said = json.loads(_run(contestant, one.threads, "measure", str(path)).splitlines()[-1])
    steps = [Step(**step) for step in said["steps"]]
    expected = len(AGENTS) * len(one.prompts) * one.samples * one.tokens
    if any(step.tokens != expected for step in steps):
        raise RuntimeError(f"{way} drew {[s.tokens for s in steps]} tokens, not {expected}")
    return Measured(
        steps=steps,
        peak_bytes=said["peak_bytes"],
        imports_bytes=said["imports_bytes"],
        prompt_tokens=sorted(said["prompt_tokens"]),
        others=load.others(before, load.read()),
    )


def _run(contestant: str, threads: int, *args: str) -> str:
    """A contestant's last words where it fails; what it printed otherwise."""
    python = sys.executable if contestant == "local" else python_of(contestant)
    env = {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",  # or a thread that waits would count as work
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "disabled",
    }
    done = subprocess.run(
        [python, "-m", f"benchmarks.peers.with_{contestant}", *args],
        cwd=page.ROOT,
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{contestant} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def gradients(model: Path, folder: Path) -> dict[str, float]:
    """How far our gradients are from the reference's on the same actions and adapters."""
    from benchmarks.peers.reference_gradients import compare, plant

    folder.mkdir()
    plant(folder, str(model))
    _run("comlrl", 1, "gradients", str(folder))
    return compare(folder)


@contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="reference-") as name:
        yield Path(name)


def run(
    models: Sequence[str], threads: Sequence[int], tokens: int, rounds: int, patience_s: float
) -> Results:
    """Gradients first, then all ways in turn, round after round."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    results = Results(SAMPLES, tokens)
    with _temporary() as folder:
        plain = sources(folder)
        for name in models:
            results.gradients[name] = gradients(plain[name], folder / f"{name}-case")
            print(f"{name}: gradients {results.gradients[name]}", file=sys.stderr)
            endless(plain[name], folder / f"{name}-endless")
        for _ in range(rounds):
            for name in models:
                for count in threads:
                    one = work(folder / f"{name}-endless", tokens, count)
                    for way in WAYS:
                        load.wait(patience_s)
                        measured = play(way, one, folder)
                        results.add((name, count), way, measured)
                        print(f"{name}, {count} threads, {way}: {measured}", file=sys.stderr)
    return results


def main(argv: list[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each answer")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--patience", type=float, default=10.0, help="seconds to wait for quiet")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    text = report(run(args.models, args.threads, args.tokens, args.rounds, args.patience))
    print(text)
    if args.write:
        page.write("reference", " ".join(["python -m benchmarks.peers.reference", *given]), text)


if __name__ == "__main__":
    main()
