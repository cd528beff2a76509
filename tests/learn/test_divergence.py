"""Models that are no longer finite. GPU events are faked, so that these tests run without a GPU."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lesson.core.errors import DivergedError
from lesson.learn import divergence
from lesson.learn.divergence import DeferredChecks, NewestCohort


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> DeferredChecks:
    """Deferred checks on the CPU, with fake GPU events."""
    there = torch.empty

    def empty(*size: int, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        return there(*size, dtype=dtype)

    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    monkeypatch.setattr(divergence.torch, "empty", empty)
    monkeypatch.setattr(divergence.torch.cuda, "Event", lambda: event)
    return DeferredChecks()


def add_window(checks: DeferredChecks, values: dict[int, float]) -> None:
    for number, value in values.items():
        checks.add(torch.tensor([1.0, value]), number, NewestCohort(None, number, ""))
    checks.end_window()


def caught(call: Any) -> DivergedError:
    with pytest.raises(DivergedError) as error:
        call()
    return error.value


def test_the_sums_of_a_window_are_read_after_the_next_one(checks: DeferredChecks) -> None:
    add_window(checks, {1: 0.0, 2: 0.0})
    assert checks.first_round == 1
    add_window(checks, {3: 0.0})
    assert checks.first_round == 3
    checks.settle()
    assert checks.first_round == math.inf


def test_the_first_failure_stays_the_first(checks: DeferredChecks) -> None:
    """Models of later rounds are not finite either, but the first error stands."""
    add_window(checks, {7: 0.0, 8: math.nan, 9: math.nan})
    first = caught(lambda: add_window(checks, {10: math.nan}))
    assert checks.first_round == 8
    assert caught(checks.settle) is first
    assert caught(lambda: add_window(checks, {11: math.inf})) is first
    assert checks.first_round == 8
