"""Data sets. MNIST is part of the package; others are downloaded, or drawn."""

from lesson.learn.data.load import data_dir, load_samples
from lesson.learn.data.samples import Samples

__all__ = ["Samples", "data_dir", "load_samples"]
