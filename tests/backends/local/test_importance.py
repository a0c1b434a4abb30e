"""Truncated importance weights: beside autograd, in expectation, and on a server's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import orchestry
from orchestry.backends.local.batch import Sample
from orchestry.backends.local.diagnostics import Tally
from orchestry.backends.local.importance import Weighing
from orchestry.backends.local.magrpo import policy_loss
from orchestry.core.errors import ConfigError
from orchestry.store.run import Run
from tests.backends.letters import EVERY, config, learned
from tests.ext.vllm.vllmloopback import Vllm, vllm

pytestmark = pytest.mark.usefixtures("one_thread")

NATS = st.floats(-4.0, -0.01)
ACTIONS = st.lists(st.lists(st.tuples(NATS, NATS), min_size=1, max_size=5), min_size=1, max_size=4)


@pytest.fixture
def server() -> Iterator[Vllm]:
    with vllm() as state:
        yield state


def sample(served: tuple[float, ...]) -> Sample:
    return Sample("left", (1,), tuple(range(len(served))), served, 1.0, 0, served)


# --- the maths ------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(ACTIONS, st.floats(1.0, 3.0), st.booleans())
def test_the_gradient_is_that_of_the_formula(
    actions: list[list[tuple[float, float]]], most: float, whole: bool
) -> None:
    how = Weighing(most, whole)
    rows = [
        torch.tensor([new for new, _ in each], dtype=torch.float64, requires_grad=True)
        for each in actions
    ]
    served = [tuple(old for _, old in each) for each in actions]
    advantages = [0.5 - index for index in range(len(rows))]
    ratios = how.ratios(rows, iter([sample(each) for each in served]))
    torch.autograd.backward(policy_loss(rows, advantages, weights=how.weights(ratios)))
    for row, old, advantage in zip(rows, served, advantages, strict=True):
        gap = row.detach() - torch.tensor(old, dtype=torch.float64)
        ratio = gap.sum().exp() if whole else gap.exp()
        expected = -advantage * ratio.clamp(max=most) / len(rows)
        assert torch.allclose(row.grad, expected.expand(len(row)), atol=1e-9, rtol=0)


def test_untruncated_weights_give_the_learners_own_gradient_from_another_ones_draws() -> None:
    """All three tokens, each as often as the drawing policy has it."""
    logits = torch.tensor([0.2, -0.7, 1.1], dtype=torch.float64, requires_grad=True)
    drawing = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    rewards = torch.tensor([1.0, 0.2, 0.6], dtype=torch.float64)
    (expected,) = torch.autograd.grad((logits.softmax(0) * rewards).sum(), logits)
    new = logits.log_softmax(0)
    rows = [new[token : token + 1] for token in range(3)]
    how = Weighing(100.0)
    ratios = how.ratios(rows, iter([sample((drawing[n].log().item(),)) for n in range(3)]))
    worth = [3 * float(drawing[n] * rewards[n]) for n in range(3)]
    (found,) = torch.autograd.grad(-policy_loss(rows, worth, weights=how.weights(ratios)), logits)
    assert torch.allclose(found, expected, atol=1e-7)


def test_equal_policies_change_no_bit_and_no_weighing_has_no_weights() -> None:
    rows = [torch.tensor([-0.5, -1.25], requires_grad=True)]
    drawn = [sample((-0.5, -1.25))]
    ratios = Weighing(2.0).ratios(rows, iter(drawn))
    weighed = policy_loss(rows, [0.7], weights=Weighing(2.0).weights(ratios))
    assert weighed.item() == policy_loss(rows, [0.7]).item()
    off = Weighing(None)
    assert off.ratios(rows, iter(drawn)) == []
    assert off.weights([]) is None
    tally = Tally()
    off.note(tally, "left", [])
    assert tally.means() == {}


def test_figures_name_what_was_cut() -> None:
    ratios = [torch.tensor([0.5, 3.0]), torch.tensor([1.0, 1.5])]
    tally = Tally()
    Weighing(2.0).note(tally, "left", ratios)
    assert tally.means()["left"] == {"ratio": 1.5, "ratio_clipped": 0.25}


# --- runs -----------------------------------------------------------------------------------------

WEIGHED = ("learn.importance=2", f"episodes={EVERY}", "learn.top_p=1")


def figures(run: Run) -> dict[str, Any]:
    (update,) = learned(run)
    return dict(update.state)


@pytest.mark.slow
def test_a_server_that_draws_as_the_learner_has_ratios_of_1(
    server: Vllm, model: str, tasks: Path, tmp_path: Path
) -> None:
    at = f"learn.vllm_url={server.url}"
    plain = orchestry.train(config(model, tasks, *WEIGHED[1:], at), tmp_path / "plain")
    run = orchestry.train(config(model, tasks, *WEIGHED, at), tmp_path / "run")
    found = figures(run)
    assert found["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert found["ratio_clipped"] == 0.0
    assert found["loss"] == pytest.approx(figures(plain)["loss"], abs=1e-3)
    assert "ratio" not in figures(plain)
    assert "served" not in (run.folder / "episodes.jsonl").read_text()


def test_top_p_is_corrected_for(server: Vllm, model: str, tasks: Path, tmp_path: Path) -> None:
    sets = (*WEIGHED[:2], "learn.top_p=0.5", f"learn.vllm_url={server.url}")
    found = figures(orchestry.train(config(model, tasks, *sets), tmp_path / "run"))
    assert 0.4 < found["ratio"] < 0.8  # the share of the probability that was drawn from


@pytest.mark.parametrize(
    ("of", "least", "most"), [("token", 1.1, 1.1), ("answer", 1.2, 1.1**3)], ids=["token", "answer"]
)
@pytest.mark.slow
def test_a_server_that_is_off_is_weighed_and_cut(
    of: str, least: float, most: float, server: Vllm, model: str, tasks: Path, tmp_path: Path
) -> None:
    """By a tenth in each token."""

    def spoil(answer: dict[str, Any]) -> None:
        logprobs = answer["choices"][0]["logprobs"]
        logprobs["token_logprobs"] = [each - 0.09531 for each in logprobs["token_logprobs"]]

    server.spoil = spoil
    at = (f"learn.vllm_url={server.url}", f"learn.importance_of={of}", "sampling.max_tokens=3")
    found = figures(orchestry.train(config(model, tasks, *WEIGHED, *at), tmp_path / "run"))
    assert least - 1e-3 < found["ratio"] < most + 1e-3
    assert found["ratio_clipped"] == 0.0
    cut = config(model, tasks, *WEIGHED[1:], *at, "learn.importance=1")
    tight = figures(orchestry.train(cut, tmp_path / "cut"))
    assert tight["ratio_clipped"] == 1.0
    if of == "token":
        assert tight["loss"] == pytest.approx(found["loss"] / 1.1, rel=1e-3)


def test_without_a_server_weights_are_1(model: str, tasks: Path, tmp_path: Path) -> None:
    more = ("learn.epochs=2", "learn.clip=0.2")
    found = figures(orchestry.train(config(model, tasks, *WEIGHED, *more), tmp_path / "run"))
    assert found["ratio"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("learn.importance=0.5",), "give a number >= 1"),
        (("learn.importance_of=answer",), "weighs nothing without learn.importance"),
        (("learn.importance=2", "learn.comlrl_compat=true"), "replaces the loss"),
    ],
)
def test_what_makes_no_sense_is_refused(
    sets: tuple[str, ...], message: str, model: str, tasks: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(model, tasks, *sets)
