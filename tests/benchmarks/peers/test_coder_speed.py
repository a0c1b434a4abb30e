"""The speed of the 0.5B coder: what is reported from planted figures, and TRL on a tiny model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.page import ROOT, SECTIONS
from benchmarks.peers.coder_speed import Products, products, report
from benchmarks.peers.reference_report import Measured, Results
from benchmarks.peers.reference_work import Step
from orchestry.backends.local.sizes import Shape

TRL = ROOT / ".envs" / "trl" / "bin" / "python"
SMALL = Shape(2, 64, 256, 4, 2, 16, 1000, tied=True)
ALLOWED = Products(
    SMALL,
    8,
    {
        **dict.fromkeys(((name, 8) for name in SMALL.linears), (0.001, 0.002)),
        **dict.fromkeys(((name, 512) for name in SMALL.linears), (0.0009, 0.0005)),
        ("output layer", 8): (0.02, 0.0113),
    },
)
"""7 layers of each of 2; 100 tokens of prompts are 0.7 s, 80 of answers 1.12 s and 0.904 s."""


def measured(cpu_s: float, gib: float) -> Measured:
    step = Step(0.4 * cpu_s, 0.6 * cpu_s, cpu_s, 2 * cpu_s, 80)
    return Measured([step], int(gib * 2**30), 2**28, [40, 60], 0.5)


def planted(ours_s: float) -> Results:
    results = Results(samples=4, tokens=10)
    ways = (
        ("ours", ours_s, 3.0),
        ("half", ours_s / 2, 1.5),
        ("trl", 30.0, 7.5),
        ("lora", 15.0, 6.0),
    )
    for way, cpu_s, gib in ways:
        results.add(("0.5B", 1), way, measured(cpu_s, gib))
    return results


def test_it_is_judged_beside_the_peers_and_the_machine() -> None:
    text = report(planted(10.0), ALLOWED)
    assert "2 prompts of `code_collaboration` (40 to 60 tokens" in text
    assert "| 0.5B, 1 | Orchestry | **10.0** (10.0 to 10.0) | 4.0 | 6.0 | 20 |" in text
    trl, comlrl = (line for line in text.splitlines() if "CPU time **" in line)
    assert "CPU time **3.00** times ours" in trl
    assert "goal 3: met" in trl
    assert "memory **2.50** times" in trl
    assert "goal 2: met" in trl
    assert "CPU time **1.50** times ours" in comlrl
    assert "goal 3: missed" in comlrl
    assert "In bfloat16 ours takes **0.50** (0.50 to 0.50) times the CPU time and **0.50**" in text
    assert "take 2.7 CPU s here, which is **0.68** (0.68 to 0.68)" in text
    assert "0.6: met" in text
    assert "**0.54** (0.54 to 0.54)" in report(planted(12.5), ALLOWED)
    assert "0.6: missed" in report(planted(12.5), ALLOWED)
    assert "coder_speed" in SECTIONS


def test_other_prompts_are_an_error() -> None:
    results = planted(10.0)
    results.add(("0.5B", 1), "trl", replace(measured(1.0, 1.0), prompt_tokens=[40, 61]))
    with pytest.raises(ValueError, match="the contestants saw other prompts"):
        report(results, ALLOWED)


def test_products_are_measured() -> None:
    pytest.importorskip("torch")
    found = products(SMALL, 4)
    assert 0 < found.drawing_s(10, 0) < found.drawing_s(10, 10)
    assert found.table().count("output layer") == 1
    assert found.table().count("gate_proj, 256 x 64") == 2


@pytest.mark.slow
@pytest.mark.skipif(not TRL.exists(), reason=".envs/trl is made by the benchmarks")
def test_trl_does_the_same_work(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchmarks.peers.reference import endless, play, tiny, work
    from tests.backends.local.tiny import tiny_tokenizer

    tiny(tmp_path / "tiny", tiny_tokenizer())
    endless(tmp_path / "tiny", tmp_path / "endless")
    one = replace(work(tmp_path / "endless", 5, 1), own=True)
    found = {way: play(way, one, tmp_path) for way in ("ours", "trl")}
    (step,) = found["trl"].steps
    assert step.tokens == 2 * 2 * 4 * 5
    assert found["trl"].prompt_tokens == found["ours"].prompt_tokens
    assert min(step.generate_s, step.update_s) > 0
