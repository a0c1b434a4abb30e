"""Runs that learn: on a real HTTP server whose answers depend on the prompt, and killed in between.

The server's agents write more where their system prompt holds PLUS; the reward is the length.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.backends.api.backend import ApiBackend
from orchestry.backends.library import Behavior, Library, read_library, to_yaml
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError
from orchestry.engine.run import prepare, resume
from orchestry.rollout.credit import blame
from orchestry.store.journal import Answered, Learned, Rated, read
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Store
from tests.engine.test_run import PRICED, TASKS, artefacts, kill_at
from tests.models.loopback import Server, reply, serving

PLUS = "Write forty letters more than you think is enough."
LEARN = (
    *("task=words", f"task_path=[{TASKS}]", "episodes=12", "search.k_samples=3"),
    *("behaviors.enabled=true", "behaviors.every=3", "behaviors.share=4", "cache.enabled=false"),
)
MODEL = ("provider.name=openai", "provider.model=m", "prices.m.input=1", "prices.m.output=5")


def answer(body: dict[str, Any], acts: Callable[[dict[str, Any]], str]) -> bytes:
    """What the planted model says to one request."""
    said = {"message": {"content": content(body, acts)}, "finish_reason": "stop"}
    return reply({"choices": [said], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})


def content(body: dict[str, Any], acts: Callable[[dict[str, Any]], str]) -> str:
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
    if "behaviors" in schema.get("properties", {}):
        return json.dumps({"behaviors": [{"why": "they were short", "text": PLUS}]})
    if schema:
        rating = {"feedback": "Longer.", "quality": 7, "collaboration": 5, "efficiency": 5}
        return json.dumps(dict.fromkeys(schema["properties"], rating))
    return acts(body)


def letters(body: dict[str, Any]) -> str:
    """More of them where the system prompt has the rule."""
    digest = blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=2).digest()
    more = 40 if PLUS in body["messages"][0]["content"] else 0
    return "x" * (10 + digest[0] % 20 + more)


@contextmanager
def model(
    wait_s: Callable[[int], float] = lambda number: 0.0,
    acts: Callable[[dict[str, Any]], str] = letters,
) -> Iterator[tuple[Server, tuple[str, ...]]]:
    """The planted model behind a real server in a thread, and the settings that reach it. `acts`:
    what it says as an agent."""
    ready, held = threading.Event(), list[Server]()
    loop, done = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with serving(lambda number: answer(held[0].bodies[number], acts), wait_s) as server:
            held.append(server)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait(10)
    try:
        yield held[0], (*MODEL, f"provider.base_url={held[0].url}")
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()


def config(*sets: str) -> RunConfig:
    return resolve([], [*LEARN, *sets])


@pytest.mark.slow
def test_a_run_learns_what_helps_and_its_evaluation_uses_it(tmp_path: Path) -> None:
    with model() as (server, where):
        run = orchestry.train(config(*where), tmp_path / "run")
        library = read_library(run.folder / "behaviors" / "library.yaml")
        (learned,) = [b for b in library.behaviors if b.status == "accepted"]
        assert learned.text == PLUS
        first, last = run.episodes[0], run.episodes[-1]
        assert not said(first, learned.agent, PLUS)
        assert said(last, learned.agent, PLUS)
        assert f"+- {PLUS}" in run.summary.prompt_diff
        assert run.summary.updates == 4
        assert run.summary.cost_by_use["learning"] > 0
        assert sum(run.summary.cost_by_use.values()) == pytest.approx(run.summary.cost_usd)
        purposes = {row.purpose for row in run.summary.usage}
        assert purposes == {"act", "judge", "credit", "trial", "distil"}
        found = orchestry.evaluate(run, "test")
        assert found.folder.name == "test--update-4"
        assert all(said(episode, learned.agent, PLUS) for episode in found.episodes)
        assert {row.purpose for row in found.summary.usage} == {"act", "judge"}
        began = orchestry.evaluate(run, "test", update=0)
        assert not any(said(episode, learned.agent, PLUS) for episode in began.episodes)
        calls = len(server.bodies)
        assert resume(run.folder).summary.prompt_diff == run.summary.prompt_diff
        assert len(server.bodies) == calls, "a finished run asks nothing"


def said(record: EpisodeRecord, agent: str, text: str) -> bool:
    """Whether the text stands in every system prompt of that agent's turns."""
    turns = [turn for node in record.nodes for turn in node.turns if turn.agent == agent]
    return all(text in turn.messages[0].content for turn in turns)


@pytest.mark.slow
def test_a_library_of_another_task_is_tested_and_one_of_this_task_is_used(tmp_path: Path) -> None:
    with model() as (_, where):
        first = orchestry.train(config(*where), tmp_path / "first").folder
        library = first / "behaviors" / "library.yaml"
        same = orchestry.train(
            config(*where, f"behaviors.from={library}", "episodes=2"), tmp_path / "same"
        )
        (agent,) = [b.agent for b in read_library(library).behaviors if b.status == "accepted"]
        assert all(said(episode, agent, PLUS) for episode in same.episodes)
        foreign = tmp_path / "foreign.yaml"
        foreign.write_text(library.read_text().replace("task: words", "task: other"))
        moved = orchestry.train(
            config(*where, f"behaviors.from={foreign}", "episodes=6"), tmp_path / "moved"
        )
        assert not said(moved.episodes[0], agent, PLUS)
        assert f"+- {PLUS}" in moved.summary.prompt_diff
        with pytest.raises(ConfigError, match="must be tested before it is used"):
            prepare(config(*where, f"behaviors.from={foreign}", "behaviors.enabled=false"))


FAKE = (*PRICED, "provider.name=fake", "judge.enabled=true", "provider.fake.latency_s=0.005")


@pytest.mark.parametrize("mark", [b'"purpose":"trial"', b'"purpose":"distil"', b'"learned"'])
@pytest.mark.slow
def test_a_run_killed_while_it_learns_goes_on_as_if_it_had_not_been(
    tmp_path: Path, mark: bytes
) -> None:
    whole = orchestry.train(config(*FAKE), tmp_path / "whole")
    folder = tmp_path / "killed"
    sets = [word for item in (*LEARN, *FAKE) for word in ("--set", item)]
    kill_at(mark, folder, "run", "--run-dir", str(folder), *sets)
    resume(folder)
    assert artefacts(folder) == artefacts(whole.folder)
    name = "behaviors/library.yaml"
    assert (folder / name).read_text() == (whole.folder / name).read_text()
    events = list(read(folder / "journal.jsonl"))
    keys = [event.key for event in events if isinstance(event, Answered)]
    assert len(set(keys)) == len(keys), "an answer was paid twice"
    assert [e.update for e in events if isinstance(e, Learned)] == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_budget_that_ends_in_an_update_can_be_raised(tmp_path: Path) -> None:
    whole = orchestry.train(config(*FAKE), tmp_path / "whole")
    events = list(read(whole.folder / "journal.jsonl"))
    spent, cap = 0.0, 0.0
    for event in events:
        if isinstance(event, Answered):
            spent += event.completion.usd
            if event.purpose == "trial" and not cap:
                cap = spent + 0.003
    run = orchestry.train(config(*FAKE, f"budget.usd={cap}"), tmp_path / "capped")
    assert run.summary.stopped == "budget"
    assert run.summary.updates == 0
    done = resume(run.folder, {"budget": {"usd": 100.0}})
    assert done.rewards == whole.rewards
    assert done.summary.prompt_diff == whole.summary.prompt_diff


def test_ratings_of_people_are_learned_from_on_a_resume(tmp_path: Path) -> None:
    plain = orchestry.train(config(*FAKE, "episodes=3"), tmp_path / "plain")
    rated = orchestry.train(config(*FAKE, "episodes=2"), tmp_path / "rated")
    with Store(rated.folder) as store:
        for record in rated.episodes:
            for leaf in record.leaves():
                flipped = 1.0 - (leaf.value or 0.0)
                event = Rated(episode=record.episode, node=leaf.id, rating=flipped, at=0.0)
                store.journal.append(event)
    found = resume(rated.folder, {"episodes": 3})
    asked = [distilled(run.folder) for run in (plain, found)]
    assert asked[0] != asked[1]


def test_an_override_replaces_the_reward_of_the_work_it_rates(tmp_path: Path) -> None:
    """Its best trajectory is then the one by which agents are blamed; reports keep the task's."""
    run = orchestry.train(config(*FAKE, "episodes=2"), tmp_path / "run")
    record = next(r for r in run.episodes if len({c.leaf for c in r.credits}) == 2)
    (worst,) = {c.leaf for c in record.credits} - {record.best}
    found = record.with_rewards({worst: 1.0, record.best: 0.0})
    assert (found.best, found.node(worst).score.total, found.node(worst).value) == (worst, 1.0, 1.0)
    assert (found.reward, found.mean_leaf_reward) == (record.reward, record.mean_leaf_reward)
    assert blame([found]) != blame([record])
    ways = {}
    for override in (False, True):
        folder = shutil.copytree(run.folder, tmp_path / str(override))
        with Store(folder) as store:
            for leaf, rating in ((worst, 1.0), (record.best, 0.0)):
                event = Rated(
                    episode=record.episode, node=leaf, rating=rating, override=override, at=0.0
                )
                store.journal.append(event)
        ways[override] = distilled(resume(folder, {"episodes": 3}).folder)
    assert ways[False] != ways[True]


def distilled(folder: Path) -> list[str]:
    """The keys of what was asked to distil, which hold the contrasts that were shown."""
    events = read(folder / "journal.jsonl")
    return [e.key for e in events if isinstance(e, Answered) and e.purpose == "distil"]


def test_a_task_without_dev_problems_can_not_learn(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "lone"
    folder.mkdir(parents=True)
    text = (TASKS / "words" / "task.py").read_text()
    text = text.replace('name: ClassVar[str] = "words"', 'name: ClassVar[str] = "lone"')
    text = text.replace("for n in range(5)]", 'for n in range(5) if split == "train"]')
    (folder / "task.py").write_text(text)
    sets = ("task=lone", f"task_path=[{tmp_path / 'tasks'}]", *FAKE)
    with pytest.raises(ConfigError, match="no dev problems"):
        prepare(config(*sets))
    notes = list[str]()
    plan = prepare(config(*sets, "behaviors.enabled=null"), notes.append)
    assert plan.backend.every is None
    assert "nothing is learned" in notes[0]


def test_a_run_too_short_to_learn_says_so() -> None:
    def told(*sets: str) -> list[str]:
        notes = prepare(config(*FAKE, *sets)).backend.notes
        return [note for note in notes if "nothing is learned" in note]

    (note,) = told("episodes=2", "behaviors.every=3")
    assert "an update takes behaviors.every=3 episodes, the run has 2: raise --episodes" in note
    assert told("episodes=3", "behaviors.every=3") == []
    assert told("episodes=2", "behaviors.every=3", "behaviors.enabled=false") == []


# --- the library that a run starts from -----------------------------------------------------------


def library_file(path: Path, text: str, agent: str = "writer", **changes: Any) -> Path:
    """A library of the planted model with one accepted behaviour."""
    behavior = Behavior(agent=agent, text=text, status="accepted")
    path.write_text(
        to_yaml(Library(task="words", model="fake-1", behaviors=(behavior,), **changes))
    )
    return path


PLAIN = (*(item for item in LEARN if "enabled" not in item), "provider.name=fake", "episodes=2")


def test_the_library_at_the_start_is_part_of_the_run(tmp_path: Path) -> None:
    path = library_file(tmp_path / "lib.yaml", "FIRST")
    run = orchestry.train(
        config(*PLAIN, f"behaviors.from={path}", "behaviors.enabled=false"), tmp_path / "run"
    )
    assert said(run.episodes[0], "writer", "FIRST")
    library_file(path, "SECOND")
    assert said(resume(run.folder, {"episodes": 3}).episodes[2], "writer", "FIRST")
    path.unlink()
    moved = run.folder.rename(tmp_path / "moved")
    assert said(resume(moved, {"episodes": 4}).episodes[3], "writer", "FIRST")
    found = orchestry.evaluate(moved, "test")
    assert all(said(episode, "writer", "FIRST") for episode in found.episodes)
    assert said(orchestry.evaluate(moved, "test").episodes[0], "writer", "FIRST")


def test_behaviours_for_agents_that_the_task_lacks_are_left_out_and_said(tmp_path: Path) -> None:
    path = library_file(tmp_path / "lib.yaml", "FIRST", agent="nobody")
    plan = prepare(config(*PLAIN, f"behaviors.from={path}", "behaviors.enabled=false"))
    assert isinstance(plan.backend, ApiBackend)
    assert not plan.backend.library.behaviors
    (note,) = [note for note in plan.backend.notes if "nobody" in note]
    assert "writer" in note


def test_what_was_accepted_on_some_dev_draws_is_not_tested_on_them_again(tmp_path: Path) -> None:
    path = library_file(tmp_path / "lib.yaml", "FIRST")
    first = orchestry.train(config(*FAKE, "episodes=3"), tmp_path / "first")
    second = orchestry.train(
        config(*FAKE, "episodes=3", f"behaviors.from={path}"), tmp_path / "second"
    )
    seen = [trial_keys(run.folder, "refactorer") for run in (first, second)]
    assert all(seen)
    assert not seen[0] & seen[1]


def trial_keys(folder: Path, agent: str) -> set[str]:
    events = read(folder / "journal.jsonl")
    return {
        e.key
        for e in events
        if isinstance(e, Answered) and (e.agent, e.purpose) == (agent, "trial")
    }


def test_what_people_rated_is_contrasted_after_its_block_too(tmp_path: Path) -> None:
    spare = ("behaviors.share=1",)
    run = orchestry.train(config(*FAKE, *spare, "episodes=3"), tmp_path / "run")
    with Store(run.folder) as store:
        for leaf, rating in zip(run.episodes[0].leaves(), (1.0, 0.0), strict=False):
            event = Rated(episode=0, node=leaf.id, rating=rating, at=0.0)
            store.journal.append(event)
    resume(run.folder, {"episodes": 6})
    born = [b for b in last_learned(run.folder)["library"]["behaviors"] if b["born"] == 2]
    assert any(0 in b["evidence"]["episodes"] for b in born if b["evidence"])


def last_learned(folder: Path) -> dict[str, Any]:
    return [e.state for e in read(folder / "journal.jsonl") if isinstance(e, Learned)][-1]


def test_what_is_learned_by_can_not_change_on_a_resume(tmp_path: Path) -> None:
    run = orchestry.train(config(*FAKE, "episodes=3"), tmp_path / "run")
    with pytest.raises(ConfigError, match="can't be changed on a resume"):
        resume(run.folder, {"behaviors": {"every": 2}})


@pytest.mark.slow
def test_an_evaluation_plays_the_library_of_the_update_that_is_meant(tmp_path: Path) -> None:
    """Taken from the journal: a file that a kill left behind its update changes nothing."""
    run = orchestry.train(config(*FAKE, "episodes=12"), tmp_path / "run")
    (run.folder / "behaviors" / "library.yaml").unlink()
    states = {e.update: e.state for e in run.events if isinstance(e, Learned)}
    for update in (1, 4):
        found = orchestry.evaluate(run.folder, update=update)
        assert found.folder.name == f"test--update-{update}"
        played = read_library(found.folder / "behaviors" / "library.yaml")
        assert played == Library.model_validate(states[update]["library"]).adopted()
    assert orchestry.evaluate(run.folder).folder.name == "test--update-4"


def test_an_evaluation_of_update_0_plays_the_prompts_that_a_run_began_with(tmp_path: Path) -> None:
    """Its own library, and none where that was of another model and still to be tested."""
    path = library_file(tmp_path / "lib.yaml", "FIRST")
    for other, kept in (("fake-1", True), ("fake-2", False)):
        path.write_text(path.read_text().replace("model: fake-1", f"model: {other}"))
        sets = (*FAKE, "episodes=3", f"behaviors.from={path}")
        run = orchestry.train(config(*sets), tmp_path / other)
        found = orchestry.evaluate(run.folder, update=0)
        assert found.folder.name == "test--update-0"
        assert all(said(episode, "writer", "FIRST") is kept for episode in found.episodes)


def test_an_update_that_was_not_taken_is_named(tmp_path: Path) -> None:
    run = orchestry.train(config(*FAKE, "episodes=3"), tmp_path / "run")
    with pytest.raises(ConfigError, match="has no update 7: give 1 to 1, or 0 for the team"):
        orchestry.evaluate(run.folder, update=7)
    with pytest.raises(ConfigError, match=r"knows no best update: .*learn.evaluate_every"):
        orchestry.evaluate(run.folder, update="best")
    assert not (run.folder / "evaluations").exists()


def test_a_library_of_more_than_a_prompt_takes_is_refused(tmp_path: Path) -> None:
    """Each text is bounded, and so is their number: a prompt can't be filled from elsewhere."""
    rules = "".join(f"- {{agent: writer, text: Say {n}., status: accepted}}\n" for n in range(4))
    path = tmp_path / "library.yaml"
    path.write_text(f"task: words\nmodel: fake-1\nbehaviors:\n{rules}")
    with pytest.raises(ConfigError, match=r"4 accepted behaviours for writer, and .*=3 enter"):
        prepare(config(f"behaviors.from={path}"))
    prepare(config(f"behaviors.from={path}", "behaviors.max_per_agent=4"))
