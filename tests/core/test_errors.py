"""Errors survive the way from a process to another."""

import pickle

from lesson.core.errors import ArgumentError


def test_an_argument_error_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(ArgumentError("num_processes", "must be >= 1, got 0")))
    assert str(error) == "num_processes must be >= 1, got 0"
    assert str(error.as_option()) == "--num-processes must be >= 1, got 0"
