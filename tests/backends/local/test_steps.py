"""Decoding steps over fixed tensors, recorded on a GPU: the same answers as over growing ones.

On a GPU, which the other tests do without: python -m pytest -n0 --noconftest FILE.
"""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from orchestry.backends.local import steps
from orchestry.backends.local.sampler import Drawn, Prompt, Sampler
from orchestry.backends.local.steps import (
    Compute,
    Fixed,
    Growing,
    Recorded,
    Recorder,
    Recording,
    Rows,
)
from tests.backends.local.teams import some_ids, team
from tests.backends.local.tiny import Kind

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


class Replayed(Recorder):
    """Stands for CUDA's: a recording that computes when it is replayed, and not before."""

    def __init__(self, works: bool) -> None:
        super().__init__(torch.device("cpu"), print)
        self.on, self.works, self.made = True, works, 0

    def first(self, compute: Compute) -> torch.Tensor:
        return compute()

    def record(self, compute: Compute) -> Recording | None:
        self.made += 1
        if not self.works:
            self.on = False
            return None
        logits = torch.empty(0)

        def replay() -> None:
            found = compute()
            logits.resize_(found.shape).copy_(found)

        return SimpleNamespace(replay=replay), logits


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


def assert_equal(drawn: list[list[Drawn]], others: list[list[Drawn]]) -> None:
    pairs = [pair for two in zip(drawn, others, strict=True) for pair in zip(*two, strict=True)]
    for one, other in pairs:
        assert (one.ids, one.text, one.stop) == (other.ids, other.text, other.stop)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_fixed_steps_draw_what_growing_ones_draw(
    kind: Kind, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "ROOM", 16)  # so that room is made again and again
    warned = list[str]()
    base, adapters = team(kind, device=device)
    growing, fixed = Sampler(base, adapters), Sampler(base, adapters)
    growing.recorder = None
    fixed.recorder = Recorder(torch.device(device), warned.append)
    if device == "cpu":
        fixed.recorder = Replayed(works=True)
    assert_equal(growing.draw(asked(), 3), fixed.draw(asked(), 3))
    assert not warned
    if isinstance(fixed.recorder, Replayed):
        assert fixed.recorder.made > 5


class Cuda:
    """Stands for what a recorder asks of torch.cuda; it has room for some recordings only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int = 99) -> None:
        self.room, self.modes, self.begun, self.ended = room, ["default"], 0, 0
        stream = SimpleNamespace(wait_stream=lambda other: None)
        graph = SimpleNamespace(capture_begin=self.begin, capture_end=self.end)
        for name, stand_in in {
            "Stream": lambda device: stream,
            "current_stream": lambda device: stream,
            "stream": lambda one: nullcontext(),
            "get_sync_debug_mode": lambda: self.modes[-1],
            "set_sync_debug_mode": self.modes.append,
            "CUDAGraph": lambda: graph,
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)

    def begin(self, capture_error_mode: str) -> None:
        self.begun += 1

    def end(self) -> None:
        self.ended += 1

    def step(self) -> torch.Tensor:
        if self.begun > self.ended and self.begun <= self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.ones(1)

    def waits(self) -> torch.Tensor:
        if self.modes[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return torch.ones(1)


def recorder(warned: list[str]) -> Recorder:
    made = Recorder(torch.device("cpu"), warned.append)
    made.on = True
    return made


def test_a_step_that_waits_for_the_gpu_is_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, warned = Cuda(monkeypatch), list[str]()
    made = recorder(warned)
    recorded = Recorded(made)
    assert [recorded(cuda.waits).item() for _ in range(3)] == [1, 1, 1]
    assert (made.on, cuda.begun, cuda.modes[-1]) == (False, 0, "default")
    assert len(warned) == 1
    assert "synchronizing" in warned[0]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_recording_that_does_not_fit_is_tried_once_more(
    missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, warned = Cuda(monkeypatch, room=missing), list[str]()
    made = recorder(warned)
    found = made.record(cuda.step)
    assert (found is None, made.on, len(warned)) == (missing == 2, missing < 2, int(missing == 2))
    assert cuda.begun == cuda.ended == min(missing + 1, 2), "none is left open"


def test_an_interrupt_ends_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)

    def interrupted() -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder([]).record(interrupted)
    assert cuda.ended == 1


def test_where_a_recording_fails_steps_are_computed() -> None:
    base, adapters = team()
    growing, fixed = Sampler(base, adapters), Sampler(base, adapters)
    fixed.recorder = failing = Replayed(works=False)
    assert_equal(growing.draw(asked(), 3), fixed.draw(asked(), 3))
    assert failing.made == 1, "not tried again"


@GPU
def test_a_model_that_cannot_be_recorded_is_computed_step_by_step() -> None:
    warned = list[str]()
    base, adapters = team(device="cuda")
    plain, looking = Sampler(base, adapters), Sampler(base, adapters, warn=warned.append)
    plain.recorder = None
    expected = plain.draw(asked(), 3)
    model: Any = base.model
    model.get_input_embeddings().register_forward_hook(looks)
    assert_equal(expected, looking.draw(asked(), 3))
    assert len(warned) == 1
    assert "can't be recorded" in warned[0]


class Model:
    """Knows no words, and what it was asked."""

    dtype = torch.float32

    def __init__(self) -> None:
        self.masks, self.positions = list[int](), list[list[int]]()

    def __call__(self, **given: Any) -> Any:
        self.masks.append(given["attention_mask"].shape[-1])
        self.positions.append(given["position_ids"].flatten().tolist())
        return SimpleNamespace(logits=torch.zeros(len(given["input_ids"]), 1, 5))


def test_room_is_made_for_what_is_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ROOM", 16)
    model, cache = Model(), SimpleNamespace(layers=[])
    rows = Rows(torch.tensor([3, 2]), width=3, to_come=40, last=42)
    step = Fixed(model, cache, rows, Recorder(torch.device("cpu"), print))
    for _ in range(40):
        step(torch.tensor([1, 1]))
    assert list(dict.fromkeys(model.masks)) == [19, 35, 43]


@pytest.mark.parametrize("fixed", [False, True])
def test_rows_that_ended_go_no_further_than_the_others_may(fixed: bool) -> None:
    """A model with learned positions has none after its context."""
    model, cache = Model(), SimpleNamespace(layers=[])
    rows = Rows(torch.tensor([8, 2]), width=8, to_come=4, last=9)
    recorder = Recorder(torch.device("cpu"), print)
    step = Fixed(model, cache, rows, recorder) if fixed else Growing(model, cache, rows)
    for _ in range(4):
        step(torch.tensor([1, 1]))
    assert model.positions == [[8, 2], [9, 3], [9, 4], [9, 5]]


def test_a_draw_leaves_nothing_behind() -> None:
    """Without waiting for the garbage collector: keys and values are most of what a GPU holds."""
    kept = list[Any]()

    class Watched(Fixed):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            kept.append(weakref.ref(self))

    base, adapters = team()
    sampler = Sampler(base, adapters)
    sampler.recorder = Replayed(works=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestry.backends.local.sampler.Fixed", Watched)
        gc.disable()
        try:
            sampler.draw(asked(), 3)
            assert kept
            assert not any(one() for one in kept)
        finally:
            gc.enable()
