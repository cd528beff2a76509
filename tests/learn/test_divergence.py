"""Models that are no longer finite, found some rounds later. GPU events are faked, so a GPU is not needed."""

import math
from types import SimpleNamespace

import pytest
import torch

from lesson.core.errors import DivergedError
from lesson.learn.divergence import DeferredChecks, NewestCohort


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> DeferredChecks:
    pageable = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, dtype, **_: pageable(size, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None))
    return DeferredChecks()


def add_window(checks: DeferredChecks, values: dict[int, float]) -> None:
    for number, value in values.items():
        checks.add(torch.tensor([1.0, value]), number, NewestCohort(None, number, ""))
    checks.end_window()


def test_window_is_checked_after_the_next_one(checks: DeferredChecks) -> None:
    add_window(checks, {1: 0.0, 2: 0.0})
    assert checks.first_round == 1
    add_window(checks, {3: 0.0})
    assert checks.first_round == 3
    checks.synchronize()
    assert checks.first_round == math.inf


def test_first_failure_is_raised_again(checks: DeferredChecks) -> None:
    add_window(checks, {7: 0.0, 8: math.nan, 9: math.nan})
    with pytest.raises(DivergedError) as first:
        add_window(checks, {10: math.nan})
    with pytest.raises(DivergedError) as later:
        checks.synchronize()
    assert later.value is first.value
    assert checks.first_round == 8
