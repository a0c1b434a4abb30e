"""PPO: gradients against autograd, advantages against their definition, exact resume, learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from orchestry.backends.ppo import kernels, policy
from orchestry.backends.ppo.checkpoint import Policy
from orchestry.backends.ppo.learner import Learner, Seats
from orchestry.backends.ppo.loss import (
    Rows,
    Weights,
    _on_cpu,
    advantages,
    by_operations,
    gradient,
    logprobs,
    of_actions,
)
from orchestry.backends.ppo.net import Layout, backward, forward
from orchestry.backends.ppo.policy import Team
from orchestry.backends.ppo.running import Moments, RewardScale
from orchestry.core.errors import LearnError
from orchestry.core.ppo import PpoConfig
from orchestry.task.registry import load_task
from orchestry.task.vector import Player, VectorTask

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("policies", [1, 3])
@pytest.mark.parametrize("value_clip", [None, 0.3])
def test_the_gradient_is_autograds(policies: int, value_clip: float | None) -> None:
    generator = torch.Generator().manual_seed(3)
    sizes, m = (5, 2, 3), 40
    actor, critic = Layout((6, 8, 8, sum(sizes))), Layout((7, 8, 1))
    weights = Weights(clip=0.2, value=0.7, entropy=0.05, value_clip=value_clip)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    flat_PW = drawn(policies, actor.size + critic.size) / 2
    x_PMI, y_PMI = drawn(policies, m, 6), drawn(policies, m, 7)
    actions_PMH = torch.stack(
        [torch.randint(size, (policies, m), generator=generator) for size in sizes], -1
    )
    before = of_actions(logprobs(drawn(policies, m, sum(sizes)) / 3, sizes), actions_PMH)
    rows = Rows(actions_PMH, before, *(drawn(policies, m) for _ in range(3)))

    learned_PW = flat_PW.clone().requires_grad_()
    acting = _plain(actor.layers(learned_PW[:, : actor.size]), x_PMI)
    values_PM = _plain(critic.layers(learned_PW[:, actor.size :]), y_PMI).squeeze(-1)
    loss: Any = _loss(acting, values_PM, rows, sizes, weights)
    loss.backward()

    grad_PW = torch.zeros_like(flat_PW)
    for layout, part, seen in (
        (actor, slice(0, actor.size), x_PMI),
        (critic, slice(actor.size, None), y_PMI),
    ):
        layers = layout.layers(flat_PW[:, part])
        found = forward(layers, seen)
        outputs = {
            name: forward(one.layers(flat_PW[:, where]), x)[-1]
            for name, one, where, x in (
                ("actor", actor, slice(0, actor.size), x_PMI),
                ("critic", critic, slice(actor.size, None), y_PMI),
            )
        }
        whole = gradient(outputs["actor"], outputs["critic"].squeeze(-1), rows, sizes, weights)
        own = whole.logits_PMA if layout is actor else whole.values_PMO
        backward(layers, layout.layers(grad_PW[:, part]), found, own)
    assert learned_PW.grad is not None
    gap = (grad_PW - learned_PW.grad).norm() / learned_PW.grad.norm()
    assert gap < 1e-12

    logits_PMA = forward(actor.layers(flat_PW[:, : actor.size]), x_PMI)[-1]
    (one, sums), (other, same) = (
        way(logits_PMA, rows, sizes, weights) for way in (_on_cpu, by_operations)
    )
    assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
    assert torch.allclose(sums, same, rtol=1e-10)


def test_the_quick_tanh_is_the_exact_one() -> None:
    x = torch.linspace(-12, 12, 200_004).view(-1, 4)
    bias = torch.tensor([0.0, 0.5, -2.0, 1e-3])
    wanted = (x.double() + bias).tanh()
    kernels.tanh_(x.numpy(), bias.numpy())
    assert (x - wanted).abs().max() < 3e-7
    assert x.abs().max() <= 1


def test_both_ways_of_drawing_take_the_same_actions() -> None:
    generator, sizes = torch.Generator().manual_seed(8), (7, 2, 4)
    logits = torch.randn(500, 3, sum(sizes), generator=generator) * 3
    for uniform in (torch.rand(500, 3, 3, generator=generator), torch.full((500, 3, 3), -1.0)):
        one = policy._on_cpu(logits, sizes, uniform)
        other = policy.by_operations(logits, sizes, uniform)
        assert (one[0] == other[0]).float().mean() > 0.999  # a number may fall on an edge
        assert torch.allclose(one[1], other[1], atol=1e-5) or uniform[0, 0, 0] >= 0


def _plain(layers: Any, x: torch.Tensor) -> torch.Tensor:
    for number, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        x = x if number == len(layers) - 1 else x.tanh()
    return x


def _loss(
    logits: torch.Tensor,
    values: torch.Tensor,
    rows: Rows,
    sizes: tuple[int, ...],
    weights: Weights,
) -> torch.Tensor:
    """Equation 9 with torch's own distributions."""
    own: list[Any] = [
        torch.distributions.Categorical(logits=part)
        for part in torch.split(logits, list(sizes), -1)
    ]
    logp = sum(one.log_prob(rows.actions_PMH[..., h]) for h, one in enumerate(own))
    entropy = sum(one.entropy() for one in own)
    assert isinstance(logp, torch.Tensor)
    assert isinstance(entropy, torch.Tensor)
    ratio, advantage = (logp - rows.logprobs_PM).exp(), rows.advantages_PM
    clipped = ratio.clamp(1 - weights.clip, 1 + weights.clip)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    error = (values - rows.returns_PM).square()
    if weights.value_clip is not None:
        move = (values - rows.values_PM).clamp(-weights.value_clip, weights.value_clip)
        error = torch.maximum(error, (rows.values_PM + move - rows.returns_PM).square())
    each = -surrogate - weights.entropy * entropy + weights.value * error / 2
    return each.mean(1).sum()


def test_advantages_are_sums_of_errors_up_to_the_games_end() -> None:
    generator = torch.Generator().manual_seed(5)
    steps, games, agents, discount, trace = 7, 3, 2, 0.9, 0.8
    rewards, values, after = (
        torch.randn(steps, games, agents, generator=generator) for _ in range(3)
    )
    ended = torch.rand(steps, games, generator=generator) < 0.3
    over = ended | (torch.rand(steps, games, generator=generator) < 0.2)
    found = advantages(rewards, values, after, ended, over, discount, trace)
    for game in range(games):
        for t in range(steps):
            wanted, factor = torch.zeros(agents), 1.0
            for ahead in range(t, steps):
                follows = 0.0 if ended[ahead, game] else discount
                error = rewards[ahead, game] + follows * after[ahead, game] - values[ahead, game]
                wanted = wanted + factor * error
                if over[ahead, game]:
                    break
                factor *= discount * trace
            assert torch.allclose(found[t, game], wanted, atol=1e-5)


def test_moments_are_those_of_all_rows() -> None:
    rows = torch.randn(1000, 3, generator=torch.Generator().manual_seed(1)) * 5 + 100
    found = Moments(3, torch.device("cpu"))
    for part in torch.split(rows, 77):
        found.add(part)
    assert torch.allclose(found.mean.float(), rows.mean(0))
    assert torch.allclose(found.deviation, rows.std(0, correction=0), rtol=1e-4)


def test_rewards_too_large_to_scale_are_refused() -> None:
    scale = RewardScale((1, 1), 0.5, torch.device("cpu"))
    rewards = torch.tensor([[[1e20]], [[-1e20]]], dtype=torch.float32)
    with pytest.raises(LearnError, match="give smaller rewards"):
        scale.scaled(rewards, torch.zeros(2, 1, dtype=torch.bool))


def test_no_games_have_no_actions() -> None:
    team = Team(2, 3, (3, 2), (4,))
    state = {"team": team.state(), "roles": ["a", "b"]}
    player = Policy.of(PpoConfig(hidden=(4,)), state, 3, (3, 2), ["a"])
    nothing = np.zeros((0, 2, 3), np.float32)
    assert player.act(nothing, np.zeros(0, np.bool_)).shape == (0, 2, 2)


def test_the_return_that_scales_rewards_ends_with_its_game() -> None:
    scale = RewardScale((1, 1), 0.5, torch.device("cpu"))
    rewards = torch.tensor([8.0, 8.0, 8.0]).view(3, 1, 1)
    scale.scaled(rewards, torch.tensor([[False], [True], [False]]))
    assert scale.moments.mean.tolist() == [(8 + 12 + 8) / 3]


def _task(scenario: str) -> VectorTask:
    task: object = load_task("bucket_brigade", options={"scenario": scenario})
    assert isinstance(task, VectorTask)
    return task


def _learner(seed: int = 0, **changes: Any) -> Learner:
    settings = PpoConfig(**{"games": 16, "horizon": 8, "minibatch": 128, **changes})
    task = _task("hard")
    return Learner(task.vectors(settings.games, seed), settings, Seats((0, 1, 2, 3)), seed)


@pytest.mark.parametrize("policies", ["shared", "own"])
@pytest.mark.parametrize("critic", ["own", "central"])
def test_a_restored_learner_goes_on_bit_for_bit(policies: str, critic: str) -> None:
    one = _learner(policies=policies, critic=critic)
    for _ in range(3):
        one.iterate(5000)
    state = one.state()
    other = _learner(seed=9, policies=policies, critic=critic)
    other.restore(state)
    for _ in range(3):
        (first, played), (second, again) = one.iterate(5000), other.iterate(5000)
        assert first == second
        assert played == again
    assert torch.equal(one.team.flat_PW, other.team.flat_PW)


def test_policies_of_their_own_get_their_own_gradients() -> None:
    one = _learner(policies="own")
    before = one.team.flat_PW.clone()
    one.iterate()
    moved = (one.team.flat_PW - before).abs().sum(1)
    assert (moved > 0).all()
    assert len({round(float(move), 9) for move in moved}) == 4


@pytest.mark.parametrize("rows", [2, 3, 15, 64])
@pytest.mark.parametrize("minibatch", [2, 3, 100])
def test_a_minibatch_has_at_least_two_rows(rows: int, minibatch: int) -> None:
    learner = _learner(policies="own", games=rows, horizon=1, minibatch=minibatch)
    parts = [len(part[0]) for (part,) in learner._minibatches([torch.zeros(4, rows, 1)])]
    assert sum(parts) == rows
    assert min(parts) >= 2
    figures, _ = learner.iterate()  # a warning of torch's would be an error
    assert learner.team.flat_PW.isfinite().all()
    assert figures["clip_fraction"] < 1


def test_returns_are_those_of_the_team_and_of_the_seats_that_learn() -> None:
    task = _task("hard")
    games, seats = task.vectors(16, 3), (0, 2)
    others = (Player(task.script("free_rider", (1, 3), 16, 5), (1, 3)),)
    settings = PpoConfig(games=16, horizon=40, minibatch=128)
    learner = Learner(games, settings, Seats(seats, others), 1)
    step, steps = games.step, list[tuple[Any, Any]]()

    def recorded(actions: Any) -> None:
        step(actions)
        steps.append((games.rewards.copy(), games.ended | games.cut))

    games.step = recorded  # type: ignore[method-assign]
    _, played = learner.iterate()
    returns, team, own = np.zeros((16, 4)), list[float](), list[float]()
    for rewards, over in steps:
        returns += rewards
        team += returns[over].mean(1).tolist()
        own += returns[over][:, seats].mean(1).tolist()
        returns[over] = 0
    assert len(own) > 16
    assert (played.returns, played.own) == (team, own)
    assert team != own


def test_a_central_critic_sees_all_and_tells_seats_apart() -> None:
    team = Team(3, 5, (4, 2), (8,), central=True)
    seen = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(2))
    values = team.values(seen)
    changed = seen.clone()
    changed[:, 2] += 1
    assert not torch.equal(team.values(changed)[:, 0], values[:, 0])
    assert not torch.equal(values[:, 0], values[:, 1])


def test_actions_are_drawn_by_their_probabilities() -> None:
    team = Team(1, 2, (3, 2), (4,), seed=1)
    team.flat_PW.normal_(generator=torch.Generator().manual_seed(0))
    seen = torch.ones(20_000, 1, 2)
    actions, logp = team.act(seen, torch.Generator().manual_seed(4))
    chances = [one[0, 0].exp() for one in team.logprobs(seen[:1])]
    for choice, size in enumerate((3, 2)):
        counted = np.bincount(actions[:, 0, choice].numpy(), minlength=3)[:size] / 20_000
        assert np.allclose(counted, chances[choice].numpy(), atol=0.015)
    assert torch.allclose(logp, of_actions(team.logprobs(seen), actions))


@pytest.mark.slow
def test_a_team_learns_to_save_its_houses() -> None:
    settings = PpoConfig(games=128, horizon=32, minibatch=2048, learning_rate=3e-3)
    task = _task("easy")
    learner = Learner(task.vectors(128, 1), settings, Seats((0, 1, 2, 3)), 1)
    first = np.mean(learner.iterate(300_000)[1].returns)
    while learner.steps < 300_000:
        _, played = learner.iterate(300_000)
    assert np.mean(played.returns) > first + 20
