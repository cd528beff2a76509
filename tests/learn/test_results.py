"""Models on a GPU that are no longer finite. GPU events are faked, so a GPU is not needed."""

import math
from types import SimpleNamespace

import pytest
import torch

from lesson.core.errors import DivergedError
from lesson.learn.divergence import NewestCohort
from lesson.learn.results import Launched, LaunchedRound, Results


def launched(values: dict[int, float]) -> Launched:
    """Return rounds whose models have these sums."""
    rounds = [
        LaunchedRound(sum=torch.tensor(value), newest_cohort=NewestCohort(None, number, ""))
        for number, value in values.items()
    ]
    return Launched([LaunchedRound(), *rounds])


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Results:
    """Of a round without a model, two finite ones and two that are not."""
    pageable = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, dtype, **_: pageable(size, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None))
    chunk = launched({7: 0.0, 8: 1.0, 9: math.nan, 10: math.inf})
    chunk.begin_copy()
    return chunk.results()


def test_first_model_that_is_not_finite_ends_the_results(results: Results) -> None:
    assert len(results.rounds) == 3
    assert isinstance(results.error, DivergedError)
