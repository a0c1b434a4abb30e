"""`orchestry sweep`: settings searched by Optuna, each trial a run that can be pruned."""
