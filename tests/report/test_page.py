"""The page: its data are the records, and nothing that a model wrote gets out of them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.errors import StoreError
from orchestry.report import page
from orchestry.report.page.content import telling
from orchestry.report.page.texts import TEXTS, LineTable, embedded
from orchestry.report.runs import read_experiments
from orchestry.store.journal import Evaluated, Learned, Opened, Rated, Stopped
from orchestry.store.records import UNMEASURED, EpisodeRecord
from orchestry.store.run import Run, Store
from tests.report.made import config, copied

HOSTILE = (
    "</script><script>alert(1)</script><!-- <script> ]]> \u2028\u2029 \x00\x1b[2J\x07 \u202egnp "
    "{{style}} &lt; </ScRiPt ><img src=x onerror=alert(1)>\r\n\tend"
)


class Page(HTMLParser):
    """What a browser finds in the file: elements, and the text of its scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.bytes = path.read_bytes()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._open: str | None = None
        self.feed(self.bytes.decode("utf-8"))
        self.index = json.loads(self.texts["index"])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag in ("script", "style"):
            self._open = found.get("id") or tag
            self.texts[self._open] = ""

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open] += data

    def record(self, run: int, episode: int) -> EpisodeRecord:
        """An episode's record, put together again from its tree and the lines of all texts."""
        lines = json.loads(self.texts["lines"])
        raw = json.loads(self.texts[f"episode-{run}-{episode}"])
        assert raw.pop("unmeasured", None) == (
            None if {"credits", "failed"} & raw.keys() else UNMEASURED
        )
        return EpisodeRecord.model_validate(_joined({**raw, "seed": int(raw["seed"])}, lines))


def _joined(data: Any, lines: list[str]) -> Any:
    if isinstance(data, dict):
        return {
            key: "\n".join(lines[number] for number in value)
            if key in TEXTS
            else _joined(value, lines)
            for key, value in data.items()
        }
    return [_joined(one, lines) for one in data] if isinstance(data, list) else data


def written(*folders: Path, to: Path, **options: Any) -> Page:
    return Page(page.write_page(read_experiments(folders), to, **options))


@pytest.fixture
def hostile(tmp_path: Path) -> Run:
    """A run whose model says the worst that a page could be told."""
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"agent": "*", "text": HOSTILE}) + "\n")
    fake = {"name": "fake", "fake": {"script": str(script)}}
    return orchestry.train(config(provider=fake, episodes=1), tmp_path / "hostile")


def test_the_trees_are_the_records(searched: Run, tmp_path: Path) -> None:
    found = written(searched.folder, to=tmp_path)
    (run,) = found.index["runs"]
    assert [found.record(0, row["episode"]) for row in run["rows"]] == searched.episodes
    assert run["summary"] == searched.summary.model_dump(mode="json", exclude={"run_dir"})
    for row, record in zip(run["rows"], searched.episodes, strict=True):
        values = [leaf.value for leaf in record.leaves()]
        assert (row["low"], row["high"], row["kept"]) == (min(values), max(values), True)  # type: ignore[type-var]
        means = (record.mean_leaf_reward, record.reward, record.problem)
        assert (row["reward"], row["best"], row["problem"]) == means


def test_the_same_runs_give_the_same_bytes_and_no_place_of_the_machine(
    folder: Path, tmp_path: Path
) -> None:
    first = written(folder, to=tmp_path / "a").bytes
    assert written(folder, to=tmp_path / "b").bytes == first
    assert str(tmp_path).encode() not in first
    assert str(Path(__file__).parents[1]).encode() not in first


def test_the_trees_have_all_calls_of_tools(called: Run, tmp_path: Path) -> None:
    found = written(called.folder, to=tmp_path)
    records = [found.record(0, row["episode"]) for row in found.index["runs"][0]["rows"]]
    assert records == called.episodes
    turns = [turn for one in records for node in one.nodes for turn in node.turns]
    assert any(step.results for turn in turns for step in turn.completion.steps)


def test_the_trees_have_a_programs_calls_without_its_tools(programmed: Run, tmp_path: Path) -> None:
    found = written(programmed.folder, to=tmp_path)
    for record in programmed.episodes:
        shown, turns = (
            [turn for node in one.nodes for turn in node.turns]
            for one in (found.record(0, record.episode), record)
        )
        assert shown == [turn.model_copy(update={"tools": ()}) for turn in turns]
        assert all(turn.tools for turn in turns)


def test_what_a_model_wrote_stays_data(hostile: Run, tmp_path: Path) -> None:
    found = written(hostile.folder, to=tmp_path)
    assert found.record(0, 0) == hostile.episodes[0]
    assert any(
        turn.completion.text == HOSTILE for n in hostile.episodes[0].nodes for turn in n.turns
    )
    scripts = [attrs.get("type") for tag, attrs in found.tags if tag == "script"]
    assert scripts == ["application/json"] * (len(scripts) - 1) + [None]
    assert not [tag for tag, _ in found.tags if tag == "img"]
    assert b"\x00" not in found.bytes


def test_half_a_surrogate_pair_is_written_as_an_escape() -> None:
    text = embedded({"text": "a\ud800<b\u2028"})
    assert text == '{"text":"a\\ud800\\u003cb\\u2028"}'
    assert json.loads(text)["text"] == "a\ud800<b\u2028"


def test_the_page_asks_for_nothing(searched: Run, tmp_path: Path) -> None:
    found = written(searched.folder, to=tmp_path)
    links = [
        a.get(name) for _, a in found.tags for name in ("src", "href", "action") if a.get(name)
    ]
    assert links == ["data:,", "#browser"]
    addresses = re.findall(r"[\w+]+://[\w./]+", found.texts["script"] + found.texts["style"])
    assert addresses == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@import|url\(", found.texts["style"])
    (policy,) = [a["content"] for tag, a in found.tags if a.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(found.texts[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}';" in policy


def test_the_script_makes_no_markup_from_text() -> None:
    script = "".join(files(page).joinpath(name).read_text() for name in page.SCRIPTS)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", script
    )
    here = {path.name for path in files(page).iterdir() if path.name.endswith(".js")}
    assert here == set(page.SCRIPTS)


def test_trees_beyond_the_cap_are_left_out_and_counted(tmp_path: Path) -> None:
    run = orchestry.train(config(episodes=8), tmp_path / "run")
    whole = written(run.folder, to=tmp_path / "whole")
    size = len(whole.bytes)
    found = written(run.folder, to=tmp_path / "some", cap=30_000)
    kept = [row["episode"] for row in found.index["runs"][0]["rows"] if row["kept"]]
    trees = [int(name.rpartition("-")[2]) for name in found.texts if name.startswith("episode-")]
    assert sorted(trees) == kept
    assert 0 < len(kept) < 8
    assert run.best is not None
    assert run.best.episode in kept
    assert len(found.bytes) < size
    data = sum(
        len(found.texts[name].encode()) for name in found.texts if name.startswith("episode-")
    )
    assert data + len(found.texts["lines"].encode()) <= 30_000 + len("[]") + len(kept)
    assert [found.record(0, number) for number in kept] == [run.episodes[n] for n in kept]
    none = written(run.folder, to=tmp_path / "none", cap=0)
    assert not any(row["kept"] for row in none.index["runs"][0]["rows"])
    assert none.texts["lines"] == "[]"


def test_the_episodes_of_a_huge_run_that_are_kept_tell_most(searched: Run) -> None:
    rewards = [0.1, 0.2, 0.3, 0.9, 0.5, 0.6, 0.7, 0.8]
    records = [
        searched.episodes[0].model_copy(update={"episode": number, "reward": reward})
        for number, reward in enumerate(rewards)
    ]
    assert [record.episode for record in telling(records)] == [3, 0, 7, 4, 2, 6, 1, 5]
    assert telling([]) == []


def test_evaluations_and_baselines_are_runs_of_the_page(folder: Path, tmp_path: Path) -> None:
    (folder / "evaluations").mkdir()
    (folder / "baselines").mkdir()
    copied(folder, tmp_path / "copy")
    for place in ("evaluations/test--update-0", "baselines/fixed--test--samples-10"):
        copied(tmp_path / "copy", folder / place)
    runs = written(folder, to=tmp_path).index["runs"]
    assert [(run["kind"], run["label"], run["of"]) for run in runs] == [
        ("run", "run", None),
        ("evaluation", "test split, as the run began", 0),
        ("baseline", "fixed, test split, 10 samples each", 0),
    ]
    for run in runs:
        measures = run["measures"]
        assert measures["reward"]["low"] <= measures["reward"]["mean"] <= measures["reward"]["high"]
    assert written(tmp_path / "copy", to=tmp_path / "b").index["runs"][0]["measures"] is None


def test_updates_dev_rewards_and_words_of_people(folder: Path, tmp_path: Path) -> None:
    state = {"checkpoint": "checkpoints/000003", "reward": 0.5, "loss": -0.25, "norms": {"a": 2.0}}
    with Store(folder) as store:
        store.learned(Learned(update=1, state=state, at=1.0))
        store.evaluated(Evaluated(update=1, reward=0.75, tags={"even": 0.5}, at=2.0))
        said = {"episode": 0, "node": "0.0", "rating": 0.9, "comment": "good", "override": False}
        store.journal.append(Rated.model_validate({**said, "at": 3.0}))
    (folder / "checkpoints" / "000003").mkdir(parents=True)
    (run,) = written(folder, to=tmp_path).index["runs"]
    assert run["updates"] == [
        {
            "update": 1,
            "after": 3,
            "figures": {"reward": 0.5, "loss": -0.25},
            "norms": {"a": 2.0},
            "checkpoint": "checkpoints/000003",
            "kept": True,
        }
    ]
    assert run["dev"] == [{"update": 1, "reward": 0.75, "tags": {"even": 0.5}}]
    assert run["ratings"] == [said]


def test_the_time_is_that_of_all_processes(folder: Path, tmp_path: Path) -> None:
    with Store(folder) as store:  # a resume that went on for a minute and a half
        for at in (5e9, 5e9 + 90):
            store.journal.append(Opened(at=at, provider="fake", model="fake-1"))
            store.journal.append(Stopped(reason="done", at=at))
        store.journal.append(Stopped(reason="done", at=5e9 + 180))
    (run,) = written(folder, to=tmp_path).index["runs"]
    assert re.fullmatch(r"1 min 3[0-9] s", run["time"])


def test_behaviours_come_from_the_library_and_a_damaged_one_is_named(
    folder: Path, tmp_path: Path
) -> None:
    library = folder / "behaviors" / "library.yaml"
    library.parent.mkdir()
    library.write_text("task: words\nbehaviors:\n- {agent: writer, text: Write more.}\n")
    (run,) = written(folder, to=tmp_path).index["runs"]
    assert run["behaviors"] == [{"agent": "writer", "text": "Write more."}]
    library.write_text("behaviors: [")
    with pytest.raises(StoreError, match=r"library\.yaml can't be read"):
        written(folder, to=tmp_path)


def test_lines_are_kept_once_and_forgotten_again() -> None:
    lines = LineTable()
    assert lines.add("a\nb\na") == [0, 1, 0]
    lines.add("c\nb")
    lines.cut(2)
    assert (lines.add("c"), lines.all) == ([2], ["a", "b", "c"])


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(scheme: int) -> None:
    css = files(page).joinpath("page.css").read_text()
    block = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6});", block))
    for ground in ("paper", "wash", "accent-wash"):
        for text in ("ink", "soft", "accent", "good", "bad"):
            pair = sorted((_luminance(colours[ground]), _luminance(colours[text])))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (ground, text)
