"""Trainers and scores on a GPU agree with the reference on the CPU. Skipped where there is no GPU."""

import copy
import gc
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from helpers.any_tasks import COUPLED, INDEPENDENT, Mlp, feature_task, regression_task, rmse, workload_of
from helpers.lanes import make_models, overflow_from, updates
from helpers.small_tasks import TinyNet, image_workload, tiny_data, tiny_task
from helpers.trainers import check_agreement, colors, make_cohort, random_cohorts, sum_of
from lesson import Lesson, Settings, Task, draw_fleet, make_loop
from lesson.core.errors import DivergedError
from lesson.learn import counters, dropout
from lesson.learn.cohort import Cohort
from lesson.learn.compression.half import Float16
from lesson.learn.compression.qsgd import QSGD
from lesson.learn.compression.sign import Sign
from lesson.learn.compression.sparse import TopK
from lesson.learn.compression.transform import CompressUploads
from lesson.learn.compression.uniform import Uniform
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda import batched
from lesson.learn.cuda.backend import CudaBackend
from lesson.learn.cuda.graphs import arithmetic
from lesson.learn.data import load_samples
from lesson.learn.divergence import NewestCohort
from lesson.learn.evaluation import Evaluator
from lesson.learn.lane import GlobalModel
from lesson.learn.pipeline import Pipeline
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.workload import Workload
from lesson.runs.execute import execute
from lesson.runs.summary import read_metrics
from lesson.strategies import FedAT, LessonFitted

on_gpu = pytest.mark.usefixtures("gpu")


# The batched trainer of GPUs, executed on the CPU: graphs call the functions that they would record.


@pytest.mark.parametrize(
    "training", [{}, {"momentum": 0.9}, {"proximal_mu": 0.1}, {"local_epochs": 2}, {"clip_norm": 0.5}], ids=str
)
def test_steps_of_graphs_agree_with_the_reference(training: dict[str, Any]) -> None:
    """Clients of several cohorts take unequal numbers of steps, so that later steps run on smaller graphs."""
    workload = image_workload(
        Settings(split="iid", training={"batch_size": 5, **training}), tiny_data(), 8, 0, TinyNet, "cpu"
    )
    trainer, reference = batched.CudaBatchedTrainer(workload, "float32"), ReferenceTrainer(workload)
    for seed in range(3):
        cohorts = random_cohorts(workload, [1, 4, 3], seed, max_steps=5)
        for given, wanted in zip(trainer.sums(cohorts), reference.sums(cohorts), strict=True):
            assert (given - wanted).norm() < 1e-5 * wanted.norm()


# One property per trainer

TASKS: dict[str, Callable[[], Task]] = INDEPENDENT | COUPLED | {"images": tiny_task}
SIZES = st.lists(st.sampled_from([1, 2, 7, 70]), min_size=1, max_size=3)
SEEDS = st.integers(0, 2**32 - 1)
LOCAL: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"local_optimizer": "adamw", "weight_decay": 0.1},
    {"clip_norm": 0.1, "proximal_mu": 0.5},
    {"split": "quantity-skew", "beta": 1.0, "momentum": 0.9},
]


@cache
def workloads(name: str, local: int = 0) -> tuple[Workload, Workload]:
    """Return the same workload on the CPU and on the GPU."""
    cpu, cuda = (workload_of(TASKS[name](), device, **LOCAL[local]) for device in ("cpu", "cuda"))
    return cpu, cuda


def agree(trainer: Any, name: str, sizes: list[int], seed: int, max_steps: int = 1, local: int = 0) -> None:
    cpu, cuda = workloads(name, local)
    made = CudaBackend(cuda, "float32").trainer(trainer)
    cohorts = random_cohorts(cpu, sizes, seed, max_steps)
    check_agreement(made, ReferenceTrainer(cpu), cohorts, 5e-2 if name == "resnet" else 2e-3, "cuda")
    made.close()


@on_gpu
@pytest.mark.parametrize("name", ["images", *INDEPENDENT])
@hypothesis.settings(max_examples=2)
@hypothesis.given(sizes=SIZES, seed=SEEDS)
def test_fused_agrees_with_the_reference(name: str, sizes: list[int], seed: int) -> None:
    agree("fused", name, sizes, seed)


@on_gpu
@pytest.mark.parametrize(
    ("name", "local"),
    [("images", 0), *((name, 0) for name in INDEPENDENT), *(("mlp", 1 + place) for place in range(4))],
)
@hypothesis.settings(max_examples=2)
@hypothesis.given(sizes=SIZES, seed=SEEDS)
def test_batched_agrees_with_the_reference(name: str, local: int, sizes: list[int], seed: int) -> None:
    """Every task with plain SGD, and the MLP with every kind of local training."""
    agree("batched", name, sizes, seed, 4, local)


@on_gpu
@pytest.mark.parametrize("name", ["mlp", "batch norm"])
def test_reference_trainer_agrees_on_cpu_and_gpu(name: str) -> None:
    agree("reference", name, [8, 1], 0, 3)


def paper(name: str, **changes: Any) -> tuple[Workload, Workload]:
    """Return the workload of one of the paper's networks on the CPU and on the GPU."""
    data, num_clients = (load_samples("mnist"), 50) if name == "mnist" else (colors(), 12)
    usual = {} if name == "mnist" else {"split": "iid", "batch_size": 10}
    cpu, cuda = (
        image_workload(Settings(**usual | changes), data, num_clients, 0, None, device) for device in ("cpu", "cuda")
    )
    return cpu, cuda


def there(cohort: Cohort) -> Cohort:
    return replace(cohort, base=cohort.base.cuda())


@on_gpu
@pytest.mark.parametrize(("trainer", "steps"), [("fused", 1), ("batched", 4)])
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_papers_networks_agree_with_the_reference(name: str, trainer: Any, steps: int) -> None:
    """Larger steps magnify what is rounded. At some, a pool's maximum is so close to the next that rounding decides who
    gets the gradient: at 0.02, a relative 3e-7 in the base moves MNIST's cohort of 8 by 3 %."""
    cpu, cuda = paper(name)
    cohort = replace(make_cohort(cpu.initial_vector(), 8, steps), lr=0.03 * (1 + np.arange(8) % 4))
    if steps > 1:
        cohort.local_steps[:4] = steps // 2
    expected = sum_of(ReferenceTrainer(cpu), cohort)
    given = sum_of(CudaBackend(cuda, "float32").trainer(trainer), there(cohort)).cpu()
    moved = float((expected - 0.7 * cohort.base).abs().max())
    assert moved > 1e-5
    assert (given - expected).abs().max() < 0.01 * moved  # some algorithms of the library round more than others


# Random numbers and arithmetic


@on_gpu
@pytest.mark.parametrize("epochs", [0, 2])
@pytest.mark.parametrize("split", [{}, {"split": "dirichlet-pool", "samples_per_client": (3, 40)}])
def test_same_samples_are_drawn(split: dict[str, Any], epochs: int) -> None:
    changes = {"split": "iid", "batch_size": 5, "local_epochs": epochs} | split
    cpu, cuda = (image_workload(Settings(**changes), tiny_data(), 8, 0, TinyNet, device) for device in ("cpu", "cuda"))
    cohort = make_cohort(cpu.initial_vector(), 8, steps=7)
    assert torch.equal(cuda.minibatches(cohort, 7).cpu(), cpu.minibatches(cohort, 7))


@on_gpu
def test_kernels_are_bit_identical_to_the_plain_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [torch.arange(9), torch.arange(9) * 5 + 2**31, torch.arange(9) + 3]
    on_device = [column.cuda() for column in ids]
    expected = counters.words((0xA4093822, 0x299F31D0), 7, *ids)
    factors = dropout.draw_factors(counters.key(4, "dropout"), 100, *ids)
    assert counters.gpu_kernels() is not None
    for _ in range(2):
        assert torch.equal(counters.words((0xA4093822, 0x299F31D0), 7, *on_device).cpu(), expected)
        assert torch.equal(dropout.draw_factors(counters.key(4, "dropout"), 100, *on_device).cpu(), factors)
        monkeypatch.setattr(counters, "gpu_kernels", lambda: None)


@on_gpu
def test_models_are_not_rounded_when_they_are_merged() -> None:
    """Not even where the process lets products of matrices be rounded, as some installations do from the start."""
    _, cuda = paper("mnist")
    trainer, base = CudaBackend(cuda, "float32").trainer("batched"), cuda.initial_vector()
    with arithmetic("tf32"):
        merged = trainer.sums([replace(make_cohort(base, 8), lr=np.zeros(8))] * 4)
    for given in merged:
        assert torch.allclose(given, 0.7 * base, rtol=1e-6, atol=1e-9)


@on_gpu
def test_cohort_that_overflows_does_not_affect_others() -> None:
    _, cuda = workloads("images")
    cohort = make_cohort(cuda.initial_vector(), 4, 3)
    trainer = CudaBackend(cuda, "float32").trainer("batched")
    sound, infinite = trainer.sums([cohort, replace(cohort, lr=np.full(4, 1e38))])
    assert torch.allclose(sound, sum_of(trainer, cohort), atol=1e-6)
    assert not infinite.isfinite().all()


def rounds(
    workload: Workload, backend: Any, count: int, trainer: Any = "auto", kind: Any = Lesson, **server: Any
) -> Pipeline:
    """LESSON with the preset released, at a step size small enough that what is rounded is not magnified: at the usual
    one, two trainers of the CPU are 2e-4 apart after 20 rounds."""
    made = make_models(workload, trainer, learning_rate=0.002, server=server, backend=backend)
    fleet = draw_fleet(Settings(), len(workload.holdings.num_samples)).at_deadline(20.0)
    pipeline = made.pipeline(make_loop(kind() if kind is FedAT else kind(20.0), fleet))
    for _ in range(count):
        pipeline.step()
    return pipeline


@on_gpu
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_lower_precision_stays_close(precision: Any) -> None:
    _, cuda = paper("mnist")
    wanted, given = (rounds(cuda, CudaBackend(cuda, kind), 30).lane.model.vector for kind in ("float32", precision))
    assert not torch.equal(given, wanted)
    assert (given - wanted).norm() / wanted.norm() < 0.05


# Runs


@on_gpu
@pytest.mark.parametrize(
    ("kind", "server"),
    [(Lesson, {}), (LessonFitted, {}), (FedAT, {"optimizer": "yogi", "learning_rate": 1e-3})],
    ids=["plain", "fitted", "groups and optimizer"],
)
def test_rounds_agree_with_the_reference(kind: Any, server: dict[str, Any]) -> None:
    cpu, cuda = paper("mnist")
    plain = rounds(cpu, CpuBackend(cpu), 20, "reference", kind, **server).lane
    fast = rounds(cuda, CudaBackend(cuda, "float32"), 20, "fused", kind, **server).lane
    assert fast.version == plain.version
    wanted, vector = plain.model.vector, fast.model.vector.cpu()
    assert (vector - wanted).norm() < 0.01 * (wanted - cpu.initial_vector()).norm()


@on_gpu
@pytest.mark.parametrize("trainer", ["fused", "batched"])
def test_round_loop_never_waits_for_the_gpu(trainer: str) -> None:
    _, cuda = paper("mnist")
    backend = CudaBackend(cuda, "float32")
    evaluator, pipeline = Evaluator(cuda, backend), rounds(cuda, backend, 24, trainer)
    evaluator.score(pipeline.lane.model)
    with warnings.catch_warnings(action="ignore"):  # that this is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(12):
            pipeline.step()
        newest = pipeline.lane.model
        pending = evaluator.begin_score(newest)
        with pytest.raises(RuntimeError, match="synchroniz"):
            newest.vector.cpu()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert pending() == evaluator.score(newest)


@on_gpu
@pytest.mark.parametrize(
    "sections",
    [
        {"strategy": {"name": "fedasync"}, "training": {"local_steps": 3}},
        {"strategy": {"name": "lesson"}},
        {"guards": {"norm_limit": 1.6}},
    ],
    ids=["asynchronous", "lesson", "guard"],
)
def test_run_agrees_with_the_reference(sections: dict[str, Any], tmp_path: Path) -> None:
    limits = {"rounds": 15, "eval_every_s": 200.0}  # later, rounding errors have grown
    on_cpu, on_cuda = {"device": "cpu", "trainer": "reference"}, {"device": "cuda", "precision": "float32"}
    wanted, given = (
        execute(Settings(**sections, run=limits | own), tmp_path / own["device"]) for own in (on_cpu, on_cuda)
    )
    assert given.get("rejected_by") == wanted.get("rejected_by")
    models = (load_file(tmp_path / name / "model.safetensors") for name in ("cpu", "cuda"))
    ours, theirs = (np.concatenate([one.ravel() for one in model.values()]) for model in models)
    assert np.linalg.norm(ours - theirs) < 0.01 * np.linalg.norm(ours)


class StoppedError(Exception):
    pass


@on_gpu
@pytest.mark.parametrize("strategy", ["lesson", "fedasync"])
def test_repeated_or_resumed_run_is_bit_identical(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of clients change nothing, and graphs of ended runs do not disturb later ones, whenever garbage is
    collected."""
    monkeypatch.setattr("lesson.learn.cuda.backend.MAX_CHUNK_STEPS", 100)  # several chunks in 40 rounds
    chosen = Settings(strategy={"name": strategy}, run={"rounds": 40, "eval_every_s": 100.0, "device": "cuda"})

    def collect(line: dict[str, Any]) -> None:
        if line["round"] == 23:
            gc.collect()

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 23:
            raise StoppedError

    execute(chosen, tmp_path / "first", progress=collect)
    with pytest.raises(StoppedError):
        execute(chosen.with_changes(checkpoint_every_s=1e-9), tmp_path / "broken", progress=stop)
    execute(chosen, tmp_path / "broken", resume=True)
    held = torch.cuda.memory_allocated()
    execute(chosen.with_changes(client_scores_every_s=60.0), tmp_path / "scored")
    assert torch.cuda.memory_allocated() <= held
    assert len({path.read_bytes() for path in tmp_path.glob("*/model.safetensors")}) == 1
    first, broken = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("first", "broken"))
    assert first == broken


@on_gpu
@pytest.mark.parametrize("local_steps", [1, 3])
def test_diverging_run_stops_as_it_would_round_by_round(
    local_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only updates that start in round 8 or later overflow, in whatever wave they are trained."""
    overflow_from(8, monkeypatch)
    limits = {"rounds": 60, "eval_every_s": 20.0, "device": "cuda"}
    found = []
    for steps in (1, 2048):
        monkeypatch.setattr("lesson.learn.cuda.backend.MAX_CHUNK_STEPS", steps)
        with pytest.raises(DivergedError) as caught:
            execute(Settings(training={"local_steps": local_steps}, run=limits), tmp_path / str(steps))
        found.append((str(caught.value), len(read_metrics(tmp_path / str(steps) / "metrics.jsonl"))))
    assert found[0] == found[1]
    assert found[0][1] >= 7


# Models that graphs cannot hold


class Waits(Mlp):
    """Reads a value back from the GPU, which no graph can record."""

    def forward(self, features: Tensor) -> Tensor:
        if float(features.sum()) > 1e30:
            raise RuntimeError("huge")
        return super().forward(features)


@on_gpu
@pytest.mark.parametrize(
    ("task", "expected", "reason"),
    [
        (feature_task, ["fused", "batched"], ""),
        (COUPLED["batch norm"], ["reference"] * 2, "influence each other"),
        (COUPLED["contrast"], ["reference"] * 2, "influence each other"),
        (COUPLED["dropout"], ["reference"] * 2, "draws random numbers"),
        (lambda: feature_task(Waits), ["reference"] * 2, "CUDA graph"),
    ],
)
def test_reference_trains_what_graphs_cannot_record(task: Any, expected: list[str], reason: str) -> None:
    for steps, name in zip((1, 3), expected, strict=True):
        workload = workload_of(task(), "cuda")
        clients, asked = SimulatedClients(workload, CudaBackend(workload, "float32")), updates([0])
        asked.local_steps[:] = steps
        trainer = clients.trainer_for(asked.local_steps)
        (cohort,) = random_cohorts(workload, [8], 0, steps)
        given, again = sum_of(trainer, cohort), sum_of(trainer, cohort)
        assert torch.equal(given, again)
        assert given.isfinite().all()
        clients.close()
        assert clients.trainers[-1] == name
        assert [reason in note for note in clients.notes] == ([True] if reason else [])


# Compression


@on_gpu
@pytest.mark.parametrize("kind", [Uniform, Sign, TopK, Float16])
def test_compression_agrees_with_the_cpu(kind: Any) -> None:
    """Also what error feedback adds to the second updates. Few values may round to a neighbor."""
    seen = list[Tensor]()
    for device in ("cpu", "cuda"):
        compress, random = CompressUploads(kind(error_feedback=True), [900, 100], 0), torch.Generator().manual_seed(0)
        for _ in range(2):
            base, models = torch.randn(1000, generator=random), torch.randn(20, 1000, generator=random)
            cohort = make_cohort(base.to(device), 20)
            (one,), _ = compress([replace(cohort, level=np.full(20, kind.level), trained=models.to(device))])
            seen.append(one.models.cpu())
    for ours, theirs in zip(seen[:2], seen[2:], strict=True):
        assert float(((ours - theirs).abs() > 1e-4).double().mean()) < 0.01


@on_gpu
def test_each_draw_of_a_compressor_on_a_gpu_is_another_one() -> None:
    random = CompressUploads(QSGD(), [50], 0)._random(make_cohort(torch.zeros(50, device="cuda"), 3))
    assert not torch.equal(random(50), random(50))


@on_gpu
def test_qsgd_on_a_gpu_is_unbiased() -> None:
    """The mean of 10,000 roundings to steps of 2/2 is within five standard errors of at most 1/2 / 100."""
    update = torch.linspace(-1, 1, 50, device="cuda")
    cohort = make_cohort(torch.zeros(50, device="cuda"), 10_000)
    trained = replace(cohort, level=np.full(10_000, 2.0), trained=update.expand(10_000, 50).clone())
    (one,), _ = CompressUploads(QSGD(), [50], 0)([trained])
    assert float((one.models.mean(0) - update).abs().max()) < 5 * 0.5 / 100


# Scores


@on_gpu
@pytest.mark.parametrize(
    "task",
    [feature_task, lambda: regression_task(metrics=rmse), INDEPENDENT["lstm"], INDEPENDENT["dict"], COUPLED["dropout"]],
    ids=["features", "metrics", "sequences", "dict", "modes"],
)
def test_scores_agree_with_the_cpu(task: Any) -> None:
    cpu, cuda = workload_of(task()), workload_of(task(), "cuda")
    ours, theirs = Evaluator(cuda, CudaBackend(cuda, "float32")), Evaluator(cpu, CpuBackend(cpu))
    here, away = (GlobalModel(work.initial_vector(), NewestCohort(None, 0, "")) for work in (cpu, cuda))
    given, expected = ours.score(away), theirs.score(here)
    assert dict(given.values) == pytest.approx(dict(expected.values), abs=2e-2)
    assert given.loss == pytest.approx(expected.loss, rel=1e-3)
    assert ours.client_scores(away).loss == pytest.approx(theirs.client_scores(here).loss, rel=1e-3)
    ours.close()
    theirs.close()


@on_gpu
def test_accuracies_of_clients_and_classes_agree_with_the_cpu() -> None:
    """Except for samples on the edge between two classes."""
    cpu, cuda = (
        image_workload(Settings(), load_samples("mnist"), 50, 0, None, device, holding_out=True)
        for device in ("cpu", "cuda")
    )
    given, expected = rounds(cuda, CudaBackend(cuda, "float32"), 10), make_models(cpu)
    expected.lane.restore(given.lane.state())
    model = given.lane.model
    ours, theirs = (one.executor.evaluator.signals()["client_accuracy"](one.lane.model) for one in (given, expected))
    assert cpu.held_out is not None
    assert np.ptp(theirs) > 0.1
    assert (np.abs(ours - theirs) * cpu.held_out.num_samples).sum() <= 6  # of 6,000
    by_class = Evaluator(cuda, CudaBackend(cuda, "float32")).class_accuracy(model)
    wanted = Evaluator(cpu, CpuBackend(cpu)).class_accuracy(replace(model, vector=model.vector.cpu()))
    assert by_class == pytest.approx(wanted, abs=0.005)


# Convolutions


@on_gpu
@pytest.mark.parametrize(
    ("channels", "features", "size", "stride", "padding", "side"),
    [
        (1, 6, 5, 1, 2, 28),
        (3, 8, 3, 1, 1, 8),
        (3, 20, 3, 2, 1, 9),
        (2, 4, 1, 2, 0, 7),
        (4, 70, (3, 2), (2, 1), (1, 0), 8),
    ],
)
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("tf32", 2e-3)])
def test_convolutions_with_separate_weights_agree_with_torch(
    channels: int, features: int, size: Any, stride: Any, padding: Any, side: int, precision: Any, tolerance: float
) -> None:
    """Gradients of three two-layer models. The cases include partial blocks, patches in several parts, and strides."""
    from lesson.learn.cuda.convolution import Convolution, use_kernels

    torch.manual_seed(0)
    first = nn.Conv2d(channels, features, size, stride=stride, padding=padding)
    # Smooth: rounding would switch a unit of ReLU on or off here and there.
    plain = nn.Sequential(first, nn.Tanh(), nn.Conv2d(features, 5, 3, padding=1, bias=False)).cuda()
    fast = copy.deepcopy(plain)
    use_kernels(fast, precision)
    assert isinstance(fast[0], Convolution)
    assert isinstance(fast[2], Convolution)
    parameters = {name: 0.3 * torch.randn(3, *one.shape).cuda() for name, one in plain.named_parameters()}
    images = torch.randn(3, 4, channels, side, side).cuda()

    def gradients(model: nn.Module) -> Any:
        def loss(given: Any, images: torch.Tensor) -> torch.Tensor:
            return functional_call(model, given, (images,)).square().mean()

        return vmap(grad(loss))(parameters, images)

    with arithmetic("float32"):
        wanted = gradients(plain)
    for name, given in gradients(fast).items():
        error = given - wanted[name]
        assert error.norm() < tolerance * wanted[name].norm()
        bias = (error * wanted[name].sign()).mean() / wanted[name].abs().mean()
        assert abs(bias) < 3e-4  # factors that are truncated instead of rounded make all results smaller


@on_gpu
def test_only_plain_convolutions_use_the_triton_kernels() -> None:
    from lesson.learn.cuda.convolution import use_kernels

    kept = [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        type("Own", (nn.Conv2d,), {})(4, 4, 3),
    ]
    before = [type(layer) for layer in kept]
    use_kernels(nn.Sequential(*kept), "tf32")
    assert [type(layer) for layer in kept] == before
    plain = nn.Conv2d(4, 4, 3)
    use_kernels(plain, "bfloat16")
    assert type(plain) is nn.Conv2d
