"""Protection against bad updates: checks of arrays and norms, robust aggregation, and uploads corrupted on purpose."""
