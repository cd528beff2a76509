"""A run restores the number of torch's threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.runs import PARTS, settings
from lesson.learn.process import configured_process
from lesson.runs.execute import execute


@pytest.fixture(autouse=True)
def three_threads(one_thread: None) -> None:
    torch.set_num_threads(3)


def test_run_restores_the_threads_of_its_caller_even_if_it_fails(tmp_path: Path) -> None:
    during = []

    def fail(line: dict[str, Any]) -> None:
        during.append(torch.get_num_threads())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute(settings(rounds=3), tmp_path / "run", progress=fail, **PARTS)
    assert during == [1]
    assert torch.get_num_threads() == 3


def test_overlapping_runs_restore_their_own_threads() -> None:
    """The one that began first ends first."""
    began, may_end = threading.Event(), threading.Event()

    def other_run() -> tuple[int, int]:
        torch.set_num_threads(2)
        with configured_process():
            began.set()
            may_end.wait(60)
            during = torch.get_num_threads()
        return during, torch.get_num_threads()

    with ThreadPoolExecutor(1) as pool:
        with configured_process():
            other = pool.submit(other_run)
            assert began.wait(60)
        ours = torch.get_num_threads()
        may_end.set()
        assert (ours, other.result()) == (3, (1, 2))
