"""Images and labels to learn from: MNIST comes with the package, others from a folder."""

from lesson.learn.data.dataset import Dataset, load_dataset

__all__ = ["Dataset", "load_dataset"]
