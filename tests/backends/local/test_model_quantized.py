"""Bases in 4 and 8 bits, really quantized by bitsandbytes, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
bitsandbytes: Any = pytest.importorskip("bitsandbytes")

import orchestry
from orchestry.backends.local.model import Quantize, load_base
from orchestry.backends.local.trainer import Trainer
from orchestry.core.errors import ConfigError
from tests.backends.letters import TASK, config, learned, write_task
from tests.backends.local.test_trainer import batch_of, trainer
from tests.backends.local.tiny import tiny_folder

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS: tuple[Quantize, ...] = ("nf4", "int8")


def values(folder: str, kind: Quantize) -> dict[str, Any]:
    """What the quantized weights stand for, by layer."""
    found = {}
    for name, layer in load_base(folder, "float32", kind, "cpu").model.named_modules():
        weight: Any = getattr(layer, "weight", None)
        if isinstance(layer, bitsandbytes.nn.Linear4bit):
            unpack = bitsandbytes.functional.dequantize_4bit
            found[name] = unpack(weight.data, weight.quant_state).float()
        elif isinstance(layer, bitsandbytes.nn.Linear8bitLt):
            found[name] = weight.CB.float() * weight.SCB[:, None] / 127
    return found


def gradients(made: Trainer, batch: Any) -> Any:
    """Of all adapters, whose weights are planted the same for every trainer."""
    (crew,) = made.crews
    generator = torch.Generator().manual_seed(0)
    learned = [p for index in range(len(crew.roles)) for p in crew.adapters.parameters(index)]
    for parameter in learned:
        parameter.data.normal_(0, 0.05, generator=generator)
    made._backward(batch, None)
    return torch.cat([p.grad.flatten() for p in learned if p.grad is not None])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_weights_that_the_bits_stand_for(
    kind: Quantize, tmp_path: Path
) -> None:
    """After answers were drawn: what drawing leaves behind must not stop a gradient."""
    folder = str(tiny_folder(tmp_path, hidden=64))
    made = trainer(folder, quantize=kind, dtype="float32", device="cpu")
    plain = trainer(folder, dtype="float32", device="cpu")
    exact = values(folder, kind)
    assert len(exact) == 2 * 7  # all linear layers of both blocks
    for name, weight in exact.items():
        layer: Any = plain.crews[0].base.model.get_submodule(name)
        layer.weight.data.copy_(weight)
    batch = batch_of(made, n=4, max_tokens=16)
    found, expected = gradients(made, batch), gradients(plain, batch)
    assert found.shape == expected.shape
    assert float((found - expected).norm() / expected.norm()) < 1e-4


def test_a_base_that_was_saved_in_4_bits_learns_by_the_same_gradients(tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path / "plain", hidden=64))
    small = load_base(folder, "float32", "nf4", "cpu")
    small.model.save_pretrained(tmp_path / "small")
    small.tokenizer.save_pretrained(tmp_path / "small")
    saved = trainer(str(tmp_path / "small"), dtype="float32", device="cpu")
    made = trainer(folder, quantize="nf4", dtype="float32", device="cpu")
    batch = batch_of(saved, n=4, max_tokens=16)
    found, expected = gradients(saved, batch), gradients(made, batch)
    assert float((found - expected).norm() / expected.norm()) < 1e-4
    with pytest.raises(ConfigError, match="its own files are quantized, export the adapters with"):
        saved.crews[0].adapters.merged(0)


def test_no_layer_is_packed_whatever_this_cpu_can_do(tmp_path: Path) -> None:
    base = load_base(str(tiny_folder(tmp_path, hidden=64)), "float32", "nf4", "cpu")
    flags = [getattr(m, "support_avx512bf16_for_cpu", None) for m in base.model.modules()]
    assert flags.count(False) == 2 * 7
    assert True not in flags


@pytest.mark.parametrize(("kind", "share"), [("nf4", 0.2), ("int8", 0.3)])
def test_the_layers_take_a_fraction_of_the_memory(
    kind: Quantize, share: float, tmp_path: Path
) -> None:
    folder = str(tiny_folder(tmp_path, hidden=256))
    plain, small = (load_base(folder, "float32", bits, "cpu").model for bits in (None, kind))
    name = "model.layers.0.mlp.up_proj"
    layers: list[Any] = [model.get_submodule(name) for model in (plain, small)]
    assert layers[1].weight.data.nbytes < share * layers[0].weight.data.nbytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_run_learns_on_a_quantized_base(kind: Quantize, tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path / "model", hidden=64))
    tasks = write_task(tmp_path / "tasks", TASK)
    sets = (f"learn.quantize={kind}", "learn.device=cpu", "sampling.max_tokens=48")
    run = orchestry.train(config(folder, tasks, *sets), tmp_path / "run")
    assert run.summary.stopped == "done"
    states = [event.state for event in learned(run)]
    assert len(states) == 2
    assert sum(norm for state in states for norm in state["norms"].values()) > 0
