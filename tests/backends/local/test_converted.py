"""A GGUF file becomes a folder of transformers once: the weights that transformers itself makes of
it, each at its place."""

from __future__ import annotations

import json
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")

from safetensors.torch import load_file

from orchestry.backends.local import converted as converting
from orchestry.backends.local.converted import _loaded, converted, converted_folder
from orchestry.backends.local.model import base_digest, load_base, source_of
from orchestry.backends.local.sizes import shape_of
from orchestry.core.errors import ConfigError, OrchestryError
from orchestry.models import gguf as models
from orchestry.models.gguf import Gguf, gguf
from orchestry.models.header import read_header
from tests.backends.local.tiny import TEMPLATE, Kind, tiny_model
from tests.backends.local.tinygguf import tiny_gguf

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("source") / "tiny.gguf")


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module")
def made(source: Path, environ: dict[str, str]) -> Path:
    """A converted folder, by two threads that came at the same time."""
    found = list[Path]()
    threads = [
        threading.Thread(target=lambda: found.append(converted(gguf(str(source)), environ)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    return found[0]


def test_the_converted_model_is_the_ggufs_and_made_once(
    made: Path, source: Path, environ: dict[str, str]
) -> None:
    at = made.stat().st_mtime_ns
    assert converted(gguf(str(source)), environ) == made
    assert made.stat().st_mtime_ns == at
    sha256 = gguf(str(source)).sha256
    assert made.name == f"tiny-{sha256}-v2"
    others = sorted(path.name for path in made.parent.iterdir() if path != made)
    assert others in ([], [f"{made.name}.lock"])
    base = load_base(str(source), device="cpu", environ=environ)
    assert (base.name, base.sha256) == (str(source), sha256)
    expected = dict(tiny_model().named_parameters())
    for name, weight in base.model.named_parameters():
        torch.testing.assert_close(weight, expected[name], atol=0, rtol=0)
    assert base.tokenizer.chat_template == TEMPLATE
    assert base.tokenizer.tokenize("1ab2") == ["1", "ab", "2"]
    assert base.eos_ids == {2}


@pytest.mark.parametrize("whole", [False, True])
def test_in_bfloat16_each_weight_lies_as_torch_rounds_it(
    made: Path, source: Path, environ: dict[str, str], whole: bool, monkeypatch: Any
) -> None:
    if whole:  # as where transformers has to load the file
        monkeypatch.setattr(converting, "_planned", lambda header, part: None)
        environ = {"XDG_CACHE_HOME": str(Path(environ["XDG_CACHE_HOME"]) / "whole")}
    base = load_base(str(source), "bfloat16", device="cpu", environ=environ)
    folder = converted(gguf(str(source)), environ, half=True)
    assert folder.name == f"{made.name}-bf16"
    exact, stored = (load_file(one / "model.safetensors") for one in (made, folder))
    assert stored.keys() == exact.keys()
    for name, weight in base.model.named_parameters():
        if name in exact:
            assert torch.equal(weight, exact[name].bfloat16())
            assert torch.equal(weight, stored[name])
    size = (folder / "model.safetensors").stat().st_size
    assert size < 0.6 * (made / "model.safetensors").stat().st_size


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_each_weight_is_the_one_that_transformers_makes(
    kind: Kind, rounded: bool, tmp_path: Path
) -> None:
    file = tiny_gguf(tmp_path / "tiny.gguf", kind, hidden=256, rounded=rounded)
    folder = converted(gguf(str(file)), {"XDG_CACHE_HOME": str(tmp_path)})
    _loaded(file).save_pretrained(tmp_path / "theirs")
    ours = load_file(folder / "model.safetensors")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, atol=0, rtol=0)
    config = (folder / "config.json").read_text()
    assert config == (tmp_path / "theirs" / "config.json").read_text()
    biases = [name for name in ours if name.endswith("q_proj.bias")]
    assert len(biases) == (2 if kind == "qwen2" else 0)
    if not rounded:
        model = tiny_model(kind, hidden=256)
        base = load_base(str(folder), device="cpu").model
        ids = torch.tensor([[5, 9, 2, 40]])
        torch.testing.assert_close(logits(base, ids), logits(model, ids), atol=0, rtol=0)


def logits(model: Any, ids: Any) -> Any:
    with torch.no_grad():
        return model(ids).logits


def test_another_transformers_loads_the_file_whole(
    source: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables of names are private, and may move."""
    from transformers.integrations import gguf as tables

    monkeypatch.delattr(tables, "GGUF_CONFIG_ARCHS")
    again = converted(gguf(str(source)), {"XDG_CACHE_HOME": str(tmp_path)})
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (made, again))
    assert ours.keys() >= theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_qwens_answers_end_at_both_tokens_of_its_makers(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path / "tiny.gguf", "qwen2")
    base = load_base(str(file), device="cpu", environ={"XDG_CACHE_HOME": str(tmp_path)})
    assert base.eos_ids == {2, 3}
    assert base.end_id == 2


def test_the_sizes_of_a_file_are_read_without_converting_it(source: Path) -> None:
    shape = shape_of(str(source))
    assert (shape.layers, shape.hidden, shape.inner, shape.vocab) == (2, 32, 64, 300)
    assert (shape.heads, shape.kv_heads, shape.head, shape.tied) == (4, 2, 8, True)


def test_known_files_have_the_sizes_of_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    shape = shape_of("qwen2.5-coder-0.5b")
    assert (shape.layers, shape.hidden, shape.tied) == (24, 896, False)
    with pytest.raises(ConfigError, match=r"sizes of smollm2-360m are not known.*fetch it"):
        shape_of("smollm2-360m")


def test_a_damaged_conversion_is_told(made: Path, source: Path, environ: dict[str, str]) -> None:
    file = made / "model.safetensors"
    sound = file.read_bytes()
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(OrchestryError, match=f"{made.name} is damaged: delete it, so that"):
        converted(gguf(str(source)), environ)
    file.write_bytes(sound)
    sums = (made / "checksums.json").read_text()
    (made / "checksums.json").write_text("{}")
    with pytest.raises(OrchestryError, match="is damaged"):
        converted(gguf(str(source)), environ)
    (made / "checksums.json").write_text(sums)
    assert converted(gguf(str(source)), environ) == made


def test_a_cache_that_can_not_be_written_is_told(source: Path, tmp_path: Path) -> None:
    (tmp_path / "orchestry").write_text("")
    with pytest.raises(OrchestryError, match=r"can't be written to .*: make room there"):
        converted(gguf(str(source)), {"XDG_CACHE_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"GGUF", "its header is not whole"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 of the format"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "its header is not whole"),
    ],
)
def test_a_file_that_is_not_whole_is_told(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "part.gguf"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"part.gguf can't be converted .*{said}"):
        converted(gguf(str(file)), {"XDG_CACHE_HOME": str(tmp_path)})
    assert not [*(tmp_path / "orchestry" / "converted").glob("part*v2")]


def test_an_architecture_that_transformers_lacks_is_told(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path / "new.gguf", architecture="plamo")
    with pytest.raises(ConfigError, match=r"new.gguf can't be converted .*plamo.*models list"):
        converted(gguf(str(file)), {"XDG_CACHE_HOME": str(tmp_path)})


def test_a_cut_off_file_is_told(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(source.read_bytes()[:-3000])
    with pytest.raises(ConfigError, match=r"cut.gguf can't be converted .*it is cut off"):
        converted(gguf(str(file)), {"XDG_CACHE_HOME": str(tmp_path)})


def test_the_header_without_vocabulary_says_the_same(source: Path, tmp_path: Path) -> None:
    header = read_header(source)
    (tmp_path / "bare.gguf").write_bytes(header.bare())
    bare = read_header(tmp_path / "bare.gguf")
    kept = {name: value for name, value in header.fields.items() if name in header.raw}
    assert bare.fields == {**kept, "llama.vocab_size": 300}
    assert bare.tensors.keys() == header.tensors.keys()
    assert json.dumps(kept)


def test_names_of_one_base_are_one_name(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "embedded",
        "embedded/smollm2-135m",
        models.MODEL,
        "smollm2-135m",
        models.KNOWN[0].place,
    ):
        assert source_of(name) == "embedded"
    coder = next(one for one in models.KNOWN if one.name == "qwen2.5-coder-0.5b")
    assert source_of(coder.place) == source_of(coder.name) == coder.name
    monkeypatch.chdir(source.parent)
    assert source_of("tiny.gguf") == str(source)
    assert base_digest("tiny.gguf") == base_digest(str(source))
    with pytest.raises(ConfigError, match=r"other.gguf can't be read"):
        source_of("other.gguf")


def test_the_embedded_model_is_sought_under_its_checksum(made: Path, tmp_path: Path) -> None:
    place = tmp_path / "orchestry" / "converted"
    place.mkdir(parents=True)
    made_here = place / f"{models.MODEL}-{models.SHA256}-v2"
    made_here.symlink_to(made)
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert converted_folder(gguf("embedded", environ), environ) == made_here
    base = load_base(device="cpu", environ=environ)
    assert (base.name, base.sha256) == ("embedded", models.SHA256)


def test_a_hubs_file_has_no_folder_before_it_is_there() -> None:
    assert converted_folder(Gguf("a/b:c.gguf", Path("/nowhere/c.gguf"))) is None
