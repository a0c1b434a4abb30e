"""What a local run learned, outside of it: the same logits in plain peft and transformers."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import orchestry
from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.converted import _checksum
from orchestry.backends.local.model import load_base, loadable
from orchestry.core.errors import ConfigError, StoreError
from orchestry.engine.export import export
from orchestry.models import gguf as models
from orchestry.store.run import Run, load_run
from tests.backends.letters import (
    ROLES,
    TASK,
    config,
    surprise,
    trainer,
    write_task,
)
from tests.backends.local.tiny import TEMPLATE, tiny_folder
from tests.backends.local.tinygguf import tiny_gguf

if TYPE_CHECKING:
    from torch import Tensor

old_peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is dep:FutureWarning")
"""peft 0.21 asks a name that transformers 5.23 has renamed."""
IDS: Tensor = torch.arange(3, 40)[None]
LAST = Path("checkpoints", "000008")
Paths = pytest.TempPathFactory


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: Paths) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: Paths) -> Path:
    return write_task(tmp_path_factory.mktemp("tasks"), TASK)


@pytest.fixture(scope="module")
def finished(model: str, tasks: Path, tmp_path_factory: Paths) -> Run:
    """Two updates, only read."""
    return orchestry.train(config(model, tasks), tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    """A copy to spoil."""
    return load_run(shutil.copytree(finished.folder, tmp_path / "run"))


def loaded(folder: str | Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def logits(found: Any) -> Tensor:
    with torch.no_grad():
        values: Tensor = found(IDS).logits
    return values


def ours(model: str, checkpoint: Path, agent: int) -> Tensor:
    """As the run's own adapters have it."""
    (crew,) = trainer(model, checkpoint).crews
    with crew.adapters.rows(agent):
        return logits(crew.base.model)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@old_peft
def test_an_adapter_is_the_same_in_plain_peft(finished: Run, model: str, tmp_path: Path) -> None:
    import peft

    found = export(finished.folder, tmp_path / "out")
    assert found.learned.update == 2
    assert names(tmp_path) == ["out"]
    assert names(found.folder) == ["README.md", *ROLES]
    for agent, role in enumerate(ROLES):
        folder = found.folder / role
        kinds = ("config.json", "digests.json", "model.safetensors")
        assert names(folder) == ["README.md", *(f"adapter_{kind}" for kind in kinds)]
        worn = peft.PeftModel.from_pretrained(loaded(model), folder)
        expected = ours(model, finished.folder / LAST, agent)
        torch.testing.assert_close(logits(worn), expected, atol=1e-5, rtol=1e-5)
        auto = peft.AutoPeftModelForCausalLM.from_pretrained(folder)
        assert torch.equal(logits(auto), logits(worn))


def test_a_merged_model_is_the_same_in_plain_transformers(
    finished: Run, model: str, tmp_path: Path
) -> None:
    notes: list[str] = []
    export(finished.folder, tmp_path / "out", merge=True, note=notes.append)
    assert notes == [f"merging {role} into the base {model}" for role in ROLES]
    for agent, role in enumerate(ROLES):
        folder = tmp_path / "out" / role
        merged = loaded(folder)
        assert merged.dtype == torch.float32
        expected = ours(model, finished.folder / LAST, agent)
        torch.testing.assert_close(logits(merged), expected, atol=1e-5, rtol=1e-5)
        assert (logits(merged) - logits(loaded(model))).abs().max() > 1e-2
        assert transformers.AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE
        drawn = transformers.GenerationConfig.from_pretrained(folder)
        assert (drawn.do_sample, drawn.temperature, drawn.top_p) == (True, 0.8, 0.95)
        assert (drawn.top_k, drawn.max_new_tokens, drawn.eos_token_id) == (0, 8, [2])


@old_peft
@pytest.mark.parametrize("merge", [False, True])
def test_the_readme_says_what_it_is_and_its_code_runs(
    merge: bool,
    finished: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    export(finished.folder, tmp_path / "out", merge=merge)
    text = (tmp_path / "out" / "right" / "README.md").read_text()
    reward = re.escape(f"{export(finished.folder, tmp_path / 'b').learned.state['reward']:.3f}")
    assert re.search(rf"mean reward of .* before it: {reward}\n", text)
    assert "## System prompt of right\n\n```text\nr\n```" in text
    assert "temperature 0.8, top_p 0.95, top_k 0, max_new_tokens 8" in text
    assert f"library_name: {'transformers' if merge else 'peft'}" in text
    assert "base_model:" not in text  # a hub knows no folder of this machine
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path / "out")
    known: dict[str, Any] = {}
    exec(code, known)
    assert known["ids"].shape[1] > known["inputs"]["input_ids"].shape[1]
    assert known["prompt"].startswith("<|im_start|>system\nr<|im_end|>")
    assert "Traceback" not in capsys.readouterr().err


@old_peft
@pytest.mark.parametrize("merge", [False, True])
def test_the_teams_readme_loads_all_agents(
    merge: bool, finished: Run, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(finished.folder, tmp_path / "out", merge=merge)
    text = (tmp_path / "out" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code.splitlines()) == 3
    monkeypatch.chdir(tmp_path / "out")
    known: dict[str, Any] = {}
    exec(code, known)
    assert [*known["team"]] == list(ROLES)
    for agent, role in enumerate(ROLES):
        expected = ours(model, finished.folder / LAST, agent)
        torch.testing.assert_close(logits(known["team"][role]), expected, atol=1e-5, rtol=1e-5)
        assert f"| {role} | [{role}](./{role}/README.md) |" in text
    assert ("--set learn.from=." in text) is not merge


def test_another_run_starts_from_an_export(
    finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    folder = export(finished.folder, tmp_path / "out").folder
    sets = ("episodes=2", f"learn.from={folder}")
    begun = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert surprise(trainer(model, finished.folder / LAST), begun.episodes[0]) < 1e-4


def test_an_earlier_update_and_some_agents_can_be_chosen(run: Run) -> None:
    first = run.folder / "checkpoints" / "000004" / "left" / "adapter_model.safetensors"
    assert export(run.folder, agents=["left"], update=1).folder == run.folder / "export/update-1"
    assert names(run.folder / "export") == ["update-1"]
    assert names(run.folder / "export" / "update-1") == ["README.md", "left"]
    taken = run.folder / "export" / "update-1" / "left" / "adapter_model.safetensors"
    assert taken.read_bytes() == first.read_bytes()
    text = (run.folder / "export" / "update-1" / "README.md").read_text()
    assert text.startswith("# left, of the team of task letters\n")
    assert "learn.from" not in text
    assert export(run.folder).folder.name == "update-2"
    assert export(run.folder, merge=True).folder.name == "update-2--merged"


def test_evaluations_of_that_update_stand_in_the_readme(run: Run) -> None:
    orchestry.evaluate(run)
    evaluated = orchestry.evaluate(run, samples=2)
    readme = export(run.folder).folder / "left" / "README.md"
    assert f"mean reward on test, after it: {evaluated.summary.mean_trajectory_reward:.3f}" in (
        readme.read_text()
    )
    earlier = export(run.folder, update=1).folder / "left" / "README.md"
    assert "mean reward on test" not in earlier.read_text()


def test_a_shared_adapter_is_one_folder(model: str, tasks: Path, tmp_path: Path) -> None:
    sets = ("learn.shared=true", "episodes=4", "agents.right.temperature=0.5")
    made = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    found = export(made.folder, merge=True)
    assert names(found.folder) == ["README.md", "shared"]
    assert found.adapters[0].agents == ROLES
    text = (found.folder / "shared" / "README.md").read_text()
    assert "# left and right, of the team of task letters" in text
    assert "This asks left; the other agents have the same weights." in text
    assert "temperature 0.8" in text
    assert "temperature 0.5" in text
    assert names(tmp_path / "run" / "export") == ["update-1--merged"]
    with pytest.raises(
        ConfigError, match=r"share one adapter \(learn\.shared\): leave out --agent"
    ):
        export(made.folder, tmp_path / "out", agents=["left"])


def test_other_targets_and_rslora_are_exported_and_merged(tasks: Path, tmp_path: Path) -> None:
    base = str(tiny_folder(tmp_path / "phi", "phi3"))
    sets = ("episodes=4", "learn.targets=all-linear", "learn.rslora=true")
    made = orchestry.train(config(base, tasks, *sets), tmp_path / "run")
    fused = "rsLoRA adapter (rank 4, alpha 8, on down_proj, gate_up_proj, o_proj, qkv_proj)"
    found = export(made.folder, merge=True)
    assert fused in (found.folder / "left" / "README.md").read_text()
    worn = Adapters(load_base(base), ROLES, rank=4, alpha=8, targets="all-linear", rslora=True)
    worn.load(made.folder / "checkpoints" / "000004")
    with worn.rows(0):
        expected = logits(worn.base.model)
    merged = logits(loaded(found.folder / "left"))
    torch.testing.assert_close(merged, expected, atol=1e-4, rtol=1e-4)
    assert (merged - logits(loaded(base))).abs().max() > 1e-2


@old_peft
def test_a_gguf_file_learns_is_exported_and_begins_another_run(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two agents, on two files."""
    import peft

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = str(tiny_gguf(tmp_path / "left.gguf"))
    other = tiny_gguf(tmp_path / "right.gguf", "qwen2")
    both = f"agents.right.model={other}"
    made = orchestry.train(config(base, tasks, "episodes=4", both), tmp_path / "run")
    assert made.evaluate(split="dev").summary.stopped == "done"
    found = export(made.folder).folder
    for role in ROLES:
        assert peft.AutoPeftModelForCausalLM.from_pretrained(found / role)
    text = (found / "left" / "README.md").read_text()
    assert f"`{base}` (a GGUF file of {base}, its weights rounded)" in text
    assert "base_model" not in text
    merged = loaded(export(made.folder, merge=True, agents=["left"]).folder / "left")
    checkpoint = made.folder / "checkpoints" / "000004"
    worn = Adapters(load_base(base), ["left"], rank=4, alpha=8)
    worn.load(checkpoint)
    with worn.rows(0):
        expected = logits(worn.base.model)
    torch.testing.assert_close(logits(merged), expected, atol=1e-5, rtol=1e-5)
    sets = ("episodes=2", f"learn.from={found}", both)
    monkeypatch.chdir(tmp_path)
    begun = orchestry.train(config("left.gguf", tasks, *sets), tmp_path / "other")
    assert begun.config["provider"]["model"] == base
    other.unlink()
    with pytest.raises(ConfigError, match=r"the model .*right.gguf can't be read"):
        orchestry.train(config(base, tasks, "episodes=2", both), tmp_path / "third")


@old_peft
def test_the_embedded_base_is_named_so_that_peft_finds_it(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny model in its place: what is under test is the name."""
    import peft

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "orchestry" / "converted" / f"{models.MODEL}-{models.SHA256}-v2"
    place.parent.mkdir(parents=True)
    tiny_folder(place)
    sums = {file.name: _checksum(file) for file in place.iterdir()}
    (place / "checksums.json").write_text(json.dumps(sums))
    assert loadable("embedded") == str(place)
    made = orchestry.train(config("embedded", tasks, "episodes=4"), tmp_path / "run")
    folder = export(made.folder).folder
    checkpoint = made.folder / "checkpoints" / "000004"
    worn = peft.AutoPeftModelForCausalLM.from_pretrained(folder / "left")
    expected = ours("embedded", checkpoint, 0)
    torch.testing.assert_close(logits(worn), expected, atol=1e-5, rtol=1e-5)
    text = (folder / "left" / "README.md").read_text()
    assert f"The base lies in `{place}`" in text
    assert "base_model: HuggingFaceTB/SmolLM2-135M-Instruct" in text
    sets = ("episodes=2", f"learn.from={folder}")
    begun = orchestry.train(config("embedded", tasks, *sets), tmp_path / "other")
    assert surprise(trainer("embedded", checkpoint), begun.episodes[0]) < 1e-4
    merged = loaded(export(made.folder, merge=True).folder / "left")
    torch.testing.assert_close(logits(merged), expected, atol=1e-5, rtol=1e-5)


@old_peft
def test_a_team_of_several_bases_is_merged_into_each_agents_own(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    import peft

    other = str(tiny_folder(tmp_path / "other", "qwen2"))
    sets = ("episodes=4", f"agents.right.model={other}")
    made = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    folder = export(made.folder, merge=True).folder
    for role, base in (("left", model), ("right", other)):
        adapter = made.folder / "checkpoints" / "000004" / role
        worn = peft.PeftModel.from_pretrained(loaded(base), adapter)
        merged = loaded(folder / role)
        torch.testing.assert_close(logits(merged), logits(worn), atol=1e-5, rtol=1e-5)
        assert f"The model `{base}` with a LoRA" in (folder / role / "README.md").read_text()


def test_a_quantized_run_says_what_it_is_merged_into(run: Run) -> None:
    """The setting alone: what quantized weights do needs a GPU."""
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().replace("quantize: null", "quantize: nf4"))
    merged = export(run.folder, merge=True).folder / "left" / "README.md"
    assert "quantized to nf4. It is merged into the base as it was before" in merged.read_text()
    plain = export(run.folder).folder / "left" / "README.md"
    assert "quantized to nf4. Quantize it alike" in plain.read_text()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"update": 3}, "no update 3: give 1 to 2, or 0 for the team"),
        ({"update": 0}, "update 0 of .* has learned nothing to export: name one of its updates"),
        ({"update": "best"}, "knows no best update: .*learn.evaluate_every"),
        ({"agents": ["lft"]}, "unknown agent of .*/run 'lft': did you mean 'left'"),
        ({"agents": ["left", "up"]}, "unknown agent of .*/run 'up': Known: left, right"),
    ],
)
def test_what_is_not_there_is_named(
    finished: Run, tmp_path: Path, chosen: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        export(finished.folder, tmp_path / "out", **chosen)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_checkpoint_that_was_pruned_is_named(run: Run) -> None:
    shutil.rmtree(run.folder / "checkpoints" / "000004")
    with pytest.raises(ConfigError, match=r"of update 1 is gone .*: there are those of 2"):
        export(run.folder, update=1)
    with pytest.raises(ConfigError, match=r"of update 1 is gone .*: there are those of 2"):
        orchestry.evaluate(run.folder, update=1)
    shutil.rmtree(run.folder / LAST)
    with pytest.raises(ConfigError, match=r"of update 2 is gone .*: there are those of none any"):
        export(run.folder)
    assert not (run.folder / "export").exists()


def test_a_run_without_an_update_has_nothing_to_export(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    made = orchestry.train(config(model, tasks, "episodes=2"), tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"nothing to export before its first update, .*learn\.every=4 episodes"
    ):
        export(made.folder)


def test_nothing_is_overwritten(finished: Run, tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    export(finished.folder, place)
    before = (place / "left" / "README.md").stat().st_mtime_ns
    with pytest.raises(ConfigError, match=r"out is not empty: choose another folder with --out"):
        export(finished.folder, place)
    assert (place / "left" / "README.md").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"README\.md is not a directory: choose another"):
        export(finished.folder, place / "left" / "README.md")
    with pytest.raises(StoreError, match=r"can't be written to .*: free space or change rights"):
        export(finished.folder, place / "left" / "README.md" / "out")
    with pytest.raises(ConfigError, match=r"--out \. is not a new folder: give it a name"):
        export(finished.folder, Path())


def test_a_base_that_is_gone_is_needed_to_merge_alone(
    tasks: Path, model: str, tmp_path: Path
) -> None:
    moved = shutil.copytree(model, tmp_path / "model")
    made = orchestry.train(config(str(moved), tasks, "episodes=4"), tmp_path / "run")
    moved.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"base of left, .*model, is not there .*: put it back"):
        export(made.folder, merge=True)
    assert not (made.folder / "export").exists()
    notes: list[str] = []
    folder = export(made.folder, note=notes.append).folder
    assert names(folder) == ["README.md", *ROLES]
    assert "name its new place in the exported adapter_config.json" in notes[0]


def test_what_fails_in_its_midst_leaves_nothing(run: Run) -> None:
    right = run.folder / LAST / "right"

    def spoil(note: str) -> None:
        if "merging right" in note:
            (right / "adapter_model.safetensors").write_bytes(b"half")

    with pytest.raises(StoreError, match=r"right.*safetensors can't be read .*: restore it"):
        export(run.folder, merge=True, note=spoil)
    assert names(run.folder / "export") == []


@pytest.mark.parametrize("merge", [False, True])
def test_a_disk_without_room_is_told_before_it_is_full(
    merge: bool, finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(StoreError, match=r"weights of left take \d+ MB, .* has 0 MB free: free"):
        export(finished.folder, tmp_path / "out", merge=merge)
    assert names(tmp_path) == []


def test_without_torch_adapters_are_exported_and_models_name_the_extra(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert names(export(finished.folder, tmp_path / "out").folder) == ["README.md", *ROLES]
    with pytest.raises(ConfigError, match=r'needs torch, .*install "orchestry-marl\[local\]"'):
        export(finished.folder, tmp_path / "merged", merge=True)
    assert names(tmp_path) == ["out"]
