"""What Orchestry promises, as a checklist: `python test_marl.py` prints it, pytest collects it.

Each item is a real run through the command line. Items on the embedded model fetch its weights at
their first use.

`python test_marl.py --live --budget 0.25` is another checklist: it pays real calls of Anthropic's
or OpenAI's API, and never more than the budget. `--help` lists its options.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent


def orchestry(*args: str, cwd: Path, ok: int = 0, **environ: str) -> str:
    """Runs the command line in a folder; returns stdout."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, "-m", "orchestry", *args],
        cwd=cwd,
        env={**env, **environ},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == ok, f"exit code {done.returncode}:\n{done.stderr}"
    return done.stdout


def test_a_key_is_not_needed(folder: Path) -> None:
    """Without a key it searches code_review with the embedded model"""
    text = orchestry(
        *("run", "--episodes", "1", "--json", "--run-dir", "run", "--k-samples", "2"),
        *("--beam-width", "1", "--set", "sampling.max_tokens=128"),
        cwd=folder,
    )
    summary = json.loads(text)
    assert summary["provider"] == "embedded"
    assert summary["episodes"] == 1
    assert summary["calls"] + summary["cache_hits"] == 6
    assert 0 <= summary["mean_reward"] <= 1
    assert summary["cost_usd"] == 0


def test_a_dry_run_needs_no_network(folder: Path) -> None:
    """A dry run tells calls, tokens and dollars, and spends nothing"""
    command = ("run", "--dry-run", "--episodes", "4", "--provider", "anthropic", "--json")
    found = json.loads(orchestry(*command, cwd=folder))
    usd = found["cost_usd"]
    assert 0 < usd["p5"] <= usd["expected"] <= usd["p95"] <= usd["max"] <= 5
    assert found["calls"] > 0
    assert not (folder / "runs").exists()


def test_the_readme_example_runs(folder: Path) -> None:
    """The README's own task is checked and searched"""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("tasks/slogan/task.py", "tasks/slogan/problems.jsonl"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example(readme, name), encoding="utf-8")
    assert len(example(readme, "tasks/slogan/task.py").splitlines()) <= 40
    for line in example(readme, "commands").splitlines():
        extra = ("--provider", "fake") if " run " in line else ()
        orchestry(*line.split()[1:], *extra, cwd=folder)
    program = example(readme, "python").replace('"embedded"', '"fake"')
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_gold_answers_score_one(folder: Path) -> None:
    """Every gold answer of code_review passes its tests"""
    assert "gold" in orchestry("tasks", "check", "code_review", cwd=folder)


def test_the_budget_holds(folder: Path) -> None:
    """A run stops at its budget with its results, and goes on with a larger one"""
    write_toy(folder)
    priced = ("--set", "prices.fake-1.input=1", "--set", "prices.fake-1.output=5")
    command = ("run", "--task", "toy", "--provider", "fake", "--episodes", "8", "--json")
    narrow = ("--run-dir", "run", "--budget", "0.03", "--set", "search.episodes_in_flight=1")
    stopped = json.loads(orchestry(*command, *narrow, *priced, cwd=folder, ok=3))
    assert stopped["stopped"] == "budget"
    assert 0 < stopped["cost_usd"] <= 0.03
    done = json.loads(orchestry("resume", "run", "--budget", "5", "--json", cwd=folder))
    assert done["stopped"] == "done"
    assert done["episodes"] == 8


def test_a_killed_run_goes_on(folder: Path) -> None:
    """kill -9, then resume: the same episodes as an uninterrupted run"""
    write_toy(folder)
    command = ("run", "--task", "toy", "--provider", "fake", "--episodes", "6")
    slow = ("--set", "provider.fake.latency_s=0.1")
    orchestry(*command, *slow, "--run-dir", "whole", cwd=folder)
    args = [sys.executable, "-m", "orchestry", *command, *slow, "--run-dir", "killed"]
    process = subprocess.Popen(args, cwd=folder, stdout=-3, stderr=-3)
    journal = folder / "killed" / "journal.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.exists() and b"answered" in journal.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    orchestry("resume", "killed", cwd=folder)
    for name in ("episodes.jsonl", "metrics.jsonl", "rewards.csv"):
        assert (folder / "killed" / name).read_text() == (folder / "whole" / name).read_text()


def test_errors_name_the_fix(folder: Path) -> None:
    """A wrong name costs nothing and says what was meant"""
    args = [sys.executable, "-m", "orchestry", "run", "--task", "code_reviw"]
    done = subprocess.run(args, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean 'code_review'" in done.stderr
    assert "Traceback" not in done.stderr


def example(readme: str, name: str) -> str:
    """The fenced block of the README that follows its marker."""
    marker = f"<!-- example: {re.escape(name)} -->\n```\\w+\n(.*?)```"
    found = re.search(marker, readme, flags=re.DOTALL)
    assert found, f"README.md has no example {name}"
    return found[1]


def write_toy(folder: Path) -> None:
    """A task in the folder, made by the command that users have for it."""
    orchestry("tasks", "new", "toy", cwd=folder)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return tmp_path


def main(args: Sequence[str] = ()) -> int:
    """Runs every item in an empty folder, printing a tick or what went wrong."""
    asked = _arguments(args)
    if asked.live:
        return live(asked)
    items: list[Callable[[Path], None]] = [
        item for name, item in globals().items() if name.startswith("test_")
    ]
    return checklist(items)


def checklist(items: Sequence[Callable[[Path], None]]) -> int:
    """1 if an item failed, else 0; an item that raises anything fails, and the next one runs."""
    failed = 0
    for item in items:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                item(Path(folder))
                mark = "ok  "
            except Exception as error:
                mark, failed = f"FAIL ({type(error).__name__}: {error})", failed + 1
        print(f"{mark}  {item.__doc__}  ({time.monotonic() - start:.1f} s)")  # noqa: T201
    print(f"{len(items) - failed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


# --- live: the same, paid -------------------------------------------------------------------------

KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
SMALL = (
    *("--k-samples", "2", "--beam-width", "1", "--set", "sampling.max_tokens=300"),
    *("--set", "cache.enabled=false", "--set", "options.grade=1", "--task", "code_review"),
)
"""One problem, as cheaply as it can be searched."""
ALONE = ("--set", "judge.enabled=false", "--set", "behaviors.enabled=false")
LONG = "Keep to this style guide. " + "Names are whole words, functions do one thing. " * 500
"""A system prompt that is long enough for every vendor's prompt cache."""
LIBRARY = """\
task: another-task
model: another-model
behaviors:
- {agent: refactorer, status: accepted, text: Handle the empty input first.}
"""
"""A behaviour that another team learned: it must be tested on dev before it is used."""


class Skip(Exception):
    """An item that does not apply to this vendor."""


@dataclass
class Live:
    """A vendor, and what is left of the budget."""

    provider: str
    usd: float
    more: tuple[str, ...] = ()
    """Flags of every run."""
    spent: float = 0.0
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Finished runs' summaries, by name."""

    def run(self, folder: Path, name: str, *flags: str) -> dict[str, Any]:
        """A run's summary; its cap is what is left. Its cost counts even if it fails."""
        left = self.usd - self.spent
        command = [sys.executable, "-m", "orchestry", "run", "--json", "--episodes", "1"]
        command += ["--provider", self.provider, "--budget", f"{left:.6f}", "--run-dir", name]
        done = subprocess.run(
            [*command, *SMALL, *flags, *self.more], cwd=folder, capture_output=True, text=True
        )
        self.spent += cost(folder / name, left)
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        assert done.returncode == 0, f"exit code {done.returncode}: {last}"
        self.runs[name] = json.loads(done.stdout)
        return self.runs[name]


def cost(run: Path, cap: float) -> float:
    """What a run spent: by its summary; without one, its whole cap if it had begun."""
    if (run / "summary.json").exists():
        return float(json.loads((run / "summary.json").read_text())["cost_usd"])
    return cap if (run / "journal.jsonl").exists() else 0.0


def answers(folder: Path, name: str) -> list[dict[str, Any]]:
    """The completions of the agents' turns of a run."""
    lines = (folder / name / "episodes.jsonl").read_text().splitlines()
    nodes = [node for line in lines for node in json.loads(line)["nodes"]]
    return [turn["completion"] for node in nodes for turn in node["turns"]]


def live_search(paid: Live, folder: Path) -> None:
    """A search of one problem: every call is answered and billed"""
    found = paid.run(folder, "search", *ALONE)
    assert (found["stopped"], found["calls"], found["failed_calls"]) == ("done", 6, 0)
    assert found["cost_usd"] > 0, "the vendor named no tokens, or their price is 0"
    assert all(answer["output_tokens"] for answer in answers(folder, "search"))


def live_prompt_cache(paid: Live, folder: Path) -> None:
    """The prompt cache: samples of one long prompt read what the first one wrote"""
    if paid.provider != "anthropic":
        raise Skip("only Claude's prompts are marked for the cache")
    prompt = ("--set", f"agents.writer.system_prompt={LONG}", "--k-samples", "3")
    paid.run(folder, "cache", *ALONE, *prompt)
    read = [answer["cached_tokens"] for answer in answers(folder, "cache")]
    assert any(read), "no answer read a cached token"


def live_judge(paid: Live, folder: Path) -> None:
    """The judge rates every sibling set"""
    judge = ("--set", "judge.enabled=true", "--set", "judge.when=always")
    few = ("--set", "judge.repeats=1", "--set", "behaviors.enabled=false")
    found = paid.run(folder, "judge", *judge, *few)
    assert sum(found["judgements"].values()), "it was not asked: all siblings were equal"
    assert not found["judgements"].get("malformed"), f"found {found['judgements']}"


def live_structured(paid: Live, folder: Path) -> None:
    """Structured answers: the judge's keep to their schema at once"""
    judged = paid.runs["judge"]["judgements"] if "judge" in paid.runs else {}
    assert judged, "the judge's run, whose answers are looked at, failed"
    assert set(judged) == {"rated"}, f"found {judged}"


def live_trial(paid: Live, folder: Path) -> None:
    """A trial: a behaviour of another team is tested in a pair on dev"""
    (folder / "library.yaml").write_text(LIBRARY)
    learn = ("behaviors.enabled=true", "behaviors.from=library.yaml", "behaviors.every=1")
    least = ("behaviors.share=2", "behaviors.propose=[examples]", "judge.enabled=false")
    sets = [word for item in (*learn, *least) for word in ("--set", item)]
    found = paid.run(folder, "trial", *sets, "--set", "search.strategy=single")
    calls = {row["purpose"]: row["calls"] for row in found["usage"]}
    assert calls.get("trial", 0) > 0, f"no pair was played: calls {calls}"
    learned = (folder / "trial" / "behaviors" / "library.yaml").read_text()
    assert "pairs: " in learned, "the library has no evidence of the pair"


def live(asked: argparse.Namespace) -> int:
    """The paid checklist: a line for each item with its cost; 1 if one failed, 2 without a key."""
    named = [name for name, key in KEYS.items() if os.environ.get(key, "").strip()]
    provider = asked.provider or (named or [""])[0]
    if provider not in named:
        wanted = KEYS.get(provider) or " or ".join(KEYS.values())
        print(f"--live pays calls of a real API, and {wanted} is not set: export it")  # noqa: T201
        return 2
    more = [word for item in asked.sets for word in ("--set", item)]
    model = ["--model", asked.model] if asked.model else []
    paid = Live(provider, asked.budget, (*model, *more))
    items = (live_search, live_prompt_cache, live_judge, live_structured, live_trial)
    with tempfile.TemporaryDirectory() as folder:
        failed = sum(not live_item(item, paid, Path(folder)) for item in items)
    print(f"{failed} of {len(items)} failed; ${paid.spent:.4f} of ${paid.usd:g} spent")  # noqa: T201
    return 1 if failed else 0


def live_item(item: Callable[[Live, Path], None], paid: Live, folder: Path) -> bool:
    """Prints one line: ok, skipped or failed with the cause, and the cost. False: it failed."""
    before, start, mark = paid.spent, time.monotonic(), "ok  "
    try:
        item(paid, folder)
    except Skip as reason:
        mark = f"skip ({reason})"
    except Exception as error:
        mark = f"FAIL ({type(error).__name__}: {error})"
    took = f"{time.monotonic() - start:.1f} s, ${paid.spent - before:.4f}"
    print(f"{mark}  {item.__doc__}  ({took})", flush=True)  # noqa: T201
    return not mark.startswith("FAIL")


def _arguments(args: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What Orchestry promises, as a checklist.")
    parser.add_argument("--live", action="store_true", help="pay real calls of a vendor's API")
    parser.add_argument("--budget", type=float, default=0.25, help="most dollars [0.25]")
    parser.add_argument("--provider", choices=list(KEYS), help="[the one whose key is set]")
    parser.add_argument("--model", help="[the provider's own]")
    parser.add_argument(
        "--set", action="append", default=[], dest="sets", help="a config key, for every run"
    )
    asked = parser.parse_args(args)
    if not asked.live and asked != parser.parse_args([]):
        parser.error("these options need --live: without it nothing is paid")
    if not 0 < asked.budget < float("inf"):
        parser.error(f"--budget {asked.budget:g} is no cap: give dollars above 0, such as 0.25")
    return asked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
