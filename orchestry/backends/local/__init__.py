"""The local regime: LoRA agents on one base, MAGRPO gradients. Nothing else imports torch."""
