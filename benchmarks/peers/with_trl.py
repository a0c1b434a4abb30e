"""TRL's GRPOTrainer with LoRA, a run per agent, one after the other. Runs in .envs/trl.

What a user would write on a CPU: float32, no checkpointing (it would take more time), one prompt
with its answers in a pass. Both runs use one copy of the base; each has a fresh adapter.
"""
# ruff: noqa: TID253

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

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
    Step,
    Work,
    peak_bytes,
    report,
    reward,
)


class Timed(GRPOTrainer):  # type: ignore[misc]
    """The trainer as it is, with a clock around what it does."""

    clock: Clock
    prompt_tokens: list[int]

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        with self.clock.spent("generate"):
            drawn = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self.clock.tokens += sum(map(len, drawn[0]))
        self.prompt_tokens += map(len, prompt_ids[:: self.num_generations])
        return drawn


def own_reward(completions: list[str], **_: Any) -> list[float]:
    return [reward(text, "") for text in completions]


def trained(model: Any, tokenizer: Any, prompts: list[str], work: Work, tokens: int) -> Timed:
    """One update of one agent; the trainer, with what its clock counted."""
    lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS))
    with tempfile.TemporaryDirectory(prefix="trl-") as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_steps=1,
            learning_rate=RATE,
            num_generations=work.samples,
            per_device_train_batch_size=work.samples,
            gradient_accumulation_steps=len(prompts),
            max_completion_length=tokens,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            top_k=0,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        made = Timed(
            model=get_peft_model(model, lora),
            reward_funcs=own_reward,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
            processing_class=tokenizer,
        )
        made.clock, made.prompt_tokens = Clock(), []
        made.clock.start()
        with made.clock.spent("update"):
            made.train()
        made.clock.stop()
    made.model.unload()
    return made


def team_step(steps: list[Step]) -> Step:
    """All agents' steps as one; their `update_s` were the whole."""
    return Step(
        generate_s=sum(one.generate_s for one in steps),
        update_s=sum(one.update_s - one.generate_s for one in steps),
        cpu_s=sum(one.cpu_s for one in steps),
        wall_s=sum(one.wall_s for one in steps),
        tokens=sum(one.tokens for one in steps),
    )


def measure(work: Work) -> None:
    """A step of two tokens for one problem that is not counted, then the one that is."""
    imports_bytes = peak_bytes()
    tokenizer = AutoTokenizer.from_pretrained(work.model)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)  # its own lies beyond the vocabulary
    model = AutoModelForCausalLM.from_pretrained(work.model, attn_implementation="sdpa")
    asked = [[prompts[place] for prompts in work.prompts] for place in range(len(AGENTS))]
    trained(model, tokenizer, asked[0][:1], work, WARM_UP_TOKENS)
    runs = [trained(model, tokenizer, prompts, work, work.tokens) for prompts in asked]
    whole = Clock(steps=[team_step([step for one in runs for step in one.clock.steps])])
    report(whole, imports_bytes, [length for one in runs for length in one.prompt_tokens])


def main() -> None:
    """`measure WORK`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("measure",))
    parser.add_argument("path")
    work = Work.load(parser.parse_args().path)
    torch.set_num_threads(work.threads)
    measure(work)


if __name__ == "__main__":
    main()
