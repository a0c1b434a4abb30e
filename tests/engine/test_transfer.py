"""What a run learned, on another task: who plays which role, and what it is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.backends.library import Behavior, Library, read_library, to_yaml
from orchestry.core.errors import ConfigError
from orchestry.engine.evaluate import compared, evaluate
from orchestry.engine.run import resume
from orchestry.report.document import commands, write_report
from orchestry.report.headline import headline
from orchestry.report.held_out import held_evaluations, in_words, team_on, untrained
from orchestry.report.measures import gain
from orchestry.report.runs import read_experiments
from orchestry.store.journal import Opened, Reserved
from orchestry.store.measurements import last_evaluation, transfer_of
from orchestry.store.run import Run
from tests.engine.test_agents import TASK as OPEN
from tests.engine.test_learning import PLUS, model
from tests.engine.test_learning import config as learning
from tests.engine.test_run import config, kill_at

RULE, HINT = "Write in verse.", "Count the words."


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of `words` that began with two rules."""
    rules = (("writer", RULE), ("reviewer", HINT))
    behaviors = tuple(Behavior(agent=role, text=text, status="accepted") for role, text in rules)
    file = tmp_path / "library.yaml"
    file.write_text(to_yaml(Library(task="words", model="fake-1", behaviors=behaviors)))
    sets = (f"behaviors.from={file}", "behaviors.enabled=false", "episodes=2")
    return orchestry.train(config(*sets), tmp_path / "run")


class Notes:
    """Keeps what a user would be told."""

    def __init__(self) -> None:
        self.said = list[str]()

    def note(self, text: str) -> None:
        self.said.append(text)

    def started(self, *seen: Any) -> None: ...

    def committed(self, record: Any) -> None: ...


def prompts(run: Run) -> dict[str, str]:
    """By role, its system prompt, which all its turns share."""
    turns = [turn for one in run.episodes for node in one.nodes for turn in node.turns]
    found = {turn.agent: turn.messages[0].content for turn in turns}
    assert all(turn.messages[0].content == found[turn.agent] for turn in turns)
    return found


def calls(run: Run) -> int:
    return sum(isinstance(event, Reserved) for event in run.events)


def test_roles_get_what_agents_of_their_name_or_of_the_map_learned(run: Run) -> None:
    watch = Notes()
    found = evaluate(run, task="lines", roles={"author": "writer"}, observer=watch)
    told = prompts(found)
    assert RULE in told["author"]
    assert HINT in told["reviewer"]
    assert not {RULE, HINT} & {*told["printer"].splitlines()}
    assert "lines: author is played by writer, reviewer is played by reviewer, printer plays " in (
        " ".join(watch.said)
    )
    assert "2 behaviours that were accepted on words are in the prompts, untested" in (
        " ".join(watch.said)
    )
    assert not any("changed since" in text for text in watch.said)
    assert (found.summary.task, len(found.episodes)) == ("lines", 6)
    kept = read_library(found.folder / "behaviors" / "from.yaml")
    assert (kept.task, [one.agent for one in kept.behaviors]) == ("lines", ["author", "reviewer"])
    assert all("for writer on words" in b.note for b in kept.accepted("author"))
    assert all(b.evidence is None for b in kept.behaviors)


@pytest.mark.slow
def test_each_map_and_option_has_its_own_folder_and_is_paid_once(run: Run) -> None:
    by_name = evaluate(run, task="lines")
    assert by_name.folder.name == "test--on-lines"
    assert RULE not in prompts(by_name)["author"]
    mapped = evaluate(run, task="lines", roles={"author": "writer"})
    short = evaluate(run, task="lines", changes={"options": {"most": 20}}, samples=2)
    assert short.folder.name.startswith("test--samples-2--as-")
    assert len({by_name.folder, mapped.folder, short.folder}) == 3
    assert max(short.rewards) == 1.0
    assert short.config["options"] == {"most": 20}
    again = evaluate(run, task="lines", roles={"author": "writer"})
    assert (again.folder, calls(again)) == (mapped.folder, calls(mapped))
    own = evaluate(run)
    assert own.folder.name == "test"
    assert last_evaluation(run.folder, "test", None) == own.folder
    how = transfer_of(mapped.folder)
    assert how is not None
    assert how.words == "writer plays author"
    assert transfer_of(own.folder) is None


def test_its_own_task_takes_other_options_and_keeps_its_prompts(tmp_path: Path) -> None:
    asked = config("task=lines", "options.most=300", "agents.author.system_prompt=Be brief.")
    run = orchestry.train(asked, tmp_path / "run")
    found = evaluate(run, changes={"options": {"most": 30}})
    assert prompts(found)["author"] == "Be brief."
    assert found.config["options"] == {"most": 30}
    elsewhere = evaluate(run, task="words", roles={"writer": "author"})
    assert "Be brief." not in prompts(elsewhere)["writer"]
    assert elsewhere.config["options"] == {}


def test_a_team_of_its_own_roles_plays_its_task_with_other_settings(tmp_path: Path) -> None:
    """A task with open roles; settings that JSON has in another form are played once too."""
    (tmp_path / "tasks" / "open").mkdir(parents=True)
    (tmp_path / "tasks" / "open" / "task.py").write_text(OPEN)
    team = "agents=[{role: writer}, {role: second, goal: Help.}]"
    asked = config("task=open", f"task_path=[{tmp_path / 'tasks'}]", team, "episodes=1")
    run = orchestry.train(asked, tmp_path / "run")
    how: dict[str, Any] = {"changes": {"sampling": {"stop": ("END",)}}, "episodes": 1, "samples": 1}
    found = evaluate(run, **how)
    assert {*prompts(found)} == {"writer", "second"}
    assert found.config["sampling"]["stop"] == ["END"]
    assert calls(evaluate(run, **how)) == calls(found)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"roles": {"autor": "writer"}}, r"unknown role of task lines 'autor': did you mean 'aut"),
        ({"roles": {"author": "editor"}}, r"agent of the run 'editor':.* Known: writer, reviewer"),
        ({"changes": {"search": {"k_samples": 2}}}, r"search\.k_samples would make another team"),
        ({"task": "none"}, "unknown task 'none'"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_list(
    how: dict[str, Any], said: str, run: Run
) -> None:
    with pytest.raises(ConfigError, match=said):
        evaluate(run, **{"task": "lines", **how})
    assert not (run.folder / "evaluations").exists()


def test_a_team_of_which_nobody_would_play_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"--map writer=concise \(it learned writer, reviewer, "):
        evaluate(run, task="tldr", changes={"sampling": {"max_tokens": 9}})
    wrong: Any  # as a notebook may give it
    for wrong, said in ({"author": None}, "agent of the run 'None'"), (["author"], "by role, such"):
        with pytest.raises(ConfigError, match=said):
            evaluate(run, task="lines", roles=wrong)


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_also_by_resume(run: Run, tmp_path: Path) -> None:
    whole = evaluate(run, task="lines", roles={"author": "writer"})
    (run.folder / "evaluations").rename(tmp_path / "whole")
    slow = run.folder / "config.yaml"
    slow.write_text(slow.read_text().replace("latency_s: 0.0", "latency_s: 0.03"))
    name = whole.folder.name
    place = run.folder / "evaluations" / name
    kill_at(
        b'"committed"',
        place,
        *("evaluate", str(run.folder), "--task", "lines", "--map", "writer=author"),
    )
    cut = resume(place)
    assert sum(isinstance(event, Opened) for event in cut.events) == 2
    assert cut.rewards == Run(tmp_path / "whole" / name).rewards
    before = calls(cut)
    assert calls(evaluate(run, task="lines", roles={"author": "writer"})) == before


@pytest.mark.slow
def test_a_team_that_learned_is_compared_with_itself_as_it_began(tmp_path: Path) -> None:
    with model() as (_, where):
        run = orchestry.train(learning(*where), tmp_path / "run")
        (rule,) = (b for b in read_library(run.folder).behaviors if b.status == "accepted")
        found, began = compared(run, task="lines", roles={"author": rule.agent}, samples=2)
        assert began is not None
        assert PLUS in prompts(found)["author"]
        assert PLUS not in prompts(began)["author"]
        lead = gain(found, began)
        assert lead is not None
        assert lead.low > 0
        evaluate(run, samples=2)
    (experiment,) = read_experiments([run.folder])
    held = held_evaluations(experiment)
    assert [(one.update, one.transfer and one.transfer.task) for one in held] == [
        (4, None),
        (0, "lines"),
        (4, "lines"),
    ]
    assert untrained(held[2], held) == held[1]
    assert untrained(held[0], held) is None
    assert team_on(experiment, held[2]) == held[0]
    where_ = f", on lines ({rule.agent} plays author)"
    assert held[2].words == f"after update 4, 2 samples each{where_}"
    assert any(f"on test problems{where_}, the team as the run" in s for s in headline(experiment))
    assert in_words(found.folder.name, found).endswith("2 samples each, on lines")
    typed = [line for line in commands(experiment, "again") if "--task" in line]
    assert typed[0].endswith(f"--task lines --map {rule.agent}=author")
    report = write_report([experiment], tmp_path / "report", "orchestry report")
    assert f"on lines ({rule.agent} plays author)" in report.files[0].read_text()
