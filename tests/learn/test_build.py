import numpy as np
import pytest

from helpers.small_tasks import tiny_task
from lesson import Settings, draw_population
from lesson.learn.build import build


def test_the_partition_uses_the_population_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lesson.learn.partition.find_clients", None)
    settings = Settings(
        num_clients=5, split="dirichlet-per-client", samples_per_client=(10, 30), run={"rounds": 1, "device": "cpu"}
    )
    run = build(settings, task=tiny_task())
    run.close()
    drawn = draw_population(settings)
    assert np.array_equal(run.evaluator.workload.holdings.num_samples, drawn.num_samples)
    assert run.loop.fleet.population is not None
    assert np.array_equal(run.loop.fleet.population.x_km, drawn.x_km)
