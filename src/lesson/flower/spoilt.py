"""What a client of Flower sends where uploads go wrong on purpose: as the simulator's clients do, by the same draws."""

import numpy as np
from flwr.app import Array, ArrayRecord

from lesson.flower.arrays import Layout, Vector
from lesson.settings.faults import WrongUploads


def spoilt(layout: Layout, base: Vector, vector: Vector, wrong: WrongUploads, client: int, index: int) -> ArrayRecord:
    """The arrays of an upload: those of the vector that training made of the base, with what is wrong with them."""
    who, which = np.array([client]), np.array([index])
    factor, filling = wrong.factor(who, which)[0], wrong.filling(who, which)[0]
    if factor != 1:
        vector = base + factor.astype(base.dtype) * (vector - base)
    if filling != 0:
        vector = vector.copy()
        vector[wrong.place(who, which, len(vector))[0]] += filling
    record = layout.record(vector)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    spoilt_shapes = wrong.shapes(client, index, shapes)
    for name, shape in shapes.items():
        sent = spoilt_shapes.get(name)
        if sent is None:
            del record[name]
        elif sent != shape:
            record[name] = Array(np.resize(record[name].numpy(), sent))
    return record
