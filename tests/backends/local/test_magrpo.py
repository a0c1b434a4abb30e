"""Returns, advantages and the loss, against the written-out formulas and on a bandit."""

from __future__ import annotations

import random
from itertools import product
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.backends.local.magrpo import (
    Baseline,
    action_returns,
    group_advantages,
    policy_loss,
    returns,
)
from orchestry.core.seeds import derive

pytest.importorskip("torch")

import torch

REWARDS = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)
GROUPS = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8)
LENGTHS = (3, 1, 5, 2)


# --- returns -----------------------------------------------------------------------------------


def test_returns_of_the_paper() -> None:
    assert returns([0.5, 0.25, 1.0]) == (1.75, 1.25, 1.0)
    assert returns([0.5, 0.25, 1.0], 0.5) == (0.875, 0.75, 1.0)  # a discount is not ignored


@given(REWARDS)
def test_no_discount_sums_what_is_to_come_and_discount_zero_is_the_reward(r: list[float]) -> None:
    assert returns(r) == pytest.approx([sum(r[t:]) for t in range(len(r))])
    assert returns(r, 0.0) == tuple(r)


@given(REWARDS, st.floats(0.0, 1.0))
def test_returns_recur(rewards: list[float], discount: float) -> None:
    found = returns(rewards, discount)
    assert found[-1] == rewards[-1]
    assert found[:-1] == tuple(
        r + discount * after for r, after in zip(rewards, found[1:], strict=False)
    )


# --- advantages --------------------------------------------------------------------------------


def test_advantages_of_equation_1_are_not_divided_by_the_standard_deviation() -> None:
    assert group_advantages([0.0, 0.25, 0.5, 0.25]) == (-0.25, 0.0, 0.25, 0.0)


@given(GROUPS, st.sampled_from(["mean", "leave_one_out"]), st.booleans())
def test_advantages_sum_to_zero(group: list[float], baseline: Baseline, normalise: bool) -> None:
    found = group_advantages(group, baseline=baseline, normalise=normalise)
    assert sum(found) == pytest.approx(0.0, abs=1e-6)


@given(GROUPS, st.integers(-4, 4))
def test_a_shift_of_all_returns_changes_nothing(group: list[float], shift: int) -> None:
    moved = group_advantages([value + shift for value in group])
    assert moved == pytest.approx(group_advantages(group), abs=1e-12)


@given(GROUPS, st.randoms(use_true_random=False))
def test_advantages_move_with_their_returns(group: list[float], rng: random.Random) -> None:
    order = rng.sample(range(len(group)), len(group))
    moved = group_advantages([group[i] for i in order])
    assert moved == pytest.approx([group_advantages(group)[i] for i in order], abs=1e-12)


@given(st.floats(0.0, 1.0), st.integers(1, 8), st.booleans())
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_without_variance_advantages_are_exactly_zero(
    baseline: Baseline, value: float, size: int, normalise: bool
) -> None:
    assert group_advantages([value] * size, baseline=baseline, normalise=normalise) == (0.0,) * size


@given(GROUPS)
def test_leave_one_out_is_the_mean_of_the_others(group: list[float]) -> None:
    found = group_advantages(group, baseline="leave_one_out")
    others = [fmean(group[:g] + group[g + 1 :]) for g in range(len(group))]
    assert found == pytest.approx([r - o for r, o in zip(group, others, strict=True)], abs=1e-12)
    size = len(group)
    assert found == pytest.approx(
        [a * size / (size - 1) for a in group_advantages(group)], abs=1e-12
    )


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=8))
def test_normalised_advantages_have_unit_deviation(group: list[float]) -> None:
    spread = pstdev(group_advantages(group, normalise=True))
    assert spread == pytest.approx(1.0 if len(set(group)) > 1 else 0.0, abs=1e-4)


def test_each_option_changes_the_numbers() -> None:
    group = [0.0, 0.1, 0.7]
    found = {
        group_advantages(group, baseline=baseline, normalise=normalise)
        for baseline in ("mean", "leave_one_out")
        for normalise in (False, True)
    }
    assert len(found) == 4


def test_rounding_noise_is_not_blown_up() -> None:
    noisy = [0.1 + 0.2, 0.3]
    assert noisy[0] != noisy[1]
    assert max(map(abs, group_advantages(noisy, normalise=True))) < 1e-9


# --- joint actions -----------------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 1.0), min_size=27, max_size=27))
def test_an_action_is_worth_the_mean_of_the_joint_actions_it_is_part_of(joint: list[float]) -> None:
    by_actions = dict(zip(product(range(3), repeat=3), joint, strict=True))
    for agent, worth_G in enumerate(action_returns(joint, 3)):
        for action, worth in enumerate(worth_G):
            mine = [r for actions, r in by_actions.items() if actions[agent] == action]
            assert worth == pytest.approx(fmean(mine), abs=1e-12)


def test_the_advantage_of_an_action_is_the_mean_of_its_joint_actions_advantages() -> None:
    joint = [0.1, 0.9, 0.3, 0.4]
    own = [group_advantages(worth_G) for worth_G in action_returns(joint, 2)]
    whole = group_advantages(joint)
    assert own[0] == pytest.approx([(whole[0] + whole[1]) / 2, (whole[2] + whole[3]) / 2])
    assert own[1] == pytest.approx([(whole[0] + whole[2]) / 2, (whole[1] + whole[3]) / 2])


def test_the_order_of_a_sum_makes_no_variance() -> None:
    # 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1
    rows = ([0.1, 0.2, 0.3], [0.3, 0.1, 0.2], [0.2, 0.3, 0.1])
    own, others = action_returns([value for row in rows for value in row], 2)
    assert group_advantages(own) == group_advantages(others) == (0.0, 0.0, 0.0)


def test_joint_actions_that_are_not_all_combinations_are_refused() -> None:
    with pytest.raises(ValueError, match="5 joint actions are not all of 2 agents' actions"):
        action_returns([0.0] * 5, 2)


# --- the loss ----------------------------------------------------------------------------------


class Writer:
    """A tiny recurrent language model: log-probabilities of an answer's tokens after a prompt."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.embed_VD, self.turn_DD = (
            torch.randn(n, 5, generator=generator, dtype=torch.float64, requires_grad=True)
            for n in (7, 5)
        )

    def __call__(self, prompt: list[int], ids: list[int]) -> torch.Tensor:
        hidden_D, found = torch.zeros(5, dtype=torch.float64), []
        for position, token in enumerate([*prompt, *ids]):
            if position >= len(prompt):
                found.append(torch.log_softmax(self.embed_VD @ hidden_D, 0)[token])
            hidden_D = torch.tanh(self.turn_DD @ hidden_D + self.embed_VD[token])
        return torch.stack(found)


def answers(seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(7) for _ in range(length)] for length in lengths]


def gradients(loss: torch.Tensor, *models: Writer) -> list[torch.Tensor]:
    leaves = [leaf for model in models for leaf in (model.embed_VD, model.turn_DD)]
    return list(torch.autograd.grad(loss, leaves))


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert other.abs().max() > 1e-3  # a gradient of nothing would equal anything's
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("turns", [1, 2])
def test_aligned_gradients_equal_those_of_the_written_out_formula(turns: int) -> None:
    models, rng = [Writer(0), Writer(1)], random.Random(2)
    rewards_G_T = [[rng.random() for _ in range(turns)] for _ in LENGTHS]
    texts = {(i, t): answers(10 * i + t) for i in range(2) for t in range(turns)}
    prompts = {(i, t): [i + 1, t] for i in range(2) for t in range(turns)}

    written = torch.zeros((), dtype=torch.float64)
    for i, t in texts:  # both agents' objectives; each is the mean over the groups of its turns
        R_G = [sum(rewards[t:]) for rewards in rewards_G_T]
        for g, ids in enumerate(texts[i, t]):
            log_pi = models[i](prompts[i, t], ids).sum()
            written = written + (R_G[g] - sum(R_G) / 4) * log_pi / (4 * turns)

    found = torch.zeros((), dtype=torch.float64)
    returns_G_T = [returns(rewards) for rewards in rewards_G_T]
    for i, t in texts:
        rows = [models[i](prompts[i, t], ids) for ids in texts[i, t]]
        advantages_G = group_advantages([R_T[t] for R_T in returns_G_T])
        found = found + policy_loss(rows, advantages_G, actions=4 * turns)
    assert_equal(gradients(found, *models), gradients(-written, *models))


@pytest.mark.parametrize("turns", [1, 2])
def test_cross_gradients_equal_those_of_the_sum_over_joint_actions(turns: int) -> None:
    models, rng = [Writer(3), Writer(4), Writer(5)], random.Random(6)
    texts = {(i, t): answers(10 * i + t, (4, 1)) for i in range(3) for t in range(turns)}
    joint = list(product(range(2), repeat=3))
    R_T_J = [[rng.random() for _ in joint] for _ in range(turns)]

    written = torch.zeros((), dtype=torch.float64)
    for t, R_J in enumerate(R_T_J):
        for chosen, reward in zip(joint, R_J, strict=True):
            for i, g in enumerate(chosen):
                log_pi = models[i]([i, t], texts[i, t][g]).sum()
                written = written + (reward - sum(R_J) / 8) * log_pi / (8 * turns)

    found = torch.zeros((), dtype=torch.float64)
    for t, R_J in enumerate(R_T_J):
        for i, worth_G in enumerate(action_returns(R_J, 3)):
            rows = [models[i]([i, t], ids) for ids in texts[i, t]]
            found = found + policy_loss(rows, group_advantages(worth_G), actions=2 * turns)
    assert_equal(gradients(found, *models), gradients(-written, *models))


def test_every_token_counts_and_the_last_one_too() -> None:
    rows = [torch.zeros(n, dtype=torch.float64, requires_grad=True) for n in LENGTHS]
    torch.autograd.backward(policy_loss(rows, [1.0, -1.0, 0.5, 0.0]))
    for row, advantage in zip(rows, [1.0, -1.0, 0.5, 0.0], strict=True):
        assert row.grad is not None
        assert row.grad.tolist() == pytest.approx([-advantage / 4] * len(row))


def test_the_mean_over_tokens_on_request() -> None:
    rows = [torch.full((n,), -1.0) for n in (1, 3)]
    assert policy_loss(rows, [1.0, 0.5]).item() == pytest.approx((1.0 + 1.5) / 2)
    assert policy_loss(rows, [1.0, 0.5], reduce="mean").item() == pytest.approx((1.0 + 0.5) / 2)


def test_parts_add_up_and_zero_advantages_may_be_left_out() -> None:
    model, texts, advantages_G = Writer(0), answers(1), (0.5, 0.0, -0.5, 0.25)
    whole = gradients(policy_loss([model([0], ids) for ids in texts], advantages_G), model)
    parts = policy_loss([model([0], texts[0])], advantages_G[:1], actions=4) + policy_loss(
        [model([0], ids) for ids in texts[2:]], advantages_G[2:], actions=4
    )
    assert_equal(gradients(parts, model), whole)


def test_clipping_leaves_the_first_update_alone_and_stops_what_went_too_far() -> None:
    model, texts, advantages_G = Writer(0), answers(1), (1.0, -1.0, 0.5, -0.5)
    rows = [model([0], ids) for ids in texts]
    plain = gradients(policy_loss(rows, advantages_G), model)
    rows = [model([0], ids) for ids in texts]
    assert_equal(
        gradients(policy_loss(rows, advantages_G, clip=0.2, old_logprobs=rows), model), plain
    )

    old = torch.tensor([0.0, 0.0, 0.0])
    for advantage, moves in ((1.0, [True, True, False]), (-1.0, [False, True, True])):
        new = torch.tensor([-0.3, 0.1, 0.3], requires_grad=True)
        torch.autograd.backward(policy_loss([new], [advantage], clip=0.2, old_logprobs=[old]))
        assert new.grad is not None
        assert [bool(g) for g in new.grad] == moves
        expected = [-advantage * new[t].exp().item() if moves[t] else 0.0 for t in range(3)]
        assert new.grad.tolist() == pytest.approx(expected)


def test_kl_pulls_towards_the_reference_without_any_advantage() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    reference_V = torch.log_softmax(logits, 0)
    policy_V = torch.log_softmax(torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64), 0)
    tokens = policy_V.exp()
    each = torch.stack(
        [
            policy_loss(
                [policy_V[v : v + 1]], [0.0], kl=1.0, reference_logprobs=[reference_V[v : v + 1]]
            )
            for v in range(3)
        ]
    )
    assert (each >= 0.0).all()
    expected = (tokens * (policy_V - reference_V)).sum()  # k3 is unbiased for KL(policy, reference)
    torch.testing.assert_close((tokens * each).sum(), expected)
    same = policy_loss([policy_V], [0.0], kl=1.0, reference_logprobs=[policy_V])
    assert same.item() == 0.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip": 0.2}, "clip and old_logprobs go together"),
        ({"old_logprobs": [torch.zeros(2)]}, "clip and old_logprobs go together"),
        ({"kl": 0.1}, "kl and reference_logprobs go together"),
        ({"clip": 0.2, "old_logprobs": [torch.zeros(1)]}, r"shapes \(2,\) and \(1,\)"),
        ({"kl": 0.1, "reference_logprobs": []}, "shorter"),
    ],
)
def test_options_that_lack_what_they_need_are_refused(
    options: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        policy_loss([torch.zeros(2)], [1.0], **options)  # type: ignore[arg-type]


def test_no_actions_and_unequal_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="no actions"):
        policy_loss([], [])
    with pytest.raises(ValueError, match="zip"):
        policy_loss([torch.zeros(2)], [1.0, 2.0])


# --- it learns ---------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", ["aligned", "cross"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_bandit_of_two_agents_is_solved(joint: str, seed: int) -> None:
    """Three actions each; (2, 0) is worth 1, and other actions tempt each agent alone."""
    worth = [[0.4, 0.2, 0.3], [0.2, 0.5, 0.1], [1.0, 0.2, 0.3]]
    generator = torch.Generator().manual_seed(derive(seed, joint))
    logits = [torch.zeros(3, requires_grad=True) for _ in range(2)]
    adam = torch.optim.Adam(logits, lr=0.1)
    for _ in range(150):
        drawn = [
            torch.multinomial(one.softmax(0), 4, True, generator=generator).tolist()
            for one in (row.detach() for row in logits)
        ]
        if joint == "cross":
            worths = action_returns([worth[a][b] for a, b in product(*drawn)], 2)
        else:
            worths = (tuple(worth[a][b] for a, b in zip(*drawn, strict=True)),) * 2
        loss = torch.zeros(())
        for row, actions, worth_G in zip(logits, drawn, worths, strict=True):
            logprobs = row.log_softmax(0)
            loss = loss + policy_loss(
                [logprobs[a : a + 1] for a in actions], group_advantages(worth_G)
            )
        adam.zero_grad()
        torch.autograd.backward(loss)
        adam.step()
    assert logits[0].softmax(0)[2] > 0.9
    assert logits[1].softmax(0)[0] > 0.9
