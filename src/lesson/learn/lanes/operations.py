"""Operations of several lanes, executed together."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from lesson.core.arrays import BoolArray
from lesson.learn.device import event, to_device
from lesson.learn.lanes.program import NO_SLOT, SLOTS_OF_OP, SUM, Operations, Wave
from lesson.learn.lanes.rows import OpenLane
from lesson.learn.lanes.slots import Slots
from lesson.learn.optimizers import OPTIMIZERS
from lesson.settings.sections import ServerSettings


def execute(slots: Slots, work: Sequence[tuple[OpenLane, Wave]], device: str) -> Callable[[], list[list[bool]]]:
    """Execute the operations of all waves; return a function that returns whether their results are finite."""
    sizes = [len(wave.operations.numbers) for _, wave in work]
    bounds = np.array([0, *accumulate(sizes)])
    if not bounds[-1]:
        return lambda: [[] for _ in work]
    operations = _joined(work)
    if device == "cpu":
        infinite = _execute_plainly(slots.vectors, operations)
        return lambda: [part.tolist() for part in np.split(~infinite, bounds[1:-1])]
    from lesson.learn.cuda import operations as kernels

    numbers, reals, terms, factors = operations
    whole = (bounds, numbers, reals.view(np.int64), terms, factors.view(np.int64))
    on_device = to_device(np.concatenate([one.reshape(-1) for one in whole]), "cuda")
    there = on_device.split([one.size for one in whole])
    flags = kernels.execute(
        slots.addresses,
        slots.length,
        there[0],
        there[1].view(numbers.shape),
        there[2].view(torch.float64),
        there[3],
        there[4].view(torch.float64),
    )
    copied = torch.empty(len(flags), dtype=torch.int32, pin_memory=True)
    copied.copy_(flags, non_blocking=True)
    ended = event("cuda")

    def finite() -> list[list[bool]]:
        ended.synchronize()
        return [part.tolist() for part in np.split(copied.numpy() == 0, bounds[1:-1])]

    return finite


def _joined(work: Sequence[tuple[OpenLane, Wave]]) -> Operations:
    """Return the operations of several lanes, with slots of the machine."""
    parts, num_slots, num_terms = list[Operations](), len(SLOTS_OF_OP), 0
    for lane, wave in work:
        numbers, reals, slots, factors = wave.operations
        moved = numbers.copy()
        moved[:, :num_slots] = lane.slots[numbers[:, :num_slots]]
        moved[:, -1] += num_terms
        num_terms += len(slots)
        parts.append(Operations(moved, reals, lane.slots[slots], factors))
    return Operations(*map(np.concatenate, zip(*parts, strict=True)))


def _execute_plainly(vectors: Sequence[Tensor], operations: Operations) -> BoolArray:
    """Execute operations one by one, by the formulas of optimizers.py; return which results are not finite."""
    functions, begin, infinite = list(OPTIMIZERS.values()), 0, list[bool]()
    for row, reals in zip(operations.numbers.tolist(), operations.reals.tolist(), strict=True):
        to, model, m, v, v_max, new_m, new_v, new_v_max, kind, end = row
        total = torch.zeros(vectors[to].shape, dtype=torch.float64)
        for slot, factor in zip(operations.slots[begin:end].tolist(), operations.factors[begin:end], strict=True):
            total += float(factor) * vectors[slot].double()
        begin = end
        if kind != SUM:
            moments = {"m": m, "v": v, "v_max": v_max}
            given = {name: vectors[slot].double() for name, slot in moments.items() if slot != NO_SLOT}
            eta, beta1, beta2, epsilon = reals
            server = ServerSettings(beta1=beta1, beta2=beta2, epsilon=epsilon)
            total, made = functions[kind - 1](vectors[model].double(), total, given, server, eta)
            for name, slot in zip(("m", "v", "v_max"), (new_m, new_v, new_v_max), strict=True):
                if slot != NO_SLOT:
                    vectors[slot].copy_(made[name])
        vectors[to].copy_(total)
        infinite.append(not bool(vectors[to].isfinite().all()))
    return np.array(infinite)
