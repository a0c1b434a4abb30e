"""The figures of an update, recomputed from what the run recorded and from plain passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import orchestry
from orchestry.backends.local.batch import Packed
from orchestry.backends.local.diagnostics import Tally, drawn
from orchestry.backends.local.logprobs import completion_logprobs
from orchestry.core.types import Completion
from orchestry.report import tables
from orchestry.report.runs import arms, read_experiments
from orchestry.rollout.schedule import Chains
from orchestry.store.run import Run
from orchestry.store.summary import LEARNING
from tests.backends.letters import EVERY, config, learned
from tests.backends.local.test_batch import MIXED, chains, play
from tests.backends.local.test_trainer import ROLES, TEMPERATURE, batch_of, trainer
from tests.toys import Words

pytestmark = pytest.mark.usefixtures("one_thread")


def test_figures_of_a_tree_played_by_hand() -> None:
    found = drawn([chains(*MIXED)])  # each answer has two tokens of -1.0 and -0.5 nats
    assert (found["entropy"], found["length"], found["truncated"]) == (0.75, 2.0, 0.0)
    assert found["flat"] == 0.0
    assert set(found["by_agent"]) == {"w", "r"}
    even = chains(*([("w", 1, 0.3)] for _ in range(3)))
    assert drawn([even, chains(*MIXED)])["flat"] == 0.5
    assert "flat" not in drawn([chains([("w", 1, 0.3)])])  # nothing to compare with
    assert drawn([]) == {"by_agent": {}}


def test_each_agents_answers_are_counted_once() -> None:
    tree = play(Words(), Chains(4), 5)
    found = drawn([tree])
    ends = [leaf.trajectory for leaf in tree.leaves]
    for role, own in found["by_agent"].items():
        answers = [t.completion.tokens for end in ends for t in end.turns if t.agent == role]
        assert len(answers) == 4
        rows = [tokens.logprobs for tokens in answers if tokens]
        assert own["length"] == fmean(len(row) for row in rows)
        assert own["entropy"] == pytest.approx(-fmean(x for row in rows for x in row))


def test_a_run_records_what_its_answers_were_like(
    finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    states = [event.state for event in learned(finished)]
    for number, state in enumerate(states):
        block = [e for e in finished.episodes if e.episode // EVERY == number]
        answers = [turn.completion for e in block for node in e.nodes for turn in node.turns]
        _assert_answers(state, answers)
        rewards = [[leaf.value for leaf in e.leaves()] for e in block]
        assert state["flat"] == fmean(len(set(row)) == 1 for row in rewards)
        assert state["entropy"] == pytest.approx(
            -fmean(x for one in answers if one.tokens for x in one.tokens.logprobs)
        )
        assert set(state["by_agent"]) == {"left", "right"}
        assert state["tokens_per_s"] > 0
        assert not {"kl", "clipped"} & state.keys()
    kept = {name: states[-1][name] for name in LEARNING if name in states[-1]}
    assert finished.summary.learning == kept
    assert len(kept) == 5


def _assert_answers(state: dict[str, Any], answers: Sequence[Completion]) -> None:
    assert state["length"] == fmean(one.output_tokens for one in answers)
    assert state["truncated"] == fmean(one.stop == "length" for one in answers)


def test_kl_and_clipping_are_recorded_where_they_are_computed(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = ("learn.kl=0.1", "learn.epochs=2", "learn.clip=0.01", "learn.learning_rate=0.05")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    first, second = (event.state for event in learned(run))
    assert first["kl"] == pytest.approx(0.0, abs=1e-9)  # the adapters change nothing yet
    assert second["kl"] > 1e-4
    for state in (first, second):
        assert 0.0 < state["clipped"] <= 1.0
        own = [agent["clipped"] for agent in state["by_agent"].values()]
        assert min(own) <= state["clipped"] <= max(own)


def test_kl_is_that_of_plain_passes(model: str) -> None:
    made = trainer(model, kl=0.1, micro_tokens=64)
    made.learn(batch_of(made))
    batch = batch_of(made, seed=7)
    (crew,) = made.crews
    estimates = list[float]()
    for sample in batch.samples:
        index = crew.roles.index(sample.agent)
        with torch.no_grad():
            rows = [
                completion_logprobs(
                    crew.base,
                    crew.adapters,
                    [Packed(number, sample.prompt_ids, (sample.ids,))],
                    TEMPERATURE,
                )[0]
                for number in (index, -1)
            ]
        apart = rows[1] - rows[0]
        estimates += (apart.exp() - 1 - apart).tolist()
    means = made.learn(batch).means
    assert means[""]["kl"] == pytest.approx(fmean(estimates), rel=1e-3)
    assert set(means) == {"", *ROLES}


def test_tallies_of_several_processes_add_up() -> None:
    one, other = Tally(), Tally()
    one.add("kl", "a", 3.0, 2)
    other.add("kl", "a", 1.0, 2)
    other.add("kl", "b", 2.0, 1)
    one.join(other)
    assert one.means() == {"a": {"kl": 1.0}, "b": {"kl": 2.0}, "": {"kl": 6 / 5}}


def test_the_report_shows_them(finished: Run) -> None:
    text = tables.learning(arms(read_experiments([finished.folder])))
    assert all(meaning in text for name, meaning in LEARNING.items() if name in ("entropy", "flat"))
    assert "learn.clip" not in text
