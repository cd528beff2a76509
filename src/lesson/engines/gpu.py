"""One GPU for several processes at once.

By itself a GPU serves one process after the other. NVIDIA's Multi-Process Service lets kernels of several run side by
side; it comes with the driver, needs no rights, and is started here for as long as the processes last.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SYSTEM_PIPE = Path("/tmp/nvidia-mps/control")
START_S, END_S = 5.0, 10.0
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def shared_gpu() -> Iterator[bool]:
    """Let processes started inside share the GPU; says whether they do. One that is shared already stays as it is."""
    if PIPE in os.environ or SYSTEM_PIPE.exists():
        yield True
        return
    command = shutil.which("nvidia-cuda-mps-control")
    if command is None:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="lesson-mps-") as folder:
        names = {PIPE: folder, LOG: folder}
        daemon = subprocess.Popen(
            [command, "-f"], env=os.environ | names, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=_end_with_parent, start_new_session=True,
        )  # fmt: skip
        shared = _answers(daemon, Path(folder))
        if shared:
            os.environ.update(names)
        try:
            yield shared
        finally:
            for name in names:
                os.environ.pop(name, None)
            _end(command, daemon, os.environ | names)


def _answers(daemon: "subprocess.Popen[bytes]", folder: Path) -> bool:
    """Whether the service is ready, within a few seconds."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and daemon.poll() is None:
        if (folder / "control").exists():
            return True
        time.sleep(0.05)
    return False


def _end(command: str, daemon: "subprocess.Popen[bytes]", environment: dict[str, str]) -> None:
    with contextlib.suppress(subprocess.SubprocessError, OSError):
        subprocess.run([command], input=b"quit\n", env=environment, capture_output=True, timeout=END_S)
        daemon.wait(END_S)
    if daemon.poll() is None:
        daemon.kill()
        daemon.wait()


def _end_with_parent() -> None:
    """Have the kernel end this process when whoever started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
