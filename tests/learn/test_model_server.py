"""Merges as they should come out, versions that are kept and freed, and runs that must stop."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.fleets import make_fleet
from helpers.model_servers import make_server, trained, updates
from helpers.small_tasks import tiny_workload
from helpers.trainers import one_row, sum_of
from lesson import FedAvg, FedCS, Lesson, Simulation
from lesson.clock.loop import RoundLoop
from lesson.core.errors import DivergedError, InputError
from lesson.learn.cohort import Cohort
from lesson.learn.model_server import ModelServer
from lesson.learn.reference import ReferenceTrainer
from lesson.strategies.base import Merge


@pytest.fixture
def server() -> Iterator[ModelServer]:
    made = make_server(tiny_workload(4), lr_cap=0.25, trainer="reference")
    yield made
    made.close()


def test_a_merge_of_models_by_hand(server: ModelServer) -> None:
    """Half of the model stays; a quarter of client 0's and client 2's go in, from versions 0 and 1. The step of
    client 2, 0.1 · 4, is cut to the cap of 0.25."""
    server.versions[1] = server.versions[0] + 0.01
    first, second = trained(server, 0, 0, 0.1), trained(server, 2, 1, 0.25)
    merge = Merge(np.array([0, 1]), np.array([0.25, 0.25]))
    server.merge(updates([0, 2], [0, 1], [1.0, 4.0]), merge.weights, merge, version=1, round=1)
    expected = 0.5 * server.versions[1] + 0.25 * first + 0.25 * second
    assert torch.allclose(server.versions[2], expected, atol=1e-7)


def test_a_merge_of_updates_by_hand(server: ModelServer) -> None:
    """The newest model moves by half of what client 0 changed since version 0."""
    server.versions[1] = server.versions[0] + 0.01
    moved = trained(server, 0, 0, 0.1) - server.versions[0]
    merge = Merge(np.array([0]), np.array([0.5]), of="updates")
    server.merge(updates([0], [0], [1.0]), merge.weights, merge, version=1, round=1)
    assert torch.allclose(server.versions[2], server.versions[1] + 0.5 * moved, atol=1e-7)


@pytest.mark.parametrize("of", ["models", "updates"])
def test_a_merge_without_a_server_optimizer_is_bit_identical(of: Any) -> None:
    """The merge as it was before there were any: cohorts are added to the kept part one by one."""
    plain = make_server(tiny_workload(4), trainer="fused")
    plain.versions[1] = plain.versions[0] + 0.01
    weights = np.array([0.2, 0.3, 0.4])
    merge = Merge(np.arange(3), weights, of=of)
    plain.merge(updates([3, 0, 2], [1, 0, 1], [1.0, 2.0, 1.0]), weights, merge, version=1, round=1)
    new = plain.versions[1] * (1 - (weights.sum() if of == "models" else 0.0))
    for base, client, scale, weight in ((0, [0], [0.2], [0.3]), (1, [2, 3], [0.1, 0.1], [0.4, 0.2])):
        once = np.ones(len(client), dtype=np.int64)
        rows = np.array(client), 0 * once, np.array(scale), once, np.array(weight), 0 * once
        cohort = Cohort(plain.versions[base], *rows)
        new += sum_of(plain.source.trainer_for(updates(client, [base] * len(client), scale)), cohort)
        if of == "updates":
            new -= float(cohort.weight.sum()) * plain.versions[base]
    assert torch.equal(plain.versions[2], new)
    plain.close()


def test_stale_updates_by_hand() -> None:
    """The strategy averages models; the setting applies what each changed since its own base to the newest model."""
    made = make_server(tiny_workload(4), trainer="reference", server={"aggregate": "updates"})
    made.versions[1] = made.versions[0] + 0.01
    made.versions[2] = made.versions[0] - 0.02
    first = trained(made, 0, 0, 0.1) - made.versions[0]
    second = trained(made, 2, 1, 0.2) - made.versions[1]
    merge = Merge(np.array([0, 1]), np.array([0.25, 0.75]))
    made.merge(updates([0, 2], [0, 1], [1.0, 2.0]), merge.weights, merge, version=2, round=1)
    assert torch.allclose(made.versions[3], made.versions[2] + 0.25 * first + 0.75 * second, atol=1e-7)
    made.close()


def test_stale_models_by_hand() -> None:
    """The strategy merges updates; the setting averages the models themselves, if their weights allow that."""
    made = make_server(tiny_workload(4), trainer="reference", server={"aggregate": "models"})
    made.versions[1] = made.versions[0] + 0.01
    model = trained(made, 0, 0, 0.1)
    merge = Merge(np.array([0]), np.array([0.25]), of="updates")
    made.merge(updates([0], [0], [1.0]), merge.weights, merge, version=1, round=1)
    assert torch.allclose(made.versions[2], 0.75 * made.versions[1] + 0.25 * model, atol=1e-7)
    more = Merge(np.array([0]), np.array([1.5]), of="updates")
    with pytest.raises(InputError, match=r"aggregate must be 'strategy' or 'updates' for this strategy, .* got 1\.5"):
        made.merge(updates([0], [0], [1.0]), more.weights, more, version=2, round=2)
    made.close()


@pytest.mark.parametrize("trainer", ["reference", "fused"])
def test_a_step_size_that_32_bits_do_not_hold_diverges_like_any_other(trainer: str) -> None:
    made = make_server(tiny_workload(3), learning_rate=1e42, lr_cap=np.inf, trainer=trainer)
    merge = Merge(np.array([0]), np.array([1.0]))

    def rounds() -> None:
        for version in range(3):
            made.merge(updates([0], [version], [1.0]), merge.weights, merge, version, round=version + 1)

    with pytest.raises(DivergedError, match=r"at step size 3\.40282e\+38"):
        rounds()
    made.close()


def test_the_optimizer_takes_the_merge_as_a_step() -> None:
    """Momentum 0.5 at step size 2, twice: m is g, then 0.5·g + g', and the model moves by −2·m. A round that merges
    nothing does not come here, so moments stay."""
    server = {"optimizer": "momentum", "learning_rate": 2.0, "beta1": 0.5}
    made = make_server(tiny_workload(4), trainer="reference", server=server)
    merge = Merge(np.array([0]), np.array([1.0]))
    first = made.versions[0] - trained(made, 0, 0, 0.1)
    made.merge(updates([0], [0], [1.0]), merge.weights, merge, version=0, round=1)
    assert torch.allclose(made.versions[1], made.versions[0] - 2 * first, atol=1e-6)
    second = made.versions[1] - trained(made, 1, 1, 0.1)
    made.merge(updates([1], [1], [1.0]), merge.weights, merge, version=1, round=2)
    assert torch.allclose(made.versions[2], made.versions[1] - 2 * (0.5 * first + second), atol=1e-6)
    made.close()


@pytest.mark.parametrize("server", [{}, {"optimizer": "momentum", "learning_rate": 2.0}], ids=["none", "momentum"])
def test_a_merge_scales_the_step_of_the_server(server: dict[str, Any]) -> None:
    """At step_scale 0.25, the model moves a quarter of its way; the first step of momentum is 2·g."""
    made = make_server(tiny_workload(4), trainer="reference", server=server)
    merge = Merge(np.array([0]), np.array([1.0]), step_scale=0.25)
    moved = trained(made, 0, 0, 0.1) - made.versions[0]
    made.merge(updates([0], [0], [1.0]), merge.weights, merge, version=0, round=1)
    factor = 0.25 * server.get("learning_rate", 1.0)
    assert torch.allclose(made.versions[1], made.versions[0] + factor * moved, atol=1e-7)
    made.close()


def simulation(strategy: Any, latencies: list[float], trainer: Any = "fused") -> tuple[RoundLoop, ModelServer]:
    made = make_server(tiny_workload(len(latencies)), trainer=trainer)
    return Simulation(strategy, make_fleet(latencies), model_server=made), made


def test_versions_live_while_a_client_trains_from_them() -> None:
    """Tiers 1 to 4: at most the four newest versions, and the newest itself, are ever needed."""
    simulated, server = simulation(Lesson(10.0), [5.0, 16.0, 30.0, 38.0])
    for _ in range(40):
        simulated.step()
        assert simulated.version in server.versions
        assert len(server.versions) <= 5
    assert min(server.versions) >= simulated.version - 4
    server.close()
    simulated, server = simulation(FedAvg(), [5.0, 16.0, 30.0])
    for _ in range(5):
        simulated.step()
        assert list(server.versions) == [simulated.version]
    server.close()


@pytest.mark.parametrize("deadline_s", [38.0, np.inf])
def test_a_deadline_beyond_all_latencies_is_bit_identical_to_fedavg(deadline_s: float) -> None:
    models = []
    for strategy in (Lesson(deadline_s), FedAvg()):
        simulated, server = simulation(strategy, [5.0, 16.0, 30.0, 38.0])
        for _ in range(6):
            simulated.step()
        models.append(server.versions[simulated.version])
        server.close()
    assert torch.equal(*models)


def test_fedcs_is_lesson_restricted_to_tier_1() -> None:
    """Clients 0 and 1 are within the deadline; LESSON on a fleet where nobody else can be reached does the same."""
    models = []
    for strategy, others in ((FedCS(10.0), 25.0), (Lesson(10.0), np.inf)):
        simulated, server = simulation(strategy, [5.0, 7.0, others])
        for _ in range(6):
            simulated.step()
        models.append(server.versions[simulated.version])
        server.close()
    assert torch.equal(*models)


def test_a_model_that_is_no_longer_finite_stops_the_run() -> None:
    made = make_server(tiny_workload(3), learning_rate=1e30, lr_cap=np.inf)
    simulated = Simulation(FedAvg(), make_fleet([1.0, 2.0, 3.0]), model_server=made)
    simulated.step()
    with pytest.raises(DivergedError, match=r"no longer finite after round 2, with 3 clients .* step size 1e\+30"):
        simulated.step()
    made.versions[1][0] = np.nan
    with pytest.raises(DivergedError, match="the model is no longer finite"):
        made.state()
    made.close()


def test_a_step_of_several_minibatches_is_the_mean_of_steps_of_one() -> None:
    """Client 0 takes three minibatches, client 2 one: the model goes to half the mean of three models and half another,
    whoever comes first in the merge.
    The first three minibatches of client 0 are those that three steps would take."""
    made = make_server(tiny_workload(4), trainer="reference")
    workload, base = tiny_workload(4), made.versions[0]
    drawn = workload.minibatches(one_row(base, 0, 0.1, local_steps=3), 3)[:, 0]
    models = []
    for number in range(3):
        step = one_row(base, 0, 0.1, first=number)
        assert torch.equal(workload.minibatches(step, 1)[0, 0], drawn[number])
        models.append(sum_of(ReferenceTrainer(workload), step))
    assert not torch.equal(models[0], models[1])
    merge = Merge(np.arange(2), np.array([0.5, 0.5]))
    merged = replace(updates([2, 0], [0, 0], [1.0, 1.0]), batches=np.array([1, 3]))
    made.merge(merged, merge.weights, merge, version=0, round=1)
    expected = 0.5 * torch.stack(models).mean(0) + 0.5 * trained(made, 2, 0, 0.1)
    assert torch.allclose(made.versions[1], expected, atol=1e-6)
    made.close()


def test_confirmation_by_hand() -> None:
    """The model has gone d since client 0 started and no way since client 2 did, which therefore says nothing. Client 0
    counts for 0.25: a·v·d and a·d·d are added up over two merges, and kept over a restart."""
    made = make_server(tiny_workload(4), trainer="reference", needs=frozenset({"confirmation"}))
    made.versions[1] = made.versions[0] + 0.01
    moved, way = trained(made, 0, 0, 0.1) - made.versions[0], made.versions[1] - made.versions[0]
    merge = Merge(np.array([0, 1]), np.array([0.25, 0.5]))
    made.merge(updates([0, 2], [0, 1], [1.0, 1.0]), merge.weights, merge, version=1, round=1)
    once = [0.25 * float(moved @ way), 0.25 * float(way @ way)]
    assert made.signals(frozenset({"confirmation"}), 2)["confirmation"] == pytest.approx(once, rel=1e-4)
    kept = make_server(tiny_workload(4), trainer="reference", needs=frozenset({"confirmation"}))
    kept.restore(made.state())
    kept.merge(updates([0, 2], [0, 1], [1.0, 1.0]), merge.weights, merge, version=1, round=1)
    twice = kept.signals(frozenset({"confirmation"}), 2)["confirmation"]
    assert twice == pytest.approx([2 * part for part in once], rel=1e-4)
    assert "confirmation" not in make_server(tiny_workload(4)).signals(frozenset({"confirmation"}), 0)
