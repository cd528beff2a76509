"""What is rejected when updates are merged and what is made of the rest, against models trained one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.model_servers import make_server, trained
from helpers.small_tasks import tiny_workload
from lesson.clock.faults import CorruptedUploads
from lesson.clock.rejections import NOT_FINITE, TOO_FAR, Rejection
from lesson.core.errors import DivergedError, InputError
from lesson.learn.cohort import Cohort
from lesson.learn.model_server import ModelServer
from lesson.learn.optimizers import ServerOptimizer
from lesson.learn.remote import Received
from lesson.learn.robust import guard as merge_guard
from lesson.learn.robust.guard import MergeGuard
from lesson.settings.faults import FaultSettings
from lesson.settings.guards import GuardSettings
from lesson.settings.sections import ServerSettings, TrainingSettings
from lesson.strategies.base import GroupMemory, Merge, Updates

NUM = 6
TRAINERS = ("reference", "fused")


class Corrupted(CorruptedUploads):
    """Uploads with these faults, always, of these clients."""

    def __init__(self, *clients: int, **faults: float) -> None:
        super().__init__(FaultSettings(**faults), NUM, seed=0)
        self.is_corrupting = np.isin(np.arange(NUM), clients)


@contextmanager
def serving(trainer: str = "fused", faults: CorruptedUploads | None = None, **guards: Any) -> Iterator[ModelServer]:
    server = make_server(tiny_workload(NUM), trainer, guards=guards, faults=faults)
    yield server
    server.close()


def updates(
    clients: list[int], base: int | list[int] = 0, scale: float | list[float] = 1.0, batches: int = 1
) -> Updates:
    count = len(clients)
    whole, real = np.zeros(count, dtype=np.int64), np.zeros(count)
    return Updates(
        id=np.arange(count),
        client=np.array(clients, dtype=np.int64),
        base_version=whole + np.array(base),
        started_round=whole,
        started_s=real,
        expected_s=real,
        arrived_s=real,
        index=whole,
        lr_scale=real + np.array(scale),
        local_steps=whole + 1,
        batches=whole + batches,
        compute_scale=np.ones(len(whole)),
        in_turn=whole > 0,
    )


def merge(
    server: ModelServer, some: Updates, version: int = 0, of: Any = "models", groups: GroupMemory | None = None
) -> list[Rejection]:
    weights = np.full(len(some), 1 / len(some))
    return server.merge(some, weights, Merge(some.id, weights, of=of, groups=groups), version, round=1)


def mean(models: list[Tensor]) -> Tensor:
    return torch.stack(models).mean(0)


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("trainer", "fault"), [("reference", "nan"), ("fused", "nan"), ("fused", "infinity")])
def test_non_finite_updates_are_rejected_and_others_get_their_weight(trainer: str, fault: str) -> None:
    with serving(trainer, Corrupted(1, 4, **{fault: 1.0})) as server:
        assert merge(server, updates([0, 1, 2, 4])) == [Rejection(1, 0, NOT_FINITE), Rejection(4, 0, NOT_FINITE)]
        assert close(server.versions[1], mean([trained(server, 0), trained(server, 2)]))


def test_accepted_updates_get_the_weight_of_rejected_ones() -> None:
    """Two from version 0 and two from version 1, one of each rejected: half of each way of the others is gone."""
    with serving(faults=Corrupted(1, 3, nan=1.0)) as server:
        server.versions[1] = server.versions[0] + 0.01
        rejected = merge(server, updates([0, 1, 2, 3], [0, 0, 1, 1]), version=1, of="updates")
        assert [rejection.client for rejection in rejected] == [1, 3]
        ways = [trained(server, client, base) - server.versions[base] for client, base in ((0, 0), (2, 1))]
        assert close(server.versions[2], server.versions[1] + mean(ways))


def test_a_part_of_the_model_that_was_to_stay_stays() -> None:
    """Weights of 0.3 each: 0.4 of the model stays, and the one update that is taken counts for 0.6."""
    with serving(faults=Corrupted(1, nan=1.0)) as server:
        some, weights = updates([0, 1]), np.array([0.3, 0.3])
        server.merge(some, weights, Merge(some.id, weights), 0, round=1)
        assert close(server.versions[1], 0.4 * server.versions[0] + 0.6 * trained(server, 0))


@pytest.mark.parametrize("guard", ["mean", "median"])
def test_a_merge_without_accepted_updates_creates_no_version(guard: str) -> None:
    with serving(faults=Corrupted(0, 1, nan=1.0), aggregation=guard) as server:
        assert len(merge(server, updates([0, 1]))) == 2
        assert list(server.versions) == [0]


@pytest.mark.parametrize("guard", ["mean", "median"])
def test_a_group_without_accepted_updates_stays_as_it_was(guard: str) -> None:
    groups = GroupMemory(["fast", "slow"], {"fast": 0.5, "slow": 0.5})
    with serving(faults=Corrupted(1, nan=1.0), aggregation=guard) as server:
        some, ones = updates([0, 1]), np.ones(2)
        assert len(server.merge(some, ones, Merge(some.id, ones, groups=groups), 0, round=1)) == 1
        assert close(server.versions[1], 0.5 * trained(server, 0) + 0.5 * server.versions[0])


def calibrated(server: ModelServer, clients: list[int], version: int) -> list[Rejection]:
    """Aggregate the updates of two of four clients as CA²FL does."""
    names, ones = [f"client {client}" for client in clients], np.ones(2)
    groups = GroupMemory(names, dict.fromkeys(names, 0.5), previous=dict.fromkeys(names, -0.5), previous_total=1 / 4)
    some = updates(clients, version)
    return server.merge(some, ones, Merge(some.id, ones, of="updates", groups=groups), version, round=1)


@pytest.mark.parametrize("aggregation", ["median", "trimmed-mean"])
def test_calibrated_updates_have_no_median(aggregation: str) -> None:
    with serving(aggregation=aggregation) as server, pytest.raises(InputError) as caught:
        calibrated(server, [0, 2], 0)
    assert str(caught.value).startswith("[guards] aggregation must be 'mean' for a strategy that calibrates updates by")


def test_a_rejected_update_of_ca2fl_is_left_out_of_the_sum() -> None:
    """N = 4. Clients 0 and 2 fill their caches in the first merge; in the second, client 1 is rejected."""
    with serving(faults=Corrupted(1, nan=1.0)) as server:
        assert not calibrated(server, [0, 2], 0)
        old = [trained(server, client) - server.versions[0] for client in (0, 2)]
        assert close(server.versions[1], server.versions[0] + mean(old))
        assert [rejection.client for rejection in calibrated(server, [1, 2], 1)] == [1]
        new = trained(server, 2, base=1) - server.versions[1]
        assert close(server.versions[2], server.versions[1] + sum(old) / 4 + (new - old[1]) / 2)


def test_training_that_diverges_by_itself_ends_the_run_all_the_same() -> None:
    with serving(faults=Corrupted(1, nan=1.0)) as server:
        server.versions[0] = server.versions[0] * 1e30
        with pytest.raises(DivergedError, match="after round 1, with 3 clients that started from version 0"):
            merge(server, updates([0, 1, 2]))


def test_without_the_guard_non_finite_updates_end_the_run() -> None:
    with serving(faults=Corrupted(1, nan=1.0), finite=False) as server, pytest.raises(DivergedError):
        merge(server, updates([0, 1, 2]))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_scaled_and_flipped_updates_are_merged_as_they_are(trainer: str) -> None:
    with serving(trainer, Corrupted(2, scaled=1.0, scale=3.0, flipped=1.0)) as server:
        assert merge(server, updates([0, 2])) == []
        base = server.versions[0]
        assert close(server.versions[1], mean([trained(server, 0), base - 3 * (trained(server, 2) - base)]))


def lengths(server: ModelServer, lr: float = 0.1) -> list[float]:
    return [float((trained(server, client, lr=lr) - server.versions[0]).norm()) for client in range(NUM)]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_too_large_update_is_rejected(trainer: str) -> None:
    with serving(trainer, Corrupted(3, scaled=1.0, scale=50.0), norm="reject") as server:
        assert merge(server, updates([0, 1, 2, 3])) == [Rejection(3, 0, TOO_FAR)]
        assert close(server.versions[1], mean([trained(server, client) for client in (0, 1, 2)]))


def test_a_too_large_update_is_clipped_to_the_norm_limit() -> None:
    """The median of four lengths, the largest corrupted, is the mean of the second and third of them; 1.5 times that is
    how far client 3's update may go, in its own direction."""
    with serving(faults=Corrupted(3, scaled=1.0, scale=50.0), norm="clip", norm_limit=1.5) as server:
        honest, base = lengths(server), server.versions[0]
        assert merge(server, updates([0, 1, 2, 3])) == []
        limit = 1.5 * float(np.median([*honest[:3], 50 * honest[3]]))
        assert max(honest[:3]) < limit
        way = trained(server, 3) - base
        models = [trained(server, client) for client in (0, 1, 2)] + [base + way * limit / way.norm()]
        assert close(server.versions[1], mean(models))


def test_longer_steps_may_go_farther() -> None:
    """A client in tier 8 goes about 8 times as far as one in tier 1: for its pace that is nothing special."""
    with serving(norm="reject") as server:
        assert merge(server, updates([0, 1, 2, 3], scale=[1.0, 1.0, 1.0, 8.0])) == []


def test_the_median_is_of_the_last_updates_and_survives_a_restart() -> None:
    with serving(norm="reject", norm_window=5) as server:
        honest = lengths(server)
        merge(server, updates([0, 1, 2]))
        merge(server, updates([3, 4, 5]))
        kept = server.state()["guard.norms"]
        assert kept == pytest.approx(np.array(honest[1:]) / 0.1, rel=1e-4)
        with serving(norm="reject", norm_window=5) as other:
            other.restore(server.state())
            assert other.state()["guard.norms"].tolist() == kept.tolist()


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_median_of_models(trainer: str) -> None:
    with serving(trainer, Corrupted(2, scaled=1.0, flipped=1.0, scale=1e6), aggregation="median") as server:
        merge(server, updates([0, 1, 2, 3, 4]))
        base = server.versions[0]
        models = [trained(server, client) for client in (0, 1, 3, 4)]
        models.append(base - 1e6 * (trained(server, 2) - base))
        expected = torch.from_numpy(np.median(torch.stack(models).numpy(), axis=0))
        assert close(server.versions[1], expected)


def test_a_trimmed_mean_of_updates_from_several_versions() -> None:
    """Of five ways, from two versions, the shortest and the longest in every direction are left out."""
    with serving(aggregation="trimmed-mean", trim=0.2) as server:
        server.versions[1] = server.versions[0] + 0.01
        bases = [0, 0, 1, 1, 1]
        merge(server, updates([0, 1, 2, 3, 4], bases), version=1, of="updates")
        ways = [trained(server, client, base) - server.versions[base] for client, base in enumerate(bases)]
        ordered = np.sort(torch.stack(ways).numpy(), axis=0)
        expected = server.versions[1] + torch.from_numpy(ordered[1:4].mean(axis=0))
        assert close(server.versions[2], expected)


def test_a_robust_merge_has_the_weight_the_strategy_gives() -> None:
    with serving(aggregation="median") as server:
        some, weights = updates([0, 1, 2]), np.array([0.1, 0.1, 0.3])
        server.merge(some, weights, Merge(some.id, weights), 0, round=1)
        middle = torch.stack([trained(server, client) for client in range(3)]).median(0).values
        assert close(server.versions[1], 0.5 * server.versions[0] + 0.5 * middle)


def test_steps_of_several_minibatches_are_one_update() -> None:
    """With one update, the median is the update itself: the mean of its three models."""
    with serving(aggregation="median") as robust, serving() as plain:
        some = updates([0, 1], batches=3)[np.array([0])]
        for server in (robust, plain):
            merge(server, some)
        assert close(robust.versions[1], plain.versions[1])


def test_checking_every_client_changes_nothing_without_faults() -> None:
    with serving(norm="clip", norm_limit=1e6) as guarded, serving() as plain:
        for server in (guarded, plain):
            merge(server, replace(updates([0, 1, 2, 3, 4, 5]), index=np.arange(6)))
        assert close(guarded.versions[1], plain.versions[1])


def received(models: dict[int, list[float]], guards: GuardSettings | None = None) -> ModelServer:
    """A server with models 0 … that clients elsewhere have sent."""
    held = Received()
    held.held = {(client, 0): np.array(model, dtype=np.float32) for client, model in models.items()}
    optimizer, guard = ServerOptimizer(ServerSettings()), MergeGuard(guards or GuardSettings())
    needs = frozenset({"confirmation"})
    return ModelServer(torch.full((2,), 2.0), held, TrainingSettings(), optimizer, guard, needs=needs)


@pytest.mark.parametrize("guard", ["mean", "median"])
def test_updates_without_weight_do_not_get_that_of_rejected_ones(guard: Any) -> None:
    server = received({0: [np.nan, 1.0], 1: [5.0, 5.0]}, guards=GuardSettings(aggregation=guard))
    some, weights = updates([0, 1]), np.array([1.0, 0.0])
    assert len(server.merge(some, weights, Merge(some.id, weights), 0, round=1)) == 1
    assert server.versions[1].tolist() == [2.0, 2.0]


def test_confirmation_ignores_rejected_updates() -> None:
    """An update from version 0 moves by (1, 1) where the model has moved by (3, 3): 6 and 18, whatever was rejected."""
    for clients in ([0], [0, 1]):
        server = received({0: [3.0, 3.0], 1: [np.nan, 0.0]})
        server.versions[1] = torch.full((2,), 5.0)
        some, weights = updates(clients), np.full(len(clients), 1 / len(clients))
        server.merge(some, weights, Merge(some.id, weights), 1, round=1)
        assert server.signals(frozenset({"confirmation"}), 2)["confirmation"] == pytest.approx((6.0, 18.0))


def test_the_median_is_of_all_of_a_merge_however_short_the_window() -> None:
    models = torch.ones(500, 4)
    models[300:] *= 100
    whole, ones = np.zeros(500, dtype=np.int64), np.ones(500)
    cohort = Cohort(torch.zeros(4), np.arange(500), whole, ones, whole + 1, ones / 500, whole, trained=models)
    guard = MergeGuard(GuardSettings(norm="reject", norm_window=200))
    _, rejected = guard.judge([cohort])
    assert [rejection.client for rejection in rejected] == list(range(300, 500))
    assert len(guard.norms) == 200


def test_more_models_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_guard, "MAX_BYTES", 1000)
    with (
        serving(aggregation="median") as server,
        pytest.raises(InputError, match="keep all models of a merge in memory; 2 × 6 models"),
    ):
        merge(server, updates([0, 1, 2, 3, 4, 5]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "cut"}, "norm must be 'none', 'clip' or 'reject', got 'cut'"),
        ({"norm_limit": 0.5}, "norm_limit must be >= 1, got 0.5"),
        ({"trim": 0.5}, "trim must be < 0.5, got 0.5"),
        ({"aggregation": "mode"}, "aggregation must be 'mean', 'median' or 'trimmed-mean', got 'mode'"),
        ({"exclude_after_rejections": -1}, "exclude_after_rejections must be >= 0, got -1"),
        ({"finite": False, "aggregation": "median"}, "finite must be true with norm or aggregation"),
    ],
)
def test_impossible_guards(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as rejected:
        GuardSettings(**settings)
    assert str(rejected.value).startswith(f"[guards] {message}")


def test_settings_without_effect_are_reported() -> None:
    assert GuardSettings(norm_limit=2.0, trim=0.1).without_effect() == [
        "guards.norm_limit = 2.0 has no effect unless norm is clip or reject",
        "guards.trim = 0.1 has no effect unless aggregation is trimmed-mean",
    ]
    assert GuardSettings(norm="clip", norm_limit=2.0).without_effect() == []
