"""Copies of objects for other processes: tensors are in shared memory, and everything else is pickled."""

import io
import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle
from torch import Tensor, nn

from lesson.core.errors import InputError, describe


@dataclass(frozen=True)
class Packed:
    """A pickled object, and the tensors in it."""

    content: bytes
    tensors: list[Tensor]

    def unpack(self) -> Any:
        """Return the object; it contains `tensors` themselves, not copies."""
        return _Unpickler(self).load()


def pack(value: Any) -> Packed:
    """Return an object for `torch.multiprocessing`; functions and classes of a notebook or script are included."""
    file, tensors = io.BytesIO(), dict[int, tuple[int, Tensor]]()
    try:
        _Pickler(file, tensors).dump(value)
    except Exception as error:  # what pickle raises depends on the object
        raise InputError(f"task cannot be copied into other processes: {describe(error)}") from error
    return Packed(file.getvalue(), [tensor.detach() for _, tensor in tensors.values()])


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def __init__(self, file: io.BytesIO, tensors: dict[int, tuple[int, Tensor]]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_id(self, value: Any) -> tuple[int, bool, bool] | None:
        """Return a tensor's number, whether it is a parameter, and whether it requires gradients; None otherwise."""
        if not isinstance(value, Tensor):
            return None
        number, _ = self._tensors.setdefault(id(value), (len(self._tensors), value))  # kept: ids are unique
        return number, isinstance(value, nn.Parameter), value.requires_grad


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: Packed) -> None:
        super().__init__(io.BytesIO(packed.content))
        self._tensors, self._made = packed.tensors, dict[int, Tensor]()

    def persistent_load(self, key: tuple[int, bool, bool]) -> Tensor:
        number, is_parameter, is_trained = key
        if number not in self._made:
            tensor = self._tensors[number]
            self._made[number] = nn.Parameter(tensor, is_trained) if is_parameter else tensor.requires_grad_(is_trained)
        return self._made[number]
