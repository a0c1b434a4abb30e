"""Decoding steps over fixed tensors, recorded on a GPU: the same answers as over growing ones.

On a GPU, which the other tests do without: python -m pytest -n0 --noconftest FILE.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from orchestry.backends.local import steps
from orchestry.backends.local.sampler import Drawn, Prompt, Sampler
from orchestry.backends.local.steps import Fixed, Recorder
from tests.backends.local.teams import some_ids, team
from tests.backends.local.tiny import Kind

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


def looks(module: object, given: object, output: torch.Tensor) -> None:
    """As a mixture of experts does, that computes only those which were chosen."""
    output.sum().item()


def asked() -> list[Prompt]:
    """Two agents and the bare base; rows of unequal lengths that end one after another."""
    shapes = [(0, 3, 20), (1, 200, 7), (-1, 40, 70), (1, 3, 1), (0, 40, 90), (0, 9, 90)]
    return [
        Prompt(agent, some_ids(length, seed=length), tokens, 0.8, 0.95, (), (5, 6, 7))
        for agent, length, tokens in shapes
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_fixed_steps_draw_what_growing_ones_draw(
    kind: Kind, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "ROOM", 16)  # so that room is made again and again
    warned = list[str]()
    base, adapters = team(kind, device=device)
    growing, fixed = Sampler(base, adapters), Sampler(base, adapters, warn=warned.append)
    growing.recorder, fixed.recorder = None, Recorder(torch.device(device), warned.append)
    for expected, found in zip(growing.draw(asked(), 3), fixed.draw(asked(), 3), strict=True):
        for one, other in zip(expected, found, strict=True):
            same(one, other)
    assert not warned


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_that_cannot_be_recorded_is_computed_step_by_step() -> None:
    warned = list[str]()
    base, adapters = team(device="cuda")
    plain, looking = Sampler(base, adapters), Sampler(base, adapters, warn=warned.append)
    plain.recorder = None
    expected = plain.draw(asked(), 3)
    model: Any = base.model
    model.get_input_embeddings().register_forward_hook(looks)
    for answers, others in zip(expected, looking.draw(asked(), 3), strict=True):
        for one, other in zip(answers, others, strict=True):
            same(one, other)
    assert len(warned) == 1
    assert "can't be recorded" in warned[0]


def same(one: Drawn, other: Drawn) -> None:
    assert (one.ids, one.text, one.stop) == (other.ids, other.text, other.stop)
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_draw_leaves_nothing_behind() -> None:
    """Without waiting for the garbage collector: keys and values are most of what a GPU holds."""
    kept = list[Any]()

    class Watched(Fixed):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            kept.append(weakref.ref(self))

    base, adapters = team()
    sampler = Sampler(base, adapters)
    sampler.recorder = Recorder(base.model.device, print)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestry.backends.local.sampler.Fixed", Watched)
        gc.disable()
        try:
            sampler.draw(asked(), 3)
            assert kept
            assert not any(one() for one in kept)
        finally:
            gc.enable()
