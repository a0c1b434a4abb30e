"""Sweeps that play several trials at once, in one folder or in several that share a study."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestry.core.errors import ConfigError
from orchestry.engine.trust import check_server
from orchestry.ext.sweep.report import read_sweep as read_found
from orchestry.ext.sweep.report import sentences, write_report
from orchestry.ext.sweep.settings import read_sweep
from orchestry.ext.sweep.study import Tried
from orchestry.ext.sweep.sweep import Sweep
from orchestry.ext.sweep.trials import Stop, spent_in
from orchestry.store.run import Run
from tests.ext.sweep.test_slices import postgres as postgres
from tests.ext.sweep.test_sweep import RUN, await_answers, begun, command, end, play, sweep_file

pytest.importorskip("optuna")
PRICED = {
    **RUN,
    "prices": {"fake-1": {"input": 5.0, "output": 25.0}},
    "sampling": {"max_tokens": 16},
}
SLOW = {**PRICED, "provider": {"name": "fake", "fake": {"latency_s": 0.3}}}
FEW = {"search.k_samples": [1, 2, 3]}


def folder_of(place: Path, name: str, **changes: Any) -> Sweep:
    """A sweep's folder on a machine of its own, with its study."""
    file = sweep_file(place / f"{name}.yaml", keys=FEW, **changes)
    sweep = Sweep(read_sweep(file), place / name, print)
    sweep.folder.mkdir(exist_ok=True)
    sweep.open()
    return sweep


def shared(place: Path, **changes: Any) -> dict[str, Any]:
    """What a sweep's file says so that folders share a study."""
    return {"storage": f"sqlite:///{place / 'shared.db'}", "study": "s", **changes}


# --- several machines -----------------------------------------------------------------------------


@pytest.mark.slow
def test_folders_share_trials_and_the_cap(tmp_path: Path) -> None:
    more = shared(tmp_path, trials=4, budget_usd=1.0)
    a, b = (folder_of(tmp_path, name, **more) for name in "ab")
    assert [begun(one)[1].number for one in (a, b, a)] == [0, 1, 2]
    assert {row.nano for row in a.study.slices.all()} == {250_000_000}
    assert end(b, 0.75).number == 3
    assert (a._next([]), b._next([])) == (None, None)
    again = folder_of(tmp_path, "a", **more)
    assert [trial.number for _, trial, _ in again.study.left()] == [0, 2]
    assert again.study.going == {0: a.study.owner, 1: b.study.owner, 2: a.study.owner}


def test_a_folder_that_is_lost_for_good_is_given_up(tmp_path: Path) -> None:
    more = shared(tmp_path, trials=3, budget_usd=0.9)
    lost, here = (folder_of(tmp_path, name, **more) for name in "ab")
    begun(lost)
    assert lost.study.slices.confirms(lost.study.owner) == ""
    for _ in range(2):
        end(here, 0.5)
    assert here._next([]) is None
    assert here.study.slices.confirms(here.study.owner) == ""
    with pytest.raises(ConfigError, match="unknown folder of this study 'nobody'"):
        here.study.give_up("nobody")
    assert here.study.give_up(lost.study.owner) == 1
    assert here.study.going == {}
    assert end(here, 0.6).number == 3
    assert here.study.slices.confirms(here.study.owner) == here.study.owner
    assert sum(row.nano for row in here.study.slices.all()) <= 900_000_000
    assert here.study.give_up(lost.study.owner) == 0


def test_each_folder_can_write_the_whole_result(tmp_path: Path) -> None:
    more = shared(tmp_path, trials=3, run=PRICED)
    a, b = (folder_of(tmp_path, name, **more) for name in "ab")
    end(a, 0.25)
    best = end(b, 0.75)
    begun(b)
    for sweep in (a, b):
        sweep.write()
        found = read_found(sweep.folder)
        assert [trial["owner"] for trial in found.trials] == [a.study.owner, b.study.owner]
        assert found.whole[0]["settings"] == best.settings
        assert (sweep.folder / "best.yaml").is_file()
    told = sentences(read_found(a.folder))
    assert f"Trial 2 has not ended: {b.study.owner} plays it" in told[1]
    report = write_report(read_found(a.folder), "again")[0].read_text()
    assert f"Played in other folders, which have their runs: 1 by {b.study.owner}" in report
    assert "not ended" not in sentences(read_found(b.folder))[1]


def test_one_folder_confirms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = shared(tmp_path, trials=2, confirm={"seeds": 1})
    a, b = (folder_of(tmp_path, name, **more) for name in "ab")
    end(a, 0.25)
    key, trial, settings, _ = begun(b)
    assert not a._is_last()
    assert "the last folder" in capsys.readouterr().out
    b._tell(trial, key, Tried(1, settings, "complete", 0.5, owner=b.study.owner))
    assert [one._is_last() for one in (b, a, b)] == [True, False, True]
    assert f"{b.study.owner} confirms the best" in capsys.readouterr().out
    a.write()
    assert "its report has the comparison" in sentences(read_found(a.folder))[-1]


def test_another_sweep_in_the_study_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, "a", **shared(tmp_path))
    with pytest.raises(
        ConfigError, match=r"seeds was 1 and is 2: choose another --dir, or `study`"
    ):
        folder_of(tmp_path, "b", **shared(tmp_path, seeds=2))
    with pytest.raises(ConfigError, match="belongs to another study"):
        folder_of(tmp_path, "a", **shared(tmp_path, study="other"))


def test_the_studys_name_is_that_of_the_folder(tmp_path: Path) -> None:
    import optuna

    url = f"sqlite:///{tmp_path / 'shared.db'}"
    folder_of(tmp_path, "tldr", storage=url)
    assert optuna.get_all_study_names(url) == ["tldr"]


def test_the_variable_is_read_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRY_STORAGE", f"sqlite:///{tmp_path / 'secret.db'}?timeout=60")
    sweep = folder_of(tmp_path, "a")
    end(sweep, 0.5)
    sweep.write()
    assert (tmp_path / "secret.db").is_file()
    assert not [p for p in sweep.folder.rglob("*") if b"secret" in p.read_bytes()]
    monkeypatch.delenv("ORCHESTRY_STORAGE")
    with pytest.raises(ConfigError, match="belongs to another study"):
        folder_of(tmp_path, "a")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+psycopg://me:secret@127.0.0.1:1/db", r"can't be opened|pip install 'psycopg"),
        ("oracle+nothing://me:secret@host/db", "no address of SQLAlchemy"),
        ("secret", "no address of SQLAlchemy"),
        ("sqlite:////no/such/secret/folder/study.db", "can't be opened"),
    ],
)
def test_a_database_that_can_t_be_opened_is_an_error_without_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.setenv("ORCHESTRY_STORAGE", url)
    monkeypatch.setattr("orchestry.ext.sweep.study.OPENS", 1)
    with pytest.raises(ConfigError, match=said) as error:
        folder_of(tmp_path, "a")
    assert "secret" not in str(error.value)


def test_a_driver_that_lacks_is_named(tmp_path: Path) -> None:
    if find_spec("pymysql"):
        pytest.skip("pymysql is installed")
    with pytest.raises(ConfigError, match=r"pip install 'pymysql'`.*mysql\+pymysql://HOST"):
        folder_of(tmp_path, "a", storage="mysql+pymysql://127.0.0.1/db")


def test_other_peoples_addresses_are_asked_about(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    asked = list[str]()

    def say(question: str) -> bool:
        asked.append(question)
        return True

    for url in ("ray://127.0.0.1:10001", "postgresql://localhost/db"):
        check_server(f"executor {url}", url, tmp_path, False, environ)
    for trust in (say, False):  # remembered
        check_server("executor ray://a.invalid:1", "ray://a.invalid:1", tmp_path, trust, environ)
    assert len(asked) == 1
    with pytest.raises(ConfigError, match=r"storage .*you never used that"):
        check_server("storage x", "mysql://b.invalid/db", tmp_path, False, environ)


def test_several_at_once_are_proposed_apart(tmp_path: Path) -> None:
    """TPE is told to count trials that go on, unless the person decides."""
    from orchestry.ext.sweep.study import classes

    def liar(**changes: Any) -> Any:
        return classes(read_sweep(sweep_file(tmp_path / "s.yaml", **changes)))[0]._constant_liar

    assert liar(executor="processes:2") is True
    own = {"name": "TPESampler", "arguments": {"constant_liar": False}}
    assert liar(executor="processes:2", sampler=own) is False


# --- whole sweeps ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_at_once_are_whole_and_keep_the_cap(tmp_path: Path) -> None:
    file = sweep_file(tmp_path / "s.yaml", trials=4, run=PRICED, keys=FEW, confirm={"seeds": 1})
    found = play(file, "--on", "processes:2", "--budget", "0.6")
    assert (found["stopped"], found["trials"]) == ("done", 4)
    folder = tmp_path / "sweep"
    assert found["usd"] == pytest.approx(spent_in(folder))
    assert 0 < spent_in(folder) <= 0.6
    trials = read_found(folder).trials
    assert [trial["number"] for trial in trials] == [0, 1, 2, 3]
    assert {trial["state"] for trial in trials} == {"complete"}
    for trial in trials:
        played = Run(folder / trial["runs"][0]["folder"])
        assert played.config["search"]["k_samples"] == trial["settings"]["search.k_samples"]
    assert len([*folder.glob("confirm/*/seed-1/evaluations/test")]) == 2
    assert "--on processes:2" in (folder / "report" / "RESULTS.md").read_text()


@pytest.mark.slow
def test_two_that_were_killed_go_on(tmp_path: Path) -> None:
    file = sweep_file(tmp_path / "s.yaml", trials=3, run=SLOW, keys=FEW, executor="processes:2")
    process = subprocess.Popen(command(file), stdout=subprocess.DEVNULL)
    places = [tmp_path / "sweep" / f"trial-000{number}" / "seed-0" for number in (0, 1)]
    for place in places:
        await_answers(place, 1)
    asked = ["pgrep", "-P", str(process.pid)]
    children = subprocess.run(asked, capture_output=True, text=True).stdout.split()
    assert len(children) == 2
    process.kill()
    process.wait()
    os.kill(int(children[0]), signal.SIGKILL)  # the other one is waited for
    found = play(file, "--budget", "0.5")
    assert (found["stopped"], found["trials"]) == ("done", 3)
    assert spent_in(tmp_path / "sweep") <= 0.5
    numbers = [trial["number"] for trial in read_found(tmp_path / "sweep").trials]
    assert numbers == [0, 1, 2]


@pytest.mark.slow
def test_an_interrupt_reaches_all_that_are_played(tmp_path: Path) -> None:
    run = {**SLOW, "episodes": 200}
    file = sweep_file(tmp_path / "s.yaml", trials=3, run=run, keys=FEW, executor="processes:2")
    process = subprocess.Popen(command(file), start_new_session=True, stdout=subprocess.DEVNULL)
    places = [tmp_path / "sweep" / f"trial-000{number}" / "seed-0" for number in (0, 1)]
    for place in places:
        await_answers(place, 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert [Run(place).summary.stopped for place in places] == ["interrupted"] * 2
    sweep = Sweep(read_sweep(file), tmp_path / "sweep", print)
    sweep.open()
    assert [trial.number for _, trial, _ in sweep.study.left()] == [0, 1]


def two_machines(tmp_path: Path, storage: str) -> None:
    """Two processes with a folder each on one database: 6 trials, one cap, one that confirms."""
    more = {"trials": 6, "run": PRICED, "keys": FEW, "confirm": {"seeds": 1}, "budget_usd": 0.9}
    file = sweep_file(tmp_path / "s.yaml", storage=storage, study="s", **more)
    folders = [tmp_path / name for name in "ab"]

    def started(folder: Path) -> subprocess.Popen[str]:
        own: Sequence[str] = [*command(file), "--dir", str(folder)]
        return subprocess.Popen(own, stdout=subprocess.PIPE, text=True)

    said = [json.loads(one.communicate()[0]) for one in [started(folder) for folder in folders]]
    assert [one["stopped"] for one in said] == ["done"] * 2
    assert sum(spent_in(folder) for folder in folders) <= 0.9
    runs = [path.parent.name for f in folders for path in f.glob("trial-*/seed-0")]
    assert sorted(runs) == [f"trial-{number:04d}" for number in range(6)]
    confirmed = [folder for folder in folders if (folder / "confirm").is_dir()]
    assert len(confirmed) <= 1
    again = [json.loads(one.communicate()[0]) for one in [started(folder) for folder in folders]]
    assert [one["trials"] for one in again] == [6, 6]
    assert again[0]["best"] == again[1]["best"]
    first, second = ((folder / "trials.jsonl").read_bytes() for folder in folders)
    assert first == second
    confirmed = [folder for folder in folders if (folder / "confirm").is_dir()]

    assert len(confirmed) == 1


@pytest.mark.slow
def test_two_machines_share_a_sweep(tmp_path: Path) -> None:
    two_machines(tmp_path, f"sqlite:///{tmp_path / 'shared.db'}")


@pytest.mark.slow
def test_two_machines_share_a_sweep_in_postgresql(tmp_path: Path, postgres: str) -> None:
    two_machines(tmp_path, postgres)


@pytest.mark.slow
def test_a_machine_that_was_killed_goes_on_with_its_own_trial(tmp_path: Path) -> None:
    """The other one plays the rest, leaves that trial alone, and confirms nothing yet."""
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    more = {"trials": 3, "run": SLOW, "keys": {"search.k_samples": [1, 2]}, "budget_usd": 0.9}
    confirm = {"seeds": 1}
    file = sweep_file(tmp_path / "s.yaml", storage=storage, study="s", confirm=confirm, **more)
    a, b = (tmp_path / name for name in "ab")
    killed = subprocess.Popen([*command(file), "--dir", str(a)], stdout=subprocess.DEVNULL)
    await_answers(a / "trial-0000" / "seed-0", 1)
    killed.kill()
    killed.wait()
    found = play(file, "--dir", str(b))
    assert (found["stopped"], found["trials"]) == ("done", 2)
    assert any("Trial 0 has not ended: " in said for said in found["says"])
    assert not (b / "confirm").exists()
    found = play(file, "--dir", str(a))
    assert (found["stopped"], found["trials"]) == ("done", 3)
    assert "With 1 seed that no trial had" in found["says"][-1]
    assert spent_in(a) + spent_in(b) <= 0.9
    assert found["usd"] == pytest.approx(spent_in(a) + spent_in(b))
    assert any("confirms the best" in said for said in play(file, "--dir", str(b))["says"])


def test_a_cap_that_is_reserved_stops_a_machine(tmp_path: Path) -> None:
    """The last trial of one has all that is left, and another one's failed."""
    more = shared(tmp_path, trials=2, budget_usd=1.0)
    a, b = (folder_of(tmp_path, name, **more) for name in "ab")
    begun(a)
    key, trial, settings, part = begun(b)
    assert part == 500_000_000
    b._tell(trial, key, Tried(1, settings, "failed", None, owner=b.study.owner))
    assert begun(b)[3] == part
    b.config = b.config.model_copy(update={"trials": 3})
    with pytest.raises(Stop, match="spent or reserved"):
        begun(b)


# --- a kill while the best is confirmed -----------------------------------------------------------

DIES = """
import os
from orchestry.cli import main
from orchestry.ext.sweep.slices import Slices
settle = Slices.settle
def dies(self, key, *rest):
    os.kill(os.getpid(), 9) if key.startswith("confirm/given") else settle(self, key, *rest)
Slices.settle = dies
main()
"""


@pytest.mark.slow
def test_a_kill_between_two_confirming_runs_leaves_the_second_its_part(tmp_path: Path) -> None:
    """The first run is whole, and what it did not spend had not been given back."""
    file = sweep_file(tmp_path / "s.yaml", trials=1, confirm={"seeds": 1}, budget_usd=5.0)
    python, _, _, *words = command(file)
    assert subprocess.run([python, "-c", DIES, *words]).returncode == -signal.SIGKILL
    assert play(file)["trials"] == 1
    sides = (tmp_path / "sweep" / "confirm" / name / "seed-1" for name in ("given", "best"))
    given, best = (Run(place).config["budget"]["usd"] for place in sides)
    assert best == 2 * given, "one of two has half of what is left, the last one all"
