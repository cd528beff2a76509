"""Tuned comparisons: each strategy is tuned on a small grid, then run with the same seeds for the same time."""
