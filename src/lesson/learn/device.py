"""Selection of the training device, the name of the hardware, and tensors on the device."""

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lesson.core.arrays import FloatArray, IntArray
from lesson.core.errors import InputError
from lesson.settings.sections import RunSettings


def device_of(limits: RunSettings) -> tuple[str, str]:
    """Return the device and the precision of a run on this machine; raise InputError if they cannot be used here.

    The device "auto" is a GPU if torch finds one and the trainer is not "reference". The precision "auto" is tf32 on a
    GPU and float32 on a CPU.
    """
    if limits.device == "cuda" and not torch.cuda.is_available():
        raise InputError("[run] device must be auto or cpu here, got 'cuda': torch finds no GPU")
    gpu = limits.device == "cuda" or (
        limits.device == "auto" and limits.trainer != "reference" and torch.cuda.is_available()
    )
    usual = "tf32" if gpu else "float32"
    precision = usual if limits.precision == "auto" else limits.precision
    if not gpu and precision != "float32":
        raise InputError(f"[run] precision must be auto or float32 on a CPU, got '{precision}'")
    return "cuda" if gpu else "cpu", precision


def cpu_capability() -> str:
    """Return the CPU instruction set that torch uses, such as AVX2; rounding, and so the results, depend on it."""
    return torch.backends.cpu.get_cpu_capability()


def hardware(device: str) -> str:
    """Return the name of the GPU, or the number and type of the CPU cores."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    try:
        names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return f"{os.cpu_count()} cores of {names[0] if names else platform.processor() or 'unknown type'}"


def num_gpus() -> int:
    """Return the number of GPUs that torch finds."""
    return torch.cuda.device_count()


def use_gpu(number: int) -> None:
    """Let this process use a GPU."""
    torch.cuda.set_device(number)


def event(device: str) -> Any:
    """Return an event that has just been recorded on the current stream; None on a CPU."""
    return torch.cuda.current_stream().record_event() if device == "cuda" else None


def lacks_memory(error: Exception) -> bool:
    """Return whether an error means lack of memory. torch has a class for this, but not all libraries use it."""
    words = ("DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")
    told = isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    return told or isinstance(error, MemoryError | torch.OutOfMemoryError)


def to_device(array: IntArray | FloatArray, device: str) -> Tensor:
    """Return the array as a tensor on a device, without waiting for computations that are queued there."""
    tensor = torch.from_numpy(array)
    return tensor if device == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
