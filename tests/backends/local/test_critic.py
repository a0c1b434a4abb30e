"""The learned critic: GAE's maths, its regression beside autograd, and runs that go on exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import orchestry
from orchestry.backends.local.batch import gather
from orchestry.backends.local.critic import STEPS, Critic, value_loss
from orchestry.backends.local.magrpo import gae, returns
from orchestry.backends.local.values import State, by_tree, explained, rated
from orchestry.core.errors import ConfigError, StoreError
from orchestry.core.learning import LearnConfig
from orchestry.core.types import ROOT, Member, Trajectory
from orchestry.engine.run import resume
from orchestry.rollout.schedule import Chains
from tests.backends.letters import EVERY, artefacts, config, learned, trainer
from tests.backends.local.test_batch import Rounds, Trio, paid, paths, play, total
from tests.backends.local.tiny import tiny_folder, tiny_tokenizer
from tests.toys import Duo, Words

pytestmark = pytest.mark.usefixtures("one_thread")


def advantages(
    rewards: Sequence[float], values: Sequence[float], discount: float, trace: float
) -> list[float]:
    """Of a chain's stages."""
    found, after, ahead = list[float](), 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        ahead = gae(reward, value, after, ahead, discount, trace)
        after = value
        found.append(ahead)
    return found[::-1]


NUMBERS = st.lists(st.tuples(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0)), min_size=1, max_size=8)
SHARE = st.floats(0.0, 1.0)


# --- GAE ------------------------------------------------------------------------------------------


@given(NUMBERS, SHARE)
def test_a_trace_of_1_gives_the_return_minus_the_value(
    pairs: list[tuple[float, float]], discount: float
) -> None:
    rewards, values = zip(*pairs, strict=True)
    expected = [r - v for r, v in zip(returns(rewards, discount), values, strict=True)]
    assert advantages(rewards, values, discount, 1.0) == pytest.approx(expected, abs=1e-9)


@given(NUMBERS, SHARE)
def test_a_trace_of_0_gives_the_error_of_one_step(
    pairs: list[tuple[float, float]], discount: float
) -> None:
    rewards, values = zip(*pairs, strict=True)
    errors = [
        r + discount * after - v
        for r, v, after in zip(rewards, values, (*values[1:], 0.0), strict=True)
    ]
    assert advantages(rewards, values, discount, 0.0) == pytest.approx(errors, abs=1e-9)


@given(NUMBERS, SHARE, SHARE)
def test_it_is_the_sum_of_discounted_errors(
    pairs: list[tuple[float, float]], discount: float, trace: float
) -> None:
    rewards, values = zip(*pairs, strict=True)
    errors = advantages(rewards, values, discount, 0.0)
    expected = [
        sum((discount * trace) ** (s - t) * errors[s] for s in range(t, len(errors)))
        for t in range(len(errors))
    ]
    assert advantages(rewards, values, discount, trace) == pytest.approx(expected, abs=1e-9)


# --- which states, which advantages ---------------------------------------------------------------


@pytest.mark.parametrize("task", [Words, Rounds, Duo, Trio])
@pytest.mark.parametrize("rewards", ["differences", "turns", "final"])
def test_advantages_are_those_of_the_chains(task: Any, rewards: Any) -> None:
    tree = play(task(), Chains(4), 3)
    states = rated([tree], rewards, 0.9)
    values = [0.01 * len(state.ids) for state in states]
    found = gather(
        [tree], rewards=rewards, discount=0.9, skip=False,
        values=by_tree(states, values, 1), trace=0.5,
    )  # fmt: skip
    known, expected = by_tree(states, values, 1)[0], []
    for chain in paths(tree):
        scores = [total(node) for node in chain]
        before = [ROOT, *(node.id for node in chain[:-1])]
        own = advantages(paid(scores, rewards), [known[id] for id in before], 0.9, 0.5)
        acted = 0
        for node, advantage in zip(chain, own, strict=True):
            expected += [(turn.agent, advantage) for turn in node.turns[acted:]]
            acted = len(node.turns)
    actual = sorted((one.agent, one.advantage) for one in found.samples)
    assert [agent for agent, _ in actual] == [agent for agent, _ in sorted(expected)]
    wanted = [advantage for _, advantage in sorted(expected)]
    assert [advantage for _, advantage in actual] == pytest.approx(wanted, abs=1e-12)


def test_a_state_holds_what_all_agents_saw_and_said() -> None:
    tree = play(Words(), Chains(3), 2)
    states = {state.id: state for state in rated([tree], "final", 1.0)}
    chain: list[Trajectory[Any]] = paths(tree)[0]
    writer, reviewer = (turn.completion.tokens for turn in chain[1].turns[:2])
    assert writer is not None
    assert reviewer is not None
    assert states[ROOT].ids == writer.prompt_ids
    assert states[chain[0].id].ids == writer.prompt_ids + writer.ids + reviewer.prompt_ids
    assert (states[ROOT].samples, states[chain[0].id].samples) == (3, 1)
    ends = [total(each[-1]) for each in paths(tree)]
    assert states[ROOT].target == pytest.approx(sum(ends) / 3)


def test_combined_actions_have_the_mean_of_their_advantages() -> None:
    tree = play(Duo(), Chains(2, "cross"), 1)
    states = rated([tree], "final", 1.0)
    (values,) = by_tree(states, [0.25] * len(states), 1)
    found = gather([tree], joint="cross", rewards="final", skip=False, values=[values])
    plain = gather([tree], joint="cross", rewards="final", skip=False)
    gaps = {a.advantage - b.advantage for a, b in zip(found.samples, plain.samples, strict=True)}
    assert max(gaps) - min(gaps) < 1e-12  # one baseline for all, as there is one state


def test_explained_variance() -> None:
    assert explained([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert explained([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == 0.0
    assert explained([1.0, 1.0], [0.0, 9.0]) == 0.0
    assert explained([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == -3.0


# --- the regression -------------------------------------------------------------------------------


def states_of(*lengths: int) -> list[State]:
    return [
        State(tuple(range(2, 2 + length)), 0.1 * n, n + 1, 0, ROOT.child(n))
        for n, length in enumerate(lengths)
    ]


def critic(model: str, micro_tokens: int = 64, **settings: Any) -> Critic:
    made = trainer(model)
    (crew,) = made.crews
    chosen = made._settings.model_copy(
        update={"critic_rate": 0.02, "max_grad_norm": 1e9, **settings}
    )
    found = Critic(crew.adapters, chosen, 0, micro_tokens, print)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in found.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return found


def test_its_gradient_is_that_of_the_squared_error_one_state_at_a_time(model: str) -> None:
    made, states = critic(model, micro_tokens=24), states_of(5, 12, 3, 9)
    made._backward(states, 24)
    found = [weight.grad.clone() for weight in made.parameters() if weight.grad is not None]
    made._optimizer.drop()
    total = sum(state.samples for state in states)
    errors = [state.samples * (made._values([state]) - state.target) ** 2 for state in states]
    loss = torch.stack(errors).sum() / (2 * total)
    expected = torch.autograd.grad(loss, made.parameters())
    assert len(found) == len(expected)
    gaps = [(one - other).norm() for one, other in zip(found, expected, strict=True)]
    norm = torch.stack([one.norm() for one in expected]).norm()
    assert torch.stack(gaps).norm() < 1e-6 * norm


def test_the_loss_of_parts_adds_up_and_its_slope_is_the_error() -> None:
    values = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    targets, weights = torch.tensor([0.0, 1.0, 2.5]), torch.tensor([1.0, 2.0, 1.0])
    whole = value_loss(values, targets, weights, 4.0)
    parts = [value_loss(values[i : i + 1], targets[i : i + 1], weights[i : i + 1], 4.0)
             for i in range(3)]  # fmt: skip
    assert whole.item() == pytest.approx(sum(part.item() for part in parts))
    (slope,) = torch.autograd.grad(whole, values)
    assert slope.tolist() == pytest.approx([0.5 / 4, 2 * -2.0 / 4, -0.5 / 4])


@pytest.mark.slow
def test_it_learns_what_states_are_worth_and_leaves_the_agents_as_they_are(model: str) -> None:
    made, states = critic(model, micro_tokens=1024), states_of(5, 12, 3, 9)
    before = [weight.detach().clone() for weight in made._agents.parameters()]
    first = made.learn(states, made.values(states))
    for _ in range(30):
        last = made.learn(states, made.values(states))
    assert last["value_loss"] < 0.05 * first["value_loss"]
    assert last["value_explained"] > 0.9 > first["value_explained"]
    assert all(map(torch.equal, before, made._agents.parameters()))


def test_the_first_estimate_is_the_mean_return(model: str) -> None:
    made = trainer(model)
    fresh = Critic(made.crews[0].adapters, made._settings, 0, 64, print)
    states = states_of(5, 12, 3)
    mean = sum(s.target * s.samples for s in states) / sum(s.samples for s in states)
    assert fresh.values(states) == pytest.approx([mean] * 3)


def test_a_history_longer_than_the_context_keeps_its_end(model: str) -> None:
    made = critic(model)
    most = made.base.context
    ids = tuple(2 + n % 50 for n in range(most + 30))
    long = State(ids, 0.0, 1, 0, ROOT)
    assert made.values([long]) == made.values([State(ids[-most:], 0.0, 1, 0, ROOT)])
    assert made.values([State((), 0.0, 1, 0, ROOT)])  # every prompt was too long


def test_the_agents_logprobs_do_not_see_the_critic(model: str) -> None:
    plain, beside = trainer(model), trainer(model)
    Critic(beside.crews[0].adapters, beside._settings, 0, 64, print)
    ids = torch.tensor([[3, 4, 5]])
    logits = []
    for made in (plain, beside):
        crew = made.crews[0]
        with torch.no_grad(), crew.adapters.rows(0):
            logits.append(crew.base.model(ids).logits)
    assert torch.equal(*logits)


# --- runs -----------------------------------------------------------------------------------------

CRITIC = ("learn.baseline=critic", "learn.critic_rate=0.01")


@pytest.mark.slow
def test_a_run_with_a_critic_in_two_parts_equals_a_whole_one(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    whole = orchestry.train(config(model, tasks, *CRITIC, "episodes=12"), tmp_path / "whole")
    part = orchestry.train(config(model, tasks, *CRITIC, "episodes=6"), tmp_path / "part")
    resume(part.folder, {"episodes": 12})
    assert artefacts(part.folder) == artefacts(whole.folder)
    states = [event.state for event in learned(whole)]
    assert all(state["value_loss"] > 0 for state in states)
    saved = [torch.load(folder / "checkpoints/000012/critic.pt") for folder in
             (whole.folder, part.folder)]  # fmt: skip
    assert str(saved[0]) == str(saved[1])
    assert saved[0]["optimizer"]["update"] == 3 * STEPS
    (whole.folder / "checkpoints/000012/critic.pt").write_bytes(b"damaged")
    with pytest.raises(StoreError, match=r"critic\.pt"):
        resume(whole.folder, {"episodes": 16})


def test_single_trajectories_teach_and_the_team_is_played_without_its_critic(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    one = ("learn.group_size=1", f"episodes={EVERY}")
    run = orchestry.train(config(model, tasks, *CRITIC, *one), tmp_path / "run")
    (update,) = learned(run)
    assert update.state["samples"] > 0
    assert orchestry.evaluate(run).rewards


@pytest.mark.parametrize("extra", ["learn.gradient_checkpointing=true", "learn.shared=true"])
def test_other_options_go_with_a_critic(
    extra: str, model: str, tasks: Path, tmp_path: Path
) -> None:
    chosen = config(model, tasks, *CRITIC, extra, f"episodes={EVERY}")
    (update,) = learned(orchestry.train(chosen, tmp_path / "run"))
    assert update.state["value_loss"] > 0


def test_it_reads_all_agents_tokens_so_their_bases_need_one_tokenizer(
    model: str, tmp_path: Path
) -> None:
    """Else it would read other words than were said, or ids that its base does not have."""
    from orchestry.backends.local.trainer import Trainer

    chosen = LearnConfig.model_validate({"threads": 1, "rank": 4, "baseline": "critic"})

    def made(other: Path) -> Trainer:
        bases = {"left": model, "right": str(other)}
        team = {role: Member(role, role[0], base, 8) for role, base in bases.items()}
        return Trainer(team, chosen, 1, 0, warn=print)

    assert made(tiny_folder(tmp_path / "alike", seed=1)).critic is not None
    other = tiny_folder(tmp_path / "other", seed=1)
    strange: Any = tiny_tokenizer()
    strange.add_tokens(["another"])
    strange.save_pretrained(other)
    with pytest.raises(ConfigError, match="one tokenizer"):
        made(other)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("learn.baseline=critic", "learn.grouping=agent"), "learn.grouping=agent: leave it out"),
        (("learn.baseline=critic", "learn.normalise=true"), "learn.normalise=True: leave it out"),
        (
            ("learn.baseline=critic", "learn.credit=replay", "learn.rewards=final"),
            "learn.baseline=critic: set it to mean",
        ),
        (("learn.baseline=critic", "learn.comlrl_compat=true"), "replaces the loss"),
        (("learn.gae_lambda=0.5",), "gae_lambda=0.5 is of the critic"),
        (("learn.critic_rate=0.1",), "critic_rate=0.1 is of the critic"),
        (("learn.baseline=critic", "learn.gae_lambda=1.5"), "gae_lambda"),
    ],
)
def test_what_makes_no_sense_is_refused(
    sets: tuple[str, ...], message: str, model: str, tasks: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(model, tasks, *sets)
