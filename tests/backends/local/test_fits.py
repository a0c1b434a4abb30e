"""The estimate of memory, beside real weights, real micro-batches, and a GPU that was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from orchestry.backends.local.batch import Packed
from orchestry.backends.local.fits import Crew, Memory, Work, largest_pass, memory
from orchestry.backends.local.logprobs import micro_batches
from orchestry.backends.local.sizes import KNOWN, Shape, model_named, on_disk, shape_of
from orchestry.core.errors import ConfigError
from orchestry.core.learning import LearnConfig
from tests.backends.local.test_trainer import trainer
from tests.backends.local.tiny import tiny_folder, tiny_model

CODER = KNOWN["Qwen/Qwen2.5-Coder-1.5B-Instruct"]
TLDR = Work(prompt=540, answer=512, rows=16, samples=4, groups=2)
"""What docs/benchmarks.md measured on an H200."""


def needed(shape: Shape = CODER, on_gpu: bool = True, work: Work = TLDR, **learn: Any) -> Memory:
    return memory([Crew(shape, 2)], LearnConfig.model_validate(learn), [work], on_gpu)


def test_it_is_near_what_a_gpu_was_measured_to_hold() -> None:
    assert needed().held / 2**30 == pytest.approx(7.77, rel=0.1)
    assert needed(quantize="nf4").held / 2**30 == pytest.approx(6.67, rel=0.25)


def test_what_saves_memory_is_less() -> None:
    whole = needed()
    assert needed(quantize="nf4").weights < whole.weights / 2
    assert needed(gradient_checkpointing=True).learning < whole.learning / 4
    assert needed(micro_tokens=1024).learning < whole.learning / 2
    assert needed(shared=True).trained == whole.trained / 2
    assert needed(baseline="critic").trained == whole.trained * 1.5
    assert needed(vllm_url="http://127.0.0.1:8000").drawing == 0
    assert needed(enabled=False).learning == 0
    assert needed(on_gpu=False).weights == 2 * whole.weights  # float32
    assert needed(targets="all-linear").learning > whole.learning
    assert whole.total > whole.held


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("samples", [1, 4, 9])
@pytest.mark.parametrize("prompt", [10, 300, 3000])
def test_the_largest_pass_is_the_one_that_learning_takes(
    prompt: int, samples: int, on_gpu: bool
) -> None:
    work, settings = Work(prompt, 200, 1, samples, 5), LearnConfig(micro_tokens=900)
    groups = [Packed(0, (1,) * prompt, ((1,) * 200,) * samples)] * 5
    passes = list(micro_batches(groups, 900, None if on_gpu else 512))
    found = max(passes, key=lambda one: max(row.tokens for row in one) * len(one))
    sizes = len(found), max(row.tokens for row in found), sum(len(r.completions) for r in found)
    assert largest_pass(settings, work, on_gpu) == sizes


@pytest.mark.parametrize("targets", [None, "all-linear", ("q_proj", "down_proj")])
def test_trained_numbers_are_those_of_the_optimizer(tmp_path: Path, targets: Any) -> None:
    folder = str(tiny_folder(tmp_path))
    made = trainer(folder, targets=targets)
    told = needed(shape_of(folder), False, targets=targets, rank=4)
    assert told.trained == 16 * made.optimizer.size


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_weights_are_those_of_the_model_but_for_norms_and_biases(kind: Any, tmp_path: Path) -> None:
    real = {name: weight.numel() for name, weight in tiny_model(kind).named_parameters()}
    shape = shape_of(str(tiny_folder(tmp_path, kind)))
    large = sum(n for name, n in real.items() if not name.endswith("bias") and "norm" not in name)
    assert shape.computing + shape.embedding == large
    assert needed(shape, False).weights == 4 * large
    assert needed(shape, False, method="full", shared=True).trained == 16 * large


def test_a_part_of_a_name_is_enough_if_it_is_one_models() -> None:
    assert model_named("coder-1.5b") == "Qwen/Qwen2.5-Coder-1.5B-Instruct"
    assert model_named("7b") == "Qwen/Qwen2.5-Coder-7B-Instruct", "and not 1.7B"
    with pytest.raises(ConfigError, match=r"Qwen is a part of Qwen/Qwen2.5-0.5B-Instruct, "):
        model_named("Qwen")
    with pytest.raises(ConfigError, match="the sizes of Qwen are not known, since it is not on th"):
        shape_of("Qwen")


def test_what_is_not_on_this_machine_is_not_looked_for_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert on_disk("Qwen/Qwen3-4B") is None
    assert on_disk(str(tmp_path)) == tmp_path


def test_a_model_of_another_build_is_refused(tmp_path: Path) -> None:
    config = json.loads((tiny_folder(tmp_path) / "config.json").read_text(encoding="utf-8"))
    for found, why in (
        ({**config, "num_experts": 8}, "mixture of experts"),
        ({**config, "hidden_size": None}, "no number above 0: hidden_size"),
        ({**config, "num_hidden_layers": -2}, "no number above 0: num_hidden_layers"),
        ({**config, "num_attention_heads": 0}, "no number above 0: num_attention_heads"),
        ({**config, "num_key_value_heads": [2]}, "no number above 0: num_key_value_heads"),
        ({**config, "vocab_size": True}, "no number above 0: vocab_size"),
        ([], "is no object"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(found), encoding="utf-8")
        with pytest.raises(ConfigError, match=why):
            shape_of(str(tmp_path))
