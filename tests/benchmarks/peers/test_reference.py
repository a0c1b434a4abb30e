"""The reference benchmark: its arithmetic on planted figures, and both contestants on a tiny model.

The reference's own runs need its environment, which the benchmark makes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.page import ROOT, SECTIONS
from benchmarks.peers.reference_report import Measured, Results, ratios, report, verdicts
from benchmarks.peers.reference_work import Clock, Step, Work, peak_bytes, reward

REFERENCE = ROOT / ".envs" / "comlrl" / "bin" / "python"


def measured(cpu_s: float, peak: float, others: float = 0.0) -> Measured:
    step = Step(0.6 * cpu_s, 0.3 * cpu_s, cpu_s, cpu_s, 768)
    return Measured([step], int(peak * 2**30), 2**28, [46, 47, 54, 55], others)


def planted(theirs: tuple[float, ...], peak: float) -> Results:
    results = Results(4, 48, {"135M": {"compat": 3e-7, "own": 0.8, "own_cosine": 0.9}})
    for cpu_s in theirs:
        results.add(("135M", 2), "ours", measured(10.0, 2.0))
        results.add(("135M", 2), "lora", measured(cpu_s, peak, others=0.5))
    return results


# --- arithmetic ---------------------------------------------------------------------------------


def test_ratios_are_taken_round_by_round() -> None:
    ways = planted((20.0, 35.0, 30.0), 3.0).rows["135M", 2]
    found = ratios(ways, "lora", lambda one: one.steps[0].cpu_s)
    assert found == pytest.approx([2.0, 3.5, 3.0])


def test_a_goal_is_met_by_the_median() -> None:
    assert (
        "CPU time **3.00** times ours (2.00 to 3.50), goal 3: met; "
        "peak memory **1.50** times ours (1.50 to 1.50), goal 2: missed."
    ) in verdicts(planted((20.0, 35.0, 30.0), 3.0))
    assert "CPU time **2.90** times ours (2.90 to 2.90), goal 3: missed; " in verdicts(
        planted((29.0,), 4.0)
    )


def test_the_section_says_what_was_equal_and_how_disturbed_it_was() -> None:
    text = report(planted((30.0, 31.0), 4.0))
    assert "differ by 3.0e-07 of their norm with `comlrl_compat`, and by 0.80 with our own" in text
    assert "| 135M, 2 | Orchestry, `learn.comlrl_compat` | **10.0** (10.0 to 10.0) | 6.0 " in text
    assert "2 of 4 processes ran while others took more than 10% of the machine" in text
    assert "reference" in SECTIONS


def test_other_prompts_are_an_error() -> None:
    results = planted((30.0,), 4.0)
    results.add(("135M", 2), "lora", replace(measured(1.0, 1.0), prompt_tokens=[46, 47, 54, 56]))
    with pytest.raises(ValueError, match="the contestants saw other prompts"):
        report(results)


def test_the_clock_counts_cpu_time_of_what_happened_within() -> None:
    clock = Clock()
    clock.start()
    with clock.spent("generate"):
        began = time.process_time()
        while time.process_time() - began < 0.05:
            pass
    with clock.spent("update"):
        time.sleep(0.05)
    clock.tokens += 3
    clock.stop()
    (step,) = clock.steps
    assert step.tokens == 3
    assert step.generate_s >= 0.05
    assert step.update_s < 0.04
    assert step.generate_s + step.update_s <= step.cpu_s
    assert step.wall_s >= 0.1


def test_work_survives_its_file(tmp_path: Path) -> None:
    work = Work("m", ((("s", "a"), ("t", "b")),), (("sa", "tb"),), 4, 48, 2, lora=False)
    assert Work.load(str(work.save(tmp_path / "work.json"))) == work


def test_the_reward_differs_by_answer() -> None:
    assert reward("aaaa", "abab") == 0.25
    assert reward("abcd", "efgh") == 1.0
    assert reward("", "") == 0.0


def test_peak_memory_only_grows() -> None:
    before = peak_bytes()
    block = b"\1" * (64 * 2**20)
    assert peak_bytes() >= before >= 2**20
    assert len(block) < peak_bytes()


# --- contestants --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ours", "lora", "full"])
def test_contestants_do_the_same_work(way: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchmarks.peers.reference import endless, play, tiny, work
    from tests.backends.local.tiny import tiny_tokenizer

    if way != "ours" and not REFERENCE.exists():
        pytest.skip(".envs/comlrl is made by the benchmarks")
    tiny(tmp_path / "tiny", tiny_tokenizer())
    endless(tmp_path / "tiny", tmp_path / "endless")
    found = play(way, work(tmp_path / "endless", 5, 1), tmp_path)
    (step,) = found.steps
    assert step.tokens == 2 * 2 * 4 * 5
    assert len(found.prompt_tokens) == 4
    assert min(step.generate_s, step.update_s) > 0
    assert step.generate_s + step.update_s <= step.cpu_s
    assert found.imports_bytes < found.peak_bytes


@pytest.mark.slow
@pytest.mark.skipif(not REFERENCE.exists(), reason=".envs/comlrl is made by the benchmarks")
def test_gradients_are_the_references(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchmarks.peers.reference import gradients
    from tests.backends.local.tiny import tiny_folder

    found = gradients(tiny_folder(tmp_path / "tiny"), tmp_path / "case")
    assert found["compat"] < 1e-5
    assert found["own"] > 0.1
