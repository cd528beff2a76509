"""The GPU draws the same samples and gives the CPU reference's models. Skipped where there is no GPU."""

import copy
import gc
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.func import functional_call, grad, vmap

from helpers.model_servers import make_server, overflow_from, updates
from helpers.small_tasks import DroppingNet, NormedNet, TinyNet, image_workload, tiny_data
from helpers.trainers import colors, make_cohort, several, sum_of
from lesson import InputError, Lesson, LessonMemory, RoundLoop, Settings, Simulation, compare, draw_fleet
from lesson.core.errors import DivergedError
from lesson.learn import counters, dropout
from lesson.learn.backend import Backend
from lesson.learn.cohort import Cohort
from lesson.learn.cpu import CpuBackend
from lesson.learn.cuda.graphs import arithmetic
from lesson.learn.data import Dataset, load_dataset
from lesson.learn.divergence import NewestCohort
from lesson.learn.evaluation import Evaluator
from lesson.learn.model_server import GlobalModel, ModelServer
from lesson.learn.reference import ReferenceTrainer
from lesson.learn.robust import aggregation
from lesson.learn.simulated_clients import SimulatedClients
from lesson.learn.workload import Workload
from lesson.runs.execute import execute
from lesson.runs.folder import RunFolder
from lesson.runs.summary import read_metrics
from lesson.strategies import LessonAdaptive, LessonFilled

pytestmark = pytest.mark.usefixtures("gpu")


def gpu(workload: Workload, precision: Any = "float32") -> Backend:
    from lesson.learn.cuda.backend import CudaBackend

    return CudaBackend(workload, precision)


def workloads(name: str, **settings: Any) -> tuple[Workload, Workload]:
    """The same workload on the CPU and on the GPU."""
    made: dict[str, tuple[Dataset, int, dict[str, Any]]] = {
        "mnist": (load_dataset("mnist"), 50, {}),
        "cifar10": (colors(), 12, {"split": "iid", "batch_size": 10}),
        "tiny": (tiny_data(), 8, {"split": "iid", "batch_size": 5}),
        "short": (tiny_data(), 8, {"split": "iid", "batch_size": 30}),
        "pool": (tiny_data(), 5000, {"split": "dirichlet-pool", "samples_per_client": (3, 40), "batch_size": 5}),
    }
    data, num_clients, usual = made[name]
    factory = TinyNet if data.name == "tiny" else None
    chosen = Settings(**usual | settings)
    cpu, cuda = (image_workload(chosen, data, num_clients, 0, factory, device) for device in ("cpu", "cuda"))
    return cpu, cuda


def on_gpu(cohort: Cohort) -> Cohort:
    return replace(cohort, base=cohort.base.cuda())


NAMES = ["mnist", "cifar10", "tiny", "short", "pool"]


@pytest.mark.parametrize("epochs", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_samples_are_drawn(name: str, epochs: int) -> None:
    cpu, cuda = workloads(name, local_epochs=epochs)
    cohort = make_cohort(cpu.initial_vector(), 8, steps=7)
    assert torch.equal(cuda.minibatches(cohort, 7).cpu(), cpu.minibatches(cohort, 7))


def test_kernels_are_bit_identical_to_the_plain_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [torch.arange(9), torch.arange(9) * 5 + 2**31, torch.arange(9) + 3]
    there = [column.cuda() for column in ids]
    expected = counters.words((0xA4093822, 0x299F31D0), 7, *ids)
    kept = dropout.draw_kept(4, 100, *ids)
    assert counters.gpu_kernels() is not None
    assert torch.equal(counters.words((0xA4093822, 0x299F31D0), 7, *there).cpu(), expected)
    assert torch.equal(dropout.draw_kept(4, 100, *there).cpu(), kept)
    monkeypatch.setattr(counters, "gpu_kernels", lambda: None)
    assert torch.equal(counters.words((0xA4093822, 0x299F31D0), 7, *there).cpu(), expected)
    assert torch.equal(dropout.draw_kept(4, 100, *there).cpu(), kept)


@pytest.mark.parametrize(("trainer", "steps"), [("fused", 1), ("batched", 1), ("batched", 4), ("reference", 4)])
@pytest.mark.parametrize("num", [1, 5, 8])
@pytest.mark.parametrize("name", NAMES)
def test_a_cohort_agrees_with_the_reference(name: str, num: int, trainer: Any, steps: int) -> None:
    cpu, cuda = workloads(name)
    # Larger steps magnify what is rounded. At some, a pool's maximum is so close to the next that rounding decides who
    # gets the gradient: at 0.02, a relative 3e-7 in the base moves MNIST's cohort of 8 by 3 %.
    cohort = replace(make_cohort(cpu.initial_vector(), num, steps), lr=0.03 * (1 + np.arange(num) % 4))
    if steps > 1:
        cohort.local_steps[: num // 2] = steps // 2
    expected = sum_of(ReferenceTrainer(cpu), cohort)
    given = sum_of(gpu(cuda).trainer(trainer), on_gpu(cohort)).cpu()
    moved = float((expected - 0.7 * cohort.base).abs().max())
    assert moved > 1e-5
    assert (given - expected).abs().max() < 0.01 * moved  # some algorithms of the library round more than others


@pytest.mark.parametrize("name", ["mnist", "tiny"])
def test_the_proximal_term_agrees_with_the_reference(name: str) -> None:
    """Half of the clients are done after two of four steps and are not pulled back any more."""
    cpu, cuda = workloads(name, proximal_mu=2.0)
    cohort = replace(make_cohort(cpu.initial_vector(), 8, 4), lr=0.05 * (1 + np.arange(8) % 4))
    cohort.local_steps[:4] = 2
    expected, without = (sum_of(ReferenceTrainer(workload), cohort) for workload in (cpu, workloads(name)[0]))
    given = sum_of(gpu(cuda).trainer("batched"), on_gpu(cohort)).cpu()
    matters = (expected - without).abs().max()
    assert matters > 1e-4
    assert (given - expected).abs().max() < 0.05 * matters


def test_cohorts_of_any_size_together() -> None:
    """Three chunks, equal sizes, one, and many of few clients: all at once, each as alone."""
    cpu, cuda = workloads("pool", batch_size=40)
    trainer, base = gpu(cuda).trainer("fused"), cpu.initial_vector()
    sizes = (130, 7, 1, 7, 2, 1, 4)
    cohorts = [make_cohort(base + 0.01 * place, num) for place, num in enumerate(sizes)]
    given = trainer.sums([on_gpu(cohort) for cohort in cohorts])
    for cohort, one in zip(cohorts, given, strict=True):
        assert torch.allclose(one.cpu(), sum_of(ReferenceTrainer(cpu), cohort), atol=2e-5)


def test_cohorts_of_several_steps_together() -> None:
    """More clients than a block takes, works of unequal length, with a term that pulls each to where it started."""
    cpu, cuda = workloads("tiny", proximal_mu=0.5)
    trainer, base = gpu(cuda).trainer("batched"), cpu.initial_vector()
    cohorts = [make_cohort(base + 0.01 * place, num, steps) for place, (num, steps) in enumerate(((8, 2), (5, 7)) * 6)]
    given = trainer.sums([on_gpu(cohort) for cohort in cohorts])
    for cohort, one in zip(cohorts, given, strict=True):
        assert torch.allclose(one.cpu(), sum_of(ReferenceTrainer(cpu), cohort), atol=2e-5)


@pytest.mark.parametrize(("trainer", "steps"), [("fused", 1), ("batched", 1), ("batched", 4)])
@pytest.mark.parametrize("name", NAMES)
def test_models_agree_with_the_reference(name: str, trainer: Any, steps: int) -> None:
    """Cohorts from models of their own, a client with several minibatches.

    Where rounding decides a pool's maximum, a relative 3e-7 in the base moves one of CIFAR-10's models by 12 %.
    """
    cpu, cuda = workloads(name)
    cohorts = [replace(cohort, lr=0.3 * cohort.lr) for cohort in several(cpu, steps)]
    expected, chosen = ReferenceTrainer(cpu).models(cohorts), gpu(cuda).trainer(trainer)
    there = [on_gpu(cohort) for cohort in cohorts]
    given, sums = chosen.models(there), chosen.sums(there)
    for cohort, models, wanted, total in zip(cohorts, given, expected, sums, strict=True):
        assert models.is_cuda
        assert models.shape == wanted.shape
        moved = (wanted - cohort.base).norm(dim=1)
        away = (models.cpu() - wanted).norm(dim=1) / moved
        assert moved.min() > 1e-3
        assert away.max() < 0.3
        assert away.median() < 0.01
        summed = torch.from_numpy(cohort.weight) @ models.cpu().double()
        assert (summed - total.cpu()).norm() < 0.01 * float(cohort.weight @ moved.numpy())


@pytest.mark.parametrize("trainer", ["fused", "batched"])
def test_models_of_more_clients_than_a_block_takes(trainer: Any) -> None:
    """In the order of their rows, though longer work is done first; what was given stays when others are trained."""
    cpu, cuda = workloads("tiny", proximal_mu=0.5)
    base, chosen = cpu.initial_vector(), gpu(cuda).trainer(trainer)
    lengths = ((8, 1), (5, 1)) if trainer == "fused" else ((8, 2), (5, 7))
    cohorts = [make_cohort(base + 0.01 * place, num, steps) for place, (num, steps) in enumerate(lengths * 6)]
    there = [on_gpu(cohort) for cohort in cohorts]
    given = chosen.models(there)
    kept = [models.clone() for models in given]
    chosen.sums(there[::-1])
    chosen.models(there[::-1])
    for models, before, expected in zip(given, kept, ReferenceTrainer(cpu).models(cohorts), strict=True):
        assert torch.equal(models, before)
        assert torch.allclose(models.cpu(), expected, atol=2e-5)


@pytest.mark.parametrize("trainer", ["fused", "batched"])
def test_models_do_not_wait_for_the_gpu(trainer: Any) -> None:
    cpu, cuda = workloads("mnist")
    cohorts, chosen = [on_gpu(cohort) for cohort in several(cpu)], gpu(cuda).trainer(trainer)
    chosen.models(cohorts)
    with warnings.catch_warnings(action="ignore"):  # that this is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        chosen.models(cohorts)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("num", [1, 4, 9])
def test_robust_means_agree_with_the_cpu(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several blocks, the last one narrower, and to the bit for rows in another order."""
    monkeypatch.setattr(aggregation, "BLOCK_VALUES", 1000 * num)
    rng = torch.Generator().manual_seed(0)
    models = torch.randn(num, 4321, generator=rng).round(decimals=2) * 1e25
    order = torch.randperm(num, generator=rng)
    there, turned = models.cuda(), models[order].cuda()
    for function in (aggregation.coordinate_median, lambda rows: aggregation.trimmed_mean(rows, 0.25)):
        given = function(there)
        assert given.is_cuda
        assert torch.allclose(given.cpu(), function(models), rtol=1e-6)
        assert torch.equal(given.view(torch.int32), function(turned).view(torch.int32))
    assert torch.allclose(aggregation.norms(there).cpu(), aggregation.norms(models), rtol=1e-12)
    assert torch.equal(aggregation.norms(turned), aggregation.norms(there)[order.cuda()])
    there[0, 7] = torch.nan
    assert aggregation.finite_rows(there).tolist() == [False] + [True] * (num - 1)


@pytest.mark.parametrize(
    ("faults", "guards"),
    [
        ({"nan": 0.3, "infinity": 0.1}, {}),
        ({"scaled": 0.5, "scale": 100.0}, {"norm": "reject"}),
        ({"scaled": 0.5, "flipped": 0.5}, {"norm": "clip"}),
        ({"flipped": 1.0, "scaled": 1.0}, {"aggregation": "median"}),
        ({"flipped": 1.0, "nan": 0.2}, {"aggregation": "trimmed-mean", "trim": 0.3}),
    ],
)
def test_corrupted_uploads_and_guards_agree_with_the_cpu(
    tmp_path: Path, faults: dict[str, Any], guards: dict[str, Any]
) -> None:
    sections = {
        "fleet": {"num_clients": 10},
        "data": {"beta": 10.0},
        "run": {"rounds": 12, "eval_every_s": 60.0, "precision": "float32"},
        "faults": {"corrupting_clients": 0.3, **faults},
        "guards": guards,
    }
    told = {}
    for device in ("cpu", "cuda"):
        settings = Settings(**{**sections, "run": sections["run"] | {"device": device}})
        told[device] = execute(settings, tmp_path / device), read_metrics(tmp_path / device / "metrics.jsonl")
    (cpu, cpu_lines), (cuda, cuda_lines) = told["cpu"], told["cuda"]
    assert cuda["rejected_by"] == cpu["rejected_by"]
    assert [line.get("rejections") for line in cuda_lines] == [line.get("rejections") for line in cpu_lines]
    assert cuda["loss"] == pytest.approx(cpu["loss"], rel=1e-3)


def test_models_are_not_rounded_when_they_are_merged() -> None:
    """Not even where the process lets products of matrices be rounded, as some installations do from the start."""
    from lesson.learn.cuda.graphs import arithmetic

    _, cuda = workloads("mnist")
    trainer, base = gpu(cuda).trainer("batched"), cuda.initial_vector()
    cohort = replace(make_cohort(base, 8), lr=np.zeros(8))
    with arithmetic("tf32"):
        merged = trainer.sums([cohort] * 4)
    for given in merged:
        assert torch.allclose(given, 0.7 * base, rtol=1e-6, atol=1e-9)


def rounds(
    workload: Workload, backend: Backend, count: int, trainer: Any = "auto", kind: type[Lesson] = Lesson, **server: Any
) -> tuple[RoundLoop, ModelServer]:
    """LESSON with the preset released, at a step size small enough that what is rounded is not magnified: at the usual
    one, two trainers of the CPU are 2e-4 apart after 20 rounds."""
    made = make_server(workload, trainer, learning_rate=0.002, server=server, needs=kind.needs, backend=backend)
    fleet = draw_fleet(Settings(), len(workload.holdings.num_samples)).at_deadline(20.0)
    simulation = Simulation(kind(20.0), fleet, model_server=made)
    for _ in range(count):
        simulation.step()
    return simulation, made


@pytest.mark.parametrize("trainer", ["fused", "batched"])
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_twenty_rounds_agree_with_the_reference(name: str, trainer: str) -> None:
    cpu, cuda = workloads(name)
    plain, expected = rounds(cpu, CpuBackend(cpu), 20, "reference")
    fast, given = rounds(cuda, gpu(cuda), 20, trainer)
    assert fast.version == plain.version
    assert given.versions.keys() == expected.versions.keys()
    for version, vector in expected.versions.items():
        difference = (given.versions[version].cpu() - vector).norm() / (vector - cpu.initial_vector()).norm()
        # On random images, two CPU trainers already differ by 0.011, because values in max pooling nearly tie.
        assert difference < (0.03 if name == "cifar10" else 0.01)
    ours = Evaluator(cuda, gpu(cuda)).score(given.model(fast.version))
    theirs = Evaluator(cpu, CpuBackend(cpu)).score(expected.model(plain.version))
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)
    assert ours.values["accuracy"] == pytest.approx(theirs.values["accuracy"], abs=0.005)


@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "adam", "yogi"])
def test_a_memory_and_an_optimizer_agree_with_the_reference(optimizer: str) -> None:
    cpu, cuda = workloads("mnist")
    server = {"optimizer": optimizer, "learning_rate": 1e-3, "kind": LessonMemory}
    plain, expected = rounds(cpu, CpuBackend(cpu), 20, "reference", **server)
    fast, given = rounds(cuda, gpu(cuda), 20, "fused", **server)
    assert fast.version == plain.version
    wanted, vector = expected.versions[plain.version], given.versions[fast.version].cpu()
    assert (vector - wanted).norm() < 0.01 * (wanted - cpu.initial_vector()).norm()


def test_filled_slots_and_confirmation_agree_with_the_reference() -> None:
    cpu, cuda = workloads("mnist")
    plain, expected = rounds(cpu, CpuBackend(cpu), 20, "reference", kind=LessonFilled)
    fast, given = rounds(cuda, gpu(cuda), 20, "fused", kind=LessonFilled)
    wanted, vector = expected.versions[plain.version], given.versions[fast.version].cpu()
    assert (vector - wanted).norm() < 0.01 * (wanted - cpu.initial_vector()).norm()
    ours, theirs = (
        server.signals(frozenset({"confirmation"}), simulation.version)["confirmation"]
        for simulation, server in (
            rounds(cuda, gpu(cuda), 20, kind=LessonAdaptive),
            rounds(cpu, CpuBackend(cpu), 20, kind=LessonAdaptive),
        )
    )
    assert theirs[1] > 0
    assert ours == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize(
    "server",
    [{}, {"optimizer": "yogi", "kind": LessonMemory}, {"kind": LessonAdaptive}, {"kind": LessonFilled}],
    ids=["plain", "memory", "adaptive", "filled"],
)
@pytest.mark.parametrize("trainer", ["fused", "batched"])
def test_the_round_loop_never_waits_for_the_gpu(trainer: str, server: dict[str, Any]) -> None:
    _, cuda = workloads("mnist")
    backend = gpu(cuda)
    evaluator, (simulation, model_server) = Evaluator(cuda, backend), rounds(cuda, backend, 24, trainer, **server)
    evaluator.score(model_server.model(simulation.version))
    with warnings.catch_warnings(action="ignore"):  # that this is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(12):
            simulation.step()
        newest = model_server.model(simulation.version)
        pending = evaluator.begin_score(newest)
        with pytest.raises(RuntimeError, match="synchroniz"):
            newest.vector.cpu()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert pending.result() == evaluator.score(newest)


def test_accuracy_by_class_agrees_with_the_cpu() -> None:
    cpu, cuda = workloads("mnist")
    simulation, server = rounds(cpu, CpuBackend(cpu), 5, "reference")
    model = server.model(simulation.version)
    wanted = Evaluator(cpu, CpuBackend(cpu)).class_accuracy(model)
    assert wanted.std() > 0
    given = Evaluator(cuda, gpu(cuda)).class_accuracy(replace(model, vector=model.vector.cuda()))
    assert given == pytest.approx(wanted, abs=0.005)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "pool"])
def test_client_scores_agree_with_the_cpu(name: str) -> None:
    cpu, cuda = workloads(name)
    simulation, server = rounds(cuda, gpu(cuda), 10)
    model = server.model(simulation.version)
    ours = Evaluator(cuda, gpu(cuda)).client_scores(model)
    theirs = Evaluator(cpu, CpuBackend(cpu)).client_scores(replace(model, vector=model.vector.cpu()))
    assert np.ptp(theirs.loss) > 1e-3
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
    differing = np.abs(ours.accuracy - theirs.accuracy) * cpu.holdings.num_samples
    assert differing.sum() <= 1e-3 * cpu.holdings.num_samples.sum()  # samples on the edge between two classes


def test_signals_agree_with_the_cpu() -> None:
    chosen, data = Settings(), load_dataset("mnist")
    cpu, cuda = (image_workload(chosen, data, 50, 0, None, device, holding_out=True) for device in ("cpu", "cuda"))
    simulation, given = rounds(cuda, gpu(cuda), 10)
    expected = make_server(cpu)
    expected.restore(given.state())
    ours, theirs = (
        server.signals(frozenset({"client_accuracy"}), simulation.version)["client_accuracy"]
        for server in (given, expected)
    )
    assert cpu.held_out is not None
    assert np.ptp(theirs) > 0.1
    assert (np.abs(ours - theirs) * cpu.held_out.num_samples).sum() <= 6  # of 6,000


def test_client_scores_change_nothing_else_on_a_gpu(tmp_path: Path) -> None:
    limits = {"rounds": 30, "eval_every_s": 100.0, "device": "cuda"}
    for folder, more in (("without", {}), ("with", {"client_scores_every_s": 60.0})):
        execute(Settings(run=limits | more), tmp_path / folder)
    assert len({path.read_bytes() for path in tmp_path.glob("*/model.safetensors")}) == 1
    plain, scored = (read_metrics(tmp_path / folder / "metrics.jsonl") for folder in ("without", "with"))
    assert sum("client_loss" in line for line in scored) == 10
    new = ("client_accuracy", "client_loss", "global_loss")
    assert [{name: line[name] for name in line if name not in new} for line in scored] == plain


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_faster_arithmetic_stays_close(precision: str) -> None:
    _, cuda = workloads("mnist")
    (exact_run, exact), (fast_run, fast) = (rounds(cuda, gpu(cuda, kind), 30) for kind in ("float32", precision))
    wanted, given = exact.versions[exact_run.version], fast.versions[fast_run.version]
    assert not torch.equal(given, wanted)
    assert (given - wanted).norm() / wanted.norm() < 0.05
    exactly, quickly = (
        Evaluator(cuda, gpu(cuda, kind)).score(GlobalModel(vector, NewestCohort(None, 0, "")))
        for kind, vector in (("float32", wanted), (precision, given))
    )
    assert quickly.loss == pytest.approx(exactly.loss, rel=0.05)


@pytest.mark.parametrize("strategy", ["lesson", "fedasync"])
def test_a_repeated_or_resumed_run_is_bit_identical(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lesson.learn.cuda.backend.MAX_WINDOW_STEPS", 100)  # several windows in 40 rounds
    settings = Settings(strategy={"name": strategy}, run={"rounds": 40, "eval_every_s": 100.0, "device": "cuda"})
    execute(settings, tmp_path / "whole")

    class StoppedError(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 23:
            raise StoppedError

    soon = settings.model_copy(update={"run": settings.run.model_copy(update={"checkpoint_every_s": 1e-9})})
    with pytest.raises(StoppedError):
        execute(soon, tmp_path / "halves", progress=stop)
    assert RunFolder(tmp_path / "halves").checkpoint.exists()
    execute(settings, tmp_path / "halves", resume=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "halves" / name).read_bytes()


@pytest.mark.parametrize("local_steps", [1, 3])
def test_a_run_that_diverges_stops_as_it_would_round_by_round(
    local_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only updates that start in round 8 or later overflow, in whatever wave they are trained."""
    overflow_from(8, monkeypatch)
    settings = Settings(
        training={"local_steps": local_steps}, run={"rounds": 60, "eval_every_s": 20.0, "device": "cuda"}
    )
    found = []
    for steps in (1, 2048):
        monkeypatch.setattr("lesson.learn.cuda.backend.MAX_WINDOW_STEPS", steps)
        with pytest.raises(DivergedError, match="the model is no longer finite after round ") as caught:
            execute(settings, tmp_path / str(steps))
        found.append((str(caught.value), read_metrics(tmp_path / str(steps) / "metrics.jsonl")))
    (message, lines), (message_in_windows, lines_in_windows) = found
    assert message == message_in_windows
    assert len(lines) == len(lines_in_windows) >= 7


def test_a_cohort_that_overflows_does_not_affect_others() -> None:
    _, cuda = workloads("tiny")
    cohort = on_gpu(make_cohort(cuda.initial_vector().cpu(), 4, 3))
    broken = replace(cohort, lr=np.full(4, 1e38))
    trainer = gpu(cuda).trainer("batched")
    sound, infinite = trainer.sums([cohort, broken])
    assert torch.allclose(sound, sum_of(trainer, cohort), atol=1e-6)
    assert not infinite.isfinite().all()


@pytest.mark.parametrize(("strategy", "local_steps"), [("fedasync", 1), ("fedbuff", 1), ("lesson", 1), ("fedasync", 3)])
def test_a_run_in_windows_agrees_with_the_reference(strategy: str, local_steps: int, tmp_path: Path) -> None:
    parts = {"strategy": {"name": strategy}, "training": {"local_steps": local_steps}}
    limits = {"rounds": 15, "eval_every_s": 200.0}  # later, rounding errors have grown
    execute(Settings(**parts, run=limits | {"device": "cpu", "trainer": "reference"}), tmp_path / "cpu")
    execute(Settings(**parts, run=limits | {"device": "cuda", "precision": "float32"}), tmp_path / "cuda")
    models = (load_file(tmp_path / name / "model.safetensors") for name in ("cpu", "cuda"))
    wanted, given = (np.concatenate([one.ravel() for one in model.values()]) for model in models)
    assert np.linalg.norm(given - wanted) < 0.01 * np.linalg.norm(wanted)


def test_consecutive_runs_in_one_process_are_bit_identical_to_each_alone(tmp_path: Path) -> None:
    """Graphs of ended runs are freed before they can disturb those of later ones, whenever rubbish is collected."""
    settings = Settings(run={"rounds": 30, "eval_every_s": 100.0, "device": "cuda"})
    for number in range(4):
        execute(settings, tmp_path / str(number), progress=lambda line: gc.collect() if line["round"] == 15 else None)
    held = torch.cuda.memory_allocated()
    execute(settings, tmp_path / "last")
    assert torch.cuda.memory_allocated() <= held
    models = {path.read_bytes() for path in tmp_path.glob("*/model.safetensors")}
    assert len(models) == 1


def test_runs_that_share_the_gpu_are_bit_identical_to_each_alone(tmp_path: Path) -> None:
    settings = Settings(run={"rounds": 60, "eval_every_s": 100.0, "device": "cuda"})
    compare(["lesson", "fedavg"], num_seeds=2, settings=settings, out=tmp_path / "alone", num_processes=1)
    compare(["lesson", "fedavg"], num_seeds=2, settings=settings, out=tmp_path / "together", num_processes=4)
    for path in (tmp_path / "alone").glob("*/model.safetensors"):
        assert path.read_bytes() == (tmp_path / "together" / path.parent.name / path.name).read_bytes()


class Asks(TinyNet):
    """Waits for the GPU, so that it cannot be recorded."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.sum().item() >= 0
        return super().forward(images)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Asks, "model cannot be recorded as a CUDA graph"),
        (NormedNet, "samples of a minibatch influence each other"),
        (DroppingNet, "the model draws random numbers"),
    ],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_models_that_no_graph_can_hold_are_trained_one_by_one(model: Any, reason: str, steps: int) -> None:
    """As on the CPU, except for dropout, whose random numbers are those of the GPU."""
    chosen = Settings(split="iid", batch_size=5)
    cpu, cuda = (image_workload(chosen, tiny_data(), 8, 0, model, device) for device in ("cpu", "cuda"))
    cohort = replace(make_cohort(cpu.initial_vector(), 8, steps), lr=0.03 * (1 + np.arange(8) % 4))
    clients, made = SimulatedClients(cuda, gpu(cuda)), updates(list(range(8)), [0] * 8, [1.0] * 8)
    trainer = clients.trainer_for(replace(made, local_steps=cohort.local_steps))
    assert clients.trainers == ["reference"]
    assert clients.notes[0].startswith(f"trainer: reference, not {'fused' if steps == 1 else 'batched'}: {reason}")
    given, again = (sum_of(trainer, on_gpu(cohort)).cpu() for _ in range(2))
    assert torch.equal(given, again)
    expected = sum_of(ReferenceTrainer(cpu), cohort)
    moved = (expected - 0.7 * cohort.base).norm()
    assert (given - expected).norm() < (1.0 if model is DroppingNet else 0.01) * moved
    ours, theirs = (
        Evaluator(work, backend).score(GlobalModel(vector, NewestCohort(None, 0, "")))
        for work, backend, vector in ((cuda, gpu(cuda), expected.cuda()), (cpu, CpuBackend(cpu), expected))
    )
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)


def test_a_model_that_cannot_be_recorded_is_reported() -> None:
    cuda = image_workload(Settings(split="iid", batch_size=5), tiny_data(), 8, 0, Asks, "cuda")
    with pytest.raises(InputError, match="model cannot be recorded as a CUDA graph: "):
        sum_of(gpu(cuda).trainer("fused"), make_cohort(cuda.initial_vector(), 4))


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
