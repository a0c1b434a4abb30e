"""Memory that really runs out, in a process of its own: less at a time, and the same result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")

from orchestry.errors import LearnError
from tests.learn.test_trainer import trainer
from tests.learn.tiny import tiny_folder

LIMIT = """
import resource
from contextlib import contextmanager
from pathlib import Path

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
    source = f"{LIMIT}\nfrom tests.learn.test_trainer import *\nmodel = {str(folder)!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_update_begins_again_with_smaller_micro_batches(tmp_path: Path) -> None:
    code = """
small, plain = trainer(model, micro_tokens=1 << 16), trainer(model, micro_tokens=1 << 16)
batch = batch_of(small, n=16, max_tokens=160)
with room(40):
    done = small.learn(batch)
whole = plain.learn(batch)
assert abs(done.loss - whole.loss) < 1e-4, (done, whole)
assert all(abs(done.step.norms[r] / whole.step.norms[r] - 1) < 1e-4 for r in ROLES), (done, whole)
"""
    assert "the update begins again with learn.micro_tokens=32768" in said(
        code, tiny_folder(tmp_path)
    )


@pytest.mark.slow
def test_fewer_answers_are_drawn_at_a_time(tmp_path: Path) -> None:
    code = """
(crew,) = trainer(model).crews
from orchestry.learn.sampling import Prompt, Sampler
prompt = Prompt(0, tuple(range(3, 203)), 12, 0.8, 0.95, (), tuple(range(1024)))
with room(30):
    few = Sampler(crew.base, crew.adapters, 1024, print).draw([prompt], 1024)
assert few == Sampler(crew.base, crew.adapters, 256).draw([prompt], 1024)
"""
    assert "out of memory: from now on 512 answers are drawn" in said(code, tiny_folder(tmp_path))


def test_an_answer_that_fits_no_memory_ends_the_run_with_advice(tmp_path: Path) -> None:
    made = trainer(str(tiny_folder(tmp_path)), micro_tokens=64)
    with pytest.raises(LearnError, match=r"\(no room\): resume with --set learn\.grad"):
        made._halve("no room")
