"""Model training: data sets, partitions, models, trainers and evaluation. Only this package imports torch."""
