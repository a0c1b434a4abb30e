"""Recipes: runs and fine-tuning in turn, as the stages of one team, under one budget."""
