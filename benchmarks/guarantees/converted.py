"""A GGUF file converted for backend local: CPU seconds and memory beside transformers' own way, and
that both make the same weights."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import page
from orchestry.report.text import table

WAYS = {"ours": "a weight at a time", "theirs": "transformers' loader, then saved"}


def measure(model: str, way: str, folder: Path) -> dict[str, float]:
    """In this process: converts into `folder`; with the imports that this takes."""
    from orchestry.backends.local import converted
    from orchestry.models.gguf import gguf

    begun, file = time.monotonic(), gguf(model).fetch()
    if way == "ours":
        converted._convert(file, folder)
    else:
        from transformers import AutoTokenizer

        converted._loaded(file).save_pretrained(folder)
        loader: Any = AutoTokenizer
        loader.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = used.ru_utime + used.ru_stime
    clock = time.monotonic() - begun
    return {"cpu_s": seconds, "clock_s": clock, "peak_gb": used.ru_maxrss * 1024 / 1e9}


def play(model: str, way: str, folder: Path) -> dict[str, float]:
    """One way, in a process of its own."""
    child = [sys.executable, "-m", "benchmarks.guarantees.converted", "--model", model, "--child"]
    done = subprocess.run(
        [*child, way, str(folder)], cwd=page.ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(ours: Path, theirs: Path) -> tuple[int, dict[str, tuple[float, float]]]:
    """How many tensors are equal, and of two half precisions which share of the weights they change
    and by how much at most, relatively. Raises AssertionError for a tensor that differs."""
    import torch
    from safetensors.torch import load_file

    first, second = (load_file(one / "model.safetensors") for one in (ours, theirs))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    changed = {}
    for kind in (torch.bfloat16, torch.float16):
        count, most = 0, 0.0
        for one in first.values():
            off = (one.to(kind).float() - one).abs()
            count += int((off > 0).sum())
            most = max(most, float((off / one.abs().clamp_min(1e-6)).max()))
        changed[str(kind)[6:]] = count / sum(one.numel() for one in first.values()), most
    return len(first), changed


def report(model: str) -> str:
    """The section's text."""
    import torch
    import transformers

    rows = list[list[str]]()
    with tempfile.TemporaryDirectory(prefix="converted-") as name:
        places = {way: Path(name) / way for way in WAYS}
        for way, folder in places.items():
            found = play(model, way, folder)
            print(way, found, file=sys.stderr)
            figures = (found["cpu_s"], found["clock_s"], found["peak_gb"])
            rows.append([WAYS[way], *(f"{one:.1f}" for one in figures)])
        equal, changed = compare(places["ours"], places["theirs"])
        size = (places["ours"] / "model.safetensors").stat().st_size / 1e9
    said = "; ".join(
        f"{kind} would change {share:.0%} of them, by {most:.2%} at most"
        for kind, (share, most) in changed.items()
    )
    return (
        f"`{model}` to float32 ({size:.1f} GB), transformers {transformers.__version__}, torch "
        f"{torch.__version__}; imports, config, tokenizer and checksums included. All {equal} "
        f"tensors are equal, bit for bit. Of the weights, {said}.\n\n"
        f"{table(['way', 'CPU s', 's', 'GB resident at most'], rows)}"
    )


def main(argv: list[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    if args.child:
        print(json.dumps(measure(args.model, args.child[0], Path(args.child[1]))))
        return
    text = report(args.model)
    print(text)
    if args.write:
        command = " ".join(["python -m benchmarks.guarantees.converted", *given])
        page.write("converted", command, text)


if __name__ == "__main__":
    main()
