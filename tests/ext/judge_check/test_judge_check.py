"""The check of judges that are known: each figure against the truth, over a real HTTP server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError, OrchestryError
from orchestry.core.types import Limits, Tools
from orchestry.engine.graded import graded_sets
from orchestry.engine.plan import Plan
from orchestry.ext.judge_check.check import CheckReport, _free, check_judge
from orchestry.ext.judge_check.forecast import forecast
from orchestry.ext.judge_check.measures import Sheet
from orchestry.rollout.rollout import task_rater
from orchestry.sandbox import open_sandbox
from orchestry.store import journal
from orchestry.task.registry import load_task
from tests.core.test_resolve import KEYS
from tests.engine.planted import WORTHS, biased, config, good, judging, noise, plant, worth

PAIRS = 6
"""Of four candidates."""


class Notes:
    """A Watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.finished: list[str] = []
        self.count = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def started(self, folder: Path, plan: Plan) -> None:
        self.notes.append(f"started {folder}")

    def scored(self) -> None:
        self.count += 1

    def asking(self, problems: int) -> None:
        assert problems == self.count

    def examined(self, sheet: Sheet) -> None:
        self.finished.append(sheet.problem)


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    return plant(tmp_path / "tasks")


def run(asked: RunConfig, problems: int = 10, folder: str = "check") -> CheckReport:
    return check_judge(asked, problems, Path(folder), Notes())


def value(share: Any) -> float:
    assert share is not None
    return float(share.value)


# --- judges that are known ------------------------------------------------------------------------


def test_a_good_judge_is_trustworthy(tasks: Path) -> None:
    with judging(good) as bench:
        report = run(config(bench, tasks))
    found = report.measures
    for share in (found.agreement, found.agreement_twice, found.swap_consistency):
        assert share is not None
        assert (share.value, share.pairs) == (1.0, 10 * PAIRS)
        assert 0.9 < share.low < 1.0
    assert value(found.repeat_flips) == 0.0
    assert (found.position_effect, found.tied) == (0.0, 0.0)
    assert found.rank_correlation == found.rank_correlation_twice == 1.0
    assert found.verdicts == {"rated": 40}
    assert (report.stopped, report.problems, report.candidates) == ("done", 10, 40)
    assert (report.calls, report.input_tokens, report.output_tokens) == (40, 400, 200)
    assert report.cost_usd == pytest.approx(600e-6)
    assert report.advice.level == "trustworthy"
    assert CheckReport.model_validate_json(Path("check/check.json").read_bytes()) == report


def test_every_question_is_a_fresh_one_and_gives_nothing_away(tasks: Path) -> None:
    with judging(good) as bench:
        run(config(bench, tasks), problems=3)
    assert len({body["seed"] for body in bench.bodies}) == len(bench.bodies) == 12
    prompts = [body["messages"][1]["content"] for body in bench.bodies]
    assert sorted(prompts.count(prompt) for prompt in set(prompts)) == [2] * 6
    assert not any("SECRET" in str(body) for body in bench.bodies)


def test_a_biased_judge_is_found_out_and_mended_by_two_calls(tasks: Path) -> None:
    with judging(biased) as bench:
        report = run(config(bench, tasks), problems=20)
    wrong = sum(worth(text) != 7 for text in bench.firsts)  # the best one has no next better one
    found, expected = report.measures, 1 - wrong / (PAIRS * len(bench.firsts))
    assert 0 < wrong < len(bench.firsts)
    assert found.position_effect == pytest.approx(3.0)
    assert value(found.agreement) == pytest.approx(expected)
    # forward and backward, different pairs are turned around
    assert value(found.swap_consistency) == pytest.approx(1 - 2 * (1 - expected))
    assert value(found.agreement_twice) == 1.0
    assert value(found.repeat_flips) == 0.0
    assert report.advice.level == "trustworthy"
    assert "judge.repeats=2" in report.advice.text
    assert "standing first adds +3.0 points" in report.advice.text


def test_a_judge_that_flips_coins_is_no_better_than_chance(tasks: Path) -> None:
    with judging(noise) as bench:
        report = run(config(bench, tasks), problems=20)
    found = report.measures
    assert found.agreement is not None
    assert found.agreement.low < 0.5 < found.agreement.high
    assert 0.4 < value(found.repeat_flips) < 0.6
    assert 0.4 < value(found.swap_consistency) < 0.6
    assert found.rank_correlation == pytest.approx(0.0, abs=0.2)
    assert report.advice.level == "chance"
    assert "leave the judge off" in report.advice.text


def test_a_judge_that_says_the_same_of_all_ties_everything(tasks: Path) -> None:
    with judging(lambda text, place, luck: 5) as bench:
        report = run(config(bench, tasks))
    found = report.measures
    assert (value(found.agreement), value(found.swap_consistency), found.tied) == (0.5, 1.0, 1.0)
    assert (value(found.repeat_flips), found.rank_correlation) == (0.0, 0.0)
    assert report.advice.level == "chance"


def test_a_judge_that_has_it_backwards_is_left_off(tasks: Path) -> None:
    with judging(lambda text, place, luck: 10 - worth(text)) as bench:
        report = run(config(bench, tasks))
    assert value(report.measures.agreement) == 0.0
    assert report.measures.rank_correlation == -1.0
    assert report.advice.level == "chance"


# --- verdicts that can't be read ------------------------------------------------------------------


def test_malformed_and_repaired_verdicts_are_counted(tasks: Path) -> None:
    def garbled(prompt: str, repair: bool) -> bool:
        return ("train 1\n" in prompt and not repair) or "dev 2\n" in prompt

    with judging(good, garbled=garbled) as bench:
        report = run(config(bench, tasks), problems=20)
    assert report.measures.verdicts == {"rated": 72, "repaired": 4, "malformed": 4}
    assert report.measures.agreement is not None
    assert report.measures.agreement.pairs == 19 * PAIRS
    assert (report.problems, report.calls) == (20, 88)
    assert report.advice.level == "trustworthy"


def test_a_judge_that_keeps_to_no_format_is_unusable(tasks: Path) -> None:
    with judging(good, garbled=lambda prompt, repair: True) as bench:
        report = run(config(bench, tasks), problems=2)
    assert report.measures.agreement is None
    assert report.measures.verdicts == {"malformed": 8}
    assert (report.advice.level, report.stopped) == ("unusable", "done")


# --- money, and going on --------------------------------------------------------------------------

DEAR: dict[str, Any] = {
    "prices": {"m": {"input": 0.0, "output": 1000.0}},  # $1.024 reserved a call, $0.005 paid
    "search": {"concurrency": 4},
}


def test_a_stop_at_the_budget_keeps_what_was_measured_and_can_go_on(tasks: Path) -> None:
    with judging(good) as bench:
        short = config(bench, tasks, **DEAR, budget={"usd": 1.1})
        first = run(short)
        asked = len(bench.bodies)
        assert first.stopped == "budget"
        assert 1 <= first.problems < 10
        assert first.measures.agreement is not None
        assert first.measures.agreement.pairs == first.problems * PAIRS
        assert first.cost_usd == pytest.approx(0.005 * asked)
        second = run(config(bench, tasks, **DEAR, budget={"usd": 3.0}))
    assert (second.stopped, second.problems, second.calls) == ("done", 10, 40)
    assert len(bench.bodies) == 40
    assert second.cost_usd == pytest.approx(0.2)
    kinds = [event.reason for event in events() if isinstance(event, journal.Stopped)]
    assert kinds == ["budget", "done"]


def events(folder: str = "check") -> list[journal.Event]:
    return list(journal.read(Path(folder, "journal.jsonl")))


def test_a_finished_check_asks_nothing_again_and_takes_more_problems(tasks: Path) -> None:
    with judging(noise) as bench:
        asked = config(bench, tasks)
        first, again = run(asked, 5), run(asked, 5)
        assert len(bench.bodies) == 20
        assert again.measures == first.measures
        more = run(asked, 8)
    assert (more.problems, len(bench.bodies)) == (8, 32)


def test_a_check_goes_on_with_what_decides_no_question() -> None:
    """All that its own list of sections said, and of the others what a resume takes."""
    own = ("allow_unsafe_code", "budget", "cache", "episodes", "retry", "search")
    assert all(_free(key) for key in KEYS if key.split(".")[0] in own)
    more = {key for key in KEYS if _free(key) and key.split(".")[0] not in own}
    learn = ["critic_rate", "decay", "device", "evaluate_every", "gradient_checkpointing"]
    learn += ["keep", "keep_every", "learning_rate"]
    assert {key for key in more if not key.startswith(("behaviors.provider.", "trackers."))} == {
        *("task_path", "provider.base_url", "provider.timeout_s", "executor", "ranks"),
        *("pace", "passes"),
        *("judge.provider.base_url", "judge.provider.timeout_s"),
        *(f"learn.{name}" for name in (*learn, "micro_tokens", "vllm_url")),
        *(f"ppo.{name}" for name in ("steps", "device", "threads", "checkpoint_every", "keep")),
        *("ppo.evaluate_every", "ppo.evaluate_games"),
    }


def test_another_judge_or_a_run_needs_another_directory(tasks: Path) -> None:
    with judging(good) as bench:
        run(config(bench, tasks), 1)
        other = config(bench, tasks, judge={"rubric": "be kind"})
        with pytest.raises(ConfigError, match=r"judge\.\w+=.*not .*another --run-dir"):
            run(other, 1)
        Path("run").mkdir()
        line = journal.encode(journal.Opened(at=0.0, provider="fake", model="m"))
        Path("run/journal.jsonl").write_bytes(line)
        with pytest.raises(ConfigError, match="holds a run, not a judge check"):
            run(config(bench, tasks), 1, "run")
        assert len(bench.bodies) == 4


def test_a_server_that_refuses_fails_the_check(tasks: Path) -> None:
    with judging(good) as bench:
        asked = config(bench, tasks)
        bench.refuses = True
        with pytest.raises(OrchestryError, match="OPENAI_API_KEY"):
            run(asked, 3)
        bench.refuses = False
        assert run(asked, 3).stopped == "done"


def test_the_judges_own_provider_is_asked_and_no_other(tasks: Path) -> None:
    with judging(good) as bench, judging(noise) as unasked:
        judge = {"provider": {"name": "openai", "model": "m", "base_url": bench.url}}
        report = run(config(unasked, tasks, judge=judge), 2)
    assert (len(bench.bodies), len(unasked.bodies)) == (8, 0)
    assert report.calls == 8


def test_fewer_problems_than_wanted_are_said(tasks: Path) -> None:
    notes = Notes()
    fake = validate({"task": "planted", "task_path": [str(tasks)], "provider": {"name": "fake"}})
    report = check_judge(fake, 50, Path("check"), notes)
    assert (report.problems, len(notes.finished)) == (20, 20)
    assert any("only 20 problems" in note for note in notes.notes)


# --- the dry run ----------------------------------------------------------------------------------


def test_the_forecast_bounds_the_bill(tasks: Path) -> None:
    with judging(good, garbled=lambda prompt, repair: not repair) as bench:
        asked = config(bench, tasks, retry={"attempts": 1}, budget={"usd": None})
        found = forecast(asked, 5, lambda text: None)
        assert bench.bodies == []
        assert not Path("check").exists()
        report = run(asked, 5)
    top = found.cost_usd.max
    assert found.episodes == 5
    assert 20 <= found.calls <= 22, "four questions each, and a few repairs"
    assert report.calls == len(bench.bodies) == 40, "every answer needs a repair"
    sent = sum(len(m["content"]) for b in bench.bodies for m in b["messages"])
    assert top is not None
    assert max(report.cost_usd, (sent + 1024 * 40) / 1e6) < top


def test_the_forecast_stops_at_the_budget(tasks: Path) -> None:
    with judging(good) as bench:
        found = forecast(config(bench, tasks, **DEAR), 5, lambda text: None)
    assert found.cost_usd.max == 5.0


# --- a real task ----------------------------------------------------------------------------------


def test_a_judge_that_knows_the_tests_agrees_with_them(tasks: Path) -> None:
    """Real code with real bugs: the server knows what each answer scored in the sandbox."""
    table = asyncio.run(_table(3))
    assert {len(set(scores)) for scores in table.values()} >= {4}
    known = {text: score for scores in table.values() for text, score in scores.items()}
    with judging(lambda text, place, luck: 10 * known[text]) as bench:
        asked = config(bench, tasks, task="code_review")
        report = run(asked, 3)
    assert report.candidates == len(known)
    assert report.measures.agreement is not None
    assert report.measures.agreement.value > 0.9  # ratings are whole points, so close ones tie
    assert not any("passes" in str(body) for body in bench.bodies)


async def _table(problems: int) -> dict[str, dict[str, float]]:
    """What each answer is worth, by problem."""
    task = load_task("code_review")
    async with open_sandbox(Limits()) as sandbox:
        sets = await graded_sets(task, 0, problems, task_rater(task, Tools(sandbox)))
    return {
        each.siblings.parent.problem.id: {
            child.turns[-1].completion.text: worth
            for child, worth in zip(each.siblings.children, each.worths_G, strict=True)
        }
        for each in sets
    }


@pytest.mark.slow
def test_the_embedded_model_can_be_asked(tasks: Path) -> None:
    source = tasks / "planted" / "task.py"  # about two candidates only: it writes slowly
    source.write_text(source.read_text().replace(str(WORTHS), str(WORTHS[:2])))
    judge = {"max_tokens": 64, "collaboration": 0.0, "efficiency": 0.0}
    planted = {"task": "planted", "task_path": [str(tasks)], "allow_unsafe_code": True}
    report = run(validate({**planted, "provider": {"name": "embedded"}, "judge": judge}), 1)
    assert (report.provider, report.problems, report.stopped) == ("embedded", 1, "done")
    assert sum(report.measures.verdicts.values()) == 4
    assert report.cost_usd == 0.0
    assert report.model_sha256 is not None
    assert report.advice.level in ("unsure", "chance", "unusable")


async def test_a_check_works_inside_a_running_loop(tasks: Path) -> None:
    with judging(good) as bench:
        report = run(config(bench, tasks), problems=2)
    assert (report.stopped, report.problems) == ("done", 2)


class Impatient(Notes):
    """One who presses Ctrl-C as the first answers are scored."""

    def scored(self) -> None:
        super().scored()
        if self.count == 1:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_a_check_that_is_interrupted_while_it_scores_ends_in_good_order(tasks: Path) -> None:
    with judging(good) as bench:
        report = check_judge(config(bench, tasks), 10, Path("check"), watch := Impatient())
        assert bench.bodies == []
        assert (report.stopped, report.problems) == ("interrupted", 0)
        assert "stopping" in watch.notes
        again = run(config(bench, tasks))
    assert (again.stopped, again.problems) == ("done", 10)
