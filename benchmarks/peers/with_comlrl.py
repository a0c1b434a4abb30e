"""CoMLRL's MAGRPOTrainer, its own loop of steps. Runs in .envs/comlrl.

What a user would write, with single turns, and sampling as the others have it. `lora` hands it
agents that peft made; without it the trainer loads a full copy an agent and trains all weights, as
it comes. Its defaults stay: AdamW, two problems per update, normalised advantages.
"""
# ruff: noqa: TID253

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from comlrl.trainers.reinforce.magrpo import NodeSample
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.peers.reference_work import (
    AGENTS,
    ALPHA,
    RANK,
    RATE,
    TARGETS,
    TEMPERATURE,
    TOP_P,
    WARM_UP_TOKENS,
    Clock,
    Work,
    peak_bytes,
    report,
    reward,
)


class Timed(MAGRPOTrainer):  # type: ignore[misc]
    """The trainer as it is, with a clock around what it does."""

    clock: Clock

    def _generate_completions(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock.spent("generate"):
            drawn = super()._generate_completions(*args, **kwargs)
        self.clock.tokens += sum(map(len, drawn["completion_input_ids"][0]))
        self.prompt_tokens.append(drawn["prompt_input_ids"].shape[1])
        return drawn

    def _drain_ready_buffers(self, ready_agents: list[int]) -> None:
        if ready_agents:
            with self.clock.spent("update"):
                super()._drain_ready_buffers(ready_agents)
            self.clock.stop()


def joint_reward(concise: list[str], detailed: list[str]) -> list[float]:
    return [reward(one, other) for one, other in zip(concise, detailed, strict=True)]


def trainer(agents: list[Any], folder: str, config: MAGRPOConfig) -> Timed:
    """`agents`: models, or folders for the trainer to load."""
    tokenizers = [AutoTokenizer.from_pretrained(folder) for _ in AGENTS]
    made = Timed(
        agents=agents,
        num_agents=len(AGENTS),
        tokenizer=tokenizers,
        reward_func=joint_reward,
        formatters=[lambda item, name=name: item[name] for name in AGENTS],
        args=config,
    )
    made.clock, made.prompt_tokens, made.verbose = Clock(), [], False
    return made


def base(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")


def measure(work: Work) -> None:
    """A step of two tokens for one problem that is not counted, then the one that is."""
    imports_bytes = peak_bytes()
    agents: list[Any] = [work.model] * len(AGENTS)
    if work.lora:
        lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS))
        agents = [get_peft_model(base(work.model), lora) for _ in AGENTS]
    config = MAGRPOConfig(
        num_train_epochs=1,
        agent_learning_rate=RATE,
        num_turns=1,
        num_generations=work.samples,
        max_new_tokens=WARM_UP_TOKENS,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        top_k=0,
        rollout_buffer_size=len(work.prompts),
        eval_interval=0,
    )
    made = trainer(agents, work.model, config)
    rows = [dict(zip(AGENTS, prompts, strict=True)) for prompts in work.prompts]
    for tokens, asked in ((WARM_UP_TOKENS, rows[:1]), (work.tokens, rows)):
        made.train_dataset = Dataset.from_list(asked)
        made.args.max_new_tokens, made.args.rollout_buffer_size = tokens, len(asked)
        made.clock, made.prompt_tokens = Clock(), []
        made.clock.start()
        made.train()
    report(made.clock, imports_bytes, made.prompt_tokens)


def gradients(folder: Path) -> None:
    """What its update accumulates from the actions in case.json, in the modules' order."""
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    agents = [
        PeftModel.from_pretrained(base(case["model"]), folder / name, is_trainable=True)
        for name in AGENTS
    ]
    config = MAGRPOConfig(num_turns=1, agent_learning_rate=0.0)
    made = trainer(agents, case["model"], replace(config, train_batch_size=len(case["problems"])))
    for index, name in enumerate(AGENTS):
        pad = made.tokenizers[index].pad_token_id
        made._update_from_samples(
            index, [node(index, problem[name], pad) for problem in case["problems"]]
        )
        learnt = [one.grad for one in agents[index].parameters() if one.grad is not None]
        named = {str(place): gradient for place, gradient in enumerate(learnt)}
        save_file(named, folder / f"{name}.safetensors")


def node(index: int, problem: dict[str, Any], pad: int) -> NodeSample:
    """One agent's answers to one prompt, padded as `generate` pads them."""
    longest = max(map(len, problem["answers"]))
    rows = [torch.tensor(ids + [pad] * (longest - len(ids))) for ids in problem["answers"]]
    data = {"prompt_input_ids": torch.tensor([problem["prompt"]]), "completion_input_ids": [rows]}
    return NodeSample(index, 0, data, problem["returns"], 0.0, 0.0, 0)


def main() -> None:
    """`measure WORK`, or `gradients FOLDER`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("measure", "gradients"))
    parser.add_argument("path")
    args = parser.parse_args()
    if args.what == "measure":
        work = Work.load(args.path)
        torch.set_num_threads(work.threads)
        measure(work)
    else:
        gradients(Path(args.path))


if __name__ == "__main__":
    main()
