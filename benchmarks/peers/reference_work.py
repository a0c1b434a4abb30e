"""The work that both contestants of the reference benchmark do, and how it is measured.

Only the standard library and torch's name: the reference runs in an environment of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

AGENTS = ("concise", "detailed")
"""The agents of `tldr`."""
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
TEMPERATURE, TOP_P = 0.8, 0.95
RATE = 5e-6
RANK, ALPHA = 16, 32
WARM_UP_TOKENS = 2
MICRO_TOKENS = 256
"""In one pass: about one prompt with its answers, which is what the reference takes too."""


@dataclass(frozen=True, slots=True)
class Work:
    """A step of a team of two: answers to some problems, then one update an agent."""

    model: str
    """A folder, whose end token lies outside of its vocabulary: every answer is full length."""
    problems: tuple[tuple[tuple[str, str], ...], ...]
    """Each agent's system prompt and observation, by problem; all of an update's."""
    prompts: tuple[tuple[str, ...], ...]
    """The same as the chat template renders it."""
    samples: int
    tokens: int
    threads: int
    lora: bool = True
    """The reference only: adapters instead of full copies that train all weights."""
    own: bool = False
    """Ours only: our own loss and micro-batches, as they come."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Ours only: of the base."""

    def save(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str) -> Work:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
        fields["prompts"] = tuple(map(tuple, fields["prompts"]))
        fields["problems"] = tuple(tuple(map(tuple, each)) for each in fields["problems"])
        return cls(**fields)


def rendered(tokenizer: Any, system: str, user: str) -> str:
    """A prompt as the tokenizer's chat template has it."""
    said = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return str(tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False))


@dataclass(frozen=True, slots=True)
class Step:
    """CPU seconds (user and system, all threads) and wall seconds of one step."""

    generate_s: float
    update_s: float
    cpu_s: float
    """The whole step: what is neither of the two is reward and bookkeeping."""
    wall_s: float
    tokens: int
    """Completion tokens drawn."""


@dataclass
class Clock:
    """Counts a process's CPU time, step after step."""

    steps: list[Step] = field(default_factory=list)
    tokens: int = 0
    _parts: dict[str, float] = field(default_factory=dict)
    _began: tuple[float, float] = (0.0, 0.0)

    def start(self) -> None:
        """A step begins; what came before is forgotten."""
        self._parts, self.tokens = {"generate": 0.0, "update": 0.0}, 0
        self._began = time.process_time(), time.perf_counter()

    @contextmanager
    def spent(self, part: str) -> Iterator[None]:
        """What happens within is generation or update."""
        before = time.process_time()
        try:
            yield
        finally:
            self._parts[part] += time.process_time() - before

    def stop(self) -> None:
        """The step is over, and the next one begins."""
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        self.steps.append(
            Step(
                generate_s=self._parts["generate"],
                update_s=self._parts["update"],
                cpu_s=cpu_s - self._began[0],
                wall_s=wall_s - self._began[1],
                tokens=self.tokens,
            )
        )
        self.start()


def reward(concise: str, detailed: str) -> float:
    """The share of distinct characters in both answers: cheap, and seldom the same twice."""
    text = concise + detailed
    return len(set(text)) / max(1, len(text))


def peak_bytes() -> int:
    """Most memory that this process had resident so far. Linux only.

    Not getrusage's figure: that one remembers the process which started this one.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def report(clock: Clock, imports_bytes: int, prompt_tokens: list[int]) -> None:
    """Prints what a contestant measured, as JSON. `imports_bytes`: the peak before any model."""
    said = {
        "steps": [asdict(step) for step in clock.steps],
        "peak_bytes": peak_bytes(),
        "imports_bytes": imports_bytes,
        "prompt_tokens": prompt_tokens,
    }
    print(json.dumps(said))
