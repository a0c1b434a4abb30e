"""Problems written by a model: which are kept, what is dropped, and that nothing is paid twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError
from orchestry.core.types import SPLITS, Completion, Problem
from orchestry.ext.writing import offers
from orchestry.ext.writing.writing import Asked, WritingReport, forecast, write_problems
from orchestry.judge.structured import Malformed
from orchestry.task.registry import load_task
from tests.cli.support import Reply, chat, served

WORDS = ("amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron")


def offer(number: int, **changes: Any) -> dict[str, Any]:
    """A good problem, unlike those of other numbers."""
    gold = f"def shift_{number}(x, y):\n    return x * {number + 3} + y if x > 2 else y\n"
    tests = [
        {"arguments": f"[{x}, {y}]", "returns": str(x * (number + 3) + y if x > 2 else y)}
        for x in range(6)
        for y in (1, 5)
    ]
    words = " ".join(word * (number + 1) for word in WORDS)
    own = {"prompt": f"About {words}.", "name": f"shift_{number}", "gold": gold, "tests": tests}
    return {**own, **changes}


def paired(number: int, **changes: Any) -> dict[str, Any]:
    """The same for a helper and main."""
    plain = offer(number)
    helper = f"def aux(x):\n    return x * {number + 3} if x > 2 else 0\n"
    main = f"def shift_{number}(x, y):\n    return aux(x) + y\n"
    golds = {"gold_aux": helper, "gold_main": main, "aux_goal": "Scale.", "main_goal": "Add."}
    return {**{k: v for k, v in plain.items() if k != "gold"}, **golds, **changes}


def wrong(number: int) -> dict[str, Any]:
    return offer(number, gold=f"def shift_{number}(x, y):\n    return x\n")


def lucky(number: int) -> dict[str, Any]:
    tests = [{"arguments": f"[{n}]", "returns": "1"} for n in range(9)]
    code = f"import random\n\n\ndef luck_{number}(n):\n    return random.randint(1, 10**9)\n"
    return offer(number, name=f"luck_{number}", gold=code, tests=tests)


def constant(number: int) -> dict[str, Any]:
    tests = [{"arguments": f"[{n}]", "returns": "1"} for n in range(9)]
    code = f"def same_{number}(n):\n    return 1\n"
    return offer(number, name=f"same_{number}", gold=code, tests=tests)


def known(number: int) -> dict[str, Any]:
    """In other words, a problem that code_review has."""
    texts = ["abc", "", "xy", "noon!", "level up", "q", "Ab", "tea", "12 3"]
    tests = [{"arguments": repr([t]), "returns": repr(t[::-1])} for t in texts]
    code = "def turned(t):\n    return t[::-1]\n"
    return offer(number, name="turned", prompt="Mirror it.", gold=code, tests=tests)


@dataclass
class Model:
    """An author, a solver that is always right, and one that is not; behind chat completions."""

    offers: list[Any]
    fault: int = 0
    """One in so many requests is answered by an error."""
    url: str = ""
    asked: list[str] = field(default_factory=list)
    golds: dict[str, str] = field(default_factory=dict)

    def answer(self, number: int, body: dict[str, Any]) -> Reply:
        if self.fault and number % self.fault == 1:
            return 500, b'{"error": {"message": "busy"}}'
        self.asked.append(json.dumps([body["model"], body["messages"]]))
        text = body["messages"][1]["content"]
        if found := re.search(r"problem number (\d+)", text):
            made = self.offers[(int(found[1]) - 1) % len(self.offers)]
            made = made[len(body["messages"]) > 2] if isinstance(made, tuple) else made
            if isinstance(made, str):
                return 200, chat(made)
            self.golds[made["name"]] = made.get("gold") or made["gold_aux"] + made["gold_main"]
            return 200, chat(json.dumps(made))
        name = re.findall(r"def (\w+)\(([^)]*)\)", text)[-1]
        weak = f"def {name[0]}({name[1]}):\n    return 1\n"
        code = weak if body["model"] == "weak" else self.golds[name[0]]
        return 200, chat(f"```python\n{code}\n```")


@contextmanager
def serving(*made: Any, **kwargs: Any) -> Iterator[Model]:
    model = Model(list(made), **kwargs)
    with served(model.answer) as url:
        model.url = url
        yield model


def config(model: Model, **changes: Any) -> RunConfig:
    price = {"input": 1.0, "output": 1.0}
    raw: dict[str, Any] = {
        "task": "code_review",
        "provider": {"name": "openai", "model": "good", "base_url": model.url},
        "prices": {"good": price, "weak": price},
        "cache": {"enabled": False},
        "retry": {"base_s": 0.01, "max_s": 0.02},
    }
    return validate(raw | changes)


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.whys: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def tried(self, attempt: int, kept: int, why: str) -> None:
        assert attempt == len(self.whys) + 1
        self.whys.append(why)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)


BOTH = ("good", "weak")


def write(
    found: RunConfig, count: int, solvers: tuple[str, ...] = BOTH, notes: Notes | None = None
) -> WritingReport:
    asked = Asked(count, solvers, grade=2)
    return write_problems(found, asked, Path("mine.jsonl"), notes or Notes())


def loaded(name: str = "code_review") -> list[Problem]:
    task = load_task(name, options={"bank": "mine.jsonl"})
    return [one for split in SPLITS for one in task.problems(split)]


@contextmanager
def _elsewhere(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same model at Ollama's address."""
    with served(model.answer) as url:
        monkeypatch.setenv("OLLAMA_HOST", url.removesuffix("/v1"))
        yield


def test_a_solvers_name_may_name_its_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an agent's in a run."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    with serving(offer(1)) as model, _elsewhere(model, monkeypatch):
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        found = config(model, provider={"model": "openai/good"})
        report = write(found, 1, ("openai/good", "ollama/weak"))
    assert report.kept == 1
    author, *solvers = (json.loads(one)[0] for one in model.asked)
    assert (author, sorted(solvers)) == ("good", ["good", "weak"])  # solvers are asked at once


# --- what is kept ---------------------------------------------------------------------------------


def test_good_problems_are_kept_and_others_dropped_with_their_reason() -> None:
    twin = offer(0, prompt="Wholly other words, but the same function.", name="again")
    twin["gold"] = twin["gold"].replace("shift_0", "again")
    made = (offer(0), wrong(1), lucky(2), constant(3), known(4), twin, "no JSON", offer(7))
    notes = Notes()
    with serving(*made) as model:
        report = write(config(model, search={"concurrency": 2}), 2, notes=notes)
    assert (report.stopped, report.kept, report.attempts) == ("done", 2, 8)
    assert notes.whys == [
        "",
        "the gold fails its tests",
        notes.whys[2],
        "one answer to all tests passes most of them",
        "repeats a problem of the task",
        "repeats a problem that was kept",
        "the answer was no problem in the form asked for",
        "",
    ]
    assert notes.whys[2].startswith("the gold")
    found = loaded()
    assert sorted(one.data["entry_point"] for one in found) == ["shift_0", "shift_7"]
    assert {one.data["grade"] for one in found} == {2}
    assert "| repeats a problem of the task | 1 |" in Path("mine.made/README.md").read_text()


def test_an_example_that_the_gold_contradicts_is_no_good() -> None:
    """Agents see the first test as an example, so it must be right too."""
    bad = offer(0)
    bad["tests"][0] = {**bad["tests"][0], "returns": "999"}
    notes = Notes()
    with serving(bad, offer(1)) as model:
        report = write(config(model), 1, notes=notes)
    assert report.kept == 1
    assert notes.whys == ["the gold fails its tests", ""]


def test_an_answer_in_another_form_is_asked_for_once_more() -> None:
    with serving(("here you are: {}", offer(0))) as model:
        report = write(config(model), 1)
    assert (report.kept, report.attempts) == (1, 1)
    assert len(model.asked) == 4  # the author twice, each solver once


@pytest.mark.parametrize(
    ("solvers", "why"),
    [
        (("good",), "both solvers pass all tests"),
        (("weak",), "both solvers pass the same tests"),
    ],
)
def test_solvers_that_agree_tell_nothing(solvers: tuple[str, ...], why: str) -> None:
    with serving(*(offer(n) for n in range(8))) as model:
        report = write(config(model), 1, solvers)
    assert (report.kept, report.attempts, report.dropped) == (0, 5, {why: 5})
    assert not Path("mine.jsonl").exists()


def test_problems_for_two_serve_both_tasks() -> None:
    with serving(*(paired(n) for n in range(4))) as model:
        found = config(model, task="code_collaboration")
        report = write(found, 2)
    assert report.kept == 2, report.dropped
    assert loaded("code_collaboration") == loaded("code_review")
    assert all("aux(" in one.data["gold_main"] for one in loaded())


# --- money, faults and going on -------------------------------------------------------------------


def test_a_server_with_faults_gives_the_same_problems() -> None:
    made = [offer(n) if n % 3 else wrong(n) for n in range(9)]
    with serving(*made) as model:
        write(config(model), 3)
    before = Path("mine.jsonl").read_text()
    Path("mine.jsonl").unlink()
    Path("mine.made").rename("other.made")
    with serving(*made, fault=3) as model:
        report = write(config(model), 3)
    assert report.kept == 3
    assert Path("mine.jsonl").read_text() == before


@pytest.mark.slow
def test_it_stops_at_the_cap_keeps_what_it_has_and_goes_on() -> None:
    with serving(*(offer(n) for n in range(8))) as model:
        price = {"input": 0.0, "output": 1000.0}
        found = config(
            model,
            prices={"good": price, "weak": price},
            search={"concurrency": 2},
            budget={"usd": 2.08},
        )
        report = write(found, 5)
        assert (report.stopped, 0 < report.kept < 5) == ("budget", True)
        assert report.cost_usd <= 2.08
        first, paid = Path("mine.jsonl").read_text(), len(model.asked)
        richer = found.model_copy(update={"budget": found.budget.model_copy(update={"usd": 50.0})})
        again = write(richer, 5)
        assert (again.stopped, again.kept) == ("done", 5)
        assert Path("mine.jsonl").read_text().startswith(first)
        assert len(set(model.asked)) == len(model.asked) == 15 > paid
        more = write(richer, 6)
    assert more.kept == 6
    assert len(model.asked) == 18


def test_a_forecast_asks_nothing_and_bounds_the_cost() -> None:
    with serving(offer(0)) as model:
        found = forecast(config(model), Asked(3, BOTH), lambda text: None)
        assert model.asked == []
    assert {row.agent for row in found.usage} == {"author", "solver 1", "solver 2"}
    assert 0 < found.cost_usd.expected < (found.cost_usd.max or 0)
    assert found.episodes == 3


# --- wrong use ------------------------------------------------------------------------------------


def test_wrong_use_is_told_before_anything_is_spent() -> None:
    with serving(offer(0)) as model:
        with pytest.raises(ConfigError, match="story takes no problems of code"):
            write(config(model, task="story"), 1)
        with pytest.raises(ConfigError, match="3 solvers are named"):
            write(config(model), 1, ("good", "weak", "good"))
        with pytest.raises(ConfigError, match="unheard-of"):
            write(config(model), 1, ("unheard-of",))
        Path("mine.jsonl").write_text("my own work")
        with pytest.raises(ConfigError, match=r"mine\.jsonl exists and no writing made it"):
            write(config(model), 1)
        Path("mine.jsonl").unlink()
        assert model.asked == []
        write(config(model), 1)
        with pytest.raises(ConfigError, match=r"holds a writing with solvers=.*, not \['good'\]"):
            write(config(model), 1, ("good",))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "aux"}, "can't name"),
        ({"name": "not a name"}, "can't name"),
        ({"prompt": " "}, "prompt is empty"),
        ({"gold": "x = 1"}, "defines no function shift_0"),
        ({"gold": 7}, "gold must be a string"),
        ({"tests": {}}, "tests must be a list"),
        ({"tests": []}, "0 different tests"),
        ({"tests": [{"arguments": "[1]", "returns": "1"}] * 9}, "1 different tests"),
        ({"tests": [{"arguments": "[(1, 2)]", "returns": "1"}]}, "without tuples"),
        ({"tests": [{"arguments": "1", "returns": "1"}]}, "must be a Python list"),
        ({"tests": [{"arguments": "[x]", "returns": "1"}]}, "literal"),
        ({"tests": [{"arguments": "[1]"}]}, "arguments and returns"),
        ({"more": "x"}, "no others"),
    ],
)
def test_an_answer_in_the_wrong_form_is_named(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        offers.read(Completion(text=json.dumps(offer(0, **changes)), model="m"), 1, helper=False)


def test_main_that_calls_no_helper_is_named() -> None:
    alone = paired(0, gold_main="def shift_0(x, y):\n    return x\n")
    with pytest.raises(Malformed, match="does not call aux"):
        offers.read(Completion(text=json.dumps(alone), model="m"), 1, helper=True)
