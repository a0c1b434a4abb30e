"""`learn.targets` and `learn.rslora`: bases whose projections are fused, from drawing to export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.model import Base
from orchestry.backends.local.sizes import ATTENTION
from orchestry.backends.local.targets import ALL_LINEAR
from orchestry.backends.local.weights import team_of
from orchestry.core.errors import ConfigError
from orchestry.core.learning import LearnConfig
from tests.backends.local.test_adapters import IDS, logits, old_peft, worn
from tests.backends.local.test_trainer import batch_of, equal, logprob, trainer, weights
from tests.backends.local.tiny import Kind, tiny_folder, tiny_model, tiny_tokenizer

FUSED: dict[Kind, tuple[str, ...]] = {
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", FUSED)
def test_a_team_on_fused_projections_draws_learns_and_goes_on_from_its_checkpoint(
    kind: Kind, tmp_path: Path
) -> None:
    base = str(tiny_folder(tmp_path / "base", kind))
    with pytest.raises(ConfigError, match=rf"no linear layer .*q_proj.*{FUSED[kind][0]}.*all-line"):
        trainer(base)
    settings: dict[str, Any] = {"targets": ALL_LINEAR, "rslora": True}
    made = trainer(base, **settings)
    assert made.crews[0].adapters.targets == tuple(sorted(FUSED[kind]))
    batch = batch_of(made)
    before = [logprob(made, sample) for sample in batch.samples]
    assert before == pytest.approx([sum(s.logprobs) for s in batch.samples], abs=1e-4)
    made.learn(batch)
    after = [logprob(made, sample) for sample in batch.samples]
    gains = [(a - b) * s.advantage for a, b, s in zip(after, before, batch.samples, strict=True)]
    assert sum(gains) > 0.1
    made.save(tmp_path / "000001", keep=2)
    named: dict[str, Any] = {
        "targets": list(FUSED[kind]),
        "rslora": True,
    }  # the same layers by name
    again = trainer(base, seed=9, **named)
    again.resume(tmp_path / "000001")
    assert equal(weights(again), weights(made))
    sizes = team_of(tmp_path / "000001").sizes
    assert LearnConfig.model_validate(sizes).targets == tuple(sorted(FUSED[kind]))
    assert sizes["rslora"]


@old_peft
@pytest.mark.parametrize("kind", FUSED)
@pytest.mark.parametrize("rslora", [False, True])
def test_adapters_on_all_linear_layers_are_the_same_in_peft_and_merged(
    kind: Kind, rslora: bool, tmp_path: Path
) -> None:
    import peft

    adapters = worn(kind, targets=ALL_LINEAR, rslora=rslora)
    adapters.save(tmp_path)
    plain: Any = peft.PeftModel.from_pretrained(tiny_model(kind), tmp_path / "writer")
    ours = logits(adapters, 0)
    torch.testing.assert_close(plain(IDS).logits, ours, atol=1e-4, rtol=0)
    adapters.export(0, tmp_path / "merged")
    merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(merged(IDS).logits, ours, atol=1e-4, rtol=0)
    assert not torch.allclose(ours, logits(adapters, -1), atol=0.01)


def test_alpha_is_divided_by_the_root_of_the_rank() -> None:
    assert worn(rslora=True).scaling == 8 / 2
    assert worn().scaling == 8 / 4


def test_adapters_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    worn(rslora=True).save(tmp_path)
    with pytest.raises(ConfigError, match=r"use_rslora True, .*set learn\.rslora=true, or start"):
        worn().load(tmp_path)
    worn(targets=("q_proj",)).save(tmp_path)
    with pytest.raises(ConfigError, match=r"set learn\.targets to \[q_proj\], or start"):
        worn().load(tmp_path)


@pytest.mark.parametrize("targets", [("lm_head",), ("q_proj", "lm_head"), ("c_attn",)])
def test_unknown_layers_and_the_output_layer_are_refused(targets: tuple[str, ...]) -> None:
    base = Base(tiny_model(), tiny_tokenizer(), "tiny")
    known = r"set learn\.targets to names among down_proj, .*, v_proj, or to all-linear"
    with pytest.raises(ConfigError, match=f"no linear layer {targets[-1]} .*{known}"):
        Adapters(base, ["writer"], targets=targets)


def test_the_config_takes_names_or_all_linear() -> None:
    assert LearnConfig().targets is None
    assert LearnConfig.model_validate({"targets": [*ATTENTION]}).targets == ATTENTION
    assert LearnConfig.model_validate({"targets": ALL_LINEAR}).targets == ALL_LINEAR
    assert LearnConfig.model_validate({"targets": "qkv_proj, o_proj"}).targets == (
        "qkv_proj",
        "o_proj",
    )
    wrong: Any
    for wrong in ([], 3):
        with pytest.raises(ValidationError):
            LearnConfig.model_validate({"targets": wrong})
