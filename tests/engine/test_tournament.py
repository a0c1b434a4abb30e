"""Cross-play by arrays and by text, best responses, and the figures of `orchestry tournament`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from filelock import FileLock
from rich.console import Console

from orchestry.cli.tournament import _matrix, _ratings, best_reply, exploited, rating
from orchestry.core.config import validate
from orchestry.core.errors import ConfigError, LockedError, StoreError
from orchestry.engine.arena import arena
from orchestry.engine.meeting import apart, together
from orchestry.engine.run import prepare, train
from orchestry.engine.session import Silent
from orchestry.engine.tournament import FILE, Cell, Response, Results, Tournament, entries
from orchestry.store.journal import Learned
from orchestry.store.run import load_run
from tests.engine.test_neural import SMALL

pytestmark = pytest.mark.usefixtures("one_thread")
GAME = {"task": "bucket_brigade", "options": {"scenario": "hard", "max_nights": 20}}


def _played(
    folder: Path,
    *names: str,
    responses: bool = False,
    deals: int = 12,
    budget: float | None = None,
    **more: Any,
) -> Results:
    config = validate({**GAME, **more, "backend": "ppo", "ppo": SMALL})
    found = entries(names, False, Silent())
    asked = Tournament(config, found, deals, 2, responses, folder, Silent())
    return asked.play(budget)


def _cell(found: Results, one: str, other: str) -> Cell:
    (cell,) = (c for c in found.cells if (c.one, c.other) == (one, other))
    return cell


def test_each_plays_beside_each_in_the_same_games(tmp_path: Path) -> None:
    found = _played(tmp_path, "always_work", "always_rest", "guard")
    assert len(found.cells) == 9
    assert all(len(cell.earned_D) == 12 for cell in found.cells)
    alone = _cell(found, "guard", "guard")
    assert alone.earned_D == pytest.approx(alone.others_D)
    # Rest costs nothing and work does: beside the same partners the one who rests earns more than
    # they do, and the more so the more of them work.
    lazy = _cell(found, "always_rest", "always_work")
    assert fmean(lazy.earned_D) > fmean(lazy.others_D)
    kept = json.loads((tmp_path / FILE).read_text())
    assert kept["cells"][0]["earned_D"] == [*found.cells[0].earned_D]
    again = _played(tmp_path, "always_work", "always_rest", "guard")
    assert again.cells == found.cells


@pytest.mark.parametrize(
    ("names", "more", "said"),
    [
        (("guard", "liar"), {}, "with hero too"),
        (("guard", "hero"), {"options": {"scenario": "easy"}}, "options .*'hard'.* not .*'easy'"),
        (("guard", "hero"), {"seed": 3}, "seed 0, not 3"),
    ],
)
def test_another_tournament_is_not_overwritten(
    tmp_path: Path, names: tuple[str, ...], more: dict[str, Any], said: str
) -> None:
    _played(tmp_path, "guard", "hero", deals=4)
    kept = (tmp_path / FILE).read_bytes()
    with pytest.raises(ConfigError, match=f"{said}.*another --run-dir"):
        _played(tmp_path, *names, deals=4, **more)
    assert (tmp_path / FILE).read_bytes() == kept
    assert len(_played(tmp_path, "liar", "guard", "hero", deals=4).cells) == 9


@pytest.mark.parametrize("file", ["journal.jsonl", "config.yaml", FILE])
def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, file: str) -> None:
    """Of a run, of a recipe, which has no journal, or a file that no tournament wrote."""
    (tmp_path / file).write_text("[1]\n")
    with pytest.raises(ConfigError, match="another --run-dir"):
        _played(tmp_path, "guard", deals=4)
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_a_pipe_in_the_folder_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(StoreError, match=f"{FILE} is a pipe"):
        _played(tmp_path, "guard", deals=4)


def test_a_player_beside_itself_is_the_whole_team(tmp_path: Path) -> None:
    found = _played(tmp_path, "always_rest", deals=8)
    (cell,) = found.cells
    assert cell.earned_D == cell.others_D, "all rest, so all earn the same"


def test_best_responses_learn_once(tmp_path: Path) -> None:
    found = _played(tmp_path, "always_work", responses=True)
    (one,) = found.responses
    assert len(one.earned_G) == len(one.itself_G) == 12
    file = tmp_path / "responses" / "always_work" / "progress.jsonl"
    rows = file.read_text()
    assert _played(tmp_path, "always_work", responses=True).responses == [one]
    assert file.read_text() == rows
    with pytest.raises(ConfigError, match="best responses, which this call would drop"):
        _played(tmp_path, "always_work")
    with pytest.raises(ConfigError, match="another --run-dir"):
        _played(tmp_path, "always_work", responses=True, seed=9)


def test_the_best_response_to_a_learned_player_begins_as_that_player(tmp_path: Path) -> None:
    config = validate({**GAME, "backend": "ppo", "ppo": {**SMALL, "hidden": [8], "steps": 128}})
    player = train(config, tmp_path / "player").folder
    _played(tmp_path / "cup", str(player), responses=True)
    response = load_run(tmp_path / "cup" / "responses" / "player")
    assert response.config["ppo"]["from"] == str(player)
    assert [*response.config["ppo"]["hidden"]] == [8]


def _texts(folder: Path) -> list[Path]:
    """The runs of games by text."""
    return [*(folder / "texts").glob("*/*/*")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of backend api."""
    folder = tmp_path_factory.mktemp("api") / "models"
    config = {
        **GAME,
        "provider": {"name": "fake"},
        "episodes": 1,
        "search": {"strategy": "single"},
        "sampling": {"max_tokens": 16},
    }
    return train(config, folder).folder


@pytest.mark.slow
def test_language_models_meet_scripts(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setattr(Silent, "note", lambda self, text: said.append(text))
    found = _played(tmp_path, "guard", str(models))
    assert any(text.endswith("each of 2 games has unread answer") for text in said)
    cell = _cell(found, "models", "guard")
    assert len(cell.earned_D) == 2
    assert not found.missing
    assert {(c.one, c.other) for c in found.cells} == {
        (one, other) for one in ("guard", "models") for other in ("guard", "models")
    }
    assert len(_texts(tmp_path)) == 9  # a seat each, twice, and the models among themselves


@pytest.mark.slow
def test_a_team_plays_the_tournaments_game_in_its_own_seats(
    models: Path, learned: Path, tmp_path: Path
) -> None:
    """Whatever its own run was played with: other options, and others in some seats."""
    config = {
        **GAME,
        "options": {"scenario": "easy", "max_nights": 14},
        "provider": {"name": "fake"},
        "episodes": 1,
        "search": {"strategy": "single"},
        "sampling": {"max_tokens": 16},
        "agents": {"agent_1": {"plays": str(learned)}},
    }
    other = train(config, tmp_path / "other").folder
    found = _played(tmp_path / "t", "guard", str(other), str(learned))
    assert len(found.cells) == 9
    for place in _texts(tmp_path / "t"):
        kept = load_run(place).config
        assert kept["options"] == GAME["options"]
        plays = {role for role, own in kept["agents"].items() if own.get("plays")}
        assert len(plays) in (0, 1, 3)
    tldr = train({"task": "tldr", "provider": {"name": "fake"}, "episodes": 1}, tmp_path / "tldr")
    with pytest.raises(ConfigError, match="plays tldr"):
        _played(tmp_path / "u", "guard", str(tldr.folder))


@pytest.mark.slow
def test_a_team_plays_with_what_it_learned(tmp_path: Path) -> None:
    """Its library lies in the folder of its games: another team's is another file."""
    learner = {
        **GAME,
        "provider": {"name": "fake"},
        "episodes": 2,
        "search": {"strategy": "best_of_n", "k_samples": 2},
        "sampling": {"max_tokens": 16},
        "judge": {"enabled": False},
        "behaviors": {"enabled": True, "every": 2},
    }
    team = train(learner, tmp_path / "team")
    assert any(isinstance(event, Learned) for event in team.events)
    _played(tmp_path / "t", "guard", str(team.folder))
    for place in _texts(tmp_path / "t"):
        assert load_run(place).config["behaviors"]["from"] == str(place / "behaviors/from.yaml")


@pytest.mark.slow
def test_language_models_of_two_runs_meet(models: Path, tmp_path: Path) -> None:
    """Each agent is asked as its own run asks it: by its provider, in its words."""
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"agent": "*", "text": "house 3, work"}) + "\n")
    fixed = {"name": "fake", "fake": {"script": str(script)}}
    config = yaml.safe_load((models / "config.yaml").read_text())
    agents = {"agent_1": {"goal": "Put out house 3.", "temperature": 0.5}}
    other = train({**config, "provider": fixed, "agents": agents}, tmp_path / "fixed").folder
    found = _played(tmp_path / "t", str(models), str(other))
    assert not found.missing
    assert len(found.cells) == 4
    assert all(rating(found, label) for label in ("models", "fixed"))
    for seat in range(4):
        run = load_run(tmp_path / "t" / "texts" / "fixed" / "models" / str(seat))
        plain = run.config["agents"]
        assert ["Put out house 3." in plain[f"agent_{n}"]["system_prompt"] for n in range(4)] == [
            seat == 1 == n for n in range(4)
        ]
        said = {
            turn.completion.text
            for one in run.episodes
            for node in one.path(one.best)
            for turn in node.turns
            if turn.agent == "agent_1"
        }
        assert run.config["agents"]["agent_1"]["temperature"] == (0.5 if seat == 1 else None)
        assert (said == {"house 3, work"}) == (seat == 1)


@pytest.mark.parametrize(
    ("differs", "why"),
    [
        ({"prices": {"fake-1": {"input": 1.0, "output": 1.0}}}, "prices.fake-1"),
        ({"sampling": {"max_tokens": 16, "stop": ["."]}}, "sampling.stop"),
        ({"baseline": "fixed"}, "a baseline"),
    ],
)
def test_what_a_game_has_once_must_be_equal(
    models: Path, tmp_path: Path, differs: dict[str, Any], why: str
) -> None:
    """Else a call could be paid by the other run's price, or end by its rule."""
    config = yaml.safe_load((models / "config.yaml").read_text())
    other = train({**config, **differs}, tmp_path / "other")
    ours, theirs = (prepare(validate(run.config)) for run in (load_run(models), other))
    assert apart(ours, ours) == ""
    assert why in apart(ours, theirs)
    assert why in apart(theirs, ours)


def test_a_game_of_two_runs_has_the_least_cap_and_concurrency(models: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((models / "config.yaml").read_text())
    changes = {"budget": {"usd": 0.5}, "search": {**config["search"], "concurrency": 2}}
    plans = [prepare(validate(one)) for one in ({**config, **changes}, config)]
    for both in (plans, plans[::-1]):
        found = together(both, {f"agent_{seat}": both[seat % 2] for seat in range(4)}, tmp_path)
        assert (found["budget"]["usd"], found["search"]["concurrency"]) == (0.5, 2)
        assert validate(found).agents["agent_1"].provider is not None


@pytest.mark.slow
def test_a_budget_caps_all_games_by_text_and_is_gone_on_with(models: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((models / "config.yaml").read_text())
    prices = {"fake-1": {"input": 100.0, "output": 100.0}}
    paid = train({**config, "prices": prices, "budget": {"usd": 100}}, tmp_path / "paid").folder
    found = _played(tmp_path / "t", "guard", str(paid), budget=3.0)
    assert found.stopped == "budget"
    assert any("not begun" in text for text in found.missing)
    spent = _spent(tmp_path / "t")
    assert 0 < spent <= 3.0
    whole = _played(tmp_path / "t", "guard", str(paid), budget=100.0)
    assert (whole.stopped, whole.missing) == ("done", [])
    assert len(whole.cells) == 4
    again = _spent(tmp_path / "t")
    assert _played(tmp_path / "t", "guard", str(paid), budget=100.0).cells == whole.cells
    assert _spent(tmp_path / "t") == again


def _spent(folder: Path) -> float:
    return sum(load_run(place).summary.cost_usd for place in _texts(folder))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of backend ppo."""
    folder = tmp_path_factory.mktemp("ppo") / "learned"
    return train({**GAME, "backend": "ppo", "ppo": SMALL}, folder).folder


def test_one_tournament_at_a_time_writes_a_folder(tmp_path: Path) -> None:
    with FileLock(tmp_path / "tournament.lock"), pytest.raises(LockedError, match="another tourn"):
        _played(tmp_path, "guard", deals=2)
    assert not (tmp_path / FILE).exists()


def test_a_name_is_shown_as_it_is() -> None:
    found = Results(["[bold]r"], {}, [Cell("[bold]r", "[bold]r", (1.0, 2.0), (1.0, 2.0))])
    said = StringIO()
    for table in (_matrix(found), _ratings(found)):
        Console(file=said, width=100).print(table)
    assert said.getvalue().count("[bold]r") == 3


def test_each_pair_has_its_own_games(models: Path, tmp_path: Path) -> None:
    """Also of players whose names, one after the other, are the same."""
    names = [*(str(tmp_path / name) for name in ("x", "x--guard", "guard--guard")), "guard"]
    for name in names[:3]:
        shutil.copytree(models, name)
    x, x_guard, guard_guard, guard = found = entries(names, False, Silent())
    config = validate({**GAME, "backend": "ppo", "ppo": SMALL})
    asked = Tournament(config, found, 2, 2, False, tmp_path / "t", Silent())
    ground = arena(config, Silent().note)
    teams = asked._checked(ground, None)[1]
    pairs = (x, guard_guard), (x_guard, guard)
    places = {asked._plan(ground, teams, *pair, 0, None)[1] for pair in pairs}
    assert len(places) == 2


def test_what_cannot_play_is_told_and_leaves_nothing(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"budget\.usd"):
        _played(tmp_path / "t", "guard", str(models), budget=-1.0)
    with pytest.raises(ConfigError, match="nobody"):
        _played(tmp_path / "t", "guard", "nobody")
    with pytest.raises(ConfigError, match="once"):
        _played(tmp_path / "t", "guard", "guard")
    with pytest.raises(ConfigError, match="found one agent, needs two"):
        _played(tmp_path / "t", "guard", "random", options={"agents": 1})
    assert not (tmp_path / "t").exists()


def _results(**cells: tuple[float, ...]) -> Results:
    found = []
    for name, earned in cells.items():
        one, other = name.split("_")
        found.append(Cell(one, other, earned, earned))
    return Results(["a", "b"], {}, found)


def test_figures_of_a_tournament() -> None:
    found = _results(
        a_a=(1.0, 3.0, 1.0, 3.0),
        a_b=(5.0, 7.0, 5.0, 7.0),
        b_a=(4.0, 6.0, 4.0, 7.0),
        b_b=(0.0, 2.0, 0.0, 2.0),
    )
    first = rating(found, "a")
    assert first is not None
    assert first.mean == 4.0
    assert first.high - first.mean == pytest.approx(3.182 * 2 / 3**0.5 / 2, abs=0.01)  # Student
    name, gain = best_reply(found, "a") or ("", None)
    assert name == "b"
    assert gain is not None
    assert gain.mean == 3.5, "of every second deal, paired"
    found.responses.append(Response("a", (2.0, 5.0), (1.0, 1.0)))
    found.responses.append(Response("b", (1.0, 1.0), (2.0, 5.0)))
    assert exploited(found)["a"].mean == 2.5
    shown = Console(record=True, width=120, file=StringIO())
    shown.print(_ratings(found))
    above, below = shown.export_text().splitlines()[1:]
    assert "+2.5 ±" in above
    assert below.rstrip().endswith("none found"), "a best response that earns less bounds nothing"
    del found.cells[1]
    assert rating(found, "a") is None, "beside other partners than b's"


def test_cells_with_other_deals_count_as_independent() -> None:
    found = _results(a_a=(1.0, 3.0), a_b=(5.0, 7.0, 9.0, 11.0))
    one = rating(found, "a")
    assert one is not None
    assert one.mean == 5.0
    assert one.high - one.mean == pytest.approx(one.mean - one.low)
    assert rating(_results(a_a=(1.0,), a_b=(5.0, 7.0)), "a") is None, "one game has no interval"


def _said(*words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "orchestry", "tournament", *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    at = ["--task", "bucket_brigade", "--run-dir", str(tmp_path / "t"), "--games", "4"]
    code, out, err = _said("guard", "free_rider", *at)
    assert code == 0, err
    assert "best reply here" in out
    code, out, err = _said("guard", "free_rider", *at, "--json")
    found: dict[str, Any] = json.loads(out)
    assert len(found["cells"]) == 4
    for words, said in (
        (["guard"], "--task"),
        (["guard", "--task", "tldr"], "as arrays"),
        (["guard", "--task", "bucket_brigade", "--best-response", "1x"], "10M"),
    ):
        code, _, err = _said(*words)
        assert (code, said in err) == (2, True), err
