"""One GPU for several processes at once.

By itself a GPU serves one process after the other. NVIDIA's Multi-Process Service lets kernels of several run side by
side; it comes with the driver, needs no rights, and is started here for as long as the processes last.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SYSTEM_PIPE = Path("/tmp/nvidia-mps/control")  # where the service listens unless PIPE says otherwise
START_S, END_S = 5.0, 10.0
# The service, until nobody holds the other end of its input any more: not even a kill leaves it behind.
_KEEP = '"$0" -f & read end; echo quit | "$0"; wait'


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
        keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEP, command],
            env=os.environ | names,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for whoever needs it
        )
        try:
            shared = _answers(keeper, Path(folder))
            os.environ.update(names if shared else {})
            yield shared
        finally:
            for name in names:
                os.environ.pop(name, None)
            _end(keeper)


def _answers(keeper: "subprocess.Popen[bytes]", folder: Path) -> bool:
    """Whether the service is ready, within a few seconds."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and keeper.poll() is None:
        if (folder / "control").exists():
            return True
        time.sleep(0.05)
    return False


def _end(keeper: "subprocess.Popen[bytes]") -> None:
    assert keeper.stdin is not None
    keeper.stdin.close()
    try:
        keeper.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(keeper.pid, 9)
        keeper.wait()
