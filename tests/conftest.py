from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Machines that run tests are shared and noisy: how long an example takes says nothing.
settings.register_profile("lesson", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("lesson")


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
