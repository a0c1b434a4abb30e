"""The slices of a sweep's cap: whoever reserves, their sum stays under it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.errors import ConfigError
from orchestry.core.probe import free_port
from orchestry.ext.sweep.slices import Slice, Slices, Spent

pytest.importorskip("optuna")
CAP = 1_000_003
"""Nano-dollars; a prime, so that parts are rounded."""


def opened(url: str) -> Slices:
    """A study's slices, as one machine opens them."""
    from sqlalchemy import create_engine

    lite = url.startswith("sqlite")
    return Slices(create_engine(url, connect_args={"timeout": 60} if lite else {}), "s", {"a": 1})


def sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.db'}"


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """A server of PostgreSQL on loopback, without passwords."""
    pytest.importorskip("psycopg")
    found = shutil.which("pg_ctl")
    if not found:
        pytest.skip("PostgreSQL is not installed")
    programs, folder, port = Path(found).resolve().parent, Path(mkdtemp()), free_port()
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(folder, "postgres")
    data = [*as_user, f"{programs / 'pg_ctl'}", "-D", f"{folder / 'data'}", "-w", "-s"]
    options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder}"
    initdb = [*as_user, f"{programs / 'initdb'}", "-A", "trust", "-U", "me", "-D", data[-3]]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*data, "-o", options, "-l", f"{folder / 'log'}", "start"], check=True)
    try:
        yield f"postgresql+psycopg://me@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*data, "-m", "immediate", "stop"], check=True)
        shutil.rmtree(folder)


def share(trials: int, again: bool = False) -> Any:
    """Even parts over the trials to come and one run that confirms."""

    def part(others: Sequence[Slice]) -> Fraction | None:
        begun = sum(row.key.startswith("trial-") and row.state != "failed" for row in others)
        to_come = max(int(again), trials - begun)
        return Fraction(1, to_come + 1) if to_come > 0 else None

    return part


# --- one after the other --------------------------------------------------------------------------


def test_a_study_knows_what_was_asked_first(tmp_path: Path) -> None:
    from sqlalchemy import create_engine

    first = opened(sqlite(tmp_path))
    other = Slices(create_engine(sqlite(tmp_path)), "s", {"a": 2})
    assert (other.id, other.asked) == (first.id, {"a": 1})
    assert Slices(create_engine(sqlite(tmp_path)), "t", {}).id != first.id


def test_slices_are_even_parts_and_come_back(tmp_path: Path) -> None:
    slices = opened(sqlite(tmp_path))
    assert slices.reserve("trial-a", "me", share(3), 100) == 25
    assert slices.reserve("trial-b", "you", share(3), 100) == 25
    slices.settle("trial-a", 5, "ended")
    assert slices.reserve("trial-c", "me", share(3), 100) == 35
    assert slices.reserve("trial-d", "me", share(3), 100) is None
    slices.settle("trial-c", 35, "failed")
    assert slices.reserve("trial-d", "me", share(3), 100) == 17
    with pytest.raises(Spent):
        slices.reserve("confirm/best/seed-1", "me", lambda rows: Fraction(1), 80)
    assert slices.reserve("trial-d", "me", share(3), None) == 0


def test_a_lower_cap_is_kept_by_what_goes_on(tmp_path: Path) -> None:
    """Each open slice of the folder gives back its share of what it did not spend."""
    slices = opened(sqlite(tmp_path))
    for key, owner in (("trial-a", "me"), ("trial-b", "me"), ("trial-c", "you")):
        assert slices.reserve(key, owner, lambda rows: Fraction(1, 4 - len(rows)), 100) == 25
    known: dict[str, tuple[int, Any]] = {"trial-a": (5, "open"), "trial-b": (15, "open")}
    for cap, left in ((80, (25, 25)), (60, (15, 20)), (30, (5, 15))):
        slices.renew("me", known, cap)
        assert tuple(row.nano for row in slices.all()) == (*left, 25)


def test_one_folder_confirms_once_all_trials_have_ended(tmp_path: Path) -> None:
    slices = opened(sqlite(tmp_path))
    slices.reserve("trial-a", "me", share(1), 100)
    assert slices.confirms("you") == ""
    slices.settle("trial-a", 5, "ended")
    assert [slices.confirms(one) for one in ("you", "me", "you")] == ["you"] * 3


def test_a_database_with_other_locks_is_refused() -> None:
    from sqlalchemy import create_mock_engine

    engine: Any = create_mock_engine("mssql://", lambda *_: None)
    with pytest.raises(ConfigError, match=r"mssql is no database of sweeps.*postgresql"):
        Slices(engine, "s", {})


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "spend", "end", "fail", "killed", "confirm"]),
        st.integers(0, 2),  # whose
        st.integers(0, 100),  # per cent
    ),
    max_size=60,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, trials=st.integers(1, 6))
@pytest.mark.slow
def test_no_order_of_events_passes_the_cap(
    steps: list[tuple[str, int, int]], trials: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Three machines, each with open trials; `spent` is what all journals say."""
    slices = opened(sqlite(tmp_path_factory.mktemp("db")))
    spent, may = dict[str, int](), dict[str, int]()
    for number, (what, who, percent) in enumerate(steps):
        key = next((k for k in may if k.endswith(f"-{who}")), "")
        try:
            if what in ("begin", "confirm"):
                key = f"{'trial' if what == 'begin' else 'confirm/'}-{number}-{who}"
                half = share(trials) if what == "begin" else lambda rows: Fraction(1, 2)
                if (part := slices.reserve(key, f"{who}", half, CAP)) is not None:
                    spent[key], may[key] = 0, part
            elif key and what == "killed":  # its folder brings its rows up to date, and goes on
                own = {k: (spent[k], "open") for k in may if k.endswith(f"-{who}")}
                ended = {r.key: (r.nano, r.state) for r in slices.all() if r.state != "open"}
                known: Any = {**ended, **own}
                slices.renew(f"{who}", known)
                part = slices.reserve(key, f"{who}", share(trials, True), CAP, spent[key])
                may[key] = part or 0
            elif key and what == "spend":
                spent[key] += max(0, may[key] - spent[key]) * percent // 100
            elif key:
                slices.settle(key, spent[key], "failed" if what == "fail" else "ended")
                del may[key]
        except Spent:
            may.pop(key, None)
        assert sum(spent.values()) <= CAP
        assert sum(row.nano for row in slices.all()) <= CAP
        counted = [r for r in slices.all() if r.key.startswith("trial") and r.state != "failed"]
        assert len(counted) <= trials


# --- at once --------------------------------------------------------------------------------------


def hammer(url: str, seed: int, times: int) -> None:
    """A machine that reserves and settles as fast as it can, and asserts the cap as it goes."""
    slices, draw = opened(url), random.Random(seed)
    for number in range(times):
        key = f"trial-{seed}-{number}"
        try:
            part = slices.reserve(key, f"{seed}", lambda rows: Fraction(2, 3), CAP)
        except Spent:
            part = None
        rows = slices.all()
        assert sum(row.nano for row in rows) <= CAP
        if part is not None and draw.random() < 0.97:  # the others stay, as a killed machine's do
            slices.settle(key, part * draw.randrange(3) // 100, "ended")
        slices.confirms(f"{seed}")


def hammered(url: str, processes: int, times: int) -> None:
    context = get_context("spawn")
    own = [context.Process(target=hammer, args=(url, n, times)) for n in range(processes)]
    for one in own:
        one.start()
    for one in own:
        one.join()
    assert [one.exitcode for one in own] == [0] * processes
    rows = opened(url).all()
    assert sum(row.nano for row in rows) <= CAP
    assert len({row.owner for row in rows}) == processes
    assert sum(row.key == "confirm" for row in rows) <= 1


@pytest.mark.slow
def test_many_processes_keep_to_one_cap(tmp_path: Path) -> None:
    hammered(sqlite(tmp_path), processes=6, times=40)


@pytest.mark.slow
def test_many_processes_keep_to_one_cap_in_postgresql(postgres: str) -> None:
    hammered(postgres, processes=6, times=100)


@pytest.mark.slow
@pytest.mark.parametrize("times", range(3))
def test_machines_may_begin_a_study_at_once(tmp_path: Path, times: int) -> None:
    """Each creates the tables, and they agree on the study."""
    code = (
        "import sys; from pathlib import Path\n"
        "from orchestry.ext.sweep.settings import SweepConfig\n"
        "from orchestry.ext.sweep.study import Study\n"
        "config = SweepConfig.model_validate({'keys': {'episodes': [1, 2]}, 'study': 's',"
        " 'storage': sys.argv[1]})\n"
        "folder = Path(sys.argv[2]); folder.mkdir()\n"
        "print(Study(config, folder).slices.id)"
    )
    url = sqlite(tmp_path)
    own = [
        subprocess.Popen(
            [sys.executable, "-c", code, url, tmp_path / f"{n}"], stdout=subprocess.PIPE, text=True
        )
        for n in range(4)
    ]
    found = [one.communicate()[0] for one in own]
    assert len({*found}) == 1
    assert found[0].strip()
