"""A run config of Flower, and what is wrong with it in one line."""

import math
from typing import Any

import pytest

from lesson import InputError
from lesson.flower.config import DEFAULTS, check_config, deadline_of, settings_of


def test_what_is_left_out_is_as_usual() -> None:
    assert check_config({}) == DEFAULTS
    assert check_config({"rounds": 3})["rounds"] == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"strateg": "lesson"}, "unknown run config 'strateg'; did you mean 'strategy'? Available: beta, clock"),
        ({"rounds": 2.5}, "rounds must be a whole number such as 0, got 2.5"),
        ({"rounds": "3"}, "rounds must be a whole number such as 0, got '3'"),
        ({"rounds": True}, "rounds must be a whole number such as 0, got True"),
        ({"strategy": 3}, "strategy must be a string such as 'lesson', got 3"),
        ({"beta": "1"}, "beta must be a number such as 1.0, got '1'"),
        ({"beta": False}, "beta must be a number such as 1.0, got False"),
        ({"resume": 1}, "resume must be true or false such as False, got 1"),
        ({"resume": "true"}, "resume must be true or false such as False, got 'true'"),
        ({"clock": "sundial"}, "unknown clock 'sundial'; available: auto, virtual, wall"),
        ({"clock": "vritual"}, "unknown clock 'vritual'; did you mean 'virtual'? Available: auto, virtual, wall"),
        ({"deadline": "soon"}, "deadline must be a number of seconds > 0 or 'auto', got 'soon'"),
        ({"deadline": True}, "deadline must be a number of seconds > 0 or 'auto', got True"),
        ({"deadline": 0}, "deadline must be a number of seconds > 0 or 'auto', got 0"),
        ({"deadline": "-3"}, "deadline must be a number of seconds > 0 or 'auto', got '-3'"),
        ({"deadline": "nan"}, "deadline must be a number of seconds > 0 or 'auto', got 'nan'"),
    ],
)
def test_bad_run_configs_are_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_config(config)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "deadline_s"), [("auto", None), (20, 20.0), (0.5, 0.5), ("7.5", 7.5), ("inf", math.inf)]
)
def test_deadlines(given: Any, deadline_s: float | None) -> None:
    assert deadline_of(check_config({"deadline": given})) == deadline_s


def test_the_settings_of_a_run() -> None:
    config = {"strategy": "fedbuff", "deadline": 15, "rounds": 4, "eval-every": 50, "beta": 2, "seed": 7}
    config |= {"set": "strategy.buffer_size=3 'strategy.concurrency=2' training.batch_size=5"}
    settings = settings_of(check_config(config), 6)
    run = settings.run
    assert (
        settings.fleet.num_clients,
        settings.strategy.deadline_s,
        settings.data.beta,
        settings.training.batch_size,
    ) == (6, 15.0, 2.0, 5)
    assert (settings.strategy.name, settings.strategy.options) == ("fedbuff", {"buffer_size": 3, "concurrency": 2})
    assert (run.rounds, run.eval_every_s, run.seed, run.device) == (4, 50.0, 7, "cpu")
    usual = settings_of(check_config({}), 6).run
    assert (usual.rounds, usual.time_budget_s) == (
        None,
        settings_of(check_config({"time-budget": 0}), 6).run.time_budget_s,
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"strategy": "leson"}, "did you mean 'lesson'?"),
        ({"scenario": "nowhere"}, "nowhere"),
        ({"dataset": "minst"}, "minst"),
        ({"set": "training.batch_size=0"}, "batch_size"),
        ({"set": "nonsense"}, "nonsense"),
        ({"set": "'open"}, "set"),
        ({"rounds": -1}, "rounds"),
        ({"time-budget": -5.0}, "time_budget_s"),
    ],
)
def test_settings_that_cannot_be_are_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        settings_of(check_config(config), 6)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
