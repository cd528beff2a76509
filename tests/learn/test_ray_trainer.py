"""The actors of a Ray cluster train as one process does, and those that are lost are replaced."""

import contextlib
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import learning
from helpers.any_tasks import workload_of
from helpers.ray_cluster import needs_ray, running_cluster
from helpers.runs import PARTS, content, settings
from helpers.small_tasks import tiny_task, tiny_workload
from helpers.trainers import make_cohort, several, sum_of
from lesson import InputError
from lesson.core import ray_cluster
from lesson.core.errors import RunStoppedError
from lesson.learn import ray_trainer
from lesson.learn.cohort import Cohort
from lesson.learn.ray_trainer import MAX_REPEATS, RayTrainer
from lesson.learn.reference import BLOCK, ReferenceTrainer, parts_of
from lesson.learn.workload import Workload
from lesson.runs.execute import execute

Kill = Callable[[int, str], bool]


class LostError(Exception):
    """An actor was lost, in the cluster that is made up."""


def sent(value: Any) -> Any:
    """Return a copy of a value as Ray makes it: arrays are read-only."""
    buffers = list[pickle.PickleBuffer]()
    content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(content, buffers=[bytes(buffer) for buffer in buffers])


class MadeUpRay:
    """A cluster in this process. A call of an actor is executed when it is waited for, in an order that is not theirs.

    `kills` says after how many calls, and of which method, an actor is lost.
    """

    def __init__(self, num_actors: int, kills: Kill) -> None:
        self._num_actors, self._kills = num_actors, kills
        self._calls = 0
        self._results: dict[Any, Any] = {}
        self.alive: list[Any] = []
        self.num_made, self.num_put = 0, 0
        errors = dict.fromkeys(("RayActorError", "NodeDiedError", "ObjectLostError", "OutOfMemoryError"), LostError)
        self.exceptions = SimpleNamespace(**errors, RayError=LostError)

    def cluster_resources(self) -> dict[str, float]:
        return dict.fromkeys(("CPU", "GPU"), float(self._num_actors))

    def put(self, value: Any) -> Any:
        self.num_put += 1
        return SimpleNamespace(value=sent(value))

    def remote(self, **_: object) -> Callable[[type], Any]:
        return lambda kind: SimpleNamespace(remote=lambda: self._make(kind))

    def _make(self, kind: type) -> Any:
        actor, handle, is_lost = kind(), SimpleNamespace(), list[bool]()

        def method(name: str) -> Any:
            def call(*arguments: Any) -> object:
                reference, values = object(), [getattr(one, "value", one) for one in arguments]

                def execute() -> Any:
                    self._calls += 1
                    if is_lost or self._kills(self._calls, name):
                        is_lost.append(True)
                        return LostError()
                    return sent(getattr(actor, name)(*values))

                self._results[reference] = execute
                return reference

            return SimpleNamespace(remote=call)

        handle.load, handle.ping, handle.train = map(method, ("load", "ping", "train"))
        handle.lose = lambda: is_lost.append(True)
        self.alive.append(handle)
        self.num_made += 1
        return handle

    def wait(self, references: list[Any], num_returns: int = 1, timeout: float = 0.0) -> tuple[list[Any], list[Any]]:
        assert references, "it would wait forever"
        return (references[-1:] if num_returns == 1 or len(references) == 1 else references[1::2]), []

    def get(self, reference: Any) -> Any:
        result = self._results.pop(reference)()
        if isinstance(result, LostError):
            raise result
        return result

    def kill(self, handle: Any) -> None:
        self.alive.remove(handle)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MadeUpRay]:
    """Returns a cluster that is made up, which trainers then connect to."""

    def make(num_actors: int = 3, kills: Kill = lambda *_: False) -> MadeUpRay:
        ray = MadeUpRay(num_actors, kills)
        monkeypatch.setattr(ray_trainer, "connected", lambda *_, **__: contextlib.nullcontext(ray))
        return ray

    return make


def many_rows(workload: Workload, num: int = BLOCK + 9) -> Cohort:
    """Return a cohort of more than one part, with unequal local steps."""
    everybody = make_cohort(1.2 * workload.initial_vector(), 8, steps=2)
    rows = np.arange(num)
    steps = 1 + (rows % 5 == 0) * (rows % 7)
    weight = (1 + rows % 11) / num
    return replace(everybody[rows % 8], index=rows // 8, weight=weight, local_steps=steps)


def assert_same(trainer: RayTrainer, workload: Workload, cohorts: list[Cohort]) -> None:
    """Check that sums and models are bit-identical to those of the reference."""
    reference = ReferenceTrainer(workload)
    for given, expected in (
        (trainer.sums(cohorts), reference.sums(cohorts)),
        (trainer.models(cohorts), reference.models(cohorts)),
    ):
        assert len(given) == len(expected) == len(cohorts)
        assert all(torch.equal(one, other) for one, other in zip(given, expected, strict=True))


@pytest.mark.parametrize("num_actors", [1, 3])
def test_waves_are_bit_identical_to_the_reference(num_actors: int, made_up: Callable[..., MadeUpRay]) -> None:
    """Cohorts with different bases, one of several parts; with three actors, only the first parts stay whole."""
    workload, ray = tiny_workload(8, proximal_mu=0.5), made_up(num_actors)
    trainer = RayTrainer(workload)
    assert_same(trainer, workload, several(workload))
    assert_same(trainer, workload, [many_rows(workload), *several(workload, 3), many_rows(workload, 2 * BLOCK)])
    assert ray.num_put == 1 + 2 * (3 + 5), "a base model is sent once per cohort"
    trainer.close()
    assert ray.alive == []


def test_only_the_last_parts_are_divided(made_up: Callable[..., MadeUpRay]) -> None:
    """Of five parts for two actors, three are trained whole and return a sum; for models, all parts are divided."""
    made_up(2)
    workload = tiny_workload(8)
    trainer, parts = RayTrainer(workload), parts_of([many_rows(workload, 4 * BLOCK + 9)])
    for summed, num_whole in ((True, 3), (False, 0)):
        shares = trainer._shares(parts, summed)
        assert [divided is None for _, divided in shares] == [True] * num_whole + [False] * (5 - num_whole)
        for (_, part), divided in ((parts[0], divided) for parts, divided in shares if divided is not None):
            assert sorted(np.concatenate(divided)) == list(range(len(part)))
        methods = [piece.method for share in shares for piece in ray_trainer._pieces(share, summed)]
        assert methods == ["sums"] * num_whole + ["rows"] * (len(methods) - num_whole)


def test_an_actor_holds_two_pieces_at_most(made_up: Callable[..., MadeUpRay]) -> None:
    workload, ray = tiny_workload(8), made_up(2)
    trainer, held = RayTrainer(workload), list[int]()
    original = ray.get

    def get(reference: Any) -> Any:
        held.append(len(ray._results))
        return original(reference)

    ray.get = get  # type: ignore[method-assign]
    trainer.sums([many_rows(workload)])
    assert 2 <= max(held) <= 2 * ray_trainer.MAX_QUEUED


@pytest.mark.parametrize(("given", "address"), [("", None), ("local", None), ("auto", "auto"), ("h:1", "h:1")])
def test_the_cluster_is_the_one_of_ray_address(
    given: str, address: str | None, made_up: Callable[..., MadeUpRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, asked = made_up(), list[object]()

    def connected(where: str | None, **options: object) -> contextlib.nullcontext[MadeUpRay]:
        asked.extend((where, options))
        return contextlib.nullcontext(ray)

    monkeypatch.setattr(ray_trainer, "connected", connected)
    monkeypatch.setenv("RAY_ADDRESS", given)
    RayTrainer(tiny_workload(8), 5).close()
    assert asked == [address, {"name": "RAY_ADDRESS", "num_cpus": 5}]


def test_pieces_for_gpus_do_not_depend_on_their_number(
    made_up: Callable[..., MadeUpRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consecutive parts of at most BLOCK rows are trained together: 9 + 8 + 1 + 6 rows, but not the 64 before them."""
    monkeypatch.setattr(RayTrainer, "_on_cpu", False)
    workload, trained = tiny_workload(8), list[list[int]]()
    original = ray_trainer._Actor.train

    def train(self: Any, method: Any, columns: list[dict[str, Any]], *bases: Any) -> Any:
        trained.append([len(one["client"]) for one in columns])
        return original(self, method, columns, *bases)

    monkeypatch.setattr(ray_trainer._Actor, "train", train)
    for num_actors in (1, 3):
        made_up(num_actors)
        trained.clear()
        assert_same(RayTrainer(workload), workload, [many_rows(workload), *several(workload, 2)])
        assert sorted(trained) == [[9, 8, 1, 6]] * 2 + [[BLOCK]] * 2


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("steps", [1, 3])
def test_results_on_gpus_do_not_depend_on_their_number(steps: int, made_up: Callable[..., MadeUpRay]) -> None:
    task = tiny_task()
    workload, cpu = workload_of(task, "cuda"), workload_of(task)
    cohorts = [many_rows(cpu), *several(cpu, steps)]
    there = [replace(cohort, base=cohort.base.cuda()) for cohort in cohorts]
    given = list[list[torch.Tensor]]()
    for num_actors in (1, 2):
        made_up(num_actors)
        trainer = RayTrainer(workload)
        given.append([*trainer.sums(there), *trainer.models(there)])
        trainer.close()
    reference = ReferenceTrainer(cpu)
    expected = [*reference.sums(cohorts), *reference.models(cohorts)]
    assert all(torch.equal(one, other) for one, other in zip(*given, strict=True))
    assert all(torch.allclose(one.cpu(), other, atol=1e-4) for one, other in zip(given[0], expected, strict=True))


def test_lost_actors_are_replaced_and_their_work_is_repeated(made_up: Callable[..., MadeUpRay]) -> None:
    """Every seventh call kills its actor, in the middle of training or when it starts."""
    workload, ray = tiny_workload(8), made_up(kills=lambda calls, _: calls % 7 == 0)
    trainer = RayTrainer(workload)
    assert_same(trainer, workload, [*several(workload, 2), many_rows(workload)])
    assert ray.num_made > 5
    assert len(ray.alive) == 3
    trainer.close()
    assert ray.alive == []


def test_a_node_can_be_lost_with_more_actors_than_work_is_repeated(made_up: Callable[..., MadeUpRay]) -> None:
    """Idle actors of a node that is gone do not get the work that was lost with the first of them."""
    workload, ray = tiny_workload(8), made_up(12)
    trainer = RayTrainer(workload)
    assert_same(trainer, workload, [many_rows(workload)])
    assert all(actor.pending is None for actor in trainer._actors)
    for handle in ray.alive[: 2 * MAX_REPEATS + 2]:
        handle.lose()
    assert_same(trainer, workload, [make_cohort(workload.initial_vector(), 1)])
    assert len(ray.alive) == 12


def test_the_loss_of_an_actor_counts_for_one_piece(
    made_up: Callable[..., MadeUpRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two pieces in turn, each is lost as often as allowed; the one that waits behind it is not to blame."""
    workload, num_kills = tiny_workload(8), 2 * MAX_REPEATS
    kills = iter([True] * num_kills)
    ray = made_up(1, lambda _, name: name == "train" and next(kills, False))
    monkeypatch.setattr(ray, "wait", lambda references, **_: (references[:1], []))
    trainer = RayTrainer(workload)
    assert_same(trainer, workload, [many_rows(workload, 2)])
    assert ray.num_made == 1 + num_kills


@pytest.mark.parametrize("method", ["load", "train"])
def test_a_run_stops_if_actors_are_lost_at_the_same_work_again_and_again(
    method: str, made_up: Callable[..., MadeUpRay]
) -> None:
    workload, ray = tiny_workload(8), made_up(1, lambda _, name: name == method)
    trainer = RayTrainer(workload)
    said = r"a Ray actor was lost 4 times at the same work: .*probably for lack of memory; .* then resume the run"
    with pytest.raises(RunStoppedError, match=said):
        sum_of(trainer, make_cohort(workload.initial_vector(), 1))
    assert ray.num_made == MAX_REPEATS + 1
    trainer.close()
    assert ray.alive == []


def test_an_error_of_training_is_the_one_of_worker_processes(
    made_up: Callable[..., MadeUpRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, _ = tiny_workload(8), made_up()
    trainer = RayTrainer(workload)

    def fail(*_: object) -> None:
        raise RunStoppedError("client 3 cannot train on a minibatch of size 5: it broke")

    monkeypatch.setattr(ReferenceTrainer, "rows", fail)
    with pytest.raises(RunStoppedError, match=r"^a training process failed: client 3 cannot train .*: it broke$"):
        sum_of(trainer, make_cohort(workload.initial_vector(), 8))


def test_actors_can_be_used_again_after_an_interrupt(
    made_up: Callable[..., MadeUpRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, ray = tiny_workload(8), made_up()
    trainer, cohorts = RayTrainer(workload), [many_rows(workload)]
    assert_same(trainer, workload, cohorts)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ray, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            trainer.sums(cohorts)
    assert_same(trainer, workload, cohorts)


def test_a_task_that_actors_cannot_load_is_reported(
    made_up: Callable[..., MadeUpRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ModuleNotFoundError("No module named 'mine'")

    workload, _ = tiny_workload(8), made_up()
    monkeypatch.setattr("lesson.learn.sharing.Packed.unpack", fail)
    said = (
        r"^task cannot be copied to the Ray cluster: ModuleNotFoundError: No module named 'mine' .*; install the same"
    )
    with pytest.raises(InputError, match=said):
        sum_of(RayTrainer(workload), make_cohort(workload.initial_vector(), 8))


def test_actors_find_the_modules_of_a_custom_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine_on_ray.py").write_text("class Work:\n    device = 'cpu'\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    stored: tuple[bytes, list[Any]] = (b"cmine_on_ray\nWork\n.", [])
    assert "No module named 'mine_on_ray'" in ray_trainer._Actor().load(stored, "float32", [])
    assert ray_trainer._Actor().load(stored, "float32", [str(tmp_path)]) == ""


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).to(torch.bfloat16),
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(ray_trainer.MIN_SHARED_BYTES, dtype=torch.uint8),
    ],
)
def test_actors_get_tensors_as_they_were_and_may_write_to_small_ones(tensor: torch.Tensor) -> None:
    values, device = sent(ray_trainer._stored(tensor))
    first, second = (ray_trainer._restored(values, device) for _ in range(2))
    assert torch.equal(first, tensor)
    assert (first.dtype, first.stride()) == (tensor.dtype, tensor.stride())
    if isinstance(values, np.ndarray):
        is_shared = first.data_ptr() == second.data_ptr()
        assert is_shared == (values.nbytes >= ray_trainer.MIN_SHARED_BYTES)


def test_a_node_without_this_package_is_reported(
    made_up: Callable[..., MadeUpRay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray calls such actors dead, as it does those that were killed."""
    monkeypatch.setattr(LostError, "actor_init_failed", True, raising=False)
    monkeypatch.setattr(LostError, "__str__", lambda _: "it died\nModuleNotFoundError: No module named 'lesson'\n")
    workload, _ = tiny_workload(8), made_up(kills=lambda *_: True)
    said = r"^task cannot be copied to the Ray cluster: ModuleNotFoundError: No module named 'lesson'; install the same"
    with pytest.raises(InputError, match=said):
        sum_of(RayTrainer(workload), make_cohort(workload.initial_vector(), 8))


def test_a_cluster_without_cpus_is_reported(made_up: Callable[..., MadeUpRay], tmp_path: Path) -> None:
    made_up(0)
    with pytest.raises(InputError, match=r"^\[run\] trainer must not be 'ray' here: Ray finds no CPU; use 'auto'$"):
        execute(settings(trainer="ray"), tmp_path / "run", **PARTS)
    assert not (tmp_path / "run").exists()


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"^Ray is not installed; run pip install 'lesson-fl\[ray\]'"):
        execute(settings(trainer="ray"), tmp_path / "run", **PARTS)
    assert not (tmp_path / "run").exists()


def test_a_cluster_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "check_installed", lambda: None)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(InputError, match=r"^RAY_ADDRESS '127.0.0.1:1' does not answer: "):
        RayTrainer(tiny_workload(8))


def test_a_run_is_bit_identical_and_names_its_trainer(made_up: Callable[..., MadeUpRay], tmp_path: Path) -> None:
    """An asynchronous strategy, whose updates are trained in waves of several cohorts."""
    ray = made_up(2)
    for name in ("ray", "reference"):
        execute(settings("fedasync", rounds=40, trainer=name), tmp_path / name, **PARTS)
    assert content(tmp_path / "ray") == content(tmp_path / "reference")
    assert json.loads((tmp_path / "ray" / "summary.json").read_text())["wall_trainer"] == "ray"
    assert ray.alive == []


def test_the_benchmark_runs_a_tiny_case(
    made_up: Callable[..., MadeUpRay], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`learning.py --quick` leaves it out, because Ray takes seconds to start."""
    made_up(2)
    monkeypatch.setattr(learning, "BatchedTrainer", lambda workload, _: ReferenceTrainer(workload))
    learning.ray_actors([("mnist", 1, 1), ("none", 1, 1)])
    *_, row, last = capsys.readouterr().out.splitlines()
    assert row.startswith("| mnist, median of 1 | 1 | ")
    assert last.startswith("| none: unknown dataset 'none'")


@pytest.mark.slow
@needs_ray
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_trains_as_one_process_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after an actor was killed that had work to do."""
    handler, workload = signal.getsignal(signal.SIGTERM), tiny_workload(8)
    with running_cluster(monkeypatch) as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with contextlib.closing(RayTrainer(workload)) as trainer:
            assert signal.getsignal(signal.SIGTERM) is handler
            assert_same(trainer, workload, several(workload))
            before, ray = [actor.handle for actor in trainer._actors], trainer._ray
            pids = ray.get([handle.__ray_call__.remote(lambda _: os.getpid()) for handle in before])
            before[0].__ray_call__.remote(lambda _: (time.sleep(0.5), os.kill(os.getpid(), signal.SIGKILL)))
            assert_same(trainer, workload, [*several(workload, 3), many_rows(workload)])
            now = [actor.handle for actor in trainer._actors]
            assert (now[0] is before[0], now[1] is before[1]) == (False, True)
        assert not ray.is_initialized()
        assert all(has_ended(pid) for pid in pids)
        assert capsys.readouterr().out == "", "Ray tells of the actor that was killed"


def has_ended(pid: int) -> bool:
    """Wait until a process has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
