"""`orchestry run --dry-run`: what stands on which stream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestry.cli.dry_run import of_itself
from orchestry.core.config import resolve
from orchestry.core.machine import processor
from orchestry.task.registry import bundled
from tests.cli.support import FAKE, TASKS, CommandLine

PRICED = ("--set", "prices.fake-1.input=1", "--set", "prices.fake-1.output=5")
UNTIL = Path(__file__).parents[2] / "benchmarks" / "server" / "tasks"


def test_what_auto_chose_is_said_on_stderr(cli: CommandLine) -> None:
    result = cli("run", "--dry-run", "--json", "--episodes", 2)
    assert json.loads(result.out)["provider"] == "embedded"
    assert "no ANTHROPIC_API_KEY: using the embedded" in result.err


def test_a_named_provider_needs_no_word(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--dry-run").err == ""


def test_the_text_says_what_makes_the_maximum_one(cli: CommandLine) -> None:
    priced = (*PRICED, "--dry-run")
    until = ("--task", "until", "--task-path", UNTIL)
    assert "every answer at its longest" in cli("run", *FAKE, *priced).out
    assert "The maximum is the budget" in cli("run", *FAKE, *priced, "--budget", 0.01).out
    assert "The maximum is the budget" in cli("run", *FAKE, *until, *priced).out
    free = cli("run", *FAKE, *until, *priced, "--set", "budget.usd=null").out
    assert "hard maximum none" in free
    assert "no maximum without a budget" in free
    shown = cli("run", *FAKE, *until, *priced, "--set", "budget.usd=null", "--json").out
    assert json.loads(shown)["cost_usd"]["max"] is None


def test_learning_is_shown_by_purpose_and_has_no_maximum_without_a_budget(cli: CommandLine) -> None:
    learns = ("--set", "behaviors.enabled=true", "--set", "behaviors.every=1")
    priced = (*PRICED, "--dry-run")
    shown = cli("run", *FAKE, *learns, *priced, "--set", "budget.usd=null").out
    assert "trial" in shown
    assert "distil" in shown
    assert "no maximum without a budget: the run learns" in " ".join(shown.split())


def test_earlier_runs_are_found_where_runs_lie_and_beside_this_one(cli: CommandLine) -> None:
    dry = ("run", *FAKE, "--dry-run", *PRICED)
    assert "No earlier run of fake-1" in cli(*dry).out
    cli("run", *FAKE)
    cli("run", *FAKE, "--run-dir", "own/first")
    assert "from 1 earlier run of the model" in " ".join(cli(*dry).out.split())
    beside = cli(*dry, "--run-dir", "own/second", "--json").out
    assert json.loads(beside)["earlier_runs"] == 2


def test_figures_have_no_noise_in_their_last_digits(cli: CommandLine) -> None:
    shown = cli("run", *FAKE, "--dry-run", "--json", "--episodes", 7).out
    for row in json.loads(shown)["usage"]:
        for key in ("calls", "input_tokens", "output_tokens"):
            assert row[key] == round(row[key], 2)
    assert "words, 1 episode on" in cli("run", *FAKE, "--dry-run", "--episodes", 1).out


def test_a_free_model_has_no_wide_range_and_no_maximum_to_explain(cli: CommandLine) -> None:
    shown = " ".join(cli("run", *FAKE, "--dry-run").out.split())
    assert shown.endswith("hard maximum 0.0000 Every model that it asks is free.")


def test_there_is_a_row_for_each_of_several_providers(cli: CommandLine) -> None:
    other = ("--set", "agents.writer.provider=anthropic", "--dry-run")
    rows = json.loads(cli("run", *FAKE, *other, "--json").out)["by_provider"]
    (claude,) = (row["model"] for row in rows if row["provider"] == "anthropic")
    shown = " ".join(cli("run", *FAKE, *other).out.split())
    assert [row["provider"] for row in rows] == ["anthropic", "fake"]
    assert shown.count(f"all anthropic/{claude}") == shown.count("all fake/fake-1") == 1
    assert "all fake/fake-1" not in " ".join(cli("run", *FAKE, "--dry-run").out.split())


@pytest.mark.slow
def test_the_text_names_a_budget_that_is_enough(cli: CommandLine) -> None:
    priced = ("--set", "prices.fake-1.input=500", "--set", "prices.fake-1.output=900", "--dry-run")
    dry = ("run", *FAKE, "--task", "until", "--task-path", UNTIL, *priced)
    enough = json.loads(cli(*dry, "--json").out)["enough_usd"]
    said = f"--budget {enough:.2f} is enough in 95 of 100 cases"
    assert said in " ".join(cli(*dry, "--set", "budget.usd=null").out.split())
    assert said in " ".join(cli(*dry, "--budget", enough / 2).out.split())
    capped = cli(*dry, "--budget", enough)
    assert "is enough" not in capped.out
    assert json.loads(cli(*dry, "--budget", enough, "--json").out)["cost_usd"]["p95"] < enough


@pytest.mark.slow
def test_a_budget_that_is_too_small_does_not_promise_what_a_larger_one_learns(
    cli: CommandLine,
) -> None:
    learns = ("--episodes", "20", "--set", "behaviors.enabled=true")
    dry = ("run", *FAKE, *learns, *PRICED, "--dry-run")
    small, large = (" ".join(cli(*dry, "--budget", usd).out.split()) for usd in (0.001, 1000))
    assert "is enough in 95 of 100 cases." in small
    assert "Learning, with that larger budget: " in small
    assert "Learning: " in large


# --- memory, time and dollars of the machine ------------------------------------------------------

LOCAL = ("run", "--backend", "local", "--task", "words", "--task-path", TASKS, "--dry-run")
CODER = ("--model", "Qwen/Qwen2.5-Coder-1.5B-Instruct")


def test_a_gpu_that_is_not_here_is_estimated_from_the_table(cli: CommandLine) -> None:
    pytest.importorskip("torch")
    dry = (*LOCAL, *CODER, "--gpu", "a100", "--episodes", 200)
    machine = json.loads(cli(*dry, "--json").out)["machine"]
    assert (machine["device"], machine["free_gb"], machine["seconds_from"]) == ("a100", 80, "table")
    assert machine["usd"] == pytest.approx(machine["seconds"] / 3600 * machine["usd_per_hour"])
    assert "2026" in machine["price_from"]
    parts = machine["memory_gb"]
    most = max(parts["drawing"], parts["learning"])
    whole = parts["weights"] + parts["trained"] + most + parts["process"]
    assert parts["total"] == pytest.approx(whole, abs=0.01)
    own = json.loads(cli(*dry, "--json", "--gpu-price", 9).out)["machine"]
    assert (own["usd_per_hour"], own["price_from"]) == (9, "--gpu-price")
    slower = json.loads(cli(*dry, "--json", "--gpu", "l4").out)["machine"]
    assert slower["seconds"] > machine["seconds"]
    shown = " ".join(cli(*dry).out.split())
    assert "fits into 80 GB" in shown
    assert "an estimate from data sheets and one measured GPU, never checked on this one" in shown
    assert "GPU dollars: about" in shown
    unpriced = " ".join(cli(*LOCAL, *CODER, "--gpu", "t4").out.split())
    assert "GPU dollars: no price of a t4 is known; give one by --gpu-price" in unpriced


def test_for_a_gpu_the_base_is_the_one_that_a_gpu_gets(cli: CommandLine) -> None:
    pytest.importorskip("torch")
    dry = (*LOCAL, "--gpu", "a100", "--json")
    assert json.loads(cli(*dry).out)["model"] == CODER[1]
    assert json.loads(cli(*dry, "--provider", "embedded").out)["model"] == "embedded"


def test_a_model_that_is_not_here_is_neither_fetched_nor_measured(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    machine = json.loads(cli(*LOCAL, *CODER, "--json", "--set", "learn.device=cpu").out)["machine"]
    assert (machine["seconds_from"], machine["seconds"], machine["usd"]) == (None, None, None)
    assert machine["device"].startswith(processor()), "this machine, and no GPU that is elsewhere"
    said = cli(*LOCAL, *CODER, "--set", "learn.device=cpu").out
    assert "the time is not measured here: Qwen" in said
    assert "--gpu NAME, such as l4 or a100" in said
    rented = json.loads(cli(*LOCAL, *CODER, "--gpu", "a100", "--json").out)["machine"]
    assert (rented["device"], rented["seconds_from"]) == ("a100", "table")
    assert "Qwen2.5-Coder-1.5B-Instruct is not on this machine" in machine["why"]
    unknown = json.loads(cli(*LOCAL, "--model", "nobody/knows", "--json").out)["machine"]
    assert (unknown["memory_gb"], unknown["seconds"]) == (None, None)
    assert "the sizes of nobody/knows are not known" in unknown["why"]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((*LOCAL, "--gpu", "t5"), "unknown GPU 't5'"),
        ((*LOCAL[:-1], "--gpu", "t4"), "add --dry-run"),
        (("run", "--backend", "ppo", "--steps", "1e99"), ">= 1 and <= 100000000000000"),
        (("run", *FAKE, "--dry-run", "--gpu", "t4"), "not for backend api, which needs no GPU"),
        (("run", *FAKE, "--dry-run", "--gpu-price", 1), "not for backend api"),
        (("remote", "run", "host", "--", "--gpu", "t4"), "a dry run needs no host"),
    ],
)
def test_a_gpu_that_nothing_would_read_is_an_error(
    cli: CommandLine, asked: tuple[object, ...], said: str
) -> None:
    cli(*asked).failed(2, said)


@pytest.mark.slow
def test_weights_that_are_here_are_measured_and_nothing_is_written(
    cli: CommandLine, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    from tests.backends.local.tiny import tiny_folder

    model = tiny_folder(tmp_path / "model")
    before = sorted(path.name for path in model.iterdir())
    dry = (*LOCAL, "--model", model, "--set", "learn.device=cpu", "--episodes", 16)
    small = json.loads(cli(*dry, "--json").out)["machine"]
    assert (small["seconds_from"], small["usd"]) == ("measured", None)
    assert 0 < small["seconds"] < 600
    more = json.loads(cli(*dry, "--json", "--episodes", 160, "--gpu-price", 1).out)["machine"]
    assert more["seconds"] > small["seconds"]
    assert more["usd"] == pytest.approx(more["seconds"] / 3600)
    alone = cli(*dry, "--set", "learn.enabled=false")
    assert "by a short measurement on this machine" in " ".join(alone.out.split())
    assert not Path("runs").exists()
    assert sorted(path.name for path in model.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("computes", [True, False])
def test_a_large_base_is_faster_in_bfloat16_where_the_processor_computes_in_it(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computes: bool
) -> None:
    pytest.importorskip("torch")
    from orchestry.engine import forecast
    from tests.backends.local.tiny import tiny_folder

    monkeypatch.setattr(forecast, "computes_bfloat16", lambda: computes)
    monkeypatch.setattr(forecast, "_LARGE", 1)
    dry = (*LOCAL, "--model", tiny_folder(tmp_path / "model"), "--set", "learn.device=cpu")
    hint = "--set learn.dtype=bfloat16 takes less time"
    assert (hint in " ".join(cli(*dry).out.split())) is computes
    assert hint not in " ".join(cli(*dry, "--set", "learn.dtype=float32").out.split())


@pytest.mark.parametrize(
    ("changed", "told"),
    [((), True), (("provider.model=other",), False), (("recipe.steps=magrpo",), False)],
)
def test_what_a_file_says_of_its_recipe_is_told_of_that_recipe_alone(
    changed: tuple[str, ...], told: bool
) -> None:
    file = bundled("configs") / "cooperation.yaml"
    assert bool(of_itself(resolve([file], changed), file)) == told
