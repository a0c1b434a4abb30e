"""docs/benchmarks.md: a section per benchmark, each with its command, date and machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
SECTIONS = {
    "overhead": "Wall clock over ideal",
    "throughput": "Calls per second",
    "shapes": "Servers of every shape: our client and libraries",
    "scale": "What one machine carries",
    "endpoint": "Programs that ask their agents",
    "wall": "How full the call slots are in a run that learns",
    "budget": "The cap against the server's own bill",
    "caps": "Episodes that a cap finishes",
    "faults": "Faults by name, and what they cost",
    "resume": "Killed and resumed",
    "kills": "Killed under a clock that jumps",
    "references": "References of HumanEval in the sandbox",
    "human_eval": "HumanEval by one model alone",
    "dry_run": "Dry run against the real cost",
    "footprint": "Start-up and install size",
    "first": "The first run, beside a busy core",
    "attached": "From a program with agents to a learned team",
    "watched": "Watching a run",
    "executors": "A sandbox on two machines",
    "search": "Beam against best-of-n at equal calls",
    "judge": "The judge, planted with noise and bias",
    "turns": "The embedded model at many turns",
    "prompt_cache": "k samples on a server with a prompt cache",
    "acceptance": "Which prompt changes are accepted",
    "in_search": "Prompt changes that the search tries",
    "credit": "Credit by agent in a planted game",
    "learning": "What learning behaviours is worth",
    "learning_code": "What learning behaviours is worth on code",
    "learning_coder": "What learning behaviours is worth to a larger base",
    "prompt_changes": "What changes of a small model's prompts are worth",
    "prompt_changes_learned": "The same changes where the weights have learned",
    "house_style": "A house's conventions, learned by a scripted model",
    "sandbox": "Untrusted code: runs per second, latency, timeouts",
    "hacks": "Reward hacks against code collaboration",
    "reference": "MAGRPO steps beside CoMLRL's",
    "coder_speed": "A 0.5B coder on a CPU: an update beside TRL's",
    "coder_draws": "Coders on a CPU: the embedded server beside the local sampler",
    "gpu": "A team of two on a GPU",
    "gpu_exact": "What a GPU computes beside float32",
    "prefill": "Prompts of unequal lengths: memory of a draw",
    "converted": "A GGUF file converted for training",
    "beginnings": "Prompts that begin alike",
    "memory": "Memory of a local run: estimate beside measured",
    "families": "Families of models as bases of backend local",
    "variants": "Variants of the local learner on games",
    "variants_task": "Variants of the local learner on a code task",
    "local_learning": "A team of 135M models that learns on a CPU",
    "local_learning_gpu": "The same team on a GPU",
    "swept": "Settings that a sweep found, beside the shipped ones",
    "cooperation": "Two 135M agents that learn to work together",
    "coders": "Two agents of Qwen2.5-Coder-0.5B that learn to work together",
    "seeds_model": "Two agents that learn to work together without a warm start",
    "repair": "Tools: a 135M team that is taught to repair",
    "joint": "Prompts and weights learned together",
    "programs": "Programs of other frameworks that learn",
    "others": "Programs and games that others wrote",
    "bucket_teams": "Bucket Brigade: what scripted teams earn",
    "bucket_speed": "Bucket Brigade: steps per second",
    "bucket_scale": "Bucket Brigade: growth with games, agents and threads",
    "bucket_gpu": "Bucket Brigade: PPO on a GPU beside a CPU",
    "ppo_processes": "Bucket Brigade: PPO in several processes",
    "bucket_ppo": "Bucket Brigade: what PPO earns",
    "bucket_models": "Bucket Brigade: what language models earn",
    "bucket_questions": "Bucket Brigade: four questions of its authors",
    "ppo": "PPO's steps beside stable-baselines3's",
}
"""Every section's name and heading, in the order of the page."""
INTRO = (
    "# Benchmarks\n\nEvery number here was written by the command above it; "
    "`python -m benchmarks.page` lists them.\n"
)


def link(name: str, text: str = "") -> str:
    """A link within the page to a section, by its heading or by that text."""
    heading = SECTIONS[name]
    place = "-".join(re.sub(r"[^a-z0-9 -]", "", heading.lower()).split())
    return f"[{text or heading}](#{place})"


def write(section: str, command: str, body: str, page: Path = PAGE) -> None:
    """Inserts or replaces one section; all others stay as they are.

    `command` is what a reader types to get the section again. Raises ValueError for a section
    that SECTIONS does not name.
    """
    if section not in SECTIONS:
        raise ValueError(f"unknown section '{section}': known are {', '.join(SECTIONS)}")
    parts = read(page)
    parts[section] = (
        f"## {SECTIONS[section]}\n\n```sh\n{command}\n```\n\n"
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {revision()}, {machine()}.\n\n{body.strip()}\n"
    )
    page.parent.mkdir(exist_ok=True)
    text = "\n".join([INTRO, *(parts[name] for name in SECTIONS if name in parts)])
    page.write_text(text, encoding="utf-8")


def read(page: Path = PAGE) -> dict[str, str]:
    """The page's sections by name; {} where there is no page yet."""
    if not page.exists():
        return {}
    names = {heading: name for name, heading in SECTIONS.items()}
    parts = page.read_text(encoding="utf-8").split("\n## ")[1:]
    return {names[part.partition("\n")[0]]: f"## {part.rstrip()}\n" for part in parts}


def machine() -> str:
    """CPU, cores, memory and Python of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = platform.python_version()
    return f"{_cpu()}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {python}"


def gpu() -> str:
    """The GPU's name and torch's version, as sections have them."""
    import torch

    return f"**{torch.cuda.get_device_name()}**, torch {torch.__version__}"


def revision() -> str:
    """The git revision measured, and whether its code was changed since."""
    changed = _git("status", "--porcelain", "--", "orchestry", "benchmarks", "tasks")
    return f"revision {_git('rev-parse', '--short', 'HEAD')}{' with changes' if changed else ''}"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main() -> None:
    """Lists the page's sections, each with its command."""
    sections = read()
    for name, heading in SECTIONS.items():
        text = sections.get(name)
        command = text.split("```sh\n")[1].split("\n```")[0] if text else "not measured yet"
        print(f"{heading}: {command}")


if __name__ == "__main__":
    main()
