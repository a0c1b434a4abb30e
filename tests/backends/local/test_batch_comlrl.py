"""The loss of CoMLRL 1.4.3 as our code takes it, against its formula written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pydantic import ValidationError

from orchestry.backends.local.batch import Batch, Packed, Sample, as_comlrl
from orchestry.backends.local.magrpo import group_advantages
from orchestry.backends.local.trainer import Crew
from orchestry.core.learning import LearnConfig
from tests.backends.local.teams import plain_logits, some_ids
from tests.backends.local.tiny import tiny_folder

PAD = 0
"""Of the tiny tokenizer."""
GROUPS = {
    some_ids(9, 1): {some_ids(n, n): r for n, r in ((3, 0.1), (7, 0.9), (1, 0.4), (5, 0.2))},
    some_ids(4, 2): {some_ids(n, n): r for n, r in ((6, 1.0), (2, 0.0), (4, 0.7), (8, 0.5))},
}
"""By prompt, answers with their returns."""


def crew(folder: Path, **settings: Any) -> Crew:
    """One agent, whose adapter differs from the base."""
    chosen = LearnConfig.model_validate({"threads": 1, "rank": 4, "alpha": 8, **settings})
    made = Crew(str(folder), {"writer": 0.8}, chosen, 0, print)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in made.adapters.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return made


def batch() -> Batch:
    """As `gather` gives it: normalised, nothing skipped."""
    samples = [
        Sample("writer", prompt, ids, (0.0,) * len(ids), advantage, group)
        for group, (prompt, answers) in enumerate(GROUPS.items())
        for ids, advantage in zip(
            answers, group_advantages(list(answers.values()), normalise=True), strict=True
        )
    ]
    return Batch(tuple(samples), {"writer": len(samples)})


def loss(made: Crew) -> Any:
    """Ours, in several micro-batches."""
    return torch.stack([part.loss for part in made.parts(batch(), 64, None)]).sum()


def gradients(made: Crew, whole: Any) -> list[Any]:
    found = torch.autograd.grad(whole, made.adapters.parameters(), retain_graph=True)
    return [gradient.clone() for gradient in found]


def written_out(made: Crew) -> Any:
    """Its update from two prompts: a mean of means, token by token."""
    total = torch.zeros(())
    for prompt, answers in GROUPS.items():
        worth = torch.tensor(list(answers.values()))
        advantage_G = worth - worth.mean()
        advantage_G = advantage_G / worth.std(unbiased=False)
        longest = max(map(len, answers))
        mine = torch.zeros(())
        for ids, advantage in zip(answers, advantage_G, strict=True):
            row = ids + (PAD,) * (longest - len(ids))
            logits = plain_logits(made.base, made.adapters, 0, prompt + row)
            for place in range(longest - 1):  # the last column is left out
                logprobs = logits[len(prompt) - 1 + place].log_softmax(-1)
                mine = mine - advantage * logprobs[row[place]]
        total = total + mine / len(answers)
    return total / len(GROUPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def test_gradients_are_those_of_the_formula_written_out(folder: Path) -> None:
    made = crew(folder, comlrl_compat=True, rewards="turns")
    ours, theirs = loss(made), written_out(made)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for one, other in zip(gradients(made, ours), gradients(made, theirs), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def test_without_the_switch_they_are_others(folder: Path) -> None:
    made = crew(folder)
    ours, theirs = loss(made), written_out(made)
    pairs = list(zip(gradients(made, ours), gradients(made, theirs), strict=True))
    apart = sum(float((one - other).square().sum()) for one, other in pairs)
    assert apart > 0.01 * sum(float(other.square().sum()) for _, other in pairs)


def test_padding_is_trained_and_the_last_column_is_not() -> None:
    group = Packed(0, (5,), ((6, 7, 8), (9,)))
    assert as_comlrl([group], [1.0, -1.0], PAD) == (
        [Packed(0, (5,), ((6, 7), (9, PAD)))],
        [1.0, -1.0],
    )


def test_a_group_of_single_tokens_falls_out_with_its_advantages() -> None:
    short, long = Packed(0, (5,), ((6,), (7,))), Packed(0, (8,), ((9, 10),))
    found = as_comlrl([short, long], [1.0, -1.0, 0.5], PAD)
    assert found == ([Packed(0, (8,), ((9,),))], [0.5])


def test_it_sums_the_scores_of_all_stages() -> None:
    with pytest.raises(ValidationError, match=r"set learn\.rewards=turns"):
        LearnConfig.model_validate({"comlrl_compat": True})


@pytest.mark.parametrize("other", [{"reduce": "mean"}, {"kl": 0.1}])
def test_options_that_would_change_it_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="replaces the loss: leave out reduce, baseline"):
        LearnConfig.model_validate({"comlrl_compat": True, **other})
