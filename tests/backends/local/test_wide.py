"""Large layers multiplied by another kernel: the same numbers, for rows of any number and shape."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn

from orchestry.backends.local import wide as rooms
from orchestry.backends.local.model import load_base
from orchestry.backends.local.wide import LEAST, WideLinear, widen
from tests.backends.local.tiny import tiny_folder

HIGH = 256
WIDE = LEAST // HIGH


def layer(wide: int = WIDE, high: int = HIGH, bias: bool = False, dtype: Any = None) -> Any:
    torch.manual_seed(0)
    made = nn.Linear(high, wide, bias=bias, dtype=dtype).requires_grad_(False)
    widen(nn.Sequential(made))
    return made


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.integers(1, 12), min_size=0, max_size=2), seed=st.integers(0, 99))
def test_products_and_gradients_are_the_plain_layers(rows: list[int], seed: int) -> None:
    fast, generator = layer(), torch.Generator().manual_seed(seed)
    assert type(fast) is WideLinear
    x = torch.randn(*rows, HIGH, generator=generator, requires_grad=True)
    weigh = torch.randn(*rows, WIDE, generator=generator)
    found, expected = list[Any](), list[Any]()
    for one, forward in ((found, fast), (expected, lambda x: nn.functional.linear(x, fast.weight))):
        y = forward(x)
        (gradient,) = torch.autograd.grad((y * weigh).sum(), x)
        one += [y.detach(), gradient]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    "other",
    [
        {"wide": HIGH, "high": WIDE},
        {"wide": WIDE - 1},
        {"bias": True},
        {"dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_other_layers_stay(other: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "computes_bfloat16", lambda: False)
    assert type(layer(**other)) is nn.Linear


def test_large_layers_of_any_form_gain_where_bfloat16_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rooms, "computes_bfloat16", lambda: True)
    shapes: tuple[dict[str, Any], ...] = ({}, {"wide": HIGH, "high": WIDE})
    for sizes in shapes:
        fast: Any = layer(**sizes, dtype=torch.bfloat16)
        assert type(fast) is WideLinear
        x = torch.randn(4, 3, fast.in_features, dtype=torch.bfloat16)[:, -1:]
        expected = nn.functional.linear(x.float(), fast.weight.float())
        torch.testing.assert_close(fast(x).float(), expected, atol=0.05, rtol=0.02)


def test_a_weight_that_learns_gets_its_gradient() -> None:
    learning = deepcopy(layer()).requires_grad_(True)
    learning(torch.ones(3, HIGH)).sum().backward()
    assert torch.equal(learning.weight.grad, torch.full_like(learning.weight, 3.0))


def test_a_loaded_base_has_them_and_says_the_same(tmp_path: Path) -> None:
    base = load_base(str(tiny_folder(tmp_path / "tiny", hidden=512)), device="cpu")
    model: Any = base.model
    wide: dict[str, Any] = {n: one for n, one in model.named_modules() if type(one) is WideLinear}
    assert {name.rpartition(".")[2] for name in wide} == {"gate_proj", "up_proj"}
    ids = torch.arange(40).reshape(2, 20)
    with torch.inference_mode():
        found = model(input_ids=ids).logits
        for one in wide.values():
            one.__class__ = nn.Linear
        torch.testing.assert_close(found, model(input_ids=ids).logits, atol=1e-3, rtol=1e-4)
