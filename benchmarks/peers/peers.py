"""The peers: their settings and the reasons for them, their environments, and how their recipes are run."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from lesson import __version__

HERE = Path(__file__).resolve().parent
DATA, VENVS = HERE / ".data", HERE / ".venvs"
CORES = os.cpu_count() or 1
GPU = torch.cuda.is_available()
LIMIT_S = 60 if GPU else 400
OURS = "lesson"
Choice = tuple[int, int]
ONE, SPLIT, SHARED = (1, 1), (CORES, 1), (1, CORES)
"""Processes and threads per process: one core, a process per core, one process with a thread per core."""


@dataclass(frozen=True)
class Peer:
    """A framework: the package whose version is reported, the processes and threads to try, and its settings."""

    title: str
    package: str
    choices: tuple[Choice, ...]
    note: str
    gpu_choices: tuple[Choice, ...] = ()
    """Processes that share one GPU, and threads of each; none if the recipe trains on the CPU only."""


class UnfinishedError(RuntimeError):
    """A recipe did not end within the time limit."""


PEERS = {
    OURS: Peer(
        "this project",
        "lesson-fl",
        (SHARED,),
        "FedAvg on the virtual clock through `RoundLoop.step`, with strategy, clock, draws, training and merge in the "
        "time; trainer `auto`, so `fused` for one step and `batched`, on a CPU with a process per core, for more. "
        "Nothing is tuned.",
        gpu_choices=(ONE,),
    ),
    "pytorch": Peer(
        "plain PyTorch loop",
        "torch",
        (ONE, SHARED),
        "Clients one after the other in one process, minibatches indexed straight from memory, parameters of a client "
        "as views of one vector, so that loading and averaging are one operation each.",
        gpu_choices=(ONE,),
    ),
    "pfl": Peer(
        "pfl-research",
        "pfl",
        (ONE, SHARED, SPLIT),
        "`FederatedAveraging` on `SimulatedBackend`, users' data as tensors in memory, as in its own benchmarks; "
        "several processes under torchrun. It keeps a user's minibatches cut and in order, so it draws none; its "
        "metrics are not printed. `local_num_steps` for the single step. Processes that share a GPU are connected by "
        "gloo, because NCCL does not support several processes on one GPU.",
        gpu_choices=(ONE, (6, 1), (12, 1)),
    ),
    "fedlab": Peer(
        "FedLab",
        "fedlab",
        (ONE, SHARED),
        "`StandalonePipeline` with `SGDSerialClientTrainer` and `SyncServerHandler`, one process as it is made; "
        "minibatches indexed from memory instead of a DataLoader, logging off. torchvision, which it imports and does "
        "not use here, is let in without its compiled operators.",
    ),
    "flgo": Peer(
        "FLGo",
        "flgo",
        (ONE, SHARED),
        "Its FedAvg with `num_steps`, uniform averaging, no holdout, no evaluation, no console, no progress bar; its "
        "own DataLoader on samples in memory that are gathered a minibatch at a time. Its several processes "
        "(`num_parallels`) took over ten times as long when tried at the first workload. torchvision as with FedLab.",
    ),
    "flower": Peer(
        "Flower",
        "flwr",
        (SPLIT, SHARED),
        "`ServerApp` with `FedAvg` and a `ClientApp` on the simulation runtime (Ray), an actor per core or one that "
        "has all; clients' data stay in the actors' memory, telemetry and evaluation are off. On a GPU, each actor "
        "gets an equal share of it (`num_gpus`).",
        gpu_choices=((8, 1),),
    ),
}
LEFT_OUT = {
    "fedjax": "0.0.17 needs functions that current jax has dropped (`jax.tree_map`), and another network library",
    "APPFL": "its simulation took 5 to 12 s a round on these workloads, far behind the others",
}


def is_installed(name: str) -> bool:
    """Return whether this interpreter can run a peer."""
    try:
        return name == OURS or bool(metadata.version(PEERS[name].package))
    except metadata.PackageNotFoundError:
        return False


def python_of(name: str) -> Path:
    """Return the interpreter of a peer, in an environment that is created if it does not exist yet."""
    if name == OURS:
        return Path(sys.executable)
    folder = VENVS / name
    python, made = folder / "bin" / "python", folder / ".made"
    if not made.exists():
        print(f"making an environment for {name}", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        requirements = HERE / name / "requirements.txt"
        install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--requirement", requirements]
        if subprocess.run(install, stdout=subprocess.DEVNULL, check=False).returncode:
            raise RuntimeError("its environment cannot be made")
        made.touch()
    return python


def version_of(name: str, installed: bool) -> str:
    """Return the version of a peer's package: the pinned one, or the one that is installed with this interpreter."""
    package = PEERS[name].package
    if name == OURS:
        return __version__
    if installed:
        return metadata.version(package)
    pins = (HERE / name / "requirements.txt").read_text().splitlines()
    return next(pin.partition("==")[2] for pin in pins if pin.startswith(package))


def seconds_of(name: str, workload: str, choice: Choice, data: Path, installed: bool, options: list[str]) -> float:
    """Return the median seconds per round of one run of a recipe; raise RuntimeError with its last error if it fails.

    `installed` runs it with this interpreter instead of the peer's own. `options` are arguments of the recipe.
    """
    processes, threads = choice
    python = Path(sys.executable) if installed else python_of(name)
    size = ["--processes", str(processes), "--threads", str(threads)]
    command: list[str | Path] = [python, HERE / name / "bench.py", workload, "--data", data, *size, *options]
    paths = [str(HERE)]
    if python == Path(sys.executable) and "PYTHONPATH" in os.environ:  # lesson may be found there
        paths.append(os.environ["PYTHONPATH"])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    try:
        output, errors = _run(command, environment)
    except subprocess.TimeoutExpired:
        raise UnfinishedError(f"no end after {LIMIT_S} s") from None
    lines = [line for line in output.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        told = [line.strip() for line in errors.splitlines() if any(letter.isalpha() for letter in line)]
        raise RuntimeError(
            next((line for line in reversed(told) if "Error" in line and "ChildFailed" not in line), "")[:120]
            or (told or ["no output"])[-1][:120]
        )
    return float(statistics.median(json.loads(lines[-1])["seconds"]))


def _run(command: list[str | Path], environment: dict[str, str]) -> tuple[str, str]:
    """Return the stdout and stderr of a command, and kill all processes that it has started."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            return process.communicate(timeout=LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
