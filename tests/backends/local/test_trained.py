"""A trained team in backend api: its weights answer, search and prompts go on from there."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import orchestry
from orchestry.backends.library import Behavior, Library, read_library, to_yaml
from orchestry.backends.local.weights import Team, TrainedWeights, team_of
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError, PromptTooLong, ProviderError
from orchestry.core.learning import LearnConfig
from orchestry.core.types import Completion, Message, Request, sample_of
from orchestry.engine.ask import ask
from orchestry.engine.estimate import estimate
from orchestry.engine.evaluate import evaluate
from orchestry.engine.run import prepare, resume
from orchestry.store.run import Run, load_run
from tests.backends.letters import (
    ROLES,
    TASK,
    adapters,
    config,
    surprise,
    trainer,
    turns,
    write_task,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def on_top(run: Path, tasks: Path, *more: str) -> RunConfig:
    """A search by that run's team."""
    team = f"provider.name=local:{run}"
    sets = ("backend=api", team, f"task_path=[{tasks}]", "episodes=2", "cache.enabled=false")
    return resolve([], [*sets, *more])


def request(agent: str = "left", seed: int = 0, prompt: str = "say 1", **more: Any) -> Request:
    said = (Message(role="system", content=agent[0]), Message(role="user", content=prompt))
    fields = {"model": "", "max_tokens": 8, "temperature": 0.8, "messages": said, "seed": seed}
    return Request(agent=agent, **{**fields, **more})


@pytest.fixture
def trained(finished: Run, tmp_path: Path) -> Path:
    """The run that trained, as a copy that a test may change."""
    return Path(shutil.copytree(finished.folder, tmp_path / "trained"))


@pytest.fixture
def searched(trained: Path, tasks: Path, tmp_path: Path) -> Run:
    return orchestry.train(on_top(trained, tasks), tmp_path / "searched")


def test_the_weights_of_a_run_answer_in_a_search(
    searched: Run, finished: Run, model: str, tmp_path: Path
) -> None:
    assert searched.summary.stopped == "done"
    assert (searched.summary.calls, searched.summary.cost_usd) == (2 * 4 * 2, 0.0)
    assert {row.provider for row in searched.summary.usage} == {"local"}
    ours = trainer(model, finished.folder / "checkpoints" / "000008")
    for turn in (turn for episode in searched.episodes for turn in turns(episode)):
        assert turn.completion.model == searched.summary.model
        assert turn.completion.tokens is None
    bare = ours.draw([sample_of(request(seed=7), 1)], 1)[0][0].text

    async def served() -> str:
        weights = TrainedWeights(
            team_of(finished.folder), ROLES, LearnConfig(rank=4, alpha=8, threads=1), 0
        )
        async with weights:
            asked = sample_of(request(seed=7, model=weights.model), 1)
            return (await weights.complete(asked)).text

    assert asyncio.run(served()) == bare


def untrained(model: str, tasks: Path, *more: str) -> RunConfig:
    """A search by a base that nothing was trained on."""
    who = ("backend=api", "provider.name=local", f"provider.model={model}", "learn.threads=1")
    small = ("task=letters", f"task_path=[{tasks}]", "episodes=2", "sampling.max_tokens=8")
    return resolve([], [*who, *small, *more])


def test_an_untrained_base_answers_in_a_search_as_backend_local_draws(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    asked = untrained(model, tasks, "behaviors.enabled=true", "behaviors.every=1")
    found = orchestry.train(asked, tmp_path / "searched")
    assert (found.summary.stopped, found.summary.model) == ("done", model)
    assert {row.provider for row in found.summary.usage} == {"local"}
    assert not (found.folder / "start").exists()
    again = orchestry.train(asked, tmp_path / "again")
    assert [e.reward for e in again.episodes] == [e.reward for e in found.episodes]
    bare = trainer(model).draw([sample_of(request(seed=7), 1)], 1)[0][0].text

    async def served() -> str:
        settings = LearnConfig(threads=1)
        async with TrainedWeights(Team.untrained(model), ROLES, settings, 0) as weights:
            one = sample_of(request(seed=7, model=weights.model), 1)
            other = one.model_copy(update={"agent": "reflection"})
            said = await asyncio.gather(weights.complete(one), weights.complete(other))
            assert said[0].text == said[1].text
            return said[0].text

    assert asyncio.run(served()) == bare
    assert resume(found.folder, {"episodes": 3}).summary.stopped == "done"
    assert evaluate(found.folder, "train").summary.stopped == "done"


def test_an_untrained_base_neither_judges_nor_writes(model: str, tasks: Path) -> None:
    with pytest.raises(ConfigError, match="the weights that answer can't judge"):
        prepare(untrained(model, tasks, "judge.enabled=true"))
    assert not prepare(untrained(model, tasks)).config.judge.enabled


def test_the_team_plays_as_it_was_trained_unless_told_otherwise(finished: Run, tasks: Path) -> None:
    found = prepare(on_top(finished.folder, tasks)).config
    assert (found.task, found.sampling.max_tokens, found.sampling.temperature) == (
        "letters",
        8,
        0.8,
    )
    assert (found.learn.rank, found.learn.alpha, found.learn.threads) == (4, 8, 1)
    other = prepare(on_top(finished.folder, tasks, "sampling.max_tokens=5")).config
    assert (other.sampling.max_tokens, other.sampling.temperature) == (5, 0.8)
    bare = prepare(on_top(finished.folder / "checkpoints" / "000004", tasks)).config
    assert bare.provider.model != found.provider.model
    assert bare.learn == found.learn


@pytest.mark.slow
def test_it_goes_on_without_the_run_that_trained_it(
    searched: Run, trained: Path, tmp_path: Path
) -> None:
    shutil.rmtree(trained)
    more = resume(searched.folder, {"episodes": 3})
    assert more.summary.calls == 3 * 4 * 2
    moved = Path(shutil.move(searched.folder, tmp_path / "moved"))
    assert resume(moved, {"episodes": 4}).summary.calls == 4 * 4 * 2
    measured = evaluate(moved, "dev")
    assert measured.summary.model == load_run(moved).summary.model
    assert not (measured.folder / "start").exists()
    again = evaluate(moved, "dev")
    assert again.summary.calls == measured.summary.calls
    answer = ask(moved, "say 9")
    assert answer.run.summary.calls == 2


def test_a_dry_run_loads_no_weights(finished: Run, tasks: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished.folder / "checkpoints" / "000008", tmp_path / "team"))
    for file in folder.glob("*/*.safetensors"):
        file.write_bytes(b"no weights")
    found = estimate(on_top(folder, tasks, "task=letters", "sampling.max_tokens=8"))
    assert (found.calls, found.cost_usd.max) == (16, 0.0)


def test_prompts_are_learned_over_the_weights(finished: Run, tasks: Path, tmp_path: Path) -> None:
    learns = ("behaviors.enabled=true", "behaviors.every=2", "behaviors.propose=[rules]")
    sets = (*learns, "behaviors.provider.name=fake", "episodes=4")
    run = orchestry.train(on_top(finished.folder, tasks, *sets), tmp_path / "run")
    assert run.summary.updates == 2
    asked = {(row.purpose, row.provider) for row in run.summary.usage}
    assert asked >= {("act", "local"), ("distil", "fake"), ("trial", "local")}
    left = load_run(run.folder).config["provider"]
    assert left["team"] == str(run.folder / "start")


class Counted(TrainedWeights):
    """Keeps the sizes of its batches."""

    sizes: list[int]

    def _draw(self, requests: Sequence[Request]) -> list[Completion | Exception]:
        self.sizes.append(len(requests))
        return super()._draw(requests)


async def test_calls_that_wait_together_are_one_batch(finished: Run) -> None:
    settings = LearnConfig(rank=4, alpha=8, threads=1)
    weights = Counted(team_of(finished.folder), ROLES, settings, 0)
    weights.sizes = []
    async with weights:
        asked = [request(role, seed, model=weights.model) for role in ROLES for seed in range(5)]
        together = await asyncio.gather(*(weights.complete(one) for one in asked))
        assert weights.sizes == [10]
        alone = [await weights.complete(one) for one in asked]
        assert [one.text for one in together] == [one.text for one in alone]
        long = request(prompt="x" * 600, model=weights.model)
        both = [weights.complete(one) for one in (asked[0], long)]
        fits, refused = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(fits, Completion)
        assert isinstance(refused, PromptTooLong)
        with pytest.raises(ProviderError, match="unknown model of the team 'other'"):
            await weights.complete(request(model="other"))


async def test_a_batch_that_nobody_waits_for_ends(finished: Run) -> None:
    settings = LearnConfig(rank=4, alpha=8, threads=1)
    async with TrainedWeights(team_of(finished.folder), ROLES, settings, 0) as weights:
        endless = request(model=weights.model, max_tokens=400, prompt="x")
        call = asyncio.create_task(weights.complete(endless))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await weights.complete(request(model=weights.model))).output_tokens


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["task=code_review"], "was trained on letters, and this run is of code_review"),
        (["judge.enabled=true"], "weights that answer can't judge: name another"),
        (
            ["behaviors.enabled=true", "behaviors.propose=[rules]"],
            "weights that answer can't write behaviours: name another",
        ),
        (["provider.model=other"], r"holds tiny\+.*, and provider.model is other"),
        (["agents.left.provider=local:there"], "they can't judge, write behaviours or answer for"),
        (["provider.name=fake"], "team is for provider.name=local"),
    ],
)
def test_what_a_trained_team_can_not_do_is_refused(
    finished: Run, tasks: Path, sets: list[str], message: str
) -> None:
    team = [f"provider.team={finished.folder}"] if sets == ["provider.name=fake"] else []
    with pytest.raises(ConfigError, match=message):
        prepare(on_top(finished.folder, tasks, *team, *sets))


def test_a_team_that_is_none_is_refused(
    searched: Run, trained: Path, tasks: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="gone is not a folder here: give a run of backend local"):
        prepare(on_top(tmp_path / "gone", tasks))
    with pytest.raises(ConfigError, match="holds no adapters"):
        prepare(on_top(tasks, tasks))
    with pytest.raises(ConfigError, match="is a run of backend api, whose team has no weights"):
        prepare(on_top(searched.folder, tasks))
    with pytest.raises(ConfigError, match="local:RUN, or an untrained base"):
        prepare(resolve([], ["provider.name=local", f"task_path=[{tasks}]", "task=letters"]))
    shutil.rmtree(trained / "checkpoints" / "000008" / "right")
    with pytest.raises(ConfigError, match="has adapters of left, and none of right of task letter"):
        prepare(on_top(trained / "checkpoints" / "000008", tasks))


# --- weights learn with learned prompts -----------------------------------------------------------

RULE = "Write many letters e."


def written(
    folder: Path, task: str = "letters", model: str = "served", agent: str = "left"
) -> Path:
    """A library with one accepted rule."""
    rule = Behavior(agent=agent, text=RULE, status="accepted")
    path = folder / f"{task}-{model}-{agent}.yaml"
    path.write_text(to_yaml(Library(task=task, model=model, behaviors=(rule,))))
    return path


def prompts(run: Run) -> set[tuple[str, str]]:
    """Who was told what by the system."""
    return {(turn.agent, turn.messages[0].content) for one in run.episodes for turn in turns(one)}


@pytest.fixture(scope="module")
def prompted(model: str, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Weights that learned with a rule in a prompt."""
    folder = tmp_path_factory.mktemp("prompted")
    sets = (f"behaviors.from={written(folder)}", "learn.every=2")
    return orchestry.train(config(model, tasks, *sets), folder / "run")


@pytest.mark.slow
def test_weights_learn_with_the_behaviours_of_a_library(prompted: Run, model: str) -> None:
    assert prompted.summary.stopped == "done"
    told = dict(prompts(prompted))
    assert RULE in told["left"]
    assert told["right"] == "r"
    assert surprise(trainer(model), prompted.episodes[1]) < 1e-4
    assert read_library(prompted.folder).model == prompted.summary.model
    for measured in (evaluate(prompted, "dev"), evaluate(prompted, "dev", update=0)):
        assert prompts(measured) == prompts(prompted)


def test_a_resume_keeps_the_prompts_bit_for_bit(
    prompted: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = (f"behaviors.from={written(tmp_path)}", "learn.every=2", "episodes=2")
    begun = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    (tmp_path / "letters-served-left.yaml").unlink()
    moved = Path(shutil.move(begun.folder, tmp_path / "moved"))
    whole = resume(moved, {"episodes": 8})
    assert adapters(whole.folder) == adapters(prompted.folder)
    assert RULE in dict(prompts(evaluate(moved, "dev")))["left"]


def test_the_search_begins_with_the_prompts_that_the_weights_learned_with(
    prompted: Run, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(on_top(prompted.folder, tasks), tmp_path / "run")
    assert prompts(run) == prompts(prompted)
    assert read_library(run.folder).model == run.summary.model
    assert prompts(resume(run.folder, {"episodes": 3})) == prompts(prompted)
    assert prompts(evaluate(run, "dev", update=0)) == prompts(prompted)
    other = f"behaviors.from={written(tmp_path, agent='right')}"
    with pytest.raises(ConfigError, match="so it must be tested before it is used"):
        prepare(on_top(prompted.folder, tasks, other))


def test_a_library_that_does_not_fit_is_refused_or_said(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    told = list[str]()
    sets = f"behaviors.from={written(tmp_path, agent='stranger')}"
    prepare(config(model, tasks, sets), told.append)
    assert any("behaviours for stranger, whom task letters lacks" in text for text in told)
    assert any("was tested with served, not with" in text for text in told)
    with pytest.raises(ConfigError, match="was learned on other, not on letters"):
        prepare(config(model, tasks, f"behaviors.from={written(tmp_path, task='other')}"))


# --- what does not fit ----------------------------------------------------------------------------


def test_a_run_refuses_other_adapters_than_it_began_with(searched: Run) -> None:
    left, right = (searched.folder / "start" / role for role in ROLES)
    shutil.rmtree(left)
    shutil.copytree(right, left)
    with pytest.raises(ConfigError, match="put the adapters back that it names"):
        resume(searched.folder, {"episodes": 3})


def test_a_run_that_learned_nothing_has_no_team(model: str, tasks: Path, tmp_path: Path) -> None:
    run = orchestry.train(config(model, tasks, "episodes=1"), tmp_path / "run")
    with pytest.raises(ConfigError, match="has no update yet, and no adapters to start from"):
        prepare(on_top(run.folder, tasks))


def test_a_team_shares_its_adapter_with_other_agents(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(config(model, tasks, "learn.shared=true"), tmp_path / "run")
    other = write_task(tmp_path / "tasks", TASK.replace('"right"', '"third"'))
    found = orchestry.train(on_top(run.folder, other), tmp_path / "api")
    assert {row.agent for row in found.summary.usage} == {"left", "third"}
