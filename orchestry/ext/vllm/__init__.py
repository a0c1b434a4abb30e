"""Drawing by a vLLM server in place of the trainer's own sampler."""
