import dataclasses
import importlib
import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Machines that run tests are shared and noisy: how long an example takes says nothing.
settings.register_profile("lesson", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("lesson")

pytest.register_assert_rewrite("helpers")  # so that assertions there show their values, as those of tests do

# Background jobs of a script ignore SIGINT, and so would every process that a test starts in order to interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the long tests first, so that no worker is left alone with one at the end.

    Those are tests with a marker, then those of the whole program, which are in no subfolder.
    """

    def rank(item: pytest.Item) -> tuple[bool, ...]:
        marked = (item.get_closest_marker(name) is None for name in ("deployment", "slow"))
        return (*marked, item.path.parent != Path(__file__).parent)

    items.sort(key=rank)


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skip without a GPU; LESSON_GPU=required makes that an error."""
    import torch

    if torch.cuda.is_available():
        return
    if os.environ.get("LESSON_GPU") == "required":
        pytest.fail("LESSON_GPU=required, but torch sees no GPU")
    pytest.skip("torch sees no GPU")


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Run a test on the CPU, and on a GPU if there is one."""
    if request.param == "cuda":
        request.getfixturevalue("gpu")
    return str(request.param)


@pytest.fixture
def round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks of one round; otherwise, a short run is a single chunk, with all lines at its end."""
    from lesson.learn.backend import ChunkRule
    from lesson.learn.cpu import CpuBackend

    monkeypatch.setattr(CpuBackend, "rule", ChunkRule())


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as a site."""
    pytest.importorskip("zensical")
    build_site = importlib.import_module("build_site")
    folder = tmp_path_factory.mktemp("site")
    assert build_site.build(folder / "site", folder / "staged") == 0
    return folder / "site"


@cache
def _few_test_images_of(name: str, data_dir: Path | str | None) -> Any:
    from lesson.learn.data import load_samples

    data = load_samples(name, data_dir)
    return dataclasses.replace(data, test_inputs=data.test_inputs[:200], test_targets=data.test_targets[:200])


@pytest.fixture(scope="module")
def few_test_images() -> Iterator[None]:
    """Models are evaluated on 200 images: on all 10,000 of MNIST, that takes longer than the rest of a short run.

    Only in this process: do not compare accuracies with those of another.
    """
    from lesson.learn import tasks

    tasks._task.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "load_samples", _few_test_images_of)
        yield
    tasks._task.cache_clear()


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """One torch thread for tests of numbers: those of learning and of Flower."""
    if not {"learn", "flower"} & set(Path(request.path).parts):
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
