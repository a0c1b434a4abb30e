"""A run in Python: resumed, measured, reported, as a data frame, and as a notebook shows it."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import orchestry
from tests.cli.conftest import cli as cli
from tests.cli.support import TASKS, CommandLine

CONFIG = {"task": "words", "task_path": [str(TASKS)], "provider": {"name": "fake"}, "episodes": 2}
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def run(cli: CommandLine) -> orchestry.Run:
    """A finished run, in the working folder."""
    return orchestry.train(orchestry.RunConfig.model_validate(CONFIG), "run", None)


def test_a_run_goes_on_and_keeps_its_methods(
    run: orchestry.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    more = run.resume({"episodes": 3}, None)
    assert capsys.readouterr().err == ""
    assert [one.episode for one in more.episodes] == [0, 1, 2]
    assert isinstance(more, orchestry.Run)
    assert len(more.resume({"episodes": 4}).episodes) == 4
    assert "run" in capsys.readouterr().err
    with pytest.raises(orchestry.ConfigError, match="seed"):
        more.resume({"seed": 7})


def test_a_config_that_is_none_is_named_as_one() -> None:
    with pytest.raises(
        orchestry.ConfigError, match="unknown config key 'tsk': did you mean 'task'"
    ):
        orchestry.train({"tsk": "tldr"})
    with pytest.raises(orchestry.ConfigError, match="the config is no mapping"):
        orchestry.train("configs/laptop.yaml")  # type: ignore[arg-type]


def test_baselines_of_a_run_lie_in_it_and_are_compared_with_it(run: orchestry.Run) -> None:
    found = run.baselines(["concat", "fixed"], samples=2, episodes=2, observer=None)
    assert [*found] == ["concat", "fixed"]
    assert found["concat"].folder == Path("run/baselines/concat--test--samples-2")
    assert len(found["fixed"].episodes) == 2
    measured = found["concat"].measured()
    assert measured is not None
    assert (measured.problems, measured.trajectories) == (2, 4)
    gain = found["concat"].gain(found["fixed"])
    assert gain is not None
    assert gain.low <= gain.mean <= gain.high
    with pytest.raises(orchestry.ConfigError, match="did you mean 'concat'"):
        run.baselines("concta")


def test_the_cap_of_baselines_holds_over_all_of_them(run: orchestry.Run) -> None:
    found = run.baselines(["concat"], samples=2, episodes=1, budget_usd=0.25, observer=None)
    assert found["concat"].summary.budget_usd == 0.25


def test_an_evaluation_is_a_run_with_methods_also_of_another_task(run: orchestry.Run) -> None:
    found = run.evaluate(samples=2, episodes=2, observer=None)
    assert found.folder == Path("run/evaluations/test--samples-2")
    gain = found.gain(run.evaluate(samples=2, episodes=2, observer=None))
    assert gain is not None
    assert gain.mean == 0.0
    roles = {"author": "writer"}
    other = run.evaluate(task="lines", roles=roles, samples=1, episodes=1, observer=None)
    assert (other.summary.task, len(other.episodes)) == ("lines", 1)
    assert isinstance(other, orchestry.Run)
    with pytest.raises(orchestry.ConfigError, match="role of task lines 'editor'"):
        run.evaluate(task="lines", roles={"editor": "writer"}, observer=None)


def test_an_export_says_where_it_lies_and_is_what_the_command_writes(
    cli: CommandLine, run: orchestry.Run
) -> None:
    assert run.export(observer=None) == Path("run/export/update-0")
    place = run.export("chats", form="openai", top=1.0, observer=None)
    assert (place, place.joinpath("README.md").is_file()) == (Path("chats"), True)
    assert cli("export", "run", "--as", "openai", "--top", "1", "--out", "typed").code == 0
    for file in place.glob("*.jsonl"):
        assert file.read_bytes() == Path("typed", file.name).read_bytes()
    with pytest.raises(orchestry.ConfigError, match="in Python form"):
        run.export(top=0.5, observer=None)
    with pytest.raises(orchestry.ConfigError, match="leave out --merge"):
        run.export(form="hf", merge=True, observer=None)


def test_a_sweep_has_the_runs_config_and_refuses_what_can_not_be_tried(run: orchestry.Run) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(orchestry.ConfigError, match=r"keys\.task.*put it into `run`"):
        run.sweep({"task": ["words", "lines"]})
    with pytest.raises(orchestry.ConfigError, match="the sweep: unknown config key 'trails'"):
        run.sweep({"search.k_samples": [1, 2]}, trails=3)
    assert not Path("sweeps").exists()


@pytest.mark.slow
def test_a_report_is_what_the_command_writes(cli: CommandLine, run: orchestry.Run) -> None:
    path = run.report()
    assert path == Path("run/report/RESULTS.md")
    written = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    assert cli("report", "run").code == 0
    assert written == {name: (path.parent / name).read_bytes() for name in written}
    other = orchestry.train(CONFIG, "other", None)
    with pytest.raises(orchestry.ConfigError, match="in Python: out=DIR"):
        run.report(other)
    assert run.report(other, out="both").read_text().count("words") > 1


def test_a_frame_has_one_row_per_episode(run: orchestry.Run) -> None:
    pytest.importorskip("pandas")
    frame = run.to_pandas()
    assert [*frame["episode"]] == [0, 1]
    assert [*frame["reward"]] == run.rewards
    assert [*frame["problem"]] == [one.problem for one in run.episodes]
    assert [*frame["calls"]] == [one.calls for one in run.episodes]
    assert frame["usd"].sum() == pytest.approx(sum(one.usd for one in run.episodes))
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    parts = [key for key in rows[0] if key.startswith("part/")]
    assert parts
    for part in parts:
        assert [*frame[part]] == [row[part] for row in rows]
    assert not frame.filter(like="tag/").isna().to_numpy().any()


def test_without_pandas_the_error_says_how_to_install_it(
    run: orchestry.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(orchestry.ConfigError, match=r"not installed: `pip install .*\[pandas\]"):
        run.to_pandas()


def test_a_notebook_shows_a_run_as_a_small_table_of_escaped_text(run: orchestry.Run) -> None:
    cells = Cells(run)
    assert cells.rows["reward"] == f"{run.summary.mean_reward:.3f}"
    assert cells.rows["cost"] == "$0.0000 of $5"
    assert cells.links == ["run/episodes.jsonl"]
    line = json.loads(Path("run/episodes.jsonl").read_text().splitlines()[0])
    for node in line["nodes"]:
        for turn in node["turns"]:
            turn["completion"]["text"] = "<script>alert(1)</script>\x1b[2J & more"
    line["reward"] = 1.0
    rest = Path("run/episodes.jsonl").read_text().splitlines(keepends=True)[1:]
    Path("run/episodes.jsonl").write_text("".join([json.dumps(line) + "\n", *rest]))
    run.report()
    shown = orchestry.load_run("run")
    assert "<script" not in shown._repr_html_()
    assert "\x1b" not in shown._repr_html_()
    assert "<script>alert(1)</script>" in Cells(shown).rows["best answer"]
    assert Cells(shown).links == ["run/report/index.html#run=0&episode=0"]


def test_a_run_in_a_line_and_one_that_was_cut_off(run: orchestry.Run) -> None:
    assert repr(run) == (
        f"<Run run: words, 2 of 2 episodes, reward {run.summary.mean_reward:.3f}, $0.0000, done>"
    )
    Path("run/summary.json").unlink()
    cut = orchestry.load_run("run")
    assert repr(cut) == "<Run run: unfinished>"
    assert "orchestry resume run" in Cells(cut).rows["state"]


def test_to_read_a_run_loads_no_engine() -> None:
    code = (
        "import sys, orchestry; orchestry.load_run; orchestry.Run\n"
        "heavy = ('orchestry.engine.run', 'orchestry.backends', 'rich', 'numpy', 'pandas')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_name_of_the_facade_is_a_room() -> None:
    rooms = {path.parent.name for path in (ROOT / "orchestry").glob("*/__init__.py")}
    assert not rooms & set(orchestry.__all__)
    for room in sorted(rooms):
        assert inspect.ismodule(import_module(f"orchestry.{room}"))
        assert inspect.ismodule(getattr(orchestry, room)), room


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.name)
def test_notebooks_import_only_the_facade(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    trees = [ast.parse("".join(cell["source"])) for cell in cells]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    froms = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    assert "orchestry" in names
    assert [name for name in (*froms, *names) if name.startswith("orchestry.")] == []


class Cells(HTMLParser):
    """The rows and links of a table."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.rows: dict[str, str] = {}
        self.links: list[str] = []
        self._tag = self._name = ""
        self.feed(run._repr_html_())

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        assert tag in ("table", "caption", "tr", "th", "td", "a", "pre"), tag
        if tag in ("th", "td"):
            self._tag = tag
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]

    def handle_data(self, data: str) -> None:
        if self._tag == "th":
            self._name = data
            self.rows[data] = ""
            self._tag = ""
        elif self._tag == "td":
            self.rows[self._name] += data
