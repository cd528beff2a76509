"""Minibatches as a graph can take them: padded, so that their shape does not depend on what is drawn."""

import torch
from torch import Tensor

from lesson.learn.dropout import draw_kept
from lesson.learn.models import Replica
from lesson.learn.task import Ids, Task, scaled


def gathered(
    task: Task, replica: Replica, ids: Ids, padded: Tensor, places: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Images, labels and dropout factors of minibatches, (num_updates, batch_size), in a row; some image for padding.

    `places` are those of a minibatch's samples among all of their update.
    """
    samples, kept = padded.clamp(min=0).flatten(), None
    if replica.num_dropout_units:
        client, index = ids
        rows = torch.broadcast_tensors(client[:, None], index[:, None], places)
        kept = draw_kept(task.seed, replica.num_dropout_units, *(row.flatten() for row in rows))
    return scaled(task.train_images[samples]), task.train_labels[samples], kept
