"""Minibatches for CUDA graphs: they are padded, so their shape does not depend on what is drawn."""

import torch
from torch import Tensor

from lesson.learn.dropout import draw_kept
from lesson.learn.models import Replica
from lesson.learn.task import Ids, Task, scaled


def gathered(
    task: Task, replica: Replica, ids: Ids, padded: Tensor, places: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return images, labels and dropout factors of padded minibatches, shape (num_updates, width), flattened.

    Padding is replaced by an arbitrary image. `places` has the positions of the samples among all samples of their
    update. The dropout factors are None for a model without dropout.
    """
    samples, kept = padded.clamp(min=0).flatten(), None
    if replica.num_dropout_units:
        client, index = ids
        rows = torch.broadcast_tensors(client[:, None], index[:, None], places)
        kept = draw_kept(task.seed, replica.num_dropout_units, *(row.flatten() for row in rows))
    return scaled(task.train_images[samples]), task.train_labels[samples], kept
