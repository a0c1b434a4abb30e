"""What each process of a launch does: `python -m tests.backends.local.launched WORK FOLDER`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from orchestry.backends.launch import Processes, follow
from orchestry.backends.local.batch import Batch, Sample
from orchestry.backends.local.distributed import load_trainer
from orchestry.backends.local.optimizer import Step, TeamOptimizer
from orchestry.core.errors import LearnError, OrchestryError
from orchestry.core.learning import LearnConfig
from orchestry.core.machine import launched
from orchestry.core.types import Completion, Member, Message, Request

ROLES = ("left", "right")
PROMPTS = ("a", "say something longer than that", "of three words", "no")
GROUP = 3


def launch(*args: str) -> list[str]:
    """The command that starts `python -m ...` in two processes."""
    options = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    more = "--dynamo_backend no --main_process_port 0"
    module = [sys.executable, "-m", "accelerate.commands.launch"]
    return [*module, *options.split(), *more.split(), "-m", *args]


@contextmanager
def launching(*args: str) -> Iterator[subprocess.Popen[str]]:
    """Two processes under way; whatever becomes of the test, none is left."""
    process = subprocess.Popen(
        launch(*args),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.terminate()  # the launcher ends its processes before it ends
        process.communicate(timeout=60)


def finish(process: subprocess.Popen[str], timeout: float = 300) -> tuple[int, str]:
    """The launcher's exit code, and all that was said."""
    said, _ = process.communicate(timeout=timeout)
    return process.returncode, said


def learn(folder: Path) -> None:
    """A team that draws, fails, learns and goes on, as one process or several."""
    settings = {"threads": 1, "rank": 4, "alpha": 8, "learning_rate": 1e-2, "epochs": 2}
    chosen = LearnConfig.model_validate({**settings, "clip": 0.2})
    team = {role: Member(role, "", str(folder.parent / "tiny"), 12, 0.8) for role in ROLES}
    notes = list[str]()
    made = load_trainer(team, chosen, 4, 0, notes.append)
    requests = [_request(role, text) for role in ROLES for text in PROMPTS]
    drawn = made.draw(requests, GROUP)
    batch = _batch(requests, drawn)
    done: dict[str, Any] = {"draws": [_plain(each) for each in drawn], "errors": []}
    for place in (0, -1):  # the heaviest prompt goes to process 0, the lightest to process 1
        try:
            made.learn(_spoilt(batch, place))
        except LearnError as error:
            done["errors"].append(str(error))
    done["first"] = made.learn(batch).figures()
    made.save(folder / "000001", 3)
    made.learn(replace(batch, samples=batch.samples[:GROUP]))  # one group: a process has none
    made.resume(folder / "000001")
    done["second"] = made.learn(batch).figures()
    made.save(folder / "000002", 3)
    done["again"] = [_plain(each) for each in made.draw(requests, GROUP)]
    made.close()
    (folder / "done.json").write_text(json.dumps({**done, "notes": notes}))


def starve(folder: Path) -> None:
    """An update for which only process 1 lacks the memory, in the optimizer's step."""
    chosen = LearnConfig.model_validate({"threads": 1, "rank": 4, "alpha": 8})
    team = {role: Member(role, "", str(folder.parent / "tiny"), 12, 0.8) for role in ROLES}
    made = load_trainer(team, chosen, 4, 0, print)
    requests = [_request(role, text) for role in ROLES for text in PROMPTS]
    batch = _batch(requests, made.draw(requests, GROUP))
    try:
        made.learn(batch)
    except LearnError as error:
        (folder / "error").write_text(str(error))
    made.close()


def _without_memory(optimizer: TeamOptimizer) -> Step:
    raise torch.OutOfMemoryError("planted")


def meet(folder: Path) -> None:
    """Parts of two processes: put together, added up, failed, and left alone."""
    here = launched()
    processes = Processes(here)
    said = list[str]()
    if here.rank == 0:
        processes.warn = said.append
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))]
    parameters[here.rank].grad = torch.full((2 + here.rank,), 1.0 + here.rank)
    found: dict[str, Any] = {"ranks": processes.together(lambda: here.rank), "said": said}
    processes.add_up(parameters)
    found["sums"] = [weight.grad.tolist() for weight in parameters if weight.grad is not None]
    for guilty in range(2):
        try:
            processes.together(partial(_fail, processes, here.rank == guilty))
        except Exception as error:
            cause = str(error.__cause__)
            found[f"error {guilty}"] = [type(error).__name__, str(error), "in _fail" in cause]
    if here.rank:
        os._exit(7)
    try:
        processes.together(lambda: 0)
    except OrchestryError as error:
        found["alone"] = str(error)
    (folder / "found.json").write_text(json.dumps(found))


def _fail(processes: Processes, guilty: bool) -> None:
    processes.warn("about to fail" if guilty else "fine")
    if guilty:
        raise ZeroDivisionError("no such luck")


def _request(role: str, text: str) -> Request:
    return Request(
        agent=role,
        purpose="act",
        model="tiny",
        messages=(Message(role="user", content=text),),
        max_tokens=12,
        temperature=0.8,
        seed=len(text),
    )


def _batch(requests: Sequence[Request], drawn: Sequence[Sequence[Completion]]) -> Batch:
    samples = [
        Sample(
            agent=request.agent,
            prompt_ids=completion.tokens.prompt_ids,
            ids=completion.tokens.ids,
            logprobs=completion.tokens.logprobs,
            advantage=0.5 - index,
            group=group,
        )
        for group, (request, answers) in enumerate(zip(requests, drawn, strict=True))
        for index, completion in enumerate(answers)
        if completion.tokens
    ]
    return Batch(tuple(samples), dict.fromkeys(ROLES, len(PROMPTS) * GROUP))


def _spoilt(batch: Batch, place: int) -> Batch:
    """An advantage that is no number, in the heaviest group (0) or the lightest (-1)."""
    tokens = {s.group: len(s.prompt_ids) for s in batch.samples}
    for sample in batch.samples:
        tokens[sample.group] += len(sample.ids)
    group = sorted(tokens, key=lambda group: -tokens[group])[place]
    spoilt = [replace(s, advantage=float("nan")) if s.group == group else s for s in batch.samples]
    return Batch(tuple(spoilt), batch.actions)


def _plain(answers: Sequence[Completion]) -> list[tuple[str, Any]]:
    return [(one.text, one.tokens.ids if one.tokens else ()) for one in answers]


if __name__ == "__main__":
    work, place = sys.argv[1], Path(sys.argv[2])
    if work == "meet":
        meet(place)
    elif launched().rank:
        if work == "starve":
            setattr(TeamOptimizer, "step", _without_memory)  # noqa: B010 - a planted fault
        follow()
    elif work == "starve":
        starve(place)
    else:
        learn(place)
