"""A base whose learned policy is not the drawn one is refused when it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from orchestry.backends.local.model import Base, load_base
from orchestry.backends.local.selfcheck import check_learnable
from orchestry.core.errors import ConfigError
from tests.backends.local.tiny import Kind, tiny_folder, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi3", "gpt_neox"])
def test_a_base_that_learns_as_it_draws_passes_and_stays_as_it_was(
    tmp_path: Path, kind: Kind
) -> None:
    base = load_base(str(tiny_folder(tmp_path, kind)), device="cpu")
    before = {name: weight.clone() for name, weight in base.model.state_dict().items()}
    check_learnable(base)
    assert not base.model.training
    assert all(
        torch.equal(weight, before[name]) for name, weight in base.model.state_dict().items()
    )
    assert not any(module._forward_hooks for module in base.model.modules())


def _noisy(module: Any, inputs: Any, output: Any) -> Any:
    return torch.nn.functional.dropout(output, 0.1, module.training)


def _by_the_batch(module: Any, inputs: Any, output: Any) -> Any:
    return output * (1.0 + 0.01 * inputs[0].shape[1])


@pytest.mark.parametrize("fault", [_noisy, _by_the_batch])
def test_a_base_that_does_not_is_refused(fault: Any) -> None:
    base = Base(tiny_model(), tiny_tokenizer(), "tiny")
    base.model.model.layers[0].mlp.register_forward_hook(fault)
    with pytest.raises(ConfigError, match=r"tiny can't be trained here: .* differs by .* nats"):
        check_learnable(base)


def test_rates_under_any_name_are_switched_off(tmp_path: Path) -> None:
    base = load_base(str(tiny_folder(tmp_path)), device="cpu")
    rates = [
        value
        for module in base.model.modules()
        for place in (module, getattr(module, "config", module))
        for name, value in vars(place).items()
        if "drop" in name and isinstance(value, float)
    ]
    assert rates
    assert not any(rates)
