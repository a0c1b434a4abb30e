"""Finding tasks: order of places, what importing does and does not do, and broken tasks."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from orchestry.core.errors import ConfigError, OrchestryError, TaskError
from orchestry.task.registry import bundled, find_tasks, load_task

GREETING = '''
    """Says {word}."""
    from orchestry import AgentSpec, Problem, TeamTask

    from .words import WORD


    class Greeting(TeamTask):
        name = "{name}"
        agents = (AgentSpec(role="host"),)
        weights = {{"warmth": 1.0}}
        word = WORD

        def problems(self, split):
            return (Problem(id=split, prompt="hello", split=split),)

        async def evaluate(self, state, tools):
            return self.score(warmth=1.0)
'''


def write_task(parent: Path, name: str = "greeting", word: str = "hello") -> Path:
    """A task folder with a helper module beside its task.py."""
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(dedent(GREETING).format(name=name, word=word))
    (folder / "words.py").write_text(f"WORD = {word!r}\n")
    return folder


def word_of(task: object) -> str:
    return str(getattr(task, "word"))  # noqa: B009 -- no attribute of BaseTask


def test_a_task_loads_with_its_relative_imports_and_leaves_sys_path_alone(tmp_path: Path) -> None:
    write_task(tmp_path)
    before = list(sys.path)
    task = load_task("greeting", [tmp_path], cwd=tmp_path)
    assert type(task).__module__ == "orchestry_tasks.greeting.task"
    assert word_of(task) == "hello"
    assert sys.path == before
    assert "tasks" not in sys.modules


def test_weights_reach_the_task_and_unknown_parts_are_refused(tmp_path: Path) -> None:
    write_task(tmp_path)
    task = load_task("greeting", [tmp_path], {"warmth": 3.0}, cwd=tmp_path)
    assert task.part_weights == {"warmth": 3.0}
    with pytest.raises(ConfigError, match="did you mean 'warmth'"):
        load_task("greeting", [tmp_path], {"warmht": 3.0}, cwd=tmp_path)


def test_nearer_places_win_and_say_what_they_hide(tmp_path: Path) -> None:
    write_task(tmp_path / "mine", word="explicit")
    hidden = write_task(tmp_path / "cwd" / "tasks", word="local")
    said: list[str] = []
    cwd = tmp_path / "cwd"
    assert word_of(load_task("greeting", cwd=cwd, warn=said.append)) == "local"
    assert said == []
    task = load_task("greeting", [tmp_path / "mine"], cwd=cwd, warn=said.append)
    assert word_of(task) == "explicit"
    assert len(said) == 1
    assert str(hidden / "task.py") in said[0]


def test_a_task_in_the_current_folder_hides_the_bundled_one(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "code_review", "mine")
    location = find_tasks([], tmp_path)["code_review"]
    assert location.source == "./tasks"
    assert location.shadows == (str(bundled("tasks") / "code_review" / "task.py"),)
    with pytest.warns(UserWarning, match="hides"):
        load_task("code_review", cwd=tmp_path)


def test_the_repository_itself_hides_nothing() -> None:
    root = bundled("tasks").parent
    assert find_tasks([root / "tasks"], root)["code_review"].shadows == ()


def test_a_copy_hides_nothing_until_it_differs(tmp_path: Path) -> None:
    shutil.copytree(bundled("tasks"), tmp_path / "tasks")
    location = find_tasks([], tmp_path)["code_review"]
    assert (location.source, location.shadows) == ("./tasks", ())
    with (tmp_path / "tasks" / "code_review" / "problems.jsonl").open("a") as bank:
        bank.write("\n")
    assert find_tasks([], tmp_path)["code_review"].shadows != ()


def test_bundled_tasks_are_found_from_anywhere(tmp_path: Path) -> None:
    location = find_tasks([], tmp_path)["code_review"]
    assert location.source == "bundled"
    assert location.description
    assert (bundled("configs")).is_dir()


def test_the_same_name_from_two_folders_loads_afresh(tmp_path: Path) -> None:
    for word in ("one", "two", "one"):
        if not (tmp_path / word).exists():
            write_task(tmp_path / word, word=word)
        assert word_of(load_task("greeting", [tmp_path / word], cwd=tmp_path)) == word


def test_the_same_folder_keeps_its_class(tmp_path: Path) -> None:
    write_task(tmp_path)
    first = load_task("greeting", [tmp_path], cwd=tmp_path)
    assert type(load_task("greeting", [tmp_path], cwd=tmp_path)) is type(first)


def test_a_shadowing_task_never_borrows_files_of_the_hidden_one(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", word="hidden")
    mine = write_task(tmp_path / "mine")
    (mine / "words.py").unlink()
    with pytest.raises(TaskError, match="No module named"):
        load_task("greeting", [tmp_path / "mine"], cwd=tmp_path, warn=lambda _: None)


def test_a_package_with_an_init_runs_it(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    (folder / "__init__.py").write_text("RAN = True\n")
    load_task("greeting", [tmp_path], cwd=tmp_path)
    assert vars(sys.modules["orchestry_tasks.greeting"])["RAN"] is True


def test_listing_imports_nothing_and_reads_descriptions(tmp_path: Path) -> None:
    write_task(tmp_path, "polite")
    (write_task(tmp_path, "loud") / "README.md").write_text("# Loud greetings\n\nMore.\n")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "task.py").write_text("class (:\n")
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "task.py").write_text("raise SystemExit('imported')\n")
    tasks = find_tasks([tmp_path], tmp_path)
    assert tasks["polite"].description == "Says hello."
    assert tasks["loud"].description == "Loud greetings"
    assert tasks["torn"].description == "(task.py is not valid Python)"
    assert tasks["trap"].description == ""
    assert "orchestry_tasks.polite" not in sys.modules


def test_an_entry_point_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real distribution on the path, as pip would lay it out."""
    info = tmp_path / "welcoming-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: welcoming\nSummary: Welcomes.\n")
    (info / "entry_points.txt").write_text(
        "[orchestry.tasks]\nwelcome = welcoming:Greeting\nother = welcoming\nbad = welcoming:WORD\n"
    )
    source = dedent(GREETING).format(name="welcome", word="welcome")
    (tmp_path / "welcoming.py").write_text(source.replace("from .words import WORD", "WORD = 'w'"))
    monkeypatch.syspath_prepend(str(tmp_path))
    location = find_tasks([], tmp_path)["welcome"]
    assert (location.source, location.description) == ("entry point", "Welcomes.")
    assert "welcoming" not in sys.modules
    assert word_of(load_task("welcome", cwd=tmp_path)) == "w"
    with pytest.raises(TaskError, match="has the name 'welcome': set name = 'other'"):
        load_task("other", cwd=tmp_path)
    with pytest.raises(TaskError, match="not a subclass of BaseTask"):
        load_task("bad", cwd=tmp_path)


def test_an_unknown_name_gets_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'code_review'"):
        load_task("code_reviw", cwd=tmp_path)


def test_a_task_path_must_be_a_folder_of_task_folders(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        find_tasks([tmp_path / "nowhere"], tmp_path)
    with pytest.raises(ConfigError, match="give the folder above it"):
        find_tasks([folder], tmp_path)


BROKEN = {
    "raises": ("x = 1\ny = x / 0\n", "line 2 raised ZeroDivisionError"),
    "exits": ("raise SystemExit('bye')\n", "line 1 raised SystemExit: bye"),
    "syntax": ("x = 1\ndef f(:\n", "line 2 raised SyntaxError"),
    "imports": ("import no_such_module\n", "line 1 raised ModuleNotFoundError"),
    "empty": ("x = 1\n", "defines no task"),
    "two": ("{a}\nclass B(A):\n    name = 'b'\n", "defines A and B: keep one"),
    "abstract": ("from orchestry import TeamTask\nclass A(TeamTask): ...\n", "lacks evaluate"),
    "unnamed": ("{a}\ndel A.name\n", "has the name None: set name = 'unnamed'"),
    "no_agents": ("{a}\nA.agents = ()\n", "name at least one agent"),
    "strings": ("{a}\nA.agents = ('writer',)\n", "set agents = "),
    "twice": ("{a}\nA.agents = A.agents * 2\n", "each role once"),
    "weightless": ("{a}\nA.weights = {{'quality': 0.0}}\n", "some must be positive"),
    "words": ("{a}\nA.weights = {{'quality': 'much'}}\n", "some must be positive"),
    "init": ("{a}\ndef f(*_):\n    raise KeyError('z')\nA.__init__ = f\n", "raised KeyError: 'z'"),
}
A = """
from orchestry import AgentSpec, TeamTask

class A(TeamTask):
    name = {name!r}
    agents = (AgentSpec(role="host"),)
    def problems(self, split): return ()
    async def evaluate(self, state, tools): return self.score()
"""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_task_is_one_line_with_file_cause_and_fix(tmp_path: Path, name: str) -> None:
    source, expected = BROKEN[name]
    (tmp_path / name).mkdir()
    (tmp_path / name / "task.py").write_text(source.format(a=A.format(name=name)))
    with pytest.raises(OrchestryError) as caught:
        load_task(name, [tmp_path], cwd=tmp_path)
    assert expected in str(caught.value)
    assert str(tmp_path / name / "task.py") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mended_task_loads(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    good = (folder / "words.py").read_text()
    (folder / "words.py").write_text("raise ValueError('half written, and longer')\n")
    with pytest.raises(TaskError, match=r"words\.py, line 1"):
        load_task("greeting", [tmp_path], cwd=tmp_path)
    (folder / "words.py").write_text(good)
    assert word_of(load_task("greeting", [tmp_path], cwd=tmp_path)) == "hello"
