"""What changed between two processes of a run is found by content, named, and refused or noted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import orchestry
from orchestry.core.config import RunConfig, validate
from orchestry.core.digests import text_digest
from orchestry.core.errors import ConfigError
from orchestry.core.files import to_json
from orchestry.core.resolve import Mark, marks, merge
from orchestry.engine.changes import changed, check_changes, config_digests
from orchestry.engine.evaluate import evaluate
from orchestry.engine.run import prepare, resume
from orchestry.engine.session import Silent
from orchestry.store.journal import Opened
from orchestry.store.run import Run
from orchestry.task.registry import load_task
from orchestry.task.setup import option_files
from tests.engine.test_run import TASKS, config


class Notes(Silent):
    """All that a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of two episodes, of a task that lies beside it."""
    shutil.copytree(TASKS / "words", tmp_path / "shelf" / "words")
    return orchestry.train(
        config("episodes=2", f"task_path=[{tmp_path / 'shelf'}]"), tmp_path / "run"
    )


def edit(run: Run, **changes: Any) -> None:
    path = run.folder / "config.yaml"
    path.write_text(yaml.safe_dump(merge(yaml.safe_load(path.read_text()), changes)))


def opened(run: Run) -> list[Opened]:
    return [e for e in Run(run.folder).events if isinstance(e, Opened)]


def test_an_edited_config_is_refused_by_name_or_accepted_in_the_journal(run: Run) -> None:
    assert resume(run.folder).summary.stopped == "done"
    edit(run, seed=7)
    before = (run.folder / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=r"seed in config.yaml: .*resume \S+ --accept-changes"):
        resume(run.folder)
    assert (run.folder / "config.yaml").read_bytes() == before
    assert len(opened(run)) == 2
    resume(run.folder, accept=True)
    assert [event.accepted for event in opened(run)] == [(), (), ("config.seed",)]
    resume(run.folder)


@pytest.mark.parametrize("name", ["task.py", "more.py", "problems.jsonl"])
def test_an_edited_task_is_refused_by_file(run: Run, tmp_path: Path, name: str) -> None:
    with (tmp_path / "shelf" / "words" / name).open("a") as file:
        file.write("\n")
    for harmless in ("README.md", ".cache"):
        (tmp_path / "shelf" / "words" / harmless).write_text("new")
    with pytest.raises(ConfigError, match=f"{name} of the task: .*--accept-changes"):
        resume(run.folder)
    resume(run.folder, {"episodes": 3}, accept=True)
    assert opened(run)[-1].accepted == (f"task/{name}",)


def test_an_evaluation_says_that_the_task_is_another(run: Run, tmp_path: Path) -> None:
    notes = Notes()
    evaluate(run, observer=notes)
    assert not [text for text in notes.said if "changed since" in text]
    with (tmp_path / "shelf" / "words" / "task.py").open("a") as file:
        file.write("# better\n")
    evaluate(run, "dev", observer=notes)
    assert [text for text in notes.said if "task.py of the task changed since" in text]
    with pytest.raises(ConfigError, match=r"task.py of the task"):  # half of it would be of then
        evaluate(run)


def test_a_task_that_moved_is_the_same(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shelf").rename(tmp_path / "moved")
    found = resume(run.folder, {"task_path": [str(tmp_path / "moved")]})
    assert (found.summary.stopped, opened(run)[-1].accepted) == ("done", ())


def test_a_run_whose_strategy_had_its_old_name_goes_on(tmp_path: Path) -> None:
    old = tmp_path / "old"
    orchestry.train(config("episodes=1", "search.strategy=single"), old)
    path = old / "config.yaml"
    path.write_text(path.read_text().replace("strategy: single", "strategy: fixed"))
    assert "strategy: fixed" in path.read_text()
    assert Run(old).config["search"]["strategy"] == "single"
    assert resume(old, {"episodes": 2}).summary.strategy == "single"
    assert evaluate(old).summary.stopped == "done"


def test_the_new_name_leaves_the_digest_as_it_was() -> None:
    now = config_digests(validate({"search": {"strategy": "single"}}))
    assert now["config.search"] == text_digest(to_json({"search.strategy": "fixed"}))


def test_a_setting_that_is_a_list_is_in_the_digests() -> None:
    one, other = (validate({"sampling": {"stop": stop}}) for stop in (["a"], ["b"]))
    assert config_digests(one)["config.sampling"] != config_digests(other)["config.sampling"]


PLAIN = prepare(config()).config
LEAVES = [
    ("seed", 8),
    ("split", "dev"),
    ("weights", {"length": 2.0}),
    ("options", {"a": 1}),
    ("sampling.max_tokens", 77),
    ("search.k_samples", 9),
    ("search.exploration", 0.5),
    ("provider.model", "other"),
    ("judge.weight", 0.1),
    ("behaviors.alpha", 0.01),
    ("credit.share", 0.9),
    ("learn.rank", 3),
    ("agents", {"writer": {"max_tokens": 3}}),
    ("prices", {"m": {"input": 0, "output": 0}}),
    ("sandbox.cpu_s", 3.0),
    ("budget.usd", 77.0),
    ("episodes", 99),
    ("cache.enabled", True),
    ("retry.attempts", 2),
    ("search.concurrency", 3),
    ("learn.learning_rate", 0.5),
    ("provider.base_url", "http://127.0.0.1:1"),
]


@given(st.lists(st.sampled_from(LEAVES), min_size=1, max_size=4, unique_by=lambda leaf: leaf[0]))
@example([("seed", 8), ("episodes", 99)])
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_a_resume_does_not_take_is_found_in_an_edited_config(
    leaves: list[tuple[str, Any]],
) -> None:
    """The digests, and what `resume --set` takes, are two views of one list."""
    changes: dict[str, Any] = {}
    for key, value in leaves:
        section, _, name = key.partition(".")
        changes = merge(changes, {section: {name: value} if name else value})
    before = Opened(at=0.0, provider="p", model="m", digests=config_digests(PLAIN))
    edited = validate(merge(PLAIN.model_dump(mode="json", by_alias=True), changes))
    refused = {
        key.partition(".")[0] for key, _ in leaves if Mark.RESUMABLE not in marks(RunConfig, key)
    }
    found = {name.removeprefix("config.") for name in changed([before], config_digests(edited))}
    assert found == refused
    if refused:
        with pytest.raises(ConfigError, match="can't be changed on a resume"):
            check_changes(changes)
    else:
        check_changes(changes)


def test_a_file_of_problems_whose_content_changed_is_named(tmp_path: Path) -> None:
    bank, run = tmp_path / "mine.jsonl", tmp_path / "run"
    problems = load_task("tldr").problems("train")[:3]
    bank.write_text("".join(f"{one.model_dump_json()}\n" for one in problems))
    asked = {"task": "tldr", "task_path": [], "options": {"path": str(bank)}, "episodes": 1}
    orchestry.train(validate(merge(config().plain(), asked)), run)
    assert resume(run, {"episodes": 2}).summary.episodes == 2
    bank.write_text(bank.read_text().partition("\n")[0] + "\n")
    with pytest.raises(ConfigError, match=r"other contents of options\.path"):
        resume(run, {"episodes": 3})


def test_only_what_may_be_a_path_is_looked_for(tmp_path: Path) -> None:
    bank = tmp_path / "mine.jsonl"
    bank.write_text("")
    given = {"bank": str(bank), "long": "x." * 400, "home": "~nobody-here/x.json", "n": 0.5}
    rules = {"rules": {"a.b": 1.0}, "name": "own", "gone": str(tmp_path / "gone.jsonl")}
    assert option_files(object(), given | rules) == {"bank": bank}
