"""Recorded vectors, and the programs that they become."""

import pickle
from typing import Any, cast

import numpy as np
import pytest
from torch import Tensor

from helpers.trainers import make_cohort
from lesson.learn.aggregate import GroupVectors
from lesson.learn.lanes.program import NO_SLOT, Program
from lesson.learn.lanes.vectors import Recorder, Vector
from lesson.settings.sections import ServerSettings
from lesson.strategies.base import GroupMemory


def numbers(vector: Vector) -> dict[int, float]:
    """Return the factor of each slot."""
    return {slot.number: factor for slot, factor in vector.terms.items()}


def test_vectors_are_combinations_of_slots() -> None:
    """0.5·(a + 2·b − a) + b − 2·b = 0: terms that cancel out disappear."""
    recorder = Recorder(3, 20)
    a, b = recorder.new(), recorder.new()
    total = a.new_zeros((3,))
    total += a
    total += 2 * b
    total -= a
    assert numbers(total) == {1: 2.0}
    assert numbers(0.5 * total + b - b * 2) == {}
    assert numbers(total + 0.0) == {1: 2.0}
    assert (numbers(a), len(total), total.shape) == ({0: 1.0}, 3, (3,))


def test_slots_are_used_again_as_soon_as_no_vector_needs_them() -> None:
    recorder = Recorder(3, 20)
    a, b = recorder.new(), recorder.new()
    both = a + b
    del a, b
    assert recorder.new().slot.number == 2
    assert recorder.store(both).slot.number == 2
    del both
    assert {recorder.new().slot.number, recorder.new().slot.number} <= {0, 1, 2}
    assert recorder.num_slots == 3


def test_groups_are_added_in_an_order_that_survives_a_resume() -> None:
    """The order matters for rounding, but not for equality."""
    recorder = Recorder(3, 20)
    model = cast(Tensor, recorder.new())
    begun, total = GroupVectors(model), GroupMemory((), {}, previous_total=0.5)
    for names in ("abc", "a"):
        begun.merge(model, {name: cast(Tensor, recorder.new()) for name in names}, total, "updates")
    resumed = GroupVectors(model)
    resumed.filled = dict(begun.filled)
    one, other = (cast(Vector, groups.merge(model, {}, total, "updates")) for groups in (begun, resumed))
    assert list(one.terms) == list(other.terms)


def rows_of(program: Program, size: int) -> Any:
    """Return the only rows of a program that have so many clients."""
    (wave,) = program.waves
    (rows,) = [rows for rows in wave.rows if rows.scale.shape[1] == size]
    return rows


def test_clients_of_a_cohort_share_rows() -> None:
    """With 20 samples each, five share a row. Of 12 clients, two are left over; of 9, four fill most of another row."""
    recorder = Recorder(3, 20)
    base = recorder.new()
    cohorts = [make_cohort(cast(Tensor, base), num) for num in (12, 9)]
    sums = recorder.train("gradients", cohorts)
    program = recorder.take_program()
    packed, single = rows_of(program, 5), rows_of(program, 1)
    assert packed.numbers[0].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [0, 1, 2, 3, 4], [5, 6, 7, 8, 0]]
    assert single.numbers[0].tolist() == [[10], [11]]
    assert packed.scale[3, 4] == 0.0
    expected = cohorts[0].weight * cohorts[0].lr
    assert np.concatenate([packed.scale[:2].ravel(), single.scale.ravel()]) == pytest.approx(expected)
    gradients = {*packed.slots[1, :2].tolist(), *single.slots[1].tolist()}
    assert numbers(sums[0]) == pytest.approx({0: cohorts[0].weight.sum()} | dict.fromkeys(gradients, -1.0))


def test_models_are_summed_with_their_weights() -> None:
    recorder = Recorder(3, 20)
    cohort = make_cohort(cast(Tensor, recorder.new()), 3, steps=4)
    (total,) = recorder.train("models", [cohort])
    rows = rows_of(recorder.take_program(), 1)
    assert rows.numbers[4].ravel().tolist() == [4, 4, 4]
    assert rows.scale.ravel().tolist() == cohort.lr.tolist()
    assert numbers(total) == dict(zip(rows.slots[1].tolist(), cohort.weight.tolist(), strict=True))


def test_programs_are_copied_whole() -> None:
    """Two waves: training, a sum, an optimizer and an evaluation; and training of models."""
    recorder = Recorder(3, 20)
    base = recorder.new()
    (total,) = recorder.train("gradients", [make_cohort(cast(Tensor, base), 12)])
    stored = recorder.store(total)
    server = ServerSettings(optimizer="adam", beta1=0.5)
    model, _ = recorder.optimizers["adam"](base, base - stored, {}, server, 0.25)
    assert recorder.score(cast(Vector, model)) == 0
    recorder.train("models", [make_cohort(cast(Tensor, model), 2)])
    program = recorder.take_program()
    copied: Program = pickle.loads(pickle.dumps(program))
    assert copied.num_slots == recorder.num_slots
    for one, other in zip(program.waves, copied.waves, strict=True):
        assert (one.kind, list(one.scores)) == (other.kind, list(other.scores))
        arrays = [[*wave.operations, *(array for rows in wave.rows for array in rows)] for wave in (one, other)]
        for mine, theirs in zip(*arrays, strict=True):
            assert np.array_equal(mine, theirs)
    operations = copied.waves[0].operations
    assert operations.numbers[0, 1:8].tolist() == [NO_SLOT] * 7
    assert operations.numbers[1, 8:].tolist() == [3, len(operations.slots)]
    assert operations.reals[1].tolist() == [0.25, 0.5, server.beta2, server.epsilon]
