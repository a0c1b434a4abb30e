"""Memory that really runs out, in a process of its own: less at a time, and the same result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from orchestry.backends.local.memory import MicroBatches, fitting, out_of_memory
from orchestry.core.errors import ConfigError, LearnError
from tests.backends.local.tiny import tiny_folder

LIMIT = """
import os
import resource
from contextlib import contextmanager
from pathlib import Path

os.sched_setaffinity(0, range(os.cpu_count()))  # threads' stacks are part of the room

@contextmanager
def room(mib):
    page, unlimited = resource.getpagesize(), resource.RLIM_INFINITY
    held = int(Path("/proc/self/statm").read_text().split()[0]) * page
    resource.setrlimit(resource.RLIMIT_AS, (held + mib * (1 << 20), unlimited))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (unlimited, unlimited))
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="address space is limited by Linux")


def said(code: str, folder: Path) -> str:
    """What a process says that runs this on a tiny model."""
    source = (
        f"{LIMIT}\nfrom tests.backends.local.test_trainer import *\nmodel = {str(folder)!r}\n{code}"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_update_begins_again_with_smaller_micro_batches(tmp_path: Path) -> None:
    code = """
small, plain = trainer(model, micro_tokens=1 << 16), trainer(model, micro_tokens=1 << 16)
batch = batch_of(small, n=64, max_tokens=160)  # whole, 700 MiB: far more than an allocator has left
with room(80):
    done = small.learn(batch)
whole = plain.learn(batch)
assert abs(done.loss - whole.loss) < 1e-4, (done, whole)
assert all(abs(done.step.norms[r] / whole.step.norms[r] - 1) < 1e-4 for r in ROLES), (done, whole)
"""
    assert "it begins again with learn.micro_tokens=32768" in said(code, tiny_folder(tmp_path))


@pytest.mark.slow
def test_fewer_answers_are_drawn_at_a_time(tmp_path: Path) -> None:
    code = """
(crew,) = trainer(model).crews
from orchestry.backends.local.sampler import Prompt, Sampler
prompt = Prompt(0, tuple(range(3, 203)), 12, 0.8, 0.95, (), tuple(range(1024)))
with room(30):
    few = Sampler(crew.base, crew.adapters, 1024, print).draw([prompt], 1024)
assert few == Sampler(crew.base, crew.adapters, 256).draw([prompt], 1024)
"""
    assert "out of memory: from now on 512 answers are drawn" in said(code, tiny_folder(tmp_path))


def test_an_answer_that_fits_no_memory_ends_the_run_with_advice() -> None:
    said = list[str]()

    def work(tokens: int) -> None:
        raise MemoryError("no room")

    with pytest.raises(LearnError, match=r"\(no room\): resume with --set learn\.grad"):
        MicroBatches(256, said.append).run(work, lambda: said.append("undone"))
    assert [text for text in said if text != "undone"] == [
        f"out of memory: it begins again with learn.micro_tokens={tokens}" for tokens in (128, 64)
    ]
    assert said.count("undone") == 3


def test_the_word_of_every_device_is_known() -> None:
    texts = ("CUDA error: out of memory", "DefaultCPUAllocator: can't allocate memory")
    for text in texts:
        assert out_of_memory(RuntimeError(text))
    assert out_of_memory(OSError("Cannot allocate memory"))
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))


def test_what_does_not_fit_while_it_loads_is_one_line_with_advice() -> None:
    with (
        pytest.raises(ConfigError, match=r"^the adapters on m do not fit into memory \(full\): fr"),
        fitting("the adapters on m"),
    ):
        raise torch.OutOfMemoryError("full")


def test_other_errors_are_no_lack_of_memory() -> None:
    for error in (ValueError("cannot allocate memory"), RuntimeError("shapes"), OSError("gone")):
        assert not out_of_memory(error)


@pytest.mark.slow
def test_a_base_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    code = """
from orchestry.core.errors import ConfigError
from orchestry.backends.local.model import load_base
load_base(model)
import torch
torch.set_num_threads(1)
with room(8):
    try:
        load_base(model, "float32")
    except ConfigError as error:
        print(error)
"""
    folder = tiny_folder(tmp_path, hidden=1024)
    found = said(code, folder)
    assert found.startswith(f"the weights of {folder} do not fit into memory (")
    assert found.count("\n") == 1


@pytest.mark.slow
def test_moments_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    code = """
from orchestry.core.errors import LearnError
from orchestry.backends.local.memory import MicroBatches, out_of_memory
large = trainer(model, rank=512)
batch = batch_of(large)
large._backward(batch, None)
with room(8):
    try:
        large._step()
    except LearnError as error:
        print(error)
"""
    found = said(code, tiny_folder(tmp_path, hidden=256))
    assert found.startswith("AdamW's two moments of each of the team's ")
    assert found.count("\n") == 1
