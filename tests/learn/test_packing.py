"""Objects for other processes."""

from typing import Any

import torch
from torch import Tensor

from lesson.learn.sharing import pack


class Stored:
    """Stores its number as a tensor that exists only while it is pickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return torch.full((3,), float(self.number))

    def __setstate__(self, state: Tensor) -> None:
        self.number = int(state[0])


def test_tensors_that_exist_only_while_an_object_is_pickled_are_not_mixed_up() -> None:
    assert [one.number for one in pack(list(map(Stored, range(6)))).unpack()] == list(range(6))
