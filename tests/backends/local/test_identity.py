"""What a local run stands on is known by its content, not by where it lies."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

import orchestry
from orchestry.backends.local import identity
from orchestry.core.errors import ConfigError, StoreError
from orchestry.engine.export import export
from orchestry.engine.run import prepare, resume
from orchestry.store.run import Run
from tests.backends.letters import EVERY, config, trainer
from tests.engine.test_run import Noted

pytestmark = pytest.mark.usefixtures("one_thread")


def _digests(model: Path | str, tasks: Path, *more: str) -> dict[str, str]:
    return prepare(config(str(model), tasks, *more)).backend.digests()


def _copied(model: str, folder: Path) -> Path:
    return Path(shutil.copytree(model, folder))


def _flipped(file: Path, place: int = -8) -> None:
    """One bit, in the file's tensors."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_a_base_moved_is_the_same_and_a_changed_one_is_not(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    here = _digests(model, tasks)
    moved = _copied(model, tmp_path / "moved")
    assert here == _digests(moved, tasks)
    assert set(here) == {"base"}
    (moved / "README.md").write_text("no part of the model")
    assert here == _digests(moved, tasks)
    _flipped(moved / "model.safetensors")
    assert here != _digests(moved, tasks)


def test_bases_of_agents_are_told_apart(model: str, tasks: Path, tmp_path: Path) -> None:
    moved = _copied(model, tmp_path / "moved")
    found = _digests(model, tasks, f"agents.right.model={moved}")
    assert set(found) == {"base of left", "base of right"}
    assert found["base of left"] == found["base of right"]


def test_a_bit_flipped_in_a_checkpoint_is_found_before_it_is_used(
    finished: Run, tmp_path: Path
) -> None:
    """Whatever file of it a resume, an evaluation or an export would read."""
    run = Path(shutil.copytree(finished.folder, tmp_path / "run"))
    last = run / "checkpoints" / "000008"
    files = sorted(path for path in last.rglob("*") if path.is_file())
    assert [path.name for path in files].count("optimizer.pt") == 1
    for file in files:
        sound = file.read_bytes()
        _flipped(file, len(sound) // 2)
        found = rf"{file.name} is not what update 2 wrote: restore it from a copy, or"
        with pytest.raises(StoreError, match=rf"{found} begin another .*from=.*000004"):
            resume(run, {"episodes": 3 * EVERY})
        if file.name != "optimizer.pt":
            for use in (orchestry.evaluate, export):
                with pytest.raises(StoreError, match=rf"{found} name .* --update \(1 are kept\)"):
                    use(run)
        file.write_bytes(sound)
    assert not (run / "export").exists()
    files[-1].unlink()
    with pytest.raises(StoreError, match=r"can't be read \(No such file.*restore it from a copy"):
        resume(run, {"episodes": 3 * EVERY})
    assert export(run, update=1).learned.update == 1


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_bit_of_an_adapter_changes_unseen(
    data: st.DataObject, finished: Run, model: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What learn.from takes is refused, or is what was written."""
    made = trainer(model, finished.folder / "checkpoints" / "000008")
    wanted = [weight.clone() for weight in made.crews[0].adapters.parameters()]
    copy = tmp_path_factory.mktemp("flipped") / "000008"
    shutil.copytree(finished.folder / "checkpoints" / "000008", copy)
    file = data.draw(st.sampled_from(sorted(copy.glob("*/*"))))
    _flipped(file, data.draw(st.integers(0, file.stat().st_size - 1)))
    with suppress(StoreError, ConfigError):
        made.start_from(copy)
    now = made.crews[0].adapters.parameters()
    assert all(map(torch.equal, now, wanted))


def test_a_start_that_was_changed_in_the_run_is_found(
    finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = ("episodes=2", f"learn.from={finished.folder / 'checkpoints' / '000008'}")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    _flipped(run.folder / "start" / "left" / "adapter_model.safetensors")
    found = r"start/left.* not what was written\): restore it"
    with pytest.raises(StoreError, match=found):
        resume(run.folder, {"episodes": EVERY})
    with pytest.raises(StoreError, match=found):
        orchestry.evaluate(run)


def test_adapters_know_their_base_by_content(
    finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    """At another place it is the same; with other weights at the same place it is not."""
    sets = ("episodes=2", f"learn.from={finished.folder / 'checkpoints' / '000008'}")
    moved = _copied(model, tmp_path / "moved")
    begun = orchestry.train(config(str(moved), tasks, *sets), tmp_path / "run")
    assert begun.summary.stopped == "done"
    _flipped(moved / "model.safetensors")
    with pytest.raises(ConfigError, match=r"left was trained on another base than .*moved \(weig"):
        orchestry.train(config(str(moved), tasks, *sets), tmp_path / "other")


def test_adapters_of_others_are_known_by_the_base_that_they_name(
    finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    """They hold no digest: the base they name is read, where it lies on this disk."""
    given = Path(shutil.copytree(finished.folder / "checkpoints" / "000008", tmp_path / "given"))
    moved = _copied(model, tmp_path / "moved")
    for folder in given.glob("*/"):
        (folder / "adapter_digests.json").unlink()
    sets = ("episodes=2", f"learn.from={given}")
    assert orchestry.train(config(str(moved), tasks, *sets), tmp_path / "run").summary.updates == 0
    _flipped(moved / "model.safetensors")
    with pytest.raises(ConfigError, match="was trained on another base than"):
        orchestry.train(config(str(moved), tasks, *sets), tmp_path / "other")


def test_a_run_goes_on_with_its_base_at_another_place_and_with_no_other(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    first, moved = _copied(model, tmp_path / "first"), tmp_path / "moved"
    run = orchestry.train(config(str(first), tasks, "episodes=4"), tmp_path / "run").folder
    orchestry.evaluate(run)
    first.rename(moved)
    with pytest.raises(ConfigError, match=r"is not there .* --set provider\.model=FOLDER"):
        export(run, merge=True)
    there = {"provider": {"model": str(moved)}}
    _flipped(moved / "model.safetensors")
    with pytest.raises(ConfigError, match=r"with other contents of base: put that back"):
        resume(run, there)
    _flipped(moved / "model.safetensors")
    with pytest.raises(ConfigError, match=r"other contents of base, provider in config\.yaml"):
        resume(run, {"provider": {"model": "embedded"}})
    more = resume(run, {**there, "episodes": 2 * EVERY})
    assert more.summary.updates == 2
    for update in (1, None):  # the first was played where the base lay before
        found = orchestry.evaluate(run, update=update)
        assert found.config["provider"]["model"] == str(moved)
    assert export(run, merge=True, update=1).learned.update == 1


def test_another_base_in_the_same_place_is_accepted_only_by_name(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    base = _copied(model, tmp_path / "base")
    run = orchestry.train(config(str(base), tasks, "episodes=4"), tmp_path / "run").folder
    _flipped(base / "model.safetensors")
    heard = Noted()
    orchestry.evaluate(run, observer=heard, update=0)
    assert any(f"base changed since {run} was played" in note for note in heard.notes)
    with pytest.raises(ConfigError, match=r"with other contents of base: .* --accept-changes"):
        resume(run, {"episodes": 2 * EVERY})
    assert resume(run, {"episodes": 2 * EVERY}, accept=True).summary.updates == 2


def test_a_name_that_no_hub_takes_is_left_to_who_loads_it() -> None:
    assert identity._fetched("no such name") is None
