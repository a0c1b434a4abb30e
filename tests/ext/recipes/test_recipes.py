"""Recipes: stages that play and teach one team in turn, under one budget, resumable anywhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

pytest.importorskip("torch")

import orchestry
from orchestry.cli import app
from orchestry.core.config import RunConfig, resolve, validate
from orchestry.core.errors import ConfigError, LockedError
from orchestry.engine.run import prepare, resume
from orchestry.ext.recipes.recipes import forecast, foreseen
from orchestry.report.recipes import Brought, brought, stages_table
from orchestry.store.journal import Rated
from orchestry.store.recipes import recipe_in, stages_of
from orchestry.store.run import Run, Store, load_run
from tests.backends.letters import adapters, turns
from tests.engine.test_faults import serving

pytestmark = pytest.mark.usefixtures("one_thread")


def sets(steps: str, model: str, tasks: Path, *more: str) -> list[str]:
    """A fake searches first; the weights are tiny."""
    return [
        *(f"recipe.steps={steps}", "task=letters", f"task_path=[{tasks}]", "episodes=4"),
        *("sampling.max_tokens=8", "budget.usd=5", "cache.enabled=false", "learn.threads=1"),
        *("learn.every=2", "recipe.stages.distil.learn={rank: 4, alpha: 8}", "recipe.samples=2"),
        *("search.k_samples=2", "recipe.stages.distil.top=1.0", "recipe.stages.distil.epochs=1"),
        f"recipe.stages.distil.provider.model={model}",
        f"recipe.stages.magrpo.provider.model={model}",
        "recipe.stages.1.provider.name=fake",
        *more,
    ]


WORDS = (f"task_path=[{Path(__file__).parents[2] / 'fixtures' / 'tasks'}]", "task=words")
GOLD = "recipe.stages.distil.gold=true"


def recipe(steps: str, model: str, tasks: Path, *more: str) -> RunConfig:
    return resolve([], sets(steps, model, tasks, *more))


def stage(folder: Path, name: str) -> Run:
    return load_run(folder / "stages" / name)


@pytest.fixture(scope="module")
def whole(model: str, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every step but prompts, and the search twice; only read."""
    folder = tmp_path_factory.mktemp("recipes") / "run"
    last = orchestry.train(recipe("search+distil+magrpo+search", model, tasks), folder)
    assert last.folder == folder / "stages" / "4-search"
    return folder


def test_a_forecast_knows_the_base_that_a_distillation_will_leave(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    given = [one for one in sets("search+distil+magrpo", model, tasks) if "magrpo.prov" not in one]
    config = resolve([], given)
    parts = dict(forecast(config, stages_of(tmp_path, config.recipe.steps)))
    assert parts["3 magrpo"].provider.model == model


def test_each_stage_goes_on_with_the_team_of_the_one_before(whole: Path) -> None:
    distilled, learned = stage(whole, "2-distil"), stage(whole, "3-magrpo")
    start = learned.folder / "start" / "left" / "adapter_model.safetensors"
    one = distilled.folder / "checkpoints" / "000001" / "left" / "adapter_model.safetensors"
    assert start.read_bytes() == one.read_bytes()
    first, last = stage(whole, "1-search"), stage(whole, "4-search")
    assert (first.summary.provider, last.summary.provider) == ("fake", "local")
    end = learned.folder / "checkpoints" / "000004" / "left" / "adapter_model.safetensors"
    assert (last.folder / "start" / "left" / end.name).read_bytes() == end.read_bytes()
    assert first.config["seed"] != last.config["seed"]


@pytest.mark.slow
def test_the_report_shows_what_each_stage_brought(whole: Path, tmp_path: Path) -> None:
    found = brought(whole)
    assert [one.state for one in found] == ["done"] * 4
    search, distilled, learned, again = found
    assert (search.before, search.after, again.after) == (None, None, None)
    assert distilled.before is not None
    assert distilled.after is not None
    assert learned.before is not None
    assert learned.before.folder == distilled.after.folder  # played once
    assert distilled.change is not None
    measures = (distilled.after.measures, distilled.before.measures)
    gained = distilled.change.mean
    means = [one.reward.mean for one in measures if one is not None]
    assert gained == pytest.approx(means[0] - means[1])
    assert (search.calls, distilled.calls, learned.calls) == (4 * 2 * 2, 0, 4 * 4 * 2)
    assert distilled.seconds > 0
    assert stages_table(found).count("\n| ") == 5
    said = CliRunner().invoke(app, ["report", str(whole), "--out", str(tmp_path / "out"), "--json"])
    assert said.exit_code == 0
    assert len(json.loads(said.stdout)["stages"]) == 4
    page = (tmp_path / "out" / "RESULTS.md").read_text()
    assert "## Stages" in page
    assert "| orchestry distil, sft by reward |" in page
    assert "(credit method" not in page, "stages differ by what they do"


def test_a_finished_recipe_plays_nothing_again(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    before = {path: path.read_bytes() for path in copy.rglob("journal.jsonl")}
    said = CliRunner().invoke(app, ["resume", str(copy), "--json"])
    told = json.loads(said.stdout)
    assert told["done"]
    assert [one["step"] for one in told["stages"]] == ["search", "distil", "magrpo", "search"]
    assert told["stages"][2]["calls"] == 4 * 4 * 2
    assert told["stages"][1]["change"] == brought(copy)[1].plain()["change"]
    assert resume(copy).folder == copy / "stages" / "4-search"
    assert {path: path.read_bytes() for path in copy.rglob("journal.jsonl")} == before


@pytest.mark.slow
@pytest.mark.parametrize("reach", ["1-search", "2-distil", "3-magrpo", "3-magrpo/evaluations"])
def test_a_kill_in_any_stage_costs_nothing(
    whole: Path, model: str, tasks: Path, tmp_path: Path, reach: str
) -> None:
    folder = tmp_path / "run"
    given = [f"--set={one}" for one in sets("search+distil+magrpo+search", model, tasks)]
    command = [sys.executable, "-m", "orchestry", "run", "--run-dir", str(folder), *given]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        until = time.monotonic() + 120
        while not (folder / "stages" / reach).exists() and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    resume(folder)
    assert [one.state for one in brought(folder)] == ["done"] * 4
    for name in ("2-distil", "3-magrpo"):
        ours, theirs = stage(folder, name), stage(whole, name)
        assert adapters(ours.folder) == adapters(theirs.folder)
    assert stage(folder, "1-search").rewards == stage(whole, "1-search").rewards
    again, first = (stage(one, "4-search").config for one in (folder, whole))
    assert again["provider"]["model"] == first["provider"]["model"]
    assert again["learn"]["rank"] == first["learn"]["rank"] == 4
    assert again["sampling"]["temperature"] == 0.8
    for key in again.keys() - {"provider", "learn"}:
        assert again[key] == first[key]


def test_one_budget_caps_all_stages(
    model: str, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed-here")
    with serving() as (url, server):
        asked = f"{{name: openai, model: served, base_url: '{url}/v1', timeout_s: 30}}"
        paid = [f"recipe.stages.search.provider={asked}", "recipe.stages.1.provider=" + asked]
        prices = ["prices.served.input=2", "prices.served.output=10", "recipe.samples=0"]
        found = recipe("search+search", model, tasks, *paid, *prices)
        free = orchestry.train(found, tmp_path / "free")
        assert free.summary.stopped == "done"
        spent = server.bill.usd
        short = recipe("search+search", model, tasks, *paid, *prices, f"budget.usd={spent * 0.7}")
        cut = orchestry.train(short, tmp_path / "short")
        assert cut.folder.name == "2-search"
        assert cut.summary.stopped == "budget"
        assert server.bill.usd - spent <= spent * 0.7
        before = server.bill.requests
        done = resume(tmp_path / "short", {"budget": {"usd": 5.0}})
        assert done.summary.stopped == "done"
        assert server.bill.usd == pytest.approx(2 * spent)
        assert server.bill.requests > before
        assert load_run(tmp_path / "short" / "stages" / "1-search").summary.stopped == "done"


def test_prompts_are_learned_and_worked_into_weights(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    library = tmp_path / "library.yaml"
    library.write_text(
        "task: letters\nmodel: fake-1\nbehaviors:\n"
        "- {agent: left, text: Write many letters e., status: accepted}\n"
    )
    learns = (f"behaviors.from={library}", "recipe.samples=0", "behaviors.provider.name=fake")
    more = (*learns, "recipe.stages.distil.learn={rank: 16, alpha: 32}")
    folder = tmp_path / "run"
    config = recipe("prompts+magrpo+search+distil", model, tasks, *more)
    orchestry.train(config, folder)
    for name, told in (("1-prompts", True), ("2-magrpo", True), ("3-search", True)):
        texts = [t.messages[0].content for one in stage(folder, name).episodes for t in turns(one)]
        assert any("Write many letters e." in text for text in texts) == told, name
    facts = json.loads((folder / "stages" / "4-distil" / "distil.json").read_text())
    assert facts["settings"]["drop_behaviors"]


def test_an_agent_is_frozen_in_the_stages_that_say_so(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    frozen = "recipe.stages.magrpo.agents.left.frozen=true"
    config = recipe("search+distil+magrpo", model, tasks, frozen)
    parts = dict(forecast(config, stages_of(tmp_path, config.recipe.steps)))
    assert parts["3 magrpo"].agents["left"].frozen
    assert "left" not in parts["1 search"].agents


def test_a_dry_run_names_every_part(model: str, tasks: Path, tmp_path: Path) -> None:
    config = recipe("search+distil+magrpo+search", model, tasks)
    parts = forecast(config, stages_of(tmp_path, config.recipe.steps))
    assert [name for name, _ in parts] == [
        *("1 search", "3 magrpo", "4 search"),
        *("2 distil, on dev", "2 distil, on dev", "3 magrpo, on dev"),
    ]
    assert {one.episodes for _, one in parts} == {4}
    assert not any(one.learn.enabled for name, one in parts if "on dev" in name)
    given = [f"--set={one}" for one in sets("search+distil+magrpo", model, tasks)]
    said = CliRunner().invoke(app, ["run", "--dry-run", "--json", *given])
    assert said.exit_code == 0, said.output
    assert [one["calls"] for one in json.loads(said.stdout)["parts"]] == [16, 32, 16, 16, 16]
    machine = json.loads(said.stdout)["machine"]  # of the magrpo, which begins at no weights yet
    assert machine["seconds"] > 0
    assert machine["memory_gb"]["total"] > 0
    assert not recipe_in(tmp_path)
    keyless = recipe("search+distil", model, tasks, "recipe.stages.1.provider.name=anthropic")
    parts = forecast(keyless, stages_of(tmp_path, keyless.recipe.steps))
    assert parts[0][1].provider.name == "anthropic"
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY is not set"):
        orchestry.train(keyless, tmp_path / "run")


def test_a_file_and_this_machine_say_what_is_to_come(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    file = tmp_path / "short.yaml"
    file.write_text("## Letters are learned.\n## So it went: 0 to 1.\nepisodes: 2  ## not this\n")
    own = [one for one in sets("magrpo", model, tasks, "recipe.samples=0") if "fake" not in one]
    given = ["--config", str(file), *(f"--set={one}" for one in own)]
    command = ["run", *given, "--run-dir", str(tmp_path / "run")]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    notes = [one[2:] for one in said.stderr.splitlines() if one[:1] == "·"]
    assert notes[1:3] == ["Letters are learned.", "So it went: 0 to 1."]
    assert "to measure how fast this machine is" in notes[3]
    foretold = next(n for n, one in enumerate(notes) if one.startswith("stage 1 magrpo, time: ab"))
    assert foretold < notes.index("stage 1 of 1: magrpo")
    again = CliRunner().invoke(app, command)
    assert isinstance(again.exception, ConfigError)
    assert "Letters" not in again.stderr


@pytest.mark.parametrize(
    ("steps", "more", "message"),
    [
        ("search+fly", [], "recipe.steps"),
        ("distil+search", [], "distil, has no stage to learn from"),
        ("search", ["recipe.stages.9.seed=1"], "recipe.stages has '9': name a step"),
        ("search", ["recipe.stages.search.tsk=x"], "unknown config key 'tsk'"),
        ("search+distil", ["recipe.stages.distil.epochs=0"], "epochs is 0"),
        ("search+distil", ["recipe.stages.distil.by=luck"], "by is 'luck'"),
        ("search+distil", ["recipe.stages.distil.top=7"], "top is 7"),
        ("search+distil", ["recipe.stages.distil.lern=1"], "distil does not use lern"),
        ("search+distil", ["recipe.stages.distil.teacher=guard"], "distil does not use teacher"),
        ("search+distil", ["recipe.stages.distil.learn.rank=-3"], "learn.rank"),
        ("search+distil", ["recipe.stages.distil.provider.model=/gone/x"], "/gone/x"),
        ("prompts+distil", ["recipe.stages.distil.drop_behaviors=false"], "out drop_behaviors"),
        ("search+distil+magrpo", ["learn.method=full"], "trains all weights"),
        ("search+distil", ["agents.left.frozen=true"], "keeps left as it is"),
        ("search+magrpo+search", ["learn.method=full"], "trains all weights"),
        ("magrpo", ["learn.every=0"], "learn.every"),
        ("search", ["backend=api"], "leave out --backend"),
        ("search", ["split=test"], "on its train problems: leave out split"),
        ("search+magrpo", ["recipe.stages.magrpo.baseline=fixed"], "leave out baseline"),
        ("search+distil+search", ["judge.enabled=true"], "weights that answer can't judge"),
        (
            "search+distil+prompts",
            ["behaviors.propose=[rules]", "behaviors.provider.name=auto"],
            "weights that answer can't write behaviours",
        ),
        ("search+distil", [GOLD, *WORDS], "has no gold answers on train"),
        ("search+distil", [GOLD, "agents.left.infer=true"], "gold answers are actions"),
    ],
)
def test_a_recipe_that_can_not_be_played_is_refused_before_anything_is(
    model: str, tasks: Path, tmp_path: Path, steps: str, more: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        orchestry.train(recipe(steps, model, tasks, *more), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_recipe_is_not(whole: Path, model: str, tasks: Path) -> None:
    with pytest.raises(ConfigError, match="episodes can't be changed on the resume of a recipe"):
        resume(whole, {"episodes": 9})
    with pytest.raises(ConfigError, match="holds a recipe: name one of its stages"):
        load_run(whole)
    with pytest.raises(ConfigError, match="holds a recipe: `orchestry resume"):
        orchestry.train(recipe("search", model, tasks), whole)
    with pytest.raises(ConfigError, match="a recipe is several runs"):
        prepare(recipe("search", model, tasks))


def test_a_resume_that_is_refused_changes_nothing(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    before = (copy / "config.yaml").read_bytes()
    with FileLock(copy / "recipe.lock"), pytest.raises(LockedError, match="by another process"):
        resume(copy, {"budget": {"usd": 1.0}})
    assert (copy / "config.yaml").read_bytes() == before


def test_a_stage_that_has_not_begun_takes_other_settings(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """A distillation of ratings waits for the person who rates the search before it."""
    run, by = tmp_path / "run", "recipe.stages.distil.by=rating"
    asked = recipe("search+distil", model, tasks, by, "recipe.samples=0")
    with pytest.raises(ConfigError, match=r"stage 2 .*nobody rated .*recipe\.stages\.2\."):
        orchestry.train(asked, run)
    record = (searched := stage(run, "1-search")).episodes[0]
    with Store(searched.folder) as store:
        store.journal.append(Rated(episode=0, node=record.best, rating=1.0, at=time.time()))
    other = {"recipe": {"stages": {"2": {"min_reward": 1.0, "epochs": 1}}}}
    with pytest.raises(ConfigError, match="none of the best 100%"):
        resume(run, other)
    with pytest.raises(ConfigError, match="can't be changed on the resume of a recipe"):
        resume(run, {"recipe": {"stages": {"search": {"seed": 3}}}})
    other["recipe"]["stages"]["2"]["min_reward"] = 0.0
    assert resume(run, other).folder.name == "2-distil"


def test_weights_learn_behaviours_that_no_one_writes(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    config = recipe("search+distil+prompts", model, tasks)
    _, prompts = foreseen(config, stages_of(tmp_path, config.recipe.steps)).values()
    assert prompts.behaviors.enabled


def test_a_tree_of_samples_is_handed_to_gradients(model: str, tasks: Path, tmp_path: Path) -> None:
    tree = ("search.branch=tree", "search.max_nodes=9")
    config = recipe("search+magrpo", model, tasks, *tree)
    _, found = foreseen(config, stages_of(tmp_path, config.recipe.steps)).values()
    assert (found.search.branch, found.search.max_nodes) == ("tree", 9)


def test_models_of_an_api_are_no_bases(model: str, tasks: Path, tmp_path: Path) -> None:
    more = ("provider.name=fake", "agents.left.model=fake-1", "recipe.samples=0")
    last = orchestry.train(recipe("search+distil+magrpo", model, tasks, *more), tmp_path / "run")
    assert last.folder.name == "3-magrpo"


def test_a_model_that_is_named_alone_is_that_of_who_answers(
    model: str, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")

    def planned(steps: str, name: str, own: dict[str, float] | None = None) -> dict[str, RunConfig]:
        plain = recipe(steps, model, tasks).plain() | {"provider": {"model": name}}
        stages = {"search": {"provider": own}} if own else {}
        config = validate(plain | {"recipe": {"steps": steps.split("+"), "stages": stages}})
        return dict(forecast(config, stages_of(tmp_path, config.recipe.steps)))

    plain = planned("search+distil+magrpo", "claude-haiku-4-5")
    patient = planned("search+distil+magrpo", "claude-haiku-4-5", {"timeout_s": 60})
    assert patient["3 magrpo"].provider.model == plain["3 magrpo"].provider.model
    searched = plain
    assert searched["1 search"].provider.model == "claude-haiku-4-5"
    assert searched["3 magrpo"].provider.model == "embedded", "the default base"
    assert planned("magrpo", model)["1 magrpo"].provider.model == model


def test_a_stage_that_has_not_begun_is_shown_so(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.rmtree(copy / "stages" / "4-search")
    last: Brought = brought(copy)[-1]
    assert (last.state, last.name) == ("not begun", "4 search (not begun)")
    assert brought(copy / "stages" / "1-search") == []
