"""A run leaves torch's threads and glibc's malloc to its caller as they were."""

import ctypes
import multiprocessing
import platform
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.runs import PARTS, settings
from lesson.learn import process
from lesson.learn.process import configured_process
from lesson.runs.execute import execute


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may have settled this process for the rest of its life."""
    monkeypatch.setattr(process, "_users", process._Users())


LARGE = 900 << 20
"""Bytes of a block that glibc takes from the system and gives back at once, unless it is told to keep memory."""


def comes_from_the_system(size: int) -> bool:
    """Whether malloc maps a block of its own for so many bytes."""

    class Mallinfo(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", *"abcdef")]

    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes, libc.mallinfo2.restype = ctypes.c_void_p, [ctypes.c_void_p], Mallinfo
    before = libc.mallinfo2().hblks
    block = libc.malloc(ctypes.c_size_t(size))
    mapped = libc.mallinfo2().hblks > before
    libc.free(block)
    return bool(mapped)


def large_during_large_after_small_after() -> tuple[bool, bool, bool]:
    """Which blocks come from the system: a large one while the process is settled, and two afterwards."""
    with configured_process():
        during = comes_from_the_system(LARGE)
    return during, comes_from_the_system(LARGE), comes_from_the_system(4 << 20)


@pytest.fixture(autouse=True)
def three_threads(one_thread: None) -> None:
    torch.set_num_threads(3)


def test_a_run_restores_the_threads_of_its_caller(tmp_path: Path) -> None:
    during = []
    execute(settings(rounds=3), tmp_path / "run", progress=lambda _: during.append(torch.get_num_threads()), **PARTS)
    assert during == [1, 1, 1]
    assert torch.get_num_threads() == 3


def test_a_run_that_fails_restores_them_as_well(tmp_path: Path) -> None:
    def fail(line: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute(settings(rounds=3), tmp_path / "run", progress=fail, **PARTS)
    assert torch.get_num_threads() == 3


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left alone")
def test_memory_is_kept_during_a_run_and_given_back_after_it() -> None:
    """In a new process: the heap of one that has run other tests may have no room to grow."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        during, after, small = pool.submit(large_during_large_after_small_after).result()
    assert (during, after) == (False, True)
    assert not small, "arrays of a few megabytes would be slower than before"


def test_each_thread_gets_its_own_number_of_threads_back() -> None:
    """Two runs overlap, and the one that began first ends first."""
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
    assert torch.get_num_threads() == 3


def test_the_last_of_several_runs_restores_the_process() -> None:
    with configured_process():
        with configured_process():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
