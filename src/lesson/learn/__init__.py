"""Learning for real: data, partitions, models and cohort training. The only part that imports torch."""
