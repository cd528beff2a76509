"""The machine computes what the reference computes; on a GPU, whatever the other lanes are."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.small_tasks import TinyNet, image_workload, tiny_data
from helpers.trainers import random_cohorts
from lesson import Settings
from lesson.learn.cohort import Cohort
from lesson.learn.lanes.machine import Machine
from lesson.learn.lanes.program import Kind, Wave
from lesson.learn.lanes.rows import OpenLane
from lesson.learn.lanes.vectors import Recorder, Vector
from lesson.learn.optimizers import OPTIMIZERS
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.workload import Workload
from lesson.settings.sections import ServerSettings


def workload(seed: int, device: str = "cpu", **training: Any) -> Workload:
    chosen = Settings(split="iid", training={"batch_size": 5, **training})
    return image_workload(chosen, tiny_data(), 8, seed, TinyNet, device)


class RecordedLane:
    """A lane of a machine, and the recorder of its programs."""

    def __init__(self, machine: Machine, of: Workload) -> None:
        self.machine, self.recorder = machine, Recorder(of.template.num_values, of.batch_size)
        self.lane: OpenLane = machine.open(of.holdings, of.seed)

    def put(self, values: Tensor) -> Vector:
        """Return values as a vector of the lane."""
        vector = self.recorder.new()
        self.lane = self.machine.widened(self.lane, self.recorder.num_slots)
        self.machine.put(self.lane, np.array([vector.slot.number]), [values.numpy()])
        return vector

    def train(self, kind: Kind, cohorts: Sequence[Cohort]) -> list[Vector]:
        """Record the training of cohorts whose bases are tensors; return the stored sums."""
        moved = [cohort_with(cohort, self.put(cohort.base)) for cohort in cohorts]
        return [self.recorder.store(total) for total in self.recorder.train(kind, moved)]

    def waves(self) -> list[Wave]:
        """Return the waves that have been recorded."""
        program = self.recorder.take_program()
        self.lane = self.machine.widened(self.lane, program.num_slots)
        return list(program.waves)

    def get(self, vector: Vector) -> Tensor:
        return self.machine.get(self.lane, np.array([vector.slot.number]))[0].cpu()


def cohort_with(cohort: Cohort, base: Vector) -> Cohort:
    columns = {name: getattr(cohort, name) for name in cohort.__dataclass_fields__}
    return Cohort(**columns | {"base": cast(Tensor, base)})


@pytest.mark.parametrize(
    ("kind", "training"),
    [
        ("gradients", {}),
        ("models", {}),
        ("models", {"momentum": 0.9, "proximal_mu": 0.1}),
        ("models", {"local_epochs": 2}),
    ],
    ids=str,
)
def test_lanes_agree_with_the_reference(kind: Kind, training: dict[str, Any], device: str) -> None:
    """Two lanes with different clients and random numbers train cohorts in one wave."""
    machine = Machine(workload(9, device, **training), "float32", 3)
    lanes = [RecordedLane(machine, workload(seed, **training)) for seed in (0, 1)]
    given, expected = list[tuple[RecordedLane, list[Vector]]](), list[list[Tensor]]()
    for seed, lane in enumerate(lanes):
        own = workload(seed, **training)
        cohorts = random_cohorts(own, [1, 7, 30], seed, max_steps=1 if kind == "gradients" else 4)
        given.append((lane, lane.train(kind, cohorts)))
        expected.append(ReferenceTrainer(own).sums(cohorts))
    waves = [lane.waves() for lane in lanes]
    assert [len(one) for one in waves] == [1, 1]
    executed = machine.execute([(lane.lane, wave) for lane, (wave,) in zip(lanes, waves, strict=True)])
    assert executed.finite() == [[True] * 3] * 2
    for (lane, sums), wanted in zip(given, expected, strict=True):
        for vector, reference in zip(sums, wanted, strict=True):
            assert (lane.get(vector) - reference).norm() < 1e-5 * reference.norm()
    machine.release()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_operations_agree_with_the_formulas(name: str, device: str) -> None:
    """Two steps of a server optimizer, the second one with the moments of the first, and a sum that overflows."""
    machine, server = Machine(workload(9, device), "float32", 1), ServerSettings(optimizer=name, epsilon=0.01)
    lane = RecordedLane(machine, workload(0))
    generator = torch.Generator().manual_seed(0)
    length = workload(0).template.num_values
    model, *gradients = (torch.randn(length, generator=generator) for _ in range(3))
    recorded, *given, large = map(lane.put, (model, *gradients, torch.full((length,), 3e38)))
    moments, wanted, kept = {}, model, {}
    for gradient, vector in zip(gradients, given, strict=True):
        aggregated = recorded - vector
        stepped, moments = lane.recorder.optimizers[name](recorded, recorded - aggregated, moments, server, 0.1)
        recorded = cast(Vector, stepped)
        wanted, kept = OPTIMIZERS[name](wanted, gradient, kept, server, 0.1)
    lane.recorder.store(large + large)
    (wave,) = lane.waves()
    assert machine.execute([(lane.lane, wave)]).finite() == [[True, True, False]]
    assert (lane.get(recorded) - wanted).abs().max() < 1e-5
    for key, value in kept.items():
        assert (lane.get(cast(Vector, moments[key])) - value).abs().max() < 1e-5
    machine.release()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("kind", ["gradients", "models"])
def test_rows_do_not_depend_on_other_lanes(kind: Kind) -> None:
    """A lane has the same bits alone and with others, whose rows come before its own and fill several graphs."""
    results = list[list[Tensor]]()
    for others in (0, 1, 5):
        machine = Machine(workload(9, "cuda"), "tf32", 8)
        lanes = [RecordedLane(machine, workload(seed)) for seed in [*range(1, others + 1), 0]]
        sums = [
            lane.train(kind, random_cohorts(workload(0), [1, 7, 30, 100], seed))
            for seed, lane in enumerate(lanes[::-1])
        ][::-1]
        work = [(lane, wave) for lane in lanes for wave in lane.waves()]
        machine.execute([(lane.lane, wave) for lane, wave in work])
        results.append([lanes[-1].get(vector) for vector in sums[-1]])
        machine.release()
    for given in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(given, results[0], strict=True))
