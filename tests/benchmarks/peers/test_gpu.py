"""The GPU benchmark: both ways on a tiny model and a CPU, and its arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks.page import SECTIONS
from benchmarks.peers import gpu, gpu_copies
from benchmarks.peers.gpu_work import SHAPES, Measured, make
from benchmarks.peers.reference_work import AGENTS

ONE = Measured("CPU", 2.0, 1.0, 128, 2**30, 400)


@pytest.mark.slow
def test_both_ways_do_the_same_work() -> None:
    found = gpu.run("tiny", problems=2, samples=2, tokens=4, threads=1, rounds=1)
    ours, copies = found["ours"][0], found["copies"][0]
    assert (ours.tokens, ours.prompt_tokens) == (copies.tokens, copies.prompt_tokens)
    assert ours.tokens == len(AGENTS) * 2 * 2 * 4
    text = gpu.report(found, "tiny", 2, 2, 4)
    assert text.startswith("On one **")


def test_figures_are_medians_and_ratios_are_taken_round_by_round() -> None:
    copies = [replace(ONE, generate_s=s, peak_bytes=2 * 2**30) for s in (4.0, 8.0, 6.0)]
    text = gpu.report({"ours": [ONE] * 3, "copies": copies}, "tiny", 2, 4, 8)
    assert "| **64** (64 to 64) | **1.00** (1.00 to 1.00) | **1.00** (1.00 to 1.00) |" in text
    assert "Copies took **3.00** (2.00 to 4.00) times as long to answer" in text
    assert "**2.00** (2.00 to 2.00) times the memory" in text
    assert "gpu" in SECTIONS


def test_the_large_shape_is_that_of_the_model_it_stands_for() -> None:
    """Qwen2.5-Coder-1.5B has 1,543,714,304 parameters (its model card says 1.54B)."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**SHAPES["1.5B"], tie_word_embeddings=True))
    assert sum(each.numel() for each in model.parameters()) == 1_543_714_304


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is dep:FutureWarning")  # peft's
def test_copies_learn_what_was_worth_more(tmp_path: Path) -> None:
    """Else their update would be no rival: the answers of positive advantage become likelier."""
    from transformers import AutoTokenizer

    work = gpu.work(make("tiny", tmp_path / "model", torch.float32), 2, 4, 6, 1)
    tokenizer = AutoTokenizer.from_pretrained(work.model)
    torch.manual_seed(0)
    team = gpu_copies.agents(work, tokenizer, torch.device("cpu"))
    drawn = gpu_copies.draw(team, work, 6)
    worth = [torch.tensor([1.0, -1.0, 0.0, 0.0])] * 2
    before = favour(team, drawn)
    for agent in team.values():
        agent.optimizer.param_groups[0]["lr"] = 1e-3
    gpu_copies.learn(team, drawn, worth)
    assert all(new > old for new, old in zip(favour(team, drawn), before, strict=True))


def favour(team: dict[str, gpu_copies.Agent], drawn: gpu_copies.Drawn) -> list[float]:
    """By agent: log-probability of the first answers less that of the second ones."""
    found = []
    for name, agent in team.items():
        agent.model.eval()
        total = 0.0
        for prompt, ids in zip(agent.prompts, drawn[name], strict=True):
            whole = torch.cat([prompt.expand(len(ids), -1), ids], dim=1)
            with torch.no_grad():
                logits = agent.model(whole).logits[:, prompt.shape[1] - 1 : -1]
            chosen = torch.log_softmax(logits / 0.8, -1).gather(-1, ids[..., None]).sum((1, 2))
            total += float(chosen[0] - chosen[1])
        found.append(total)
    return found
