"""From the updates of a merge to the work of cohorts."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lesson.core.arrays import FloatArray, IntArray
from lesson.learn.slots import slot_of_each
from lesson.learn.task import Work
from lesson.strategies.base import Merge, Updates


def cohorts_of(updates: Updates, weights: FloatArray, lr: FloatArray, merge: Merge) -> Iterator[tuple[int, str, Work]]:
    """The version each cohort started from, its slot, and its work; a cohort whose slots differ is divided by them.

    `weights` and `lr`, the step size, are those of each update. A step of several minibatches is the mean of as many
    models, each after a step of one of them.
    """
    names, slot = slot_of_each(updates, merge)
    order = np.lexsort((updates.index, updates.client, slot, updates.base_version))
    batches = updates.batches[order]
    shares, nothing = weights / updates.batches, np.zeros_like(updates.batches)
    everything = Work(updates.client, updates.index, lr, updates.local_steps, shares, nothing)
    order = np.repeat(order, batches)
    everything = replace(everything[order], first=_counts_up(batches))
    bases, slot = updates.base_version[order], slot[order]
    begins = [0, *(np.flatnonzero(np.diff(bases) | np.diff(slot)) + 1).tolist()]
    for begin, end in zip(begins, [*begins[1:], len(bases)], strict=True):
        if begin < end:
            yield int(bases[begin]), names[slot[begin]], everything[begin:end]


def _counts_up(lengths: IntArray) -> IntArray:
    """0 … n − 1 for every length n, one after the other."""
    numbers: IntArray = np.arange(lengths.sum())
    return numbers - np.repeat(np.cumsum(lengths) - lengths, lengths)
