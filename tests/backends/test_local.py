"""Backend local on tiny models: whole runs that learn, stop, go on and are evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

import orchestry  # noqa: E402
from orchestry.config import RunConfig, resolve  # noqa: E402
from orchestry.engine import prepare, resume  # noqa: E402
from orchestry.errors import ConfigError, LearnError, PromptTooLong, StoreError  # noqa: E402
from orchestry.estimate import estimate  # noqa: E402
from orchestry.journal import Answered, Learned, RolledBack  # noqa: E402
from orchestry.learn.logprobs import Packed, completion_logprobs  # noqa: E402
from orchestry.learn.trainer import Trainer  # noqa: E402
from orchestry.learnconfig import LearnConfig  # noqa: E402
from orchestry.records import EpisodeRecord  # noqa: E402
from orchestry.store import Run, load_run  # noqa: E402
from orchestry.types import Turn  # noqa: E402
from tests.learn.tiny import tiny_folder  # noqa: E402
from tests.test_engine import kill_at  # noqa: E402

ROLES = ("left", "right")
EVERY, GROUP = 4, 4
TASK = '''
import asyncio
from dataclasses import dataclass, replace

from orchestry import AgentSpec, BaseTask, Problem

PAUSE = 0.0
ROLES = ("left", "right")


@dataclass(frozen=True)
class State:
    problem: Problem
    said: tuple = ()


class Letters(BaseTask):
    """Two agents answer at once; the reward is the share of the letter e in what they wrote."""

    name = "letters"
    agents = tuple(AgentSpec(role=role, system_prompt=role[0]) for role in ROLES)

    def problems(self, split):
        return [Problem(id=f"{split}-{n}", prompt=f"say {n}", split=split) for n in range(4)]

    def reset(self, problem, seed):
        return State(problem)

    def to_act(self, state):
        return () if state.said else ROLES

    def observe(self, state, agent):
        return state.problem.prompt

    def step(self, state, actions):
        return replace(state, said=tuple(actions[role] for role in ROLES))

    async def evaluate(self, state, tools):
        await asyncio.sleep(PAUSE * int(state.problem.id[-1]))
        text = "".join(state.said)
        return self.score(quality=text.count("e") / max(1, len(text)))
'''


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)  # which a run sets


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("tasks"), TASK)


def write_task(folder: Path, source: str) -> Path:
    (folder / "letters").mkdir(parents=True)
    (folder / "letters" / "task.py").write_text(source)
    return folder


def settings(model: str, tasks: Path, *more: str) -> list[str]:
    return [
        "backend=local",
        "task=letters",
        f"task_path=[{tasks}]",
        f"provider.model={model}",
        f"episodes={2 * EVERY}",
        "sampling.max_tokens=8",
        "learn.threads=1",
        "learn.learning_rate=0.03",
        f"learn.every={EVERY}",
        f"learn.group_size={GROUP}",
        "learn.rank=4",
        "learn.alpha=8",
        *more,
    ]


def config(model: str, tasks: Path, *more: str) -> RunConfig:
    return resolve([], settings(model, tasks, *more))


@pytest.fixture(scope="module")
def finished(model: str, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two updates of four episodes, only read."""
    return orchestry.train(config(model, tasks), tmp_path_factory.mktemp("runs") / "run")


def learned(run: Run) -> list[Learned]:
    return [event for event in run.events if isinstance(event, Learned)]


def adapters(folder: Path) -> dict[str, bytes]:
    """All saved adapters of a run, to the last bit."""
    found = sorted(folder.glob("checkpoints/*/*/adapter_model.safetensors"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def artefacts(folder: Path) -> dict[str, Any]:
    """All of a run that must not depend on when and how often it was interrupted."""
    names = ("config.yaml", "episodes.jsonl", "metrics.jsonl", "rewards.csv")
    states = [event.state for event in learned(load_run(folder))]
    files = {name: (folder / name).read_text() for name in names}
    return {"states": states, "adapters": adapters(folder), **files}


def turns(episode: EpisodeRecord) -> list[Turn]:
    return [turn for node in episode.nodes for turn in node.turns]


def trainer(model: str, checkpoint: Path | None = None, alpha: int = 8) -> Trainer:
    """The team of the runs here, fresh or from a checkpoint."""
    chosen = LearnConfig.model_validate({"threads": 1, "rank": 4, "alpha": alpha})
    made = Trainer(model, ROLES, chosen, 1, seed=0)
    if checkpoint is not None:
        made.start_from(checkpoint)
    return made


def surprise(made: Trainer, episode: EpisodeRecord) -> float:
    """The largest gap between the log-probabilities recorded and those of these weights."""
    gaps = []
    for turn in turns(episode):
        tokens = turn.completion.tokens
        assert tokens is not None
        packed = Packed(ROLES.index(turn.agent), tokens.prompt_ids, (tokens.ids,))
        with torch.no_grad():
            (found,) = completion_logprobs(made.base, made.adapters, [packed], 0.8)
        gaps.append(float((found - torch.tensor(tokens.logprobs)).abs().max()))
    return max(gaps)


def test_a_run_updates_its_adapters_and_says_what_came_of_it(finished: Run) -> None:
    first, second = learned(finished)
    assert (first.update, second.update) == (1, 2)
    assert first.state["checkpoint"] == "checkpoints/000004"
    assert first.state["reward"] == pytest.approx(
        fmean(episode.mean_leaf_reward for episode in finished.episodes[:EVERY])
    )
    for state in (first.state, second.state):
        assert state["samples"] + state["skipped"] == EVERY * GROUP * 2
        assert state["samples"] > 0
        assert state["tokens"] >= state["samples"]
        assert set(state["norms"]) == set(ROLES)
        assert all(norm > 0 for norm in state["norms"].values())
        assert state["rate"] == 0.03
    assert finished.summary.updates == 2
    assert finished.summary.stopped == "done"


def test_an_episode_is_a_group_of_independent_chains(finished: Run) -> None:
    assert [episode.episode for episode in finished.episodes] == list(range(2 * EVERY))
    for episode in finished.episodes:
        assert len(list(episode.leaves())) == GROUP
        assert len(turns(episode)) == GROUP * len(ROLES)
    first_epoch = {episode.problem for episode in finished.episodes[:4]}
    assert first_epoch == {f"train-{n}" for n in range(4)}


def test_episodes_are_drawn_by_the_weights_that_the_updates_before_left(
    finished: Run, model: str
) -> None:
    fresh, after = trainer(model), trainer(model, finished.folder / "checkpoints" / "000004")
    assert surprise(fresh, finished.episodes[EVERY - 1]) < 1e-4
    assert surprise(after, finished.episodes[EVERY]) < 1e-4
    assert surprise(fresh, finished.episodes[EVERY]) > 1e-2


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is dep:FutureWarning")
def test_a_checkpoint_loads_in_plain_peft(finished: Run, model: str) -> None:
    from transformers import AutoModelForCausalLM

    folder = finished.folder / "checkpoints" / "000008"
    loader: Any = AutoModelForCausalLM
    worn: Any = peft.PeftModel.from_pretrained(loader.from_pretrained(model), folder / "right")
    ours, ids = trainer(model, folder), torch.arange(3, 40)[None]
    with torch.no_grad(), ours.adapters.rows(1):
        expected = ours.base.model(ids).logits
    with torch.no_grad():
        assert torch.allclose(worn(ids).logits, expected, atol=1e-5)


def test_calls_are_counted_and_cost_nothing(finished: Run) -> None:
    calls = 2 * EVERY * GROUP * len(ROLES)
    assert (finished.summary.calls, finished.summary.cost_usd) == (calls, 0.0)
    assert {row.agent: row.calls for row in finished.summary.usage} == dict.fromkeys(
        ROLES, calls // 2
    )
    drawn = [turn.completion for episode in finished.episodes for turn in turns(episode)]
    assert finished.summary.output_tokens == sum(completion.output_tokens for completion in drawn)
    answered = [event for event in finished.events if isinstance(event, Answered)]
    assert {event.source for event in answered} == {"weights"}
    assert len({event.key for event in answered}) == len(answered) == calls


def test_the_config_is_written_as_it_was_run(model: str, tasks: Path, tmp_path: Path) -> None:
    sets = [one for one in settings(model, tasks) if not one.startswith("learn.threads")]
    plan = prepare(resolve([], sets))
    assert plan.config.learn.threads
    assert plan.config.sampling.temperature == 0.8
    assert (plan.config.search.strategy, plan.config.search.k_samples) == ("chains", GROUP)
    assert plan.config.behaviors.enabled is False
    assert prepare(plan.config).config == plan.config


def test_a_relative_model_is_found_again_from_another_folder(
    model: str, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(model).parent)
    assert prepare(config("./tiny", tasks)).config.provider.model == model
    monkeypatch.chdir("/")
    with pytest.raises(ConfigError, match=r"'\./tiny' is no folder"):
        prepare(config("./tiny", tasks))


def test_resuming_with_more_episodes_equals_a_run_of_as_many(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """The first part ends in the middle of a block, whose episodes are played again."""
    whole = orchestry.train(config(model, tasks, "episodes=12"), tmp_path / "whole")
    part = orchestry.train(config(model, tasks, "episodes=6"), tmp_path / "part")
    assert len(learned(part)) == 1
    assert part.episodes == whole.episodes[:6]
    resumed = resume(part.folder, {"episodes": 12})
    assert artefacts(resumed.folder) == artefacts(whole.folder)
    assert [e.episode for e in resumed.events if isinstance(e, RolledBack)] == [4]
    folder = "checkpoints/000012/optimizer.pt"
    states = [torch.load(run.folder / folder, weights_only=True) for run in (whole, resumed)]
    assert str(states[0]) == str(states[1])


def test_resuming_what_is_finished_plays_nothing_again(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(config(model, tasks, "episodes=6"), tmp_path / "run")
    again = resume(run.folder)
    assert again.summary.calls == run.summary.calls
    assert again.episodes == run.episodes
    assert not [event for event in again.events if isinstance(event, RolledBack)]


@pytest.mark.slow
def test_a_run_killed_within_a_block_goes_on_as_if_it_had_not_been(
    model: str, tmp_path: Path
) -> None:
    """A reward takes the longer the higher the problem's number, so a block is committed bit by
    bit; the kill comes when the second block's first episode is."""
    tasks = write_task(tmp_path / "tasks", TASK.replace("PAUSE = 0.0", "PAUSE = 0.3"))
    sets = settings(model, tasks, "episodes=12")
    plan = prepare(resolve([], sets))
    assert plan.problem(EVERY).id != "train-3"
    whole = orchestry.train(resolve([], sets), tmp_path / "whole")
    folder = tmp_path / "killed"
    words = [word for item in sets for word in ("--set", item)]
    kill_at(
        f'"committed","episode":{EVERY}'.encode(), folder, "run", "--run-dir", str(folder), *words
    )
    killed = load_run(folder)
    assert len(learned(killed)) == 1
    assert EVERY < len(killed.episodes) < 2 * EVERY
    kill_at(b'"learned","update":2', folder, "resume", str(folder))
    assert len(learned(load_run(folder))) == 2
    resume(folder)
    assert artefacts(folder) == artefacts(whole.folder)


@pytest.mark.slow
def test_a_run_killed_after_its_first_update_goes_on_as_if_it_had_not_been(
    model: str, tmp_path: Path
) -> None:
    tasks = write_task(tmp_path / "tasks", TASK.replace("PAUSE = 0.0", "PAUSE = 0.1"))
    sets = settings(model, tasks, "episodes=12", "learn.keep=1")
    whole = orchestry.train(resolve([], sets), tmp_path / "whole")
    folder = tmp_path / "killed"
    words = [word for item in sets for word in ("--set", item)]
    kill_at(b'"learned","update":1', folder, "run", "--run-dir", str(folder), *words)
    resume(folder)
    assert artefacts(folder) == artefacts(whole.folder)


def test_an_update_that_was_not_journaled_is_made_again(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """A kill between the checkpoint and its line in the journal, at keep=1."""
    whole = orchestry.train(config(model, tasks, "learn.keep=1"), tmp_path / "whole")
    expected = artefacts(whole.folder)
    journal = whole.folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    second = next(i for i, line in enumerate(lines) if b'"learned","update":2' in line)
    journal.write_bytes(b"".join(lines[:second]))
    resumed = resume(whole.folder)
    assert artefacts(resumed.folder) == expected


def test_an_episode_whose_weights_are_gone_is_not_played_by_others(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(config(model, tasks), tmp_path / "run")
    path = run.folder / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(StoreError, match=r"lacks episode 1, and the weights .* are gone: restore"):
        resume(run.folder)


def test_an_evaluation_plays_the_test_split_with_the_last_adapters(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(config(model, tasks), tmp_path / "run")
    found = orchestry.evaluate(run)
    assert found.folder == run.folder / "evaluations" / "test--update-2"
    assert [e.problem for e in found.episodes] != []
    assert {episode.problem for episode in found.episodes} == {f"test-{n}" for n in range(4)}
    last = run.folder / "checkpoints" / "000008"
    assert (found.config["learn"]["enabled"], found.config["learn"]["from"]) == (False, str(last))
    assert not learned(found)
    assert not (found.folder / "checkpoints").exists()
    assert surprise(trainer(model, last), found.episodes[0]) < 1e-4
    assert surprise(trainer(model), found.episodes[0]) > 1e-2
    assert found.summary.cost_usd == 0.0
    again = orchestry.evaluate(run)
    assert (again.episodes, again.summary.calls) == (found.episodes, found.summary.calls)
    resume(run.folder, {"episodes": 3 * EVERY})
    later = orchestry.evaluate(run.folder)
    assert later.folder.name == "test--update-3"
    assert later.config["learn"]["from"] == str(run.folder / "checkpoints" / "000012")


def test_a_run_without_an_update_is_evaluated_as_it_began(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(config(model, tasks, "episodes=2"), tmp_path / "run")
    found = orchestry.evaluate(run)
    assert found.folder.name == "test"
    assert found.config["learn"]["from"] is None
    assert surprise(trainer(model), found.episodes[0]) < 1e-4


def test_a_run_starts_from_another_ones_adapters(
    finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    source = finished.folder / "checkpoints" / "000008"
    sets = ("episodes=2", f"learn.from={source}")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert surprise(trainer(model, source), run.episodes[0]) < 1e-4
    found = orchestry.evaluate(run)
    assert found.config["learn"]["from"] == str(source)


def test_a_team_learns_what_its_reward_asks_for_and_not_at_rate_zero(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """Mean rewards of the first and the last block, of eight chains each."""
    sets = ("episodes=40", "learn.group_size=8")
    found = {}
    for rate in (0.03, 0.0):
        run = orchestry.train(
            config(model, tasks, *sets, f"learn.learning_rate={rate}"), tmp_path / str(rate)
        )
        rewards = [episode.mean_leaf_reward for episode in run.episodes]
        found[rate] = fmean(rewards[-EVERY:]) - fmean(rewards[:EVERY])
    assert found[0.03] > 0.4
    assert abs(found[0.0]) < 0.05


def test_a_dry_run_counts_the_calls_at_no_cost(model: str, tasks: Path) -> None:
    found = estimate(config(model, tasks))
    assert found.calls == 2 * EVERY * GROUP * len(ROLES)
    assert found.cost_usd.p5 == found.cost_usd.expected == found.cost_usd.p95 == 0.0
    assert {(row.agent, row.purpose) for row in found.usage} == {(role, "act") for role in ROLES}


def test_numbers_that_are_none_stop_the_run_and_the_batch_is_kept(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """Adapters of absurd size: B is zero, so answers are sound, but its gradient overflows."""
    absurd = trainer(model, alpha=10**9)
    for weight in absurd.adapters.parameters()[::2]:
        weight.data.mul_(1e36)
    absurd.adapters.save(tmp_path / "absurd")
    sets = (f"learn.from={tmp_path / 'absurd'}", f"learn.alpha={10**9}")
    path = tmp_path / "run" / "failed-update-1.json"
    with pytest.raises(LearnError, match=r"update 1 is .*no weight has moved") as caught:
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert str(caught.value).endswith(f"the batch is {path}")
    batch = json.loads(path.read_text())
    assert batch["actions"] == dict.fromkeys(ROLES, EVERY * GROUP)
    assert {"agent", "prompt_ids", "ids", "logprobs", "advantage"} <= batch["samples"][0].keys()
    run = load_run(tmp_path / "run")
    assert len(run.episodes) == EVERY
    assert not learned(run)
    assert run.summary.stopped == "failed"
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["provider.model=/no/such/folder"], "'/no/such/folder' is no folder here: correct"),
        (["judge.enabled=true"], "has no judge of its own: name one in judge.provider.name"),
        (["judge.enabled=true", "judge.provider.model=m"], "judge.provider.name"),
        (["provider.name=fake"], "has no provider fake: leave provider.name"),
        (["agents.left.model=other"], "all agents have one base"),
        (["behaviors.enabled=true"], "learns by gradients"),
        (["credit.share=0.1"], "makes no replays: leave credit.share"),
        (["agents.left.temperature=0"], "left would answer at temperature 0"),
        (["sampling.temperature=0"], "left, right would answer at temperature 0"),
    ],
)
def test_what_it_would_not_read_is_refused_before_anything_is_written(
    model: str, tasks: Path, tmp_path: Path, sets: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_likeliest_answers_can_be_played_without_learning(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = ("sampling.temperature=0", "learn.enabled=false", "episodes=2")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    for episode in run.episodes:
        assert len({(turn.agent, turn.completion.text) for turn in turns(episode)}) == len(ROLES)


def test_a_run_too_short_to_learn_says_so(model: str, tasks: Path) -> None:
    notes = prepare(config(model, tasks, "episodes=3")).backend.notes
    assert any("nothing is learned: an update takes learn.every=4" in note for note in notes)
    assert not any("nothing is learned" in n for n in prepare(config(model, tasks)).backend.notes)


def test_a_judge_of_another_provider_is_asked(model: str, tasks: Path, tmp_path: Path) -> None:
    sets = ("judge.enabled=true", "judge.provider.name=fake", "judge.when=always", "episodes=4")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert {row.purpose for row in run.summary.usage} == {"act", "judge"}
    assert len(learned(run)) == 1


def test_adapters_of_another_base_are_refused(finished: Run, tasks: Path, tmp_path: Path) -> None:
    other = str(tiny_folder(tmp_path / "other", "qwen2"))
    sets = ("episodes=2", f"learn.from={finished.folder / 'checkpoints' / '000008'}")
    with pytest.raises(ConfigError, match=r"has base_model_name_or_path .*tiny.*here it is"):
        orchestry.train(config(other, tasks, *sets), tmp_path / "run")


def test_a_prompt_longer_than_the_context_ends_the_run(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = ("sampling.max_tokens=500",)
    with pytest.raises(PromptTooLong, match=r"passes the 512 of .*lower max_tokens"):
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert load_run(tmp_path / "run").summary.stopped == "failed"
