"""Computations on fixed tensors that are recorded once as a CUDA graph and replayed without launch overhead."""

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.learn.device import lacks_memory

Precision = Literal["tf32", "float32", "bfloat16"]
Result = TypeVar("Result")
NUM_BUFFERS = 64
_RECORDING = threading.Lock()  # threads share the stream on which graphs are recorded


class Graph(Generic[Result]):
    """A recorded computation. Graphs that never run concurrently may share a memory pool.

    On a CPU, nothing is recorded: the function is called each time.
    """

    def __init__(
        self, body: Callable[[], Result], precision: Precision, pool: Any = None, device: str = "cuda"
    ) -> None:
        self._body = body  # keeps tensors alive that the graph knows only by address
        self._graph: torch.cuda.CUDAGraph | None = None
        if device == "cpu":
            self.out = body()
            return
        with _RECORDING:
            self._prepare(body, precision, pool)

    def _prepare(self, body: Callable[[], Result], precision: Precision, pool: Any) -> None:
        stream = _recording_stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream), arithmetic(precision):
                for _ in range(2):  # warm-up: libraries are loaded and kernels are compiled
                    body()
                stream.synchronize()
                self.out = self._record(body, pool)
        except Exception as error:  # a custom model may raise anything
            if lacks_memory(error):
                raise
            first = str(error).partition("\n")[0]
            raise InputError(f"model cannot be recorded as a CUDA graph: {first}") from error
        torch.cuda.empty_cache()  # frees the memory of the warm-up

    def _record(self, body: Callable[[], Result], pool: Any) -> Result:
        gc.collect()  # freeing a graph during the capture of another would invalidate it
        torch._C._cuda_clearCublasWorkspaces()  # so that the graph allocates a workspace of its own
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            return body()
        finally:
            self._graph.capture_end()
            torch._C._cuda_clearCublasWorkspaces()

    def replay(self) -> None:
        """Run the computation on the current stream, with the current values of its input tensors."""
        if self._graph is None:
            self.out = self._body()
        else:
            self._graph.replay()

    def close(self) -> None:
        """Free the memory after the GPU has finished."""
        if self._graph is not None:
            torch.cuda.synchronize()
            self._graph.reset()
        del self._body, self.out


@functools.cache
def _recording_stream() -> torch.cuda.Stream:
    """Return the one stream on which all graphs are recorded; each further stream would keep its own freed memory."""
    return torch.cuda.Stream()


class GraphInputs:
    """Copies numbers to a tensor that a graph reads, through a ring of pinned buffers, without waiting for the GPU."""

    def __init__(self, to: Tensor, num_buffers: int = NUM_BUFFERS) -> None:
        self._to = to
        self._buffers = cycle([_Buffer(to) for _ in range(num_buffers if to.is_cuda else 1)])

    def send(self, write: Callable[[IntArray, FloatArray], None]) -> None:
        """Call `write` with the next buffer, viewed as integers and as floats, and start its copy to the GPU."""
        buffer = next(self._buffers)
        if buffer.copied is not None:
            buffer.copied.synchronize()  # its last copy; returns at once unless the GPU is far behind
        write(buffer.whole, buffer.real)
        self._to.copy_(buffer.numbers, non_blocking=True)
        if buffer.copied is not None:
            buffer.copied.record()


class _Buffer:
    """Memory for numbers, and the event of its last copy to the GPU; on a GPU, the memory is pinned."""

    def __init__(self, to: Tensor) -> None:
        self.numbers = torch.zeros(to.shape, dtype=torch.int64, pin_memory=to.is_cuda)
        self.whole, self.real = self.numbers.numpy(), self.numbers.view(torch.float64).numpy()
        self.copied = torch.cuda.Event() if to.is_cuda else None


@contextlib.contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Set the precision of products and make convolutions deterministic while the context lasts."""
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
    """Round a count up by less than an eighth, so that few sizes, and hence few graphs, are needed."""
    granule = 1 << max(0, count.bit_length() - 4)
    return -(-count // granule) * granule
