"""A contest of strategies: each tuned on the same small grid, then run from the same seeds for the same time."""
