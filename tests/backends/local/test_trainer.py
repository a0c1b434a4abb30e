"""Steps of a small team, and checkpoints that a run goes on from to the last bit."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from orchestry.backends.local.batch import Batch, Packed, Sample
from orchestry.backends.local.logprobs import completion_logprobs
from orchestry.backends.local.sampler import Drawn, Prompt
from orchestry.backends.local.trainer import Trainer
from orchestry.core.errors import ConfigError, LearnError, PromptTooLong, StoreError
from orchestry.core.learning import LearnConfig
from orchestry.core.types import Member, Message, Request
from tests.backends.local.tiny import CONTEXT, tiny_folder

ROLES = ("left", "right")
TEMPERATURE = 0.8


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")))


def trainer(
    model: str,
    updates: int = 4,
    seed: int = 0,
    other: str | None = None,
    kind: type[Trainer] = Trainer,
    **settings: Any,
) -> Trainer:
    """Two agents on one base, or the right one on a base of its own."""
    chosen = {"threads": 1, "rank": 4, "alpha": 8, "learning_rate": 1e-2, **settings}
    bases = dict(zip(ROLES, (model, other or model), strict=True))
    team = {role: Member(role, "", base, 12, TEMPERATURE) for role, base in bases.items()}
    return kind(team, LearnConfig.model_validate(chosen), updates, seed, print)


def request(agent: str, seed: int, text: str = "say something", max_tokens: int = 12) -> Request:
    said = (Message(role="user", content=text),)
    return Request(
        agent=agent,
        purpose="act",
        model="tiny",
        messages=said,
        max_tokens=max_tokens,
        temperature=TEMPERATURE,
        seed=seed,
    )


def test_the_number_of_parameters_is_said(model: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    base = sum(each.numel() for each in load_file(Path(model, "model.safetensors")).values())
    made = trainer(model)
    made.save(tmp_path / "000001", keep=2)
    files = sorted((tmp_path / "000001").glob("*/adapter_model.safetensors"))
    own = [sum(each.numel() for each in load_file(file).values()) for file in files]
    assert len(own) == len(ROLES)
    said = f"{base:,} parameters in the base, and {sum(own):,} trained in adapters"
    assert made.sizes == said
    whole = trainer(model, method="full", rank=16, alpha=32)
    assert whole.sizes == f"{2 * base:,} parameters, of which {2 * base:,} are trained"


def batch_of(made: Trainer, seed: int = 0, n: int = 4, max_tokens: int = 12) -> Batch:
    """What the team draws now, each agent's even samples planted as good and odd ones as bad."""
    asked = [request(r, seed + place, max_tokens=max_tokens) for place, r in enumerate(ROLES)]
    samples = [
        Sample(
            agent=one.agent,
            prompt_ids=completion.tokens.prompt_ids,
            ids=completion.tokens.ids,
            logprobs=completion.tokens.logprobs,
            advantage=0.5 if index % 2 == 0 else -0.5,
            group=group,
        )
        for group, (one, drawn) in enumerate(zip(asked, made.draw(asked, n), strict=True))
        for index, completion in enumerate(drawn)
        if completion.tokens
    ]
    return Batch(tuple(samples), dict.fromkeys(ROLES, n))


def logprob(made: Trainer, sample: Sample) -> float:
    (crew,) = (crew for crew in made.crews if sample.agent in crew.roles)
    packed = Packed(crew.roles.index(sample.agent), sample.prompt_ids, (sample.ids,))
    with torch.no_grad():
        (found,) = completion_logprobs(crew.base, crew.adapters, [packed], TEMPERATURE)
    return float(found.sum())


def weights(made: Trainer) -> list[Any]:
    parameters = [weight for crew in made.crews for weight in crew.adapters.parameters()]
    return [weight.detach().clone() for weight in parameters]


def equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def states_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(states_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(states_equal, one, other))
    return bool(torch.equal(one, other)) if torch.is_tensor(one) else bool(one == other)


def test_a_step_makes_good_answers_likelier_and_bad_ones_less_so(model: str) -> None:
    made = trainer(model)
    batch = batch_of(made)
    before = [logprob(made, sample) for sample in batch.samples]
    assert before == pytest.approx([sum(s.logprobs) for s in batch.samples], abs=1e-4)
    done = made.learn(batch)
    gains = [logprob(made, s) - b for s, b in zip(batch.samples, before, strict=True)]
    for role in ROLES:
        mine = [(s, gain) for s, gain in zip(batch.samples, gains, strict=True) if s.agent == role]
        assert sum(gain for s, gain in mine if s.advantage > 0) > 0.1
        assert sum(gain for s, gain in mine if s.advantage < 0) < -0.1
    expected = -sum(s.advantage * b for s, b in zip(batch.samples, before, strict=True)) / 4
    assert done.loss == pytest.approx(expected, abs=1e-4)
    assert (done.samples, done.skipped, done.step.update) == (8, 0, 1)
    assert done.tokens == sum(len(sample.ids) for sample in batch.samples)
    assert all(norm > 0 for norm in done.step.norms.values())
    assert not any(crew.base.model.training for crew in made.crews)


@pytest.mark.parametrize("micro_tokens", [64, 4096])
def test_answers_of_unequal_lengths_are_learned_from_to_their_end_and_no_further(
    model: str, micro_tokens: int
) -> None:
    """With its EOS left out, or with padding behind it, an answer adds another number."""
    made = trainer(model, micro_tokens=micro_tokens)
    end, drawn = made.crews[0].base.tokenizer.eos_token_id, batch_of(made)
    lengths = (0, 9, 3, 6) * len(ROLES)
    samples = [
        replace(sample, ids=(*sample.ids[:length], end))
        for sample, length in zip(drawn.samples, lengths, strict=True)
    ]
    expected = -sum(sample.advantage * logprob(made, sample) for sample in samples) / 4
    done = made.learn(Batch(tuple(samples), drawn.actions))
    assert done.loss == pytest.approx(expected, abs=1e-4)
    assert done.tokens == sum(lengths) + len(lengths)


def test_only_the_agent_that_has_something_to_learn_moves(model: str) -> None:
    made = trainer(model)
    batch = batch_of(made)
    mine = Batch(tuple(s for s in batch.samples if s.agent == "right"), batch.actions)
    before = weights(made)
    done = made.learn(mine)
    half = len(before) // 2
    assert equal(weights(made)[:half], before[:half])
    assert not equal(weights(made)[half:], before[half:])
    assert (done.step.norms["left"], done.skipped) == (0.0, 4)


def test_micro_batches_come_to_the_same_step(model: str) -> None:
    whole, parts = trainer(model), trainer(model, micro_tokens=64)
    batch = batch_of(whole)
    one, other = whole.learn(batch), parts.learn(batch)
    assert other.loss == pytest.approx(one.loss, abs=1e-5)
    assert other.step.norms == pytest.approx(dict(one.step.norms), rel=1e-4)


def test_at_rate_zero_no_bit_of_an_adapter_changes(model: str) -> None:
    made = trainer(model, learning_rate=0.0, dropout=0.1)
    before = weights(made)
    for update in range(2):
        done = made.learn(batch_of(made, seed=10 * update))
    assert all(norm > 0 for norm in done.step.norms.values())
    assert equal(weights(made), before)


def test_a_batch_without_actions_moves_nothing_and_counts(model: str) -> None:
    made = trainer(model)
    before = weights(made)
    done = made.learn(Batch((), dict.fromkeys(ROLES, 4)))
    assert (done.samples, done.skipped, done.loss, done.step.update) == (0, 8, 0.0, 1)
    assert equal(weights(made), before)


def test_who_resumes_goes_on_as_if_nothing_had_happened(model: str, tmp_path: Path) -> None:
    """With warm-up and dropout, which depend on the number of the update."""
    settings: dict[str, Any] = {"updates": 40, "dropout": 0.1}
    whole = trainer(model, **settings)
    for update in range(2):
        whole.learn(batch_of(whole, seed=update))
    whole.save(tmp_path / "000008", keep=3)
    resumed = trainer(model, **settings)
    resumed.resume(tmp_path / "000008")
    for made in (whole, resumed):
        for update in (2, 3):
            done = made.learn(batch_of(made, seed=update))
        assert done.step.update == 4
        assert done.step.rate == 1e-2
    assert equal(weights(whole), weights(resumed))
    assert states_equal(whole.optimizer.state_dict(), resumed.optimizer.state_dict())
    assert whole.draw([request("left", 5)], 2) == resumed.draw([request("left", 5)], 2)


def test_a_method_that_processes_take_together_calls_no_other_of_them(
    model: str, tmp_path: Path
) -> None:
    """ParallelTrainer tells the others of every call, and a second one inside would never end."""
    called = list[str]()

    class Told(Trainer):
        def start_from(self, folder: Path, any_base: bool = False, roles: Any = None) -> None:
            called.append("start_from")
            super().start_from(folder, any_base, roles)

        def resume(self, folder: Path) -> None:
            called.append("resume")
            super().resume(folder)

    trainer(model).save(tmp_path / "000000", keep=3)
    made = trainer(model, kind=Told)
    made.resume(tmp_path / "000000")
    made.start_from(tmp_path / "000000")
    assert called == ["resume", "start_from"]


def test_without_the_optimizer_a_run_would_go_on_otherwise(model: str, tmp_path: Path) -> None:
    """`learn.from` takes the adapters only: count, warm-up and moments begin anew."""
    whole = trainer(model)
    whole.learn(batch_of(whole))
    whole.save(tmp_path / "000008", keep=3)
    fresh = trainer(model, seed=9)
    assert not equal(weights(fresh), weights(whole))
    fresh.start_from(tmp_path / "000008")
    assert equal(weights(fresh), weights(whole))
    assert fresh.optimizer.update == 0
    assert fresh.optimizer.state_dict()["adamw"]["state"] == {}
    batch = batch_of(whole, seed=1)
    whole.learn(batch)
    fresh.learn(batch)
    assert not equal(weights(fresh), weights(whole))


def test_a_half_written_checkpoint_does_no_harm(model: str, tmp_path: Path) -> None:
    """A kill may leave a `.part`, or a whole folder that the journal does not name yet."""
    made = trainer(model)
    for name in ("000008.part", "000008"):
        (tmp_path / name / "left").mkdir(parents=True)
        (tmp_path / name / "left" / "adapter_model.safetensors").write_bytes(b"half")
        (tmp_path / name / "stray").write_text("of the killed process")
    made.learn(batch_of(made))
    made.save(tmp_path / "000008", keep=3)
    assert [path.name for path in tmp_path.iterdir()] == ["000008"]
    assert not (tmp_path / "000008" / "stray").exists()
    again = trainer(model)
    again.resume(tmp_path / "000008")
    assert equal(weights(again), weights(made))


@pytest.mark.parametrize(("keep", "kept"), [(1, 2), (2, 2), (3, 3), (9, 5)])
def test_the_oldest_checkpoints_go(model: str, tmp_path: Path, keep: int, kept: int) -> None:
    """Two stay at least: a kill may come before the journal names the second."""
    made = trainer(model)
    names = [f"{number:06d}" for number in (8, 16, 99_992, 999_992, 1_000_000)]
    (tmp_path / "best of mine").mkdir()
    for name in names:
        made.save(tmp_path / name, keep)
    assert {path.name for path in tmp_path.iterdir()} == {*names[-kept:], "best of mine"}


@pytest.mark.parametrize("advantage", [math.inf, math.nan])
def test_a_loss_that_is_not_finite_moves_nothing(model: str, advantage: float) -> None:
    made = trainer(model)
    batch = batch_of(made)
    broken = replace(batch.samples[-1], advantage=advantage)
    before = weights(made)
    with pytest.raises(LearnError, match=r"the loss of step 1 is .*no weight has moved"):
        made.learn(Batch((*batch.samples[:-1], broken), batch.actions))
    assert equal(weights(made), before)
    assert made.optimizer.update == 0
    assert not any(crew.base.model.training for crew in made.crews)
    fresh = trainer(model)
    assert made.learn(batch) == fresh.learn(batch)  # nothing of the broken batch is left
    assert equal(weights(made), weights(fresh))


def test_an_answer_without_tokens_is_named_and_leaves_no_gradient(model: str) -> None:
    made = trainer(model)
    batch = batch_of(made)
    empty = replace(batch.samples[-1], ids=(), logprobs=())
    with pytest.raises(LearnError, match="an answer of right has no tokens"):
        made.learn(Batch((*batch.samples[:-1], empty), batch.actions))
    assert all(weight.grad is None for weight in made.crews[0].adapters.parameters())


@pytest.mark.parametrize("content", [b"", b"no archive at all", pickle.dumps(print, 2)])
def test_a_damaged_checkpoint_is_named(model: str, tmp_path: Path, content: bytes) -> None:
    made = trainer(model)
    made.save(tmp_path / "000008", keep=3)
    (tmp_path / "000008" / "optimizer.pt").write_bytes(content)
    with pytest.raises(StoreError, match=r"optimizer\.pt can't be read .*restore it"):
        made.resume(tmp_path / "000008")


def test_a_checkpoint_that_is_gone_is_named(model: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="000008"):
        trainer(model).resume(tmp_path / "000008")


def test_a_disk_that_says_no_is_named(model: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match=r"checkpoint .*can't be written .*resume the run"):
        trainer(model).save(tmp_path / "checkpoints" / "000008", keep=3)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="file sizes are limited by Linux")
@pytest.mark.parametrize("most", [512, 20_000])
def test_a_disk_that_is_full_is_named_and_gets_back_what_was_taken(
    model: str, tmp_path: Path, most: int
) -> None:
    """In the midst of an adapter, and of the optimizer's state."""
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from tests.backends.local.test_trainer import *\n"
        "model, folder, most = sys.argv[1:]\nmade = trainer(model)\nmade.learn(batch_of(made))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), int(most)))\n"
        "try:\n    made.save(Path(folder), 3)\nexcept StoreError as error:\n    print(error)\n"
    )
    folder = tmp_path / "checkpoints" / "000008"
    done = subprocess.run(
        [sys.executable, "-c", code, model, str(folder), str(most)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "can't be written" in done.stdout, done.stderr
    assert not list(folder.parent.iterdir())


def test_an_answer_depends_on_its_seed_not_on_the_batch(model: str) -> None:
    made = trainer(model)
    alone = [made.draw([request(role, 7)], 3)[0] for role in ROLES]
    both = made.draw([request("left", 1, "another prompt"), *(request(r, 7) for r in ROLES)], 3)
    assert [[c.text for c in drawn] for drawn in both[1:]] == [[c.text for c in d] for d in alone]
    first = alone[0][0]
    assert first.tokens is not None
    assert (first.model, first.input_tokens, first.output_tokens) == (
        model,
        len(first.tokens.prompt_ids),
        len(first.tokens.ids),
    )
    assert len({completion.text for completion in alone[0]}) == 3


def test_who_draws_is_one_method_that_a_launch_of_processes_overrides(model: str) -> None:
    asked = list[tuple[int, int, int]]()

    class OneByOne(Trainer):
        def answer(self, crew: int, prompts: Sequence[Prompt], n: int) -> list[list[Drawn]]:
            asked.append((crew, len(prompts), n))
            return [super(OneByOne, self).answer(crew, [prompt], n)[0] for prompt in prompts]

    requests = [request(role, 7) for role in ROLES]
    found = trainer(model, kind=OneByOne).draw(requests, 3)
    assert asked == [(0, 2, 3)]
    together = trainer(model).draw(requests, 3)
    assert [[c.text for c in each] for each in found] == [[c.text for c in t] for t in together]


def test_a_prompt_beyond_the_context_gets_an_empty_answer(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trainer(model)
    asked = [request("left", 0, "x" * CONTEXT), request("right", 7)]
    none, drawn = made.draw(asked, 2)
    assert [(c.text, c.stop, c.tokens) for c in none] == [("", "too_long", None)] * 2
    assert [drawn] == made.draw(asked[1:], 2)
    assert f"answers to 1 of 2 prompts are empty: the prompt has {CONTEXT + 19} tokens" in (
        capsys.readouterr().out
    )
    (again,) = made.draw(asked[:1], 2)  # others have fitted: the run is set right
    assert again == none
    with pytest.raises(PromptTooLong, match=f"passes the {CONTEXT}"):
        trainer(model).draw(asked[:1], 2)


# --- options ------------------------------------------------------------------------------------


def test_agents_of_two_bases_learn_in_one_step(
    model: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    other = str(tiny_folder(tmp_path_factory.mktemp("other"), "qwen2", seed=3))
    made, left = trainer(model, other=other), trainer(model)
    assert [crew.base.name for crew in made.crews] == [model, other]
    asked = [request("right", 1), request("left", 2), request("right", 3)]
    answers = made.draw(asked, 2)
    assert [drawn[0].model for drawn in answers] == [other, model, other]
    assert answers[1] == left.draw([asked[1]], 2)[0]
    batch = batch_of(made)
    before = [logprob(made, sample) for sample in batch.samples]
    made.learn(batch)
    for sample, was in zip(batch.samples, before, strict=True):
        assert (logprob(made, sample) > was) == (sample.advantage > 0)
    made.save(tmp_path / "000008", keep=3)
    again = trainer(model, other=other)
    again.resume(tmp_path / "000008")
    assert equal(weights(again), weights(made))
    with pytest.raises(ConfigError, match=r"right was trained on another base than"):
        trainer(model).start_from(tmp_path / "000008")


def test_one_adapter_for_all_needs_one_base(
    model: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = str(tiny_folder(tmp_path_factory.mktemp("other"), seed=3))
    with pytest.raises(ConfigError, match=r"learn\.shared=true needs one base"):
        trainer(model, other=other, shared=True)


def test_checkpointed_layers_come_to_the_same_step(model: str) -> None:
    plain, saving = trainer(model), trainer(model, gradient_checkpointing=True)
    batch = batch_of(plain)
    assert batch_of(saving) == batch
    weighed: Any = saving.crews[0].base.model
    layers = weighed.get_decoder().layers
    passes = list[int]()
    layers[0].self_attn.register_forward_hook(lambda *_: passes.append(1))
    one, two = plain.learn(batch), saving.learn(batch)
    assert two.loss == pytest.approx(one.loss, abs=1e-6)
    assert two.step.norms == pytest.approx(dict(one.step.norms), rel=1e-5)
    assert len(passes) == 4  # two micro-batches, an agent each, forwards and again for backwards


def test_more_steps_from_the_same_actions_stay_near_the_policy_that_drew_them(model: str) -> None:
    """At ratio 1 the first step is the unclipped one; what has passed the clip moves no more."""
    once, often = trainer(model), trainer(model, epochs=8, clip=0.2)
    batch = batch_of(once)
    free = trainer(model, epochs=8, clip=0.999)
    first, last = once.learn(batch), often.learn(batch)
    free.learn(batch)
    assert (first.step.update, last.step.update) == (1, 8)

    def ratios(made: Trainer) -> list[float]:
        return [logprob(made, s) - sum(s.logprobs) for s in batch.samples if s.advantage > 0]

    assert min(ratios(often)) > 0
    assert sum(ratios(once)) < sum(ratios(often)) < sum(ratios(free))


def test_the_first_of_many_steps_is_the_only_step_of_one(model: str) -> None:
    """Nothing is clipped before the policy has moved."""
    one, many = trainer(model), trainer(model, epochs=2, clip=0.2)
    batch = batch_of(one)
    assert one._backward(batch, None)[0] == many._backward(batch, None)[0]
    one.optimizer.step()
    many.optimizer.step()
    assert equal(weights(one), weights(many))


def test_the_kl_draws_the_team_back_to_its_base(model: str) -> None:
    """Learned away from the base first; then actions of no advantage, which only the KL moves."""
    made = trainer(model, kl=1.0)
    drawn = batch_of(made)
    still = Batch(tuple(replace(s, advantage=0.0) for s in drawn.samples), drawn.actions)
    before = weights(made)
    at_base = made.learn(still)
    assert at_base.loss == 0.0  # no distance yet, and its gradient is zero there
    assert equal(weights(made), before)

    def surprise() -> float:
        return sum(abs(logprob(made, s) - sum(s.logprobs)) for s in drawn.samples)

    for _ in range(4):
        made.learn(drawn)
    away = surprise()
    losses = [made.learn(still).loss for _ in range(20)]
    assert losses[0] > losses[-1] > 0
    assert surprise() < 0.7 * away
