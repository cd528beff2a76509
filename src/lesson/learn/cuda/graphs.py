"""Computations on fixed tensors, recorded once as a CUDA graph and replayed: no launch overhead, no waiting."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, TypeVar

import torch

Precision = Literal["tf32", "float32", "bfloat16"]
Result = TypeVar("Result")
_recording = threading.Lock()


class Graph(Generic[Result]):
    """A recorded computation with a stream of its own, so that several can run side by side."""

    def __init__(self, body: Callable[[], Result], precision: Precision) -> None:
        self.body = body  # keeps alive what was recorded as addresses only
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        self._graph = torch.cuda.CUDAGraph()
        with _recording, torch.cuda.stream(self.stream), arithmetic(precision):
            for _ in range(2):  # libraries choose and load what they need, kernels are compiled
                body()
            self.stream.synchronize()
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.out = body()
            finally:
                self._graph.capture_end()

    def replay(self) -> None:
        """Compute once more on the current stream what the fixed tensors now say."""
        self._graph.replay()


@contextlib.contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """How products are computed in what is recorded inside; always by algorithms that give the same bits each time."""
    cudnn: Any = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul
    flags: list[tuple[Any, str, Any]] = [(cudnn, "deterministic", True), (cudnn, "benchmark", False)]
    if hasattr(matmul, "fp32_precision"):
        kind = "ieee" if precision == "float32" else "tf32"
        flags += [(cudnn.conv, "fp32_precision", kind), (matmul, "fp32_precision", kind)]
    else:  # before torch 2.9
        flags += [(cudnn, "allow_tf32", precision != "float32"), (matmul, "allow_tf32", precision != "float32")]
    before = [getattr(place, name) for place, name, _ in flags]
    for place, name, value in flags:
        setattr(place, name, value)
    try:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False):
            yield
    finally:
        for (place, name, _), value in zip(flags, before, strict=True):
            setattr(place, name, value)


def padded_size(count: int) -> int:
    """A size that some counts share, so that few graphs serve all: at most an eighth above the count."""
    granule = 1 << max(0, count.bit_length() - 4)
    return -(-count // granule) * granule
