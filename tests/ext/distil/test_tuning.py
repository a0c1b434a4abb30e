"""Fine-tuning: its gradient beside torch's cross-entropy, the best epoch, few and many targets."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor

from orchestry.backends.local.trainer import Trainer
from orchestry.core.learning import LearnConfig
from orchestry.core.types import Member
from orchestry.ext.distil.tuning import (
    Epoch,
    Imitation,
    Pair,
    Preferences,
    Target,
    Tuning,
    answers,
    preferences,
)
from tests.backends.letters import ROLES

pytestmark = pytest.mark.usefixtures("one_thread")


def team(model: str, **settings: object) -> Trainer:
    chosen = LearnConfig.model_validate({"threads": 1, "rank": 4, "alpha": 8, **settings})
    return Trainer(
        {role: Member(role, role[0], model, 8, temperature=1.0) for role in ROLES},
        chosen,
        1,
        0,
        warn=print,
    )


def some(count: int, seed: int, roles: Sequence[str] = ROLES) -> list[Target]:
    """Targets of different lengths; some share their prompt."""
    rng = random.Random(seed)
    prompts = [tuple(rng.choices(range(3, 250), k=rng.randint(2, 20))) for _ in range(count)]
    return [
        Target(
            rng.choice(roles),
            rng.choice(prompts),
            tuple(rng.choices(range(3, 250), k=rng.randint(1, 12))),
        )
        for _ in range(count)
    ]


def gradients(made: Trainer) -> list[Tensor]:
    weights = [weight for crew in made.crews for weight in crew.adapters.parameters()]
    found = [w.grad.clone() if w.grad is not None else torch.zeros_like(w) for w in weights]
    for weight in weights:
        weight.grad = None
    return found


def stirred(made: Trainer) -> Trainer:
    """B is not zero, so that A has a gradient too."""
    with torch.no_grad():
        torch.manual_seed(3)
        for crew in made.crews:
            for weight in crew.adapters.parameters():
                weight.add_(0.1 * torch.randn(weight.shape))
    return made


@pytest.mark.parametrize("seed", range(3))
def test_its_gradient_is_that_of_cross_entropy(model: str, seed: int) -> None:
    made, targets = stirred(team(model, micro_tokens=64)), some(9, seed)
    (crew,) = made.crews
    batch = answers(targets)
    for part in crew.parts(batch, 64, None):
        made.optimizer.backward(part.loss)
    ours, loss = gradients(made), made.loss(batch)
    expected = 0.0
    for number, role in enumerate(ROLES):
        mine = [one for one in targets if one.agent == role]
        tokens = sum(len(one.ids) for one in mine)
        for one in mine:
            ids = torch.tensor([[*one.prompt_ids, *one.ids]])
            labels = ids.clone()
            labels[0, : len(one.prompt_ids)] = -100
            with crew.adapters.rows(number):
                logits = crew.base.model(ids).logits
            found = torch.nn.functional.cross_entropy(
                logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum"
            )
            (found / tokens).backward()
            expected += found.item() / tokens
    assert loss == pytest.approx(expected, rel=1e-5)
    theirs = gradients(made)
    difference = torch.cat([(a - b).flatten() for a, b in zip(ours, theirs, strict=True)]).norm()
    assert difference / torch.cat([g.flatten() for g in theirs]).norm() < 1e-5


def test_it_learns_and_keeps_the_best_epoch(model: str) -> None:
    made, targets = team(model, learning_rate=0.02), some(8, 0)
    elsewhere = [Target(one.agent, one.prompt_ids, one.ids[::-1]) for one in some(6, 1)]
    told: list[Epoch] = []
    before = {role: made.loss(answers([t for t in targets if t.agent == role])) for role in ROLES}
    steps: list[tuple[int, int]] = []
    tuned = Tuning(
        made,
        Imitation(made),
        targets,
        elsewhere,
        epochs=30,
        batch=2,
        seed=0,
        told=told.append,
        stepped=lambda *x: steps.append(x),
    ).run()
    assert tuple(told) == tuned.epochs
    most = max(sum(t.agent == role for t in targets) for role in ROLES)
    assert steps[0] == (1, 30 * -(-most // 2))
    assert [done for done, _ in steps] == [*range(1, len(steps) + 1)]
    for role in ROLES:
        kept = tuned.kept[role]
        curve = {one.number: one.held_out[role] for one in told if role in one.held_out}
        assert curve[kept] == min(curve.values())
        assert max(curve) == kept + 1  # it stopped at once
        mine = [t for t in elsewhere if t.agent == role]
        assert made.loss(answers(mine)) == pytest.approx(curve[kept], rel=1e-6)
        assert tuned.held_out(role) == (curve[0], curve[kept])
    after = {role: made.loss(answers([t for t in targets if t.agent == role])) for role in ROLES}
    assert any(tuned.kept.values())
    assert all(after[role] < before[role] for role in ROLES if tuned.kept[role])


def test_without_held_out_targets_all_epochs_are_learned(model: str) -> None:
    made, targets = team(model, learning_rate=0.05), some(5, 0, ROLES[:1])
    before = made.loss(answers(targets))
    right = [weight.clone() for weight in made.crews[0].adapters.parameters(1)]
    tuned = Tuning(made, Imitation(made), targets, [], epochs=8, batch=2, seed=0).run()
    assert tuned.kept == {"left": 8, "right": 0}
    assert (tuned.held_out("left"), tuned.held_out("right")) == (None, None)
    assert made.loss(answers(targets)) < 0.8 * before
    after = made.crews[0].adapters.parameters(1)
    assert all(torch.equal(a, b) for a, b in zip(right, after, strict=True))


def test_agents_that_share_an_adapter_stop_together(model: str) -> None:
    made = team(model, learning_rate=0.05, shared=True)
    tuned = Tuning(made, Imitation(made), some(8, 0), some(6, 1), epochs=6, batch=8, seed=0).run()
    assert tuned.kept["left"] == tuned.kept["right"]


def test_equal_arguments_give_equal_weights(model: str) -> None:
    found = []
    for _ in range(2):
        made = team(model, learning_rate=0.01, dropout=0.1)
        Tuning(made, Imitation(made), some(8, 0), some(4, 1), epochs=2, batch=3, seed=5).run()
        found.append([weight.detach().clone() for weight in made.crews[0].adapters.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# --- preferences --------------------------------------------------------------------------------


def pairs(count: int, seed: int) -> list[Pair]:
    """Some share their prompt."""
    found = some(count, seed)
    return [
        Pair(one, Target(one.agent, one.prompt_ids, one.ids[::-1] + (7,) * (place % 3 + 1)))
        for place, one in enumerate(found)
    ]


@pytest.mark.parametrize("seed", range(2))
def test_log_probabilities_come_in_the_order_asked(model: str, seed: int) -> None:
    made, targets = stirred(team(model, micro_tokens=64)), some(9, seed)
    batch = answers(targets)
    for sample, found in zip(batch.samples, made.logprobs(batch.samples), strict=True):
        alone = Target(sample.agent, sample.prompt_ids, sample.ids)
        assert found == pytest.approx(-len(alone.ids) * made.loss(answers([alone])), rel=1e-5)


def test_preferences_start_at_log_2_and_are_learned(model: str) -> None:
    made, learned, held_out = team(model, learning_rate=0.01), pairs(8, 0), pairs(5, 1)
    method = Preferences(made, [*learned, *held_out], beta=0.5)
    assert method.loss(held_out) == pytest.approx(math.log(2.0))
    assert max(map(abs, method.margins(learned))) < 1e-5
    tuned = Tuning(made, method, learned, [], epochs=6, batch=4, seed=0).run()
    assert tuned.epochs[-1].loss is not None
    assert method.loss(learned) < 0.5
    assert min(method.margins(learned)) > 0.0


def test_weights_of_preferences_are_bounded_and_even() -> None:
    found = preferences(pairs(4, 0), [0.0, 1e4, -1e4, 2.0], beta=0.1)
    weights = [sample.advantage for sample in found.samples]
    assert weights[::2] == [-weight for weight in weights[1::2]]
    assert weights[::2] == pytest.approx([0.05, 0.0, 0.1, 0.1 / (1 + math.exp(0.2))])
    assert sum(found.actions.values()) == 4
