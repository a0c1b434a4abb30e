"""The local regime: LoRA agents on one base, MAGRPO gradients. The only place that imports torch."""
