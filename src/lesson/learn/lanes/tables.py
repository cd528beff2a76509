"""Who holds what, and the keys of random numbers, for all lanes: tables on the device that graphs read."""

import torch
from torch import Tensor

from lesson.learn.minibatch import Keys, Sampler
from lesson.learn.partition import Holdings, Lookup, Partition


class LaneTables:
    """Tables with one row per lane. They have a fixed place, since graphs know them by address."""

    def __init__(self, num_lanes: int, batch_size: int, epochs: bool, device: str) -> None:
        self.num_lanes, self._batch_size, self._epochs, self._device = num_lanes, batch_size, epochs, device
        self._keys = torch.zeros(len(Keys._fields), 2, num_lanes, dtype=torch.int64, device=device)
        self._sizes = self._offsets = self._samples = torch.empty(num_lanes, 0, dtype=torch.int64, device=device)

    def reserve(self, num_clients: int, num_samples: int) -> bool:
        """Make room for lanes of this size; return whether the tables moved, so that graphs must be recorded again."""
        too_small = num_clients > self._sizes.shape[1] or num_samples > self._samples.shape[1]
        if too_small:
            num_clients, num_samples = _rounded(num_clients), _rounded(num_samples)
            self._sizes, self._offsets, self._samples = (  # none of them if memory does not suffice for all
                self._widened(self._sizes, num_clients),
                self._widened(self._offsets, num_clients),
                self._widened(self._samples, num_samples),
            )
        return too_small

    def set(self, lane: int, holdings: Holdings, seed: int) -> None:
        """Fill the row of a lane; `reserve` must have made room."""
        num_clients = len(holdings.num_samples)
        if not isinstance(holdings, Partition):
            holdings = Partition.of([holdings[client] for client in range(num_clients)])
        self._sizes[lane, :num_clients] = torch.from_numpy(holdings.num_samples)
        self._offsets[lane, :num_clients] = torch.from_numpy(holdings.offsets[:-1])
        self._samples[lane, : len(holdings.samples)] = torch.from_numpy(holdings.samples)
        self._keys[:, :, lane] = torch.tensor(Keys.of(seed))

    def sampler(self, lane: Tensor) -> Sampler:
        """Return a sampler for clients of these lanes, shape (num_clients,); it reads the tables when it draws."""
        keys = Keys(*((one[0, lane], one[1, lane]) for one in self._keys))

        def samples(clients: Tensor, at: Tensor) -> Tensor:
            return self._samples[lane[:, None], self._offsets[lane, clients][:, None] + at]

        lookup = Lookup(self._device, lambda clients: self._sizes[lane, clients], samples)
        return Sampler(lookup, self._batch_size, self._epochs, keys, self._batch_size, self._samples.shape[1])

    def _widened(self, table: Tensor, width: int) -> Tensor:
        wider = table.new_zeros(self.num_lanes, max(width, table.shape[1]))
        wider[:, : table.shape[1]] = table
        return wider


def _rounded(count: int) -> int:
    """Return the next power of two, so that tables seldom move."""
    return 1 << (count - 1).bit_length()
