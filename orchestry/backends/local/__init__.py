"""Backend local: LoRA agents on one base, MAGRPO gradients. Only this package imports torch."""
