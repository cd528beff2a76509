"""Minibatches for CUDA graphs: they are padded, so their shape does not depend on what is drawn."""

from typing import Any

import torch
from torch import Tensor

from lesson.learn.dropout import draw_kept
from lesson.learn.template import Replica
from lesson.learn.workload import Ids, Workload


def gathered(
    workload: Workload, replica: Replica, ids: Ids, padded: Tensor, places: Tensor
) -> tuple[Any, Any, Tensor | None]:
    """Return inputs, targets and dropout factors of padded minibatches, shape (num_updates, width), flattened.

    Padding is replaced by an arbitrary sample. `places` has the positions of the samples among all samples of their
    update. The dropout factors are None for a model without `num_dropout_units`.
    """
    samples, kept = padded.clamp(min=0).flatten(), None
    if replica.num_dropout_units:
        client, index = ids
        rows = torch.broadcast_tensors(client[:, None], index[:, None], places)
        kept = draw_kept(workload.seed, replica.num_dropout_units, *(row.flatten() for row in rows))
    return *workload.samples(samples), kept
