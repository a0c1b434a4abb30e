"""The team's AdamW: warm-up, clipping, accumulation, what is not finite, exact resume."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Mapping, Sequence

import pytest

from orchestry.core.errors import LearnError

pytest.importorskip("torch")

import torch

from orchestry.backends.local.magrpo import policy_loss
from orchestry.backends.local.optimizer import Decay, Step, TeamOptimizer, warm_up

AGENTS = ("helper", "main")
Parameters = dict[str, list[torch.nn.Parameter]]


def parameters(seed: int = 0) -> Parameters:
    """Two tensors an agent."""
    generator = torch.Generator().manual_seed(seed)
    return {
        agent: [
            torch.nn.Parameter(torch.randn(*shape, generator=generator)) for shape in ((2, 3), (3,))
        ]
        for agent in AGENTS
    }


def loss(mine: Sequence[torch.Tensor], data: torch.Tensor) -> torch.Tensor:
    """Minus a log-likelihood that both tensors matter to."""
    weight, bias = mine
    return -torch.log_softmax(data @ weight + bias, -1)[:, 0].mean()


def data(update: int) -> torch.Tensor:
    return torch.randn(4, 2, generator=torch.Generator().manual_seed(100 + update))


def train(team: Parameters, optimizer: TeamOptimizer, updates: range) -> list[Step]:
    steps = []
    for update in updates:
        for mine in team.values():
            optimizer.backward(loss(mine, data(update)))
        steps.append(optimizer.step())
    return steps


def values(team: Mapping[str, Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return [parameter.detach().clone() for mine in team.values() for parameter in mine]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("updates", "warm"), [(5, 0), (62, 6), (1000, 100), (5000, 100)])
def test_warm_up_takes_a_tenth_of_the_updates_and_at_most_100(updates: int, warm: int) -> None:
    assert warm_up(updates) == warm


def test_the_rate_rises_linearly_and_stays() -> None:
    team = parameters()
    optimizer = TeamOptimizer(team, rate=0.1, updates=40)
    rates = [step.rate for step in train(team, optimizer, range(7))]
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1, 0.1])


def rates(decay: Decay, updates: int, of: int) -> list[float]:
    team = parameters()
    optimizer = TeamOptimizer(team, rate=1.0, updates=of, decay=decay)
    return [step.rate for step in train(team, optimizer, range(updates))]


def test_the_rate_falls_after_the_warm_up() -> None:
    rise = [0.5, 1.0]  # a tenth of 20 updates
    linear, cosine = rates("linear", 20, 20), rates("cosine", 20, 20)
    assert linear == pytest.approx([*rise, *(1 - n / 18 for n in range(18))])
    assert cosine == pytest.approx(
        [*rise, *((1 + math.cos(math.pi * n / 18)) / 2 for n in range(18))]
    )
    assert 0 < cosine[-1] < linear[-1] < 0.06
    assert rates("none", 20, 20)[2:] == [1.0] * 18


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_decaying_rate_goes_on_exactly_and_over_the_updates_of_an_extended_run(
    decay: Decay,
) -> None:
    whole = rates(decay, 20, 20)
    team = parameters()
    first = TeamOptimizer(team, rate=1.0, updates=20, decay=decay)
    train(team, first, range(9))
    for updates in (20, 40):
        second = TeamOptimizer(team, rate=1.0, updates=updates, decay=decay)
        second.load_state_dict(first.state_dict())
        steps = [step.rate for step in train(team, second, range(9, updates))]
        assert sorted(steps, reverse=True) == steps
        if updates == 20:
            assert steps == whole[9:]
        else:
            assert steps[0] > whole[8]  # where the longer run is
            assert 0 < steps[-1] < 0.06


def test_the_rate_that_is_reported_is_the_rate_of_the_step() -> None:
    """AdamW's first step is the rate times the gradient's sign."""
    team = parameters()
    before = values(team)
    optimizer = TeamOptimizer(team, rate=0.1, updates=40)
    (step,) = train(team, optimizer, range(1))
    for old, new in zip(before, values(team), strict=True):
        torch.testing.assert_close((new - old).abs(), torch.full_like(old, step.rate))


def test_without_warm_up_the_first_update_is_a_plain_adamw_step() -> None:
    team, plain = parameters(), parameters()
    train(team, TeamOptimizer(team, rate=0.1, updates=5, max_norm=1e9), range(3))
    adamw = torch.optim.AdamW(
        [p for mine in plain.values() for p in mine], lr=0.1, weight_decay=0.0
    )
    for update in range(3):
        adamw.zero_grad()
        for mine in plain.values():
            torch.autograd.backward(loss(mine, data(update)))
        adamw.step()
    assert same(values(team), values(plain))


def test_each_agents_gradient_is_clipped_by_itself() -> None:
    one, other = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = TeamOptimizer({"a": [one], "b": [other]}, rate=1.0, updates=1)
    seen: dict[str, list[float]] = {}

    def watch(adamw: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        for name, parameter in (("a", one), ("b", other)):
            assert parameter.grad is not None
            seen[name] = parameter.grad.tolist()

    optimizer._adamw.register_step_pre_hook(watch)
    optimizer.backward((one * torch.tensor([30.0, 40.0])).sum())
    optimizer.backward((other * torch.tensor([0.57, 0.76])).sum())
    step = optimizer.step()
    assert step.norms == pytest.approx({"a": 50.0, "b": 0.95})
    assert seen["a"] == pytest.approx([0.6, 0.8])  # of norm 1
    assert seen["b"] == pytest.approx([0.57, 0.76])  # beside a spike of another, as alone


def test_micro_batches_add_up_to_one_big_batch() -> None:
    advantages_G = [0.5, -0.25, 0.75, -1.0, 0.0]

    def play(parts: list[slice], seed: int = 3) -> list[torch.Tensor]:
        table = torch.nn.Parameter(
            torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        )
        answers = [[0, 1, 2], [3], [4, 5], [1, 1, 1, 2], [0]]
        optimizer = TeamOptimizer({"a": [table]}, rate=0.1, updates=10)
        for _ in range(3):
            for part in parts:
                rows = [table.log_softmax(0)[ids] for ids in answers[part]]
                optimizer.backward(policy_loss(rows, advantages_G[part], actions=5))
            optimizer.step()
        return [table.detach()]

    (whole,), (split,) = play([slice(0, 5)]), play([slice(0, 2), slice(2, 3), slice(3, 4)])
    torch.testing.assert_close(split, whole, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_moves_no_weight(bad: float) -> None:
    team = parameters()
    optimizer = TeamOptimizer(team, rate=0.1, updates=10)
    train(team, optimizer, range(2))
    before, state = values(team), copy.deepcopy(optimizer.state_dict())
    optimizer.backward(loss(team["main"], data(2)))
    with pytest.raises(LearnError, match=rf"the loss of step 3 is {bad}: no weight has moved"):
        optimizer.backward(loss(team["helper"], data(2)) * bad)
    assert same(values(team), before)
    assert all(parameter.grad is None for mine in team.values() for parameter in mine)
    now = optimizer.state_dict()
    assert now["update"] == state["update"]
    torch.testing.assert_close(now["adamw"]["state"], state["adamw"]["state"], rtol=0.0, atol=0.0)


def test_a_gradient_that_is_not_finite_names_its_agent_and_moves_no_weight() -> None:
    team = parameters()
    optimizer = TeamOptimizer(team, rate=0.1, updates=10)
    train(team, optimizer, range(2))
    before = values(team)
    optimizer.backward(loss(team["helper"], data(2)))
    optimizer.backward(team["main"][1].sub(team["main"][1].detach()).abs().sqrt().sum())  # 0 * inf
    with pytest.raises(LearnError, match="the gradient of main in step 3 is nan: no weight"):
        optimizer.step()
    assert same(values(team), before)
    assert optimizer.update == 2
    train(team, optimizer, range(2, 3))  # and nothing of it stays behind
    assert all(torch.isfinite(value).all() for value in values(team))


@pytest.mark.parametrize("how", ["none", "zero"])
def test_an_agent_without_a_gradient_stays_where_it_is(how: str) -> None:
    team = parameters()
    optimizer = TeamOptimizer(team, rate=0.1, updates=10, weight_decay=0.1)
    train(team, optimizer, range(3))  # now it has momentum
    before, moments = values(team), copy.deepcopy(optimizer._adamw.state[team["main"][0]])
    optimizer.backward(loss(team["helper"], data(3)))
    if how == "zero":
        optimizer.backward(torch.stack([p.sum() for p in team["main"]]).sum() * 0.0)
    step = optimizer.step()
    assert step.norms["main"] == 0.0
    assert same(values(team)[2:], before[2:])
    assert not same(values(team)[:2], before[:2])
    torch.testing.assert_close(optimizer._adamw.state[team["main"][0]], moments, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(stop: int) -> None:
    team = parameters()
    train(team, TeamOptimizer(team, rate=0.05, updates=50), range(8))  # a warm-up of 5

    first = parameters()
    optimizer = TeamOptimizer(first, rate=0.05, updates=50)
    train(first, optimizer, range(stop))
    file = io.BytesIO()
    torch.save({"weights": values(first), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    second = parameters(seed=9)
    flat = [parameter for mine in second.values() for parameter in mine]
    with torch.no_grad():
        for parameter, value in zip(flat, saved["weights"], strict=True):
            parameter.copy_(value)
    resumed = TeamOptimizer(second, rate=0.05, updates=50)
    resumed.load_state_dict(saved["optimizer"])
    steps = train(second, resumed, range(stop, 8))
    assert same(values(second), values(team))
    assert [step.update for step in steps] == list(range(stop + 1, 9))


def test_the_state_of_another_team_is_refused() -> None:
    team = parameters()
    state = TeamOptimizer(team, rate=0.1, updates=1).state_dict()
    other = {"helper": team["helper"], "writer": team["main"]}
    with pytest.raises(LearnError, match=r"of agents helper; main .* than helper; writer have now"):
        TeamOptimizer(other, rate=0.1, updates=1).load_state_dict(state)
    swapped = {agent: mine[::-1] for agent, mine in team.items()}
    with pytest.raises(LearnError, match="resume with the config"):
        TeamOptimizer(swapped, rate=0.1, updates=1).load_state_dict(state)


def test_there_is_no_state_in_mid_update() -> None:
    team = parameters()
    optimizer = TeamOptimizer(team, rate=0.1, updates=1)
    optimizer.backward(loss(team["main"], data(0)))
    with pytest.raises(ValueError, match="an update is under way"):
        optimizer.state_dict()
    optimizer.drop()
    assert optimizer.state_dict()["update"] == 0


def test_agents_that_share_their_parameters_are_one() -> None:
    mine = parameters()["main"]
    optimizer = TeamOptimizer({"a": mine, "b": mine}, rate=0.1, updates=1)
    for agent in range(2):
        optimizer.backward(loss(mine, data(agent)))
    step = optimizer.step()
    assert step.norms["a"] == step.norms["b"] > 0.0
    with pytest.raises(ValueError, match="share all of them, or none"):
        TeamOptimizer({"a": mine, "b": mine[:1]}, rate=0.1, updates=1)


def test_the_norm_of_a_bfloat16_gradient_is_exact() -> None:
    many = torch.nn.Parameter(torch.zeros(4096, dtype=torch.bfloat16))
    optimizer = TeamOptimizer({"a": [many]}, rate=0.1, updates=1)
    optimizer.backward((many * 1.0078125).sum())
    assert optimizer.step().norms["a"] == pytest.approx(64 * 1.0078125, rel=1e-9)
