"""Distillation as a user of the function sees it: from runs and gold to weights that play."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import orchestry
from orchestry.backends.local.trainer import Trainer
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.core.types import TASK_ERROR
from orchestry.engine.export import export
from orchestry.engine.run import prepare, resume
from orchestry.ext.distil.distil import Distilled, distil, encoded, open_trainer
from orchestry.ext.distil.examples import Examples, examples, unlike
from orchestry.ext.distil.preferences import Preference, preferences
from orchestry.ext.distil.tuning import Target
from orchestry.ext.distil.winners import Choice, Lesson
from orchestry.store.records import NodeRecord
from orchestry.store.run import Run, load_run
from tests.backends.letters import ROLES, TASK, config, write_task
from tests.backends.local.tiny import tiny_folder

pytestmark = pytest.mark.usefixtures("one_thread")
WITH_GOLD = (
    TASK
    + """
    def gold(self, problem):
        return {"left": "eee", "right": "x" if problem.id == "train-3" else "ee"}
"""
)
WORDS = Path(__file__).parents[2] / "fixtures" / "tasks"
SMALL: dict[str, Any] = {"learn": {"rank": 4, "alpha": 8, "threads": 1}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("tasks"), WITH_GOLD)


@pytest.fixture(scope="module")
def finished(model: str, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A local run of eight episodes, only read."""
    return orchestry.train(config(model, tasks), tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def gold(model: str, tasks: Path) -> dict[str, Any]:
    """The settings of a team that learns gold alone."""
    return {
        **SMALL,
        "task": "letters",
        "task_path": [str(tasks)],
        "provider": {"model": model},
        "sampling": {"max_tokens": 8},
    }


@pytest.fixture(scope="module")
def served(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of backend api: two answers end by themselves, one is cut."""
    folder = tmp_path_factory.mktemp("api")
    script = folder / "script.jsonl"
    lines = [{"agent": "left", "text": "e e e e"}, {"agent": "right", "text": "ee"}]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets = ["task=letters", f"task_path=[{tasks}]", "provider.name=fake", "episodes=4"]
    sets += [f"provider.fake.script={script}", "judge.enabled=false", "behaviors.enabled=false"]
    return orchestry.train(resolve([], sets), folder / "run")


def weights(found: Distilled) -> dict[str, bytes]:
    return {
        role: (found.folder / role / "adapter_model.safetensors").read_bytes() for role in ROLES
    }


def lessons(found: Examples) -> list[Lesson]:
    return [one for one in found.lessons if isinstance(one, Lesson)]


def trainer_of(found: Examples) -> Trainer:
    return open_trainer(prepare(found.setup.config), found.settings, print)


def targets(found: Examples, made: Trainer) -> list[Target]:
    return [one for one in encoded(found, made).learn if isinstance(one, Target)]


def test_a_local_run_becomes_a_team_that_plays(
    finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    notes: list[str] = []
    found = distil([finished], tmp_path / "out", config=SMALL, top=0.5, note=notes.append)
    assert found.folder == tmp_path / "out" / "checkpoints" / "000001"
    assert found.agents == ROLES
    assert all(found.examples[role] > 3 for role in ROLES)
    assert notes[0] == "before learning: nothing is held out"  # four problems are too few
    assert notes[-1].startswith("epoch 4 of 4: loss ")
    told = json.loads((tmp_path / "out" / "distil.json").read_text())
    assert told["runs"][0]["run"] == "run"
    assert told["runs"][0]["models"] == [model]
    assert told["agents"]["left"]["examples"] == found.examples["left"]
    begun = orchestry.train(
        config(model, tasks, "episodes=4", f"learn.from={found.folder}"), tmp_path / "next"
    )
    assert begun.summary.updates == 1
    after = orchestry.evaluate(found.run)
    before = orchestry.evaluate(found.run, update=0)
    assert after.folder.name == "test--update-1"
    assert before.folder.name == "test--update-0"
    assert after.summary.stopped == before.summary.stopped == "done"
    out = export(found.run).folder
    card = (out / "left" / "README.md").read_text()
    assert "## System prompt of left\n\n```text\nl\n```" in card
    assert "supervised fine-tuning on chosen answers" in card
    assert "MAGRPO" not in card
    taken = out / "left" / "adapter_model.safetensors"
    assert taken.read_bytes() == weights(found)["left"]
    with pytest.raises(ConfigError, match=r"is a distilled team.*learn.from="):
        resume(found.run)


def test_gold_says_nothing_of_thoughts(gold: dict[str, Any], tmp_path: Path) -> None:
    thinking = {**gold, "agents": {"left": {"chain": ["plan"]}}}
    with pytest.raises(ConfigError, match="gold answers are actions, without what"):
        distil(into=tmp_path / "out", config=thinking, gold=True)


@pytest.mark.slow
def test_gold_is_learned_without_a_run(gold: dict[str, Any], tmp_path: Path) -> None:
    notes: list[str] = []
    found = distil(
        into=tmp_path / "out",
        config=gold,
        gold=True,
        epochs=60,
        learning_rate=0.03,
        note=notes.append,
    )
    assert notes[0] == "gold of train-3 earns less than 1.0 and is left out"
    assert found.examples == {"left": 3, "right": 3}
    after = orchestry.evaluate(found.run, samples=4).summary.mean_trajectory_reward
    before = orchestry.evaluate(found.run, samples=4, update=0).summary.mean_trajectory_reward
    assert after is not None
    assert before is not None
    assert after > before + 0.3
    answer = orchestry.evaluate(found.run).episodes[0].nodes[-1].turns[0].completion
    assert (answer.text, answer.stop) == ("eee", "end")  # the end was learned too


def test_an_api_run_teaches_local_weights(
    served: Run, gold: dict[str, Any], tmp_path: Path
) -> None:
    taught = {key: gold[key] for key in ("learn", "provider")}
    found = examples([served], config=taught, top=1.0)
    assert [one.answer for one in lessons(found) if one.agent == "left"] == ["e e e e"] * 4
    both = examples([served], config=taught, gold=True)
    assert [one.run for one in lessons(both)].count("gold") == 6
    assert both.setup.config.sampling.max_tokens == 512  # the run's own
    done = distil([served], tmp_path / "out", config=taught, epochs=1)
    assert done.examples == {"left": 1, "right": 1}  # a fifth of four, and all tie


def test_the_end_is_learned_where_the_answer_ended(
    served: Run, finished: Run, model: str, gold: dict[str, Any]
) -> None:
    taught = {key: gold[key] for key in ("learn", "provider")}
    found = examples([served], config=taught, top=1.0)
    trainer = trainer_of(found)
    base = trainer.crews[0].base
    (end,) = base.eos_ids
    assert base.end_id == end
    taught_ids = [one.ids for one in targets(found, trainer)]
    assert all(ids[-1] == end and end not in ids[:-1] for ids in taught_ids)
    assert base.answer_ids("e<|im_end|>e", ended=False).count(end) == 0
    own = examples([finished], config=SMALL, top=1.0)
    drawn = [one.tokens.ids for one in lessons(own) if one.tokens]
    trainer = trainer_of(own)
    assert [one.ids for one in targets(own, trainer)] == drawn


def test_answers_of_another_tokenizer_are_read_as_text(finished: Run, tmp_path: Path) -> None:
    other = tiny_folder(tmp_path / "other", seed=1)
    template = (other / "chat_template.jinja").read_text()
    (other / "chat_template.jinja").write_text(template.replace("assistant\n", "assistant: "))
    found = examples([finished], config={**SMALL, "provider": {"model": str(other)}}, top=1.0)
    trainer = trainer_of(found)
    for lesson, target in zip(lessons(found), targets(found, trainer), strict=True):
        assert target.ids == trainer.crews[0].base.answer_ids(lesson.answer, lesson.ended)


def test_equal_turns_count_once_and_behaviors_can_be_dropped(
    served: Run, gold: dict[str, Any]
) -> None:
    taught = {key: gold[key] for key in ("learn", "provider")}
    prompted = {role: {"system_prompt": f"{role}, act"} for role in ROLES}
    found = examples(
        [served, served], config={**taught, "agents": prompted}, top=1.0, drop_behaviors=True
    )
    assert len(found.lessons) == 8
    assert {one.messages[0].content for one in lessons(found)} == {"left, act", "right, act"}
    assert not unlike(found)
    assert not unlike(examples([served], config=taught, top=1.0))
    assert unlike(examples([served], config={**taught, "agents": prompted}, top=1.0)) == 8


def test_siblings_become_preferences(finished: Run, tmp_path: Path) -> None:
    found = examples([finished], config=SMALL, method="dpo")
    pairs = [one for one in found.lessons if isinstance(one, Preference)]
    assert len(pairs) == len(found.lessons) > 8
    for pair in pairs:
        assert pair.better.messages == pair.worse.messages
        assert pair.better.agent == pair.worse.agent == pair.agent
        assert pair.better.reward > pair.worse.reward
    values = {
        (record.episode, round(value, 9))
        for record in finished.episodes
        for group in record.groups
        for value in group.values
    }
    assert {round(pair.reward, 9) for pair in pairs} <= {value for _, value in values}
    half = examples([finished], config=SMALL, method="dpo", top=0.5)
    gaps = sorted(one.better.reward - one.worse.reward for one in pairs if one.agent == "left")
    kept = [one for one in half.lessons if isinstance(one, Preference) and one.agent == "left"]
    assert len(kept) == -(-len(gaps) // 2)
    assert sorted(one.better.reward - one.worse.reward for one in kept) == gaps[-len(kept) :]
    done = distil(
        [finished], tmp_path / "out", config=SMALL, method="dpo", epochs=8, learning_rate=0.01
    )
    assert done.examples["left"] == sum(one.agent == "left" for one in pairs)
    told = json.loads((done.run / "distil.json").read_text())
    assert told["settings"]["method"] == "dpo"
    assert told["epochs"][-1]["loss"] < told["epochs"][1]["loss"]


def test_samples_with_one_answer_are_one_side(finished: Run) -> None:
    """Of five samples of one prompt two are alike: their value is the mean of what they led to; one
    has another prompt, and is compared with nothing."""
    record = finished.episodes[0]
    turn = next(node for node in record.nodes if node.turns).turns[0]
    said = [("b", 0.5), ("a", 1.0), ("b", 0.1), ("c", 0.2), ("d", 0.9)]
    other = (*turn.messages[:-1], turn.messages[-1].model_copy(update={"content": "other"}))
    nodes = tuple(
        NodeRecord(
            id=f"0.{place}",
            parent="0",
            turns=(
                turn.model_copy(
                    update={
                        "completion": turn.completion.model_copy(update={"text": text}),
                        "messages": other if text == "d" else turn.messages,
                    }
                ),
            ),
            value=value,
            source="task",
            survived=True,
        )
        for place, (text, value) in enumerate(said)
    )
    group = record.groups[0].model_copy(
        update={
            "children": tuple(node.id for node in nodes),
            "values": tuple(value for _, value in said),
        }
    )
    run = load_run(finished.folder)
    vars(run)["episodes"] = [record.model_copy(update={"nodes": nodes, "groups": (group,)})]
    (pair,) = preferences([run], Choice(top=1.0), lambda one: one)
    assert (pair.better.answer, pair.better.reward) == ("a", 1.0)
    assert (pair.worse.answer, pair.worse.reward) == ("c", 0.2)
    vars(run)["episodes"] *= 2
    assert len(preferences([run], Choice(top=0.5), lambda one: one)) == 1


def test_equal_arguments_give_equal_weights(gold: dict[str, Any], tmp_path: Path) -> None:
    done = [
        distil(into=tmp_path / name, config={**gold, "seed": seed}, gold=True, epochs=2)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert weights(done[0]) == weights(done[1])
    assert weights(done[0]) != weights(done[2])


def test_a_distilled_team_is_a_start_for_another(gold: dict[str, Any], tmp_path: Path) -> None:
    first = distil(into=tmp_path / "a", config=gold, gold=True, epochs=3, learning_rate=0.03)
    more = {**gold, "learn": {**gold["learn"], "from": str(first.folder)}}
    notes: list[str] = []
    distil(into=tmp_path / "b", config=more, gold=True, epochs=1, note=notes.append)
    fresh: list[str] = []
    distil(into=tmp_path / "c", config=gold, gold=True, epochs=1, note=fresh.append)
    losses = [float(lines[-1].rpartition(" ")[2]) for lines in (notes, fresh)]
    assert losses[0] < losses[1]


def test_a_frozen_agent_learns_nothing(gold: dict[str, Any], tmp_path: Path) -> None:
    notes: list[str] = []
    frozen = {**gold, "agents": {"left": {"frozen": True}}}
    done = distil(into=tmp_path / "out", config=frozen, gold=True, epochs=2, note=notes.append)
    assert done.examples == {"left": 0, "right": 3}
    assert "left has no example, and keeps its weights" in notes
    frozen["agents"]["right"] = {"frozen": True}
    with pytest.raises(ConfigError, match=r"are frozen: take agents\.ROLE\.frozen away"):
        examples(config=frozen, gold=True)
    with pytest.raises(ConfigError, match=r"does not use agents\.left\.provider"):
        examples(config={**gold, "agents": {"left": {"provider": "fake"}}}, gold=True)


def test_a_partner_of_another_provider_leaves_no_base(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """The model of a frozen partner whom a provider answered for is no base for its adapter."""
    partner = ("frozen=true", "provider.name=fake", "model=fake-1")
    sets = [f"agents.left.{one}" for one in partner]
    run = orchestry.train(config(model, tasks, "episodes=4", *sets), tmp_path / "run")
    found = distil([run], tmp_path / "out", config=SMALL, epochs=1, top=1.0)
    assert all(found.examples[role] for role in ROLES)


def test_a_sample_that_could_not_be_scored_is_no_side(model: str, tmp_path: Path) -> None:
    line = '        text = "".join(state.said)\n'
    bug = '        if state.said[0].count("e") < 1:\n            raise ValueError("a bug")\n'
    faulty = write_task(tmp_path / "tasks", TASK.replace(line, bug + line))
    run = orchestry.train(config(model, faulty, "episodes=4"), tmp_path / "run")
    leaves = [leaf for record in run.episodes for leaf in record.leaves()]
    unscored = {leaf.turns for leaf in leaves if TASK_ERROR in leaf.score.tags}
    assert unscored
    try:
        found = examples([run], config=SMALL, method="dpo").lessons
    except ConfigError:  # no two others differ
        return
    pairs = [one for one in found if isinstance(one, Preference)]
    said = {turn.completion.text for turns in unscored for turn in turns if turn.agent == "left"}
    assert not [one for one in pairs if one.agent == "left" and one.worse.answer in said]


def test_an_interruption_leaves_nothing(gold: dict[str, Any], tmp_path: Path) -> None:
    def stop(done: int, steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(into=tmp_path / "x" / "out", config=gold, gold=True, progress=stop)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"split": "dev"}, "was played on dev, which measures"),
        ({"split": "test"}, "was played on test, which measures"),
        ({"baseline": "fixed"}, "was played as baseline fixed"),
        ({"task": "words"}, "is of task words, and the team is of task letters"),
    ],
)
def test_runs_that_measure_or_are_of_other_tasks_are_refused(
    changes: dict[str, Any], found: str, finished: Run, tmp_path: Path
) -> None:
    other = Run(shutil.copytree(finished.folder, tmp_path / "other"))
    import yaml

    (other.folder / "config.yaml").write_text(yaml.safe_dump({**other.config, **changes}))
    with pytest.raises(ConfigError, match=found):
        examples([finished, load_run(other.folder)], config=SMALL)


def test_an_evaluation_is_refused(finished: Run, tmp_path: Path) -> None:
    run = load_run(shutil.copytree(finished.folder, tmp_path / "run"))
    measured = orchestry.evaluate(run, split="dev")
    with pytest.raises(ConfigError, match="was played on dev"):
        examples([measured], config=SMALL)


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({"top": 0.0}, "top is 0: give a share"),
        ({"top": 1.5}, "top is 1.5: give a share"),
        ({"min_reward": 2.0}, "min-reward is 2"),
        (
            {"min_reward": 1.0},
            "none of the best 20% .*run has a reward of at least 1",
        ),
        ({"by": "luck"}, "by is 'luck': choose one of reward"),
        ({"by": "rating"}, "nobody rated a trajectory"),
        ({"method": "ppo"}, "unknown method 'ppo'"),
        ({"method": "dpo", "gold": True}, "--gold has no worse ones: leave it out"),
        ({"method": "dpo", "by": "credit"}, "by what they led to: leave out --by credit"),
        ({"method": "dpo", "beta": 0.0}, "beta is 0"),
        ({"method": "dpo", "min_reward": 1.0}, "has no two answers to one prompt"),
        ({"beta": 0.5}, "--beta is of --method dpo"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"learning_rate": 0.0}, "learning-rate is 0"),
        ({"held_out": 0.9}, "held-out is 0.9"),
    ],
)
def test_wrong_settings_are_refused(how: Any, found: str, finished: Run) -> None:
    with pytest.raises(ConfigError, match=found):
        examples([finished], config=SMALL, **how)


def test_what_would_be_ignored_is_refused(finished: Run, tmp_path: Path) -> None:
    for given, fix in (
        ({"learn": {"epochs": 2}}, "learn.epochs: give --epochs"),
        ({"learn": {"learning_rate": 0.1}}, "learn.learning_rate: give --learning-rate"),
        ({"search": {"k_samples": 2}}, "search.k_samples: leave it out"),
    ):
        with pytest.raises(ConfigError, match=fix):
            examples([finished], config=given)
    with pytest.raises(ConfigError, match="nothing to learn from"):
        examples()
    with pytest.raises(ConfigError, match="needs the task"):
        examples(gold=True)
    with pytest.raises(ConfigError, match="has no gold answers on train"):
        examples(config={"task": "words", "task_path": [str(WORDS)]}, gold=True)
    with pytest.raises(ConfigError, match="--top and --min-reward choose among"):
        examples(config={"task": "words", "task_path": [str(WORDS)]}, gold=True, top=0.5)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="full is not empty"):
        distil([finished], tmp_path / "full")
    with pytest.raises(ConfigError, match="file takes no new folder"):
        distil([finished], tmp_path / "full" / "file" / "out")


def test_calls_of_a_programs_tools_are_learned_as_weights_write_them(
    model: str, tmp_path: Path
) -> None:
    """To the prompt that shows the tools, as a local run with these weights would."""
    for package in ("aiohttp", "openai"):
        pytest.importorskip(package)
    sets = ["task=chatter", f"task_path=[{WORDS}]", "provider.name=fake", "options.way=tools"]
    run = orchestry.train(resolve([], [*sets, "episodes=2"], {}), tmp_path / "run")
    wide = shutil.copytree(model, tmp_path / "wide")
    read = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps({**read, "max_position_embeddings": 8192}))
    given = {**SMALL, "provider": {"model": str(wide)}}
    found = examples([run], config=given, top=1.0, held_out=0.0)
    made = trainer_of(found)
    base = made.crews[0].base
    learned = targets(found, made)
    called = [one for one in zip(lessons(found), learned, strict=True) if one[0].calls]
    assert called
    for lesson, target in called:
        (call,) = lesson.calls
        assert target.prompt_ids == base.render(lesson.messages, tools=lesson.tools)
        assert len(target.prompt_ids) > len(base.render(lesson.messages))
        text = f'<tool_call>\n{{"name": "count", "arguments": {call.arguments}}}\n</tool_call>'
        assert target.ids == base.answer_ids(text, ended=True)
