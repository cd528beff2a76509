"""Data sets of images and labels. MNIST is part of the package; others are read from a folder."""

from lesson.learn.data.dataset import Dataset, load_dataset

__all__ = ["Dataset", "load_dataset"]
