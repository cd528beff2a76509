"""Models on a GPU that are no longer finite. GPU events are faked, so a GPU is not needed."""

import math
from types import SimpleNamespace

import pytest
import torch

from lesson.core.errors import DivergedError
from lesson.learn.divergence import NewestCohort
from lesson.learn.results import Launched, LaunchedRound


def launched(values: dict[int, float]) -> Launched:
    """Return rounds whose models have these sums."""
    rounds = [
        LaunchedRound(sum=torch.tensor(value), newest_cohort=NewestCohort(None, number, ""))
        for number, value in values.items()
    ]
    return Launched([LaunchedRound(), *rounds])


@pytest.fixture
def chunk(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """A round without a model, two with finite ones and two with others."""
    pageable = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, dtype, **_: pageable(size, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None))
    chunk = launched({7: 0.0, 8: 1.0, 9: math.nan, 10: math.inf})
    chunk.begin_copy()
    return chunk


def test_first_model_that_is_not_finite_ends_the_results(chunk: Launched) -> None:
    results = chunk.results()
    assert len(results.rounds) == 3
    assert isinstance(results.error, DivergedError)


def test_model_that_is_not_finite_is_why_its_evaluation_failed(chunk: Launched) -> None:
    """As on a CPU, where the model is checked before it is evaluated."""
    chunk.rounds.pop()
    chunk.error = DivergedError("the loss is no longer finite")
    results = chunk.results()
    assert len(results.rounds) == 3
    assert "the model is no longer finite" in str(results.error)


def test_error_of_a_round_ends_the_results_before_it(chunk: Launched) -> None:
    del chunk.rounds[3:]
    chunk.error = RuntimeError()
    results = chunk.results()
    assert (len(results.rounds), results.error) == (2, chunk.error)
