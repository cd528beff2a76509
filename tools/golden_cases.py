"""The golden cases: short simulations and training runs, and their results under names that outlive renamed fields.

Timing cases hold on every machine. Logarithms and powers may differ between processors in the last bit, so the clock
runs on fleets whose times are rounded to nine digits; from there on it only adds, multiplies and divides.

Training cases depend on the processor and on the versions of torch and numpy. A case states what its summary must
show, so that it cannot stop exercising the mechanism it is named after. For the same reason, no two cases may end with
the same model, unless one of them is declared to be `like` the other: then they must.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from lesson import Settings, draw_fleet, simulate
from lesson.learn.data import Samples, load_samples
from lesson.learn.models import MnistNet
from lesson.learn.task import Task
from lesson.learn.tasks import BUILT_IN, NUM_CHARACTERS, image_task
from lesson.runs.execute import execute
from lesson.settings.loading import apply_changes
from lesson.strategies import STRATEGIES, fleet_for, make_strategy

Files = dict[str, Any]
"""The results of a case: for each file, the compared values as nested dictionaries and lists."""

# The fields that are compared. Texts for people, such as notes, and wall-clock times are not. A field that is added to
# a file changes no digest until it is listed here.
FIELDS = {
    "metrics.jsonl": "round time_s uploads bytes_up bytes_down energy_j staleness merged merged_staleness "
    "merged_started_s merged_arrived_s merged_expected_s misses retiered lost rejected rejections excluded accuracy "
    "loss global_loss client_accuracy client_loss",
    "summary.json": "seed rounds time_s accuracy loss accuracy_last10 uploads rejected rejected_by excluded misses "
    "retiered lost bytes_up bytes_down energy_j time_to_s",
    "clients.json": "num_clients class_accuracy promoted number x_km y_km compute_s upload_s latency_s compute_j "
    "transmit_j num_samples accuracy",
    "rounds": "round start_s end_s version started merged staleness merged_started_s merged_arrived_s uploads "
    "bytes_up bytes_down compute_j transmit_j rejected",
    "fleet": "compute_s upload_s shared_upload_s latency_s compute_j transmit_j shared_transmit_j",
}
# Fields that have another name in this version of the package than in the list above.
RENAMED: dict[str, str] = {}
# Fields whose keys are texts that may be reworded: only their values are compared.
KEYED_BY_TEXT = {"rejections", "rejected_by"}


def canonical(file: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compared fields of a record of a file, under the names of FIELDS."""
    named = {RENAMED.get(name, name): value for name, value in record.items()}
    kept = {name: named[name] for name in FIELDS[file].split() if name in named}
    return {name: sorted(value.values()) if name in KEYED_BY_TEXT else value for name, value in kept.items()}


# Timing


def timing_cases() -> dict[str, Files]:
    """Return the values of every timing case by name."""
    cases: dict[str, Files] = {}
    for preset in ("released", "printed"):
        for seed in (0, 1):
            fleet = _rounded_fleet(Settings(preset=preset), seed, 200)
            cases[f"fleet, {preset}, seed {seed}"] = {"fleet": canonical("fleet", fleet)}
    for name in STRATEGIES:
        settings = [("released", 20.0), ("printed", 5.0)]
        if name.startswith("lesson"):
            settings.append(("released", 8.0))
        for preset, deadline_s in settings:
            promotes = deadline_s == 8.0  # which no client meets, so the fastest is promoted to tier 1
            for seed in (0, 1):
                chosen = Settings(preset=preset, deadline_s=deadline_s, ensure_first_tier=promotes)
                rounds = _timing_rounds(name, chosen, seed)
                cases[f"{name}, {preset}, deadline {deadline_s:g} s, seed {seed}"] = {"rounds": rounds}
    return cases


def _timing_rounds(name: str, settings: Settings, seed: int) -> list[dict[str, Any]]:
    rounded: dict[str, Any] = {column: np.array(values) for column, values in _rounded_fleet(settings, seed).items()}
    deadline_s = settings.strategy.deadline_s
    fleet = fleet_for(name, replace(draw_fleet(settings, seed=seed), **rounded), deadline_s)
    rounds = []
    for record in simulate(make_strategy(name, deadline_s), fleet, rounds=60, seed=seed):
        fields = vars(record) | {"rejected": record.rejected}
        plain = {field: value.tolist() if hasattr(value, "tolist") else value for field, value in fields.items()}
        rounds.append(canonical("rounds", plain))
    return rounds


def _rounded_fleet(settings: Settings, seed: int, num_clients: int | None = None) -> dict[str, list[float]]:
    """Return the times and energies of a fleet, rounded to nine significant digits."""
    fleet = draw_fleet(settings, num_clients, seed=seed)
    return {name: [float(f"{value:.9g}") for value in getattr(fleet, name)] for name in FIELDS["fleet"].split()}


# Training


ROOTS = {"strategy.name=fadas", *(f"server.optimizer={name}" for name in ("adagrad", "adam", "yogi"))}


@dataclass(frozen=True)
class Case:
    """A short training run."""

    changes: str = ""
    """Settings that differ from `BASE`, as `section.key=value`, separated by spaces."""
    shows: str = ""
    """Fields that must not be 0 or empty in the summary or in some round, separated by spaces."""
    like: str = ""
    """Another case, which must end with the same model."""
    resumed_after: int = 0
    """Round in which the run is killed and resumed; 0 for none."""
    data: str = "mnist"
    num_threads: int = 2

    @property
    def takes_roots(self) -> bool:
        """Whether the server takes square roots: those of MKL, which torch uses, depend on the vendor of the CPU."""
        return not ROOTS.isdisjoint(self.changes.split())


BASE = (
    "fleet.num_clients=8 training.batch_size=8 data.samples_per_client=60 strategy.deadline_s=15.0 "
    "strategy.ensure_first_tier=true run.rounds=8 run.eval_every_s=30.0 run.device=cpu"
)
PRINTED = "preset=printed strategy.deadline_s=1.5 strategy.ensure_first_tier=false run.eval_every_s=3.0"
LONG = "run.rounds=54 run.eval_every_s=200.0 training.batch_size=2"
AUTO = f"{LONG} run.eval_every_s=auto"
OPTIONS = {
    "ace": "strategy.server_lr=1.0",
    "ca2fl": "strategy.buffer_size=2 strategy.concurrency=5 run.rounds=12",
    "fadas": "strategy.buffer_size=2 strategy.concurrency=5 run.rounds=12",  # reduces the step size
    "fedat": "strategy.num_tiers=3",
    "fedbuff": "strategy.buffer_size=3 strategy.concurrency=5",
    "fedcompass": "strategy.max_steps=2",  # several groups
    "fedsasync": "strategy.sync_degree=3",
    "malenia": "run.rounds=40",
    "oort": "strategy.clients_per_round=3 strategy.exploration_decay=0.5 strategy.pacer_window=2",
    "refl": "strategy.clients_per_round=3 strategy.hold_off=1",
    "rennala": "strategy.updates_per_round=3",
    "rescaled-asgd": "strategy.server_lr=1.0",
    "ringleader": "run.rounds=40 strategy.server_lr=1.0",
    "ringmaster": "strategy.delay_threshold=3 strategy.server_lr=1.0",  # drops updates
    "semisync-steps": "strategy.period_factor=1.0 run.trainer=reference",
    "tifl": "strategy.num_tiers=3 strategy.clients_per_round=2 strategy.interval=2",
}
"""Settings that exercise what is special about a strategy in a few rounds with a few clients."""
STALE = {
    *("ace", "ca2fl", "fadas", "fedasync", "fedat", "fedbuff", "fedcompass", "fedqueue", "fedsasync", "refl", "safa"),
    *("lesson", "lesson-fitted", "rescaled-asgd", "ringleader", "ringmaster"),
}
"""Strategies that aggregate stale updates."""
STEPS = "strategy.name=fedavg training.local_steps=3 run.rounds=4 run.eval_every_s=1e9"
DROPOUTS = "faults.disconnect_before=0.1 faults.disconnect_during=0.2 faults.offline_s=30.0"
RAYLEIGH = "radio.fading=rayleigh radio.coherence_s=2.0"
PRESENCE = "client,from_s,to_s\n0,0,37\n0,61,inf\n2,20,45\n2,70,inf\n5,0,50\n"
TRACE = "client,round,compute_s,upload_s\n" + "".join(
    f"{client},{work},{3 + 1.7 * (client + work) % 11:.3f},{2 + 2.3 * client % 7:.3f}\n"
    for client in range(8)
    for work in range(1, 5)
)
SNR_TRACE = "trace,time_s,snr_db\n" + "".join(
    f"{trace},{time_s},{(7 * trace + 5 * time_s) % 31 - 20}\n" for trace in range(5) for time_s in range(40)
)
FOLLOWING = "radio.snr_trace=FOLDER/snr.csv radio.coherence_s=1.0"
IMAGES = {"cifar10": ((3, 32, 32), 10), "cifar10-resnet": ((3, 32, 32), 10), "femnist": ((1, 28, 28), 62)}
"""Built-in networks for images: the shape of an image and the number of classes."""
NETWORKS = ("cifar10-resnet", "femnist", "shakespeare", "shakespeare-transformer", "synthetic")
FEW = "strategy.name=fedavg data.split=iid data.samples_per_client=10 training.batch_size=4 run.rounds=2"
GPU = "data.split=iid data.samples_per_client=6 training.batch_size=4 run.rounds=30 run.eval_every_s=15.0"
PHONES = "radio.throughput=phones upload.model_bits=2e7 radio.download=true"
TRAINING = {
    **{
        f"{name}, {preset}": Case(
            f"strategy.name={name} {changes} {OPTIONS.get(name, '')}",
            shows="uploads accuracy staleness" if name in STALE else "uploads accuracy",
        )
        for preset, changes in (("released", ""), ("printed", PRINTED))
        for name in STRATEGIES
    },
    "many rounds, released": Case(LONG),
    "many rounds, printed": Case(f"{PRINTED} {LONG}"),
    "automatic evaluation times": Case(AUTO, "accuracy", like="many rounds, released"),
    **{
        f"server optimizer {name}": Case(f"server.optimizer={name}") for name in ("momentum", "adagrad", "adam", "yogi")
    },
    "aggregation of updates": Case("server.aggregate=updates"),
    "trainer reference": Case("run.trainer=reference"),
    "trainer fused": Case("run.trainer=fused", like="lesson, released"),
    "trainer fused, one thread": Case("run.trainer=fused", like="lesson, released", num_threads=1),
    "trainer fused, in chunks": Case("strategy.name=fedavg training.batch_size=40"),
    "several local steps, trainer reference": Case(f"{STEPS} run.trainer=reference"),
    "several local steps, trainer batched": Case(
        f"{STEPS} run.trainer=batched", like="several local steps, trainer reference"
    ),
    "local epochs": Case(f"{STEPS} training.local_steps=1 training.local_epochs=1 run.trainer=reference"),
    "proximal term": Case(f"{STEPS} training.proximal_mu=0.5 run.trainer=reference"),
    "weighting by samples": Case("training.weighting=samples data.beta=0.1"),
    "CIFAR network, trainer reference": Case("run.trainer=reference run.rounds=3", data="cifar10"),
    "CIFAR network, trainer auto": Case("run.trainer=auto run.rounds=3", data="cifar10"),
    "CIFAR network, several local steps": Case(
        "run.trainer=reference training.local_steps=2 run.rounds=2", data="cifar10"
    ),
    **{f"network of {name}": Case(FEW, data=name) for name in NETWORKS},
    "client scores": Case(
        "run.client_scores_every_s=45.0", "client_accuracy client_loss global_loss", like="lesson, released"
    ),
    "Rayleigh fading": Case(RAYLEIGH, "misses"),
    "Rician fading, fedasync": Case("radio.fading=rician radio.coherence_s=1.0 strategy.name=fedasync", "misses"),
    "shadowing, urban path loss and download": Case("radio.path_loss=umi radio.shadowing_db=6.0 radio.download=true"),
    "moving clients": Case("radio.speed_mps=[5.0,20.0] radio.pause_s=3.0 radio.coherence_s=5.0", "misses"),
    "shared band, equal": Case("radio.spectrum=equal"),
    "shared band, in turn": Case("radio.spectrum=in-turn"),
    "slowdown, estimated by a quantile": Case(
        "fleet.slowdown=0.5 server.estimate=quantile server.estimate_error=0.2 server.refresh_estimates_every_s=40.0",
        "misses retiered",
    ),
    "SNR trace": Case(FOLLOWING, "misses"),
    "SNR trace on a shared band": Case(f"{FOLLOWING} radio.spectrum=equal", "misses"),
    "throughput of phones": Case(PHONES, "misses"),
    "trace": Case("fleet.trace=FOLDER/trace.csv", "misses"),
    "presence": Case("fleet.presence=FOLDER/presence.csv", "lost"),
    "dropouts": Case(DROPOUTS, "lost"),
    "dropouts for good, noticed late, fedavg": Case(
        f"{DROPOUTS} faults.offline_forever=0.3 faults.detection_delay_s=5.0 strategy.name=fedavg", "lost"
    ),
    "guard norm": Case("guards.norm_limit=1.2", "rejected"),
    "compression": Case("upload.compression=qsgd upload.level=4 run.rounds=6"),
    "compression with error feedback": Case("upload.compression=topk upload.level=0.02 strategy.fit_upload=true"),
    "exclusion": Case("guards.norm_limit=1.0 guards.exclude_after_rejections=1", "rejected excluded"),
    **{
        f"resume, {name}": Case(
            f"strategy.name={name} {OPTIONS.get(name, '')}",
            like=f"{name}, released",
            resumed_after=5,
        )
        for name in STRATEGIES
    },
    "fadas as in the paper": Case(
        f"strategy.name=fadas strategy.reduction=limit {OPTIONS['fadas']} server.learning_rate=0.6"
    ),
    "fadas with bias correction": Case(f"strategy.name=fadas strategy.bias_correction=true {OPTIONS['fadas']}"),
    "resume, fadas with bias correction": Case(
        f"strategy.name=fadas strategy.bias_correction=true {OPTIONS['fadas']}",
        like="fadas with bias correction",
        resumed_after=5,
    ),
    "resume, adam": Case("server.optimizer=adam", like="server optimizer adam", resumed_after=5),
    "resume, automatic evaluation times": Case(AUTO, like="many rounds, released", resumed_after=30),
    "resume, Rayleigh fading": Case(RAYLEIGH, like="Rayleigh fading", resumed_after=5),
    "resume, SNR trace": Case(FOLLOWING, like="SNR trace", resumed_after=5),
    "resume, throughput of phones": Case(PHONES, like="throughput of phones", resumed_after=5),
    "resume, dropouts": Case(DROPOUTS, like="dropouts", resumed_after=4),
    "resume, compression": Case(
        "upload.compression=topk upload.level=0.02 strategy.fit_upload=true",
        like="compression with error feedback",
        resumed_after=5,
    ),
    "resume, guard norm": Case("guards.norm_limit=1.2", like="guard norm", resumed_after=5),
}


def training_cases() -> dict[str, Files]:
    """Return the values of every training case by name; `error` says what is wrong with a case."""
    with tempfile.TemporaryDirectory() as folder:
        cases = {name: _train(case, Path(folder) / str(place)) for place, (name, case) in enumerate(TRAINING.items())}
    first_with: dict[str, str] = {}
    for name, files in cases.items():
        like = TRAINING[name].like
        first = first_with.setdefault(json.dumps(files.get("model.safetensors", name)), name)
        if first != (like or name):
            wrong = f"not be that of '{first}'" if first != name else f"be that of '{like}'"
            files.setdefault("error", f"the final model must {wrong}")
    return cases


def gpu_losses() -> dict[str, list[float]]:
    """Return the test losses of 30 rounds on a GPU, for each built-in network and trainer."""
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("mnist", "cifar10", *NETWORKS):
            for trainer in ("reference", "batched", *(["fused"] if name in ("mnist", "cifar10") else [])):
                run = Path(folder, f"{name} {trainer}")
                changes = [*GPU.split(), "run.device=cuda", "run.precision=float32", f"run.trainer={trainer}"]
                execute(_settings(changes), run, task=_task(name))
                lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
                losses[f"{name}, {trainer}"] = [line["loss"] for line in lines if "loss" in line]
    return losses


def _train(case: Case, folder: Path) -> Files:
    """Run a case in a new folder and return its values."""
    files: Files = {}
    folder.mkdir()
    (folder / "presence.csv").write_text(PRESENCE)
    (folder / "trace.csv").write_text(TRACE)
    (folder / "snr.csv").write_text(SNR_TRACE)
    changes = case.changes.replace("FOLDER", str(folder)).split()
    run = _run_resumed if case.resumed_after else _run
    try:
        run(case, changes, folder / "run")
    except Exception as error:
        files["error"] = f"{type(error).__name__}: {error}"
    if (folder / "run" / "summary.json").exists():
        files |= _read(folder / "run")
        for field in case.shows.split():
            if not any(record.get(field) for record in [files["summary.json"], *files["metrics.jsonl"]]):
                files.setdefault("error", f"{field} must not be 0 in every round")
    return files


def _run(case: Case, changes: list[str], folder: Path, **options: Any) -> None:
    execute(_settings(changes), folder, task=_task(case.data), num_threads=case.num_threads, **options)


def _run_resumed(case: Case, changes: list[str], folder: Path) -> None:
    """Run a case without interruption, then resume it from a copy of its folder as a kill would leave it.

    The last checkpoints must be equal, too: a value that is restored wrongly may take long to reach the results.
    """
    whole = folder.with_name("whole")
    checkpoints: dict[Path, dict[str, str]] = {}

    def run(path: Path, resume: bool) -> None:
        def keep(line: dict[str, Any]) -> None:
            if not resume and line["round"] == case.resumed_after:
                shutil.copytree(path, folder)
            if line["round"] > 1:
                with safetensors.safe_open(path / "checkpoint.safetensors", "numpy") as checkpoint:
                    checkpoints[path] = checkpoint.metadata()  # includes a digest of all arrays

        _run(case, [*changes, "run.checkpoint_every_s=1e-9"], path, resume=resume, progress=keep)

    run(whole, resume=False)
    if not folder.exists():
        raise ValueError(f"resumed_after must be at most the number of rounds, got {case.resumed_after}")
    run(folder, resume=True)
    if checkpoints[folder] != checkpoints[whole]:
        raise ValueError("the last checkpoint must equal that of the run without interruption")


def _settings(changes: list[str]) -> Settings:
    sections: dict[str, Any] = {}
    apply_changes(sections, [*BASE.split(), *changes])
    return Settings(**sections)


@cache
def _task(name: str) -> Task:
    """Return the first images of MNIST, or small random data for another built-in network."""
    if name == "mnist":
        mnist = load_samples(name, None)
        train, test = slice(500), slice(100)
        data = Samples(
            mnist.train_inputs[train],
            mnist.train_targets[train],
            mnist.test_inputs[test],
            mnist.test_targets[test],
        )
        return image_task(name, data, MnistNet)
    rng, network = np.random.default_rng(0), BUILT_IN[name].network
    if name in IMAGES:
        shape, num_classes = IMAGES[name]
        images, labels = rng.integers(0, 256, (250, *shape), dtype=np.uint8), rng.integers(0, num_classes, 250)
        return image_task(name, Samples(images[:200], labels[:200], images[200:], labels[200:]), network)
    if name == "synthetic":
        features = rng.normal(size=(250, 60)).astype(np.float32)
        labels = features[:, :10].argmax(1)
        return Task(train=(features[:200], labels[:200]), test=(features[200:], labels[200:]), model=network)
    text = rng.integers(0, NUM_CHARACTERS, (60, 21)).cumsum(1) % NUM_CHARACTERS
    inputs, targets = text[:, :-1], text[:, 1:]
    return Task(train=(inputs[:50], targets[:50]), test=(inputs[50:], targets[50:]), model=network)


def _read(folder: Path) -> Files:
    """Return the compared values of a run folder."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clients = json.loads((folder / "clients.json").read_text())
    model = safetensors.numpy.load_file(folder / "model.safetensors")
    return {
        "metrics.jsonl": [canonical("metrics.jsonl", line) for line in lines],
        "clients.json": canonical("clients.json", clients | clients.pop("clients")),
        "summary.json": canonical("summary.json", json.loads((folder / "summary.json").read_text())),
        "model.safetensors": {
            name: {
                "norm": float(np.sqrt(np.square(values, dtype=np.float64).sum())),
                "sha256": hashlib.sha256(f"{values.dtype} {values.shape}".encode() + values.tobytes()).hexdigest(),
            }
            for name, values in model.items()
        },
    }
