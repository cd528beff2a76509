"""Which engine is made of which options, and which options are rejected."""

import math
from typing import Any

import pytest

from helpers.small_tasks import tiny_task
from lesson import InputError
from lesson.experiments.engines import InProcessEngine, LocalEngine, RayEngine, make_engine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "rai"}, "unknown engine 'rai'; did you mean 'ray'?"),
        ({"cpus_per_trial": 0}, "cpus_per_trial must be >= 1, got 0"),
        ({"name": "ray", "gpus_per_trial": -1.0}, "gpus_per_trial must be >= 0, got -1.0"),
        ({"name": "ray", "gpus_per_trial": math.nan}, "gpus_per_trial must be >= 0, got nan"),
        ({"name": "ray", "gpus_per_trial": math.inf}, "gpus_per_trial must be >= 0, got inf"),
        ({"seconds": -1.0}, "seconds must be >= 0, got -1"),
        ({"seconds": math.nan}, "seconds must be >= 0, got nan"),
        ({"address": "auto"}, "address requires the engine ray"),
        ({"gpus_per_trial": 0.5}, "gpus_per_trial requires the engine ray"),
        ({"seconds": 10.0, "name": "ray"}, "engine must be local for a time limit"),
    ],
)
def test_wrong_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        make_engine(**options)
    assert str(error.value).startswith(message)


def test_the_options_select_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single process is this one, unless it has to stop in time."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    shared = make_engine(cpus_per_trial=3)
    assert isinstance(shared, LocalEngine)
    assert (shared.num_processes, shared.stop_at_s) == (2, math.inf)
    assert isinstance(make_engine(num_processes=1), InProcessEngine)
    limited = make_engine(num_processes=1, seconds=3600.0)
    assert isinstance(limited, LocalEngine)
    assert 3000 < limited.left_s <= 3600
    ray = make_engine("ray", address="auto", cpus_per_trial=2, gpus_per_trial=0.25)
    assert isinstance(ray, RayEngine)
    assert (ray.address, ray.cpus_per_trial, ray.gpus_per_trial) == ("auto", 2, 0.25)


def test_every_engine_takes_your_own_task() -> None:
    task = tiny_task()
    engines = [make_engine(task=task, num_processes=number) for number in (1, 2)] + [make_engine("ray", task=task)]
    assert [type(engine) for engine in engines] == [InProcessEngine, LocalEngine, RayEngine]
    assert all(engine.task is task for engine in engines)  # type: ignore[attr-defined]
