"""Sharing a GPU, with a service that only writes down what it is asked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lesson.experiments.engines import gpu

SERVICE = """#!/bin/sh
if [ "$1" = -f ]; then
  echo "begun $$" > "{log}"
  {works} && : > "$CUDA_MPS_PIPE_DIRECTORY/control"
  while [ ! -e "$CUDA_MPS_PIPE_DIRECTORY/quit" ]; do /bin/sleep 0.02; done
  echo ended >> "{log}"
else
  /bin/cat > "$CUDA_MPS_PIPE_DIRECTORY/quit"
fi
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(gpu.PIPE, raising=False)
    monkeypatch.setattr(gpu, "SYSTEM_PIPE", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "log"


def install(log: Path, works: bool = True) -> None:
    command = log.parent / "nvidia-cuda-mps-control"
    command.write_text(SERVICE.format(log=log, works="true" if works else "false"))
    command.chmod(0o755)


def test_the_service_lasts_as_long_as_it_is_needed(log: Path) -> None:
    install(log)
    with gpu.shared_gpu() as shared:
        assert shared
        folder = Path(os.environ[gpu.PIPE])
        assert (folder / "control").exists()
    assert log.read_text().split("\n")[1:] == ["ended", ""]
    assert gpu.PIPE not in os.environ
    assert not folder.exists()


def test_without_the_service_processes_take_turns(log: Path) -> None:
    with gpu.shared_gpu() as shared:
        assert not shared
        assert gpu.PIPE not in os.environ


def test_a_service_that_does_not_answer_is_ended(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(log, works=False)
    monkeypatch.setattr(gpu, "START_S", 2.0)
    with gpu.shared_gpu() as shared:
        assert not shared
        assert gpu.PIPE not in os.environ
    pid = int(log.read_text().split()[1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_gpu_that_is_shared_already_stays_so(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(log)
    monkeypatch.setenv(gpu.PIPE, "/somewhere")
    with gpu.shared_gpu() as shared:
        assert shared
        assert os.environ[gpu.PIPE] == "/somewhere"
    assert not log.exists()


def test_the_service_does_not_outlive_a_process_that_is_killed(log: Path) -> None:
    install(log)
    code = (
        "import time, lesson.experiments.engines.gpu as g\nwith g.shared_gpu(): print('on', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "on\n"
        pid = int(log.read_text().split()[1])
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    for _ in range(1200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the service still runs")
