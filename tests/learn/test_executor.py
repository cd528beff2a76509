"""How updates become a new version of the model, by hand: weights, stale updates, groups, guards, server optimizers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import Tensor

from helpers.fleets import make_fleet
from helpers.lanes import Models, aggregate, make_models, received_models, trained, updates
from helpers.small_tasks import tiny_workload
from helpers.trainers import one_row, sum_of
from lesson import FedAvg, FedCS, Lesson, make_loop
from lesson.clock.rejections import TOO_FAR, Rejection
from lesson.core.errors import DivergedError, InputError
from lesson.learn.lane import schedule_factor
from lesson.learn.reference import ReferenceTrainer
from lesson.settings.sections import TrainingSettings
from lesson.settings.settings import Settings
from lesson.strategies.base import GroupMemory, Merge

Of = Literal["models", "updates"]


@pytest.fixture
def server() -> Models:
    """A server with two versions; steps are cut to 0.25."""
    made = make_models(tiny_workload(6), lr_cap=0.25, trainer="reference")
    made.versions[1] = made.versions[0] + 0.01
    return made


def assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def mean(models: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(models)).mean(0)


def test_merge_of_models_by_hand(server: Models) -> None:
    """Eq. (10): half of the model stays; a quarter of client 0's and client 2's go in, from versions 0 and 1. The step
    of client 2, 0.1 · 4, is cut to 0.25."""
    first, second = trained(server, 0, 0, 0.1), trained(server, 2, 1, 0.25)
    aggregate(server, updates([0, 2], [0, 1], [1.0, 4.0]), [0.25, 0.25], version=1)
    assert_close(server.versions[2], 0.5 * server.versions[1] + 0.25 * first + 0.25 * second)


def test_merge_of_updates_by_hand(server: Models) -> None:
    """The newest model moves by half of what client 0 changed since version 0."""
    moved = trained(server, 0, 0, 0.1) - server.versions[0]
    aggregate(server, updates([0]), [0.5], version=1, of="updates")
    assert_close(server.versions[2], server.versions[1] + 0.5 * moved)


def test_setting_aggregate_overrides_the_strategy() -> None:
    for setting, of in (("updates", "models"), ("models", "updates")):
        made = make_models(tiny_workload(4), server={"aggregate": setting})
        made.versions[1] = made.versions[0] + 0.01
        kept = made.versions[1] - 0.25 * made.versions[0] if setting == "updates" else 0.75 * made.versions[1]
        aggregate(made, updates([0]), [0.25], version=1, of=of)
        assert_close(made.versions[2], kept + 0.25 * trained(made, 0))
    with pytest.raises(InputError, match=r"aggregate must be .* got 1\.5"):
        aggregate(made, updates([0]), [1.5], version=2, of="updates")
    with pytest.raises(InputError, match="aggregate must be"):
        aggregate(made, updates([0]), of="updates", groups=GroupMemory(["a"], {"a": 1.0}))


@pytest.mark.parametrize("guards", [{}, {"norm_limit": 1e6}], ids=["sums", "models"])
def test_step_on_many_samples_is_the_mean_of_steps_on_minibatches(guards: dict[str, Any]) -> None:
    """Client 0 trains on 13 samples in minibatches of 5, 5 and 3; the first two are those that two steps would take."""
    server, workload = make_models(tiny_workload(6), guards=guards), tiny_workload(6)
    base = server.versions[0]
    drawn = workload.minibatches(one_row(base, 0, 0.1, local_steps=2), 2)[:, 0]
    total = torch.zeros_like(base)
    for number, count in enumerate((5, 5, 3)):
        step = one_row(base, 0, 0.1, first=number, most_samples=count)
        ours = workload.minibatches(step, 1)[0, 0]
        assert torch.equal(ours, drawn[number]) if count == 5 else len(set(ours[ours >= 0].tolist())) == 3
        total += count / 13 * sum_of(ReferenceTrainer(workload), step)
    aggregate(server, replace(updates([2, 0]), samples=np.array([5, 13])))
    assert_close(server.versions[1], 0.5 * total + 0.5 * trained(server, 2))


@pytest.mark.parametrize("optimizer", [{}, {"optimizer": "momentum", "learning_rate": 2.0, "beta1": 0.5}])
def test_optimizer_takes_the_merge_as_a_step(optimizer: dict[str, Any]) -> None:
    """At step_scale 0.25, the model moves by a quarter of −g, or of −2·m: m is g, then 0.5·g + g'."""
    made = make_models(tiny_workload(4), server=optimizer)
    first = trained(made, 0) - made.versions[0]
    aggregate(made, updates([0]), step_scale=0.25)
    factor = 0.25 * optimizer.get("learning_rate", 1.0)
    assert_close(made.versions[1], made.versions[0] + factor * first)
    second = trained(made, 1, 1) - made.versions[1] + optimizer.get("beta1", 0.0) * first
    aggregate(made, updates([1], 1), version=1)
    assert_close(made.versions[2], made.versions[1] + 4 * factor * second)


def test_schedules_by_hand() -> None:
    """Rounds count from 1: local trainings of the first round have the full step size."""
    rounds, times = np.array([1, 6, 11, 21]), np.array([0.0, 50.0, 100.0, 400.0])

    def factors(**changes: Any) -> list[float]:
        training = TrainingSettings(schedule_period=changes.pop("period"), schedule_factor=0.5, **changes)
        return np.round(np.broadcast_to(schedule_factor(training, rounds, times), 4), 6).tolist()

    assert factors(schedule="step", period=10.0) == [1.0, 1.0, 0.5, 0.25]
    assert factors(schedule="exponential", period=10.0) == [1.0, round(0.5**0.5, 6), 0.5, 0.25]
    assert factors(schedule="cosine", period=10.0) == [1.0, 0.75, 0.5, 0.5]
    assert factors(schedule="step", schedule_over="seconds", period=200.0) == [1.0, 1.0, 1.0, 0.25]
    assert factors(schedule="constant", period=10.0) == [1.0] * 4


# Versions, and strategies that must give the same models.


def simulated(strategy: Any, latencies: list[float], num_rounds: int) -> tuple[list[set[int]], Tensor]:
    """Return the versions in memory after each round, relative to the newest one, and the last model."""
    pipeline, held = make_models(tiny_workload(len(latencies))).pipeline(make_loop(strategy, make_fleet(latencies))), []
    lane = pipeline.lane
    for _ in range(num_rounds):
        pipeline.step()
        held.append({version - lane.version for version in lane.versions})
    return held, lane.model.vector


def test_versions_are_kept_while_a_client_trains_from_them() -> None:
    """Tiers 1 to 4: the newest version and the four before it; only the newest one for FedAvg."""
    held, _ = simulated(Lesson(10.0), [5.0, 16.0, 30.0, 38.0], 12)
    assert all({0} <= versions <= {0, -1, -2, -3, -4} for versions in held)
    assert any(len(versions) > 1 for versions in held)
    assert simulated(FedAvg(), [5.0, 16.0, 30.0], 4)[0] == [{0}] * 4


def test_lesson_equals_fedavg_at_a_long_deadline_and_fedcs_on_tier_1() -> None:
    latencies = [5.0, 16.0, 30.0, 38.0]
    assert torch.equal(simulated(Lesson(38.0), latencies, 5)[1], simulated(FedAvg(), latencies, 5)[1])
    first_tier, unreachable = [5.0, 7.0, 25.0], [5.0, 7.0, np.inf]
    assert torch.equal(simulated(FedCS(10.0), first_tier, 5)[1], simulated(Lesson(10.0), unreachable, 5)[1])


# Models that are no longer finite.


def test_divergence_error_names_round_clients_and_step_size() -> None:
    made = make_models(tiny_workload(3), learning_rate=1e42, lr_cap=np.inf)
    pipeline = made.pipeline(make_loop(FedAvg(), make_fleet([1.0, 2.0, 3.0])))

    def rounds() -> None:
        for _ in range(3):
            pipeline.step()

    with pytest.raises(DivergedError, match=r"round [12], with 3 clients .* size 3\.40282e\+38; .*learning_rate"):
        rounds()
    made.lane.versions = {0: torch.full((227,), np.nan)}
    with pytest.raises(DivergedError):
        made.lane.state()


# Groups: the docstring of `GroupMemory`, in double precision.


class PlainServer:
    def __init__(self, server: Models, of: Of) -> None:
        self.server, self.of = server, of
        self.initial = server.versions[0].double().numpy()
        self.groups: dict[str, Any] = {}

    def merge(self, client: list[int], base: list[int], merge: Merge, version: int) -> Any:
        assert merge.groups is not None
        newest = self.server.versions[version].double().numpy()
        empty = 0.0 * self.initial if self.of == "updates" else self.initial
        for name in merge.groups.resets:
            self.groups[name] = 0.0 * newest if self.of == "updates" else newest
        before = sum(weight * self.groups.get(name, empty) for name, weight in merge.groups.previous.items())
        before = before + merge.groups.previous_total * sum(self.groups.values())
        fresh: dict[str, Any] = {}
        for update, weight, name in zip(merge.updates, merge.weights, merge.groups.names, strict=True):
            model = trained(self.server, client[update], base[update], 0.1).double().numpy()
            if self.of == "updates":
                model = model - self.server.versions[base[update]].double().numpy()
            fresh[name] = fresh.get(name, 0.0) + weight * model
        self.groups |= fresh
        total = sum(merge.groups.weights.values()) if self.of == "models" else 0.0
        named = sum(weight * self.groups.get(name, empty) for name, weight in merge.groups.weights.items())
        return (1 - total) * newest + named + before


Step = tuple[list[int], list[int], list[int], list[float], GroupMemory]
# Clients, bases, the order of the merge, its weights, groups.
STEPS: list[Step] = [
    # Two groups and one never filled; the merge names the updates in another order than they arrived in.
    ([0, 1, 2], [0, 0, 0], [2, 0, 1], [1.0, 0.25, 0.75], GroupMemory(["b", "a", "a"], {"a": 0.5, "b": 0.2, "c": 0.1})),
    # Two bases in one group; b stays as it was, and a is filled without being merged.
    ([0, 3, 4], [1, 0, 1], [0, 1, 2], [0.5, 0.3, 0.7], GroupMemory(["a", "c", "c"], {"b": 0.3, "c": 0.3})),
    # Groups alone, one of which is reset.
    ([], [], [], [], GroupMemory([], {"a": 0.4, "b": 0.2}, resets=["b"])),
    # Reset and filled in the same merge: filled wins.
    ([5, 1], [3, 2], [0, 1], [1.0, 1.0], GroupMemory(["b", "d"], {"a": 0.25, "b": 0.25, "c": 0.25}, resets=["a", "b"])),
]
PREVIOUS: list[Step] = [
    ([0, 1, 2], [0, 0, 0], [2, 0, 1], [1.0, 0.5, 0.5], GroupMemory(["b", "a", "a"], {"a": 0.5, "b": 0.2})),
    # The sum is first used here, after groups were set; c was never set.
    (
        [0, 3],
        [1, 0],
        [0, 1],
        [1.0, 1.0],
        GroupMemory(["a", "c"], {"a": 0.5}, previous={"a": -0.5, "b": 0.3, "c": -0.2}, previous_total=0.25),
    ),
    # It follows vectors that are replaced, reset or reset and set again.
    (
        [4, 5],
        [1, 2],
        [0, 1],
        [1.0, 1.0],
        GroupMemory(["c", "b"], {}, ["a", "b"], previous={"a": 1.0, "c": -0.25}, previous_total=0.5),
    ),
    ([], [], [], [], GroupMemory([], {}, previous_total=-0.5)),
]


def do(server: Models, step: Step, of: Of, version: int) -> Merge:
    client, base, order, weights, groups = step
    merge = Merge(np.array(order, dtype=np.int64), np.array(weights), of=of, groups=groups)
    in_order = np.empty(len(order))
    in_order[order] = weights
    server.lane.version = version
    server.merge(updates(client, base), in_order, merge)
    return merge


@pytest.mark.parametrize(("steps", "of"), [(STEPS, "models"), (STEPS, "updates"), (PREVIOUS, "updates")])
def test_groups_against_a_plain_server(steps: list[Step], of: Of) -> None:
    server = make_models(tiny_workload(6))
    plain = PlainServer(server, of)
    for version, step in enumerate(steps):
        merge = do(server, step, of, version)
        expected = plain.merge(step[0], step[1], merge, version)
        assert server.versions[version + 1].numpy() == pytest.approx(expected, abs=2e-6)
        assert (server.versions[version + 1] - server.versions[version]).norm() > 1e-3


@pytest.mark.parametrize(("steps", "of"), [(STEPS, "models"), (PREVIOUS, "updates")])
def test_server_restored_after_every_merge_is_bit_identical(steps: list[Step], of: Of) -> None:
    """Versions, groups and their sum, moments of the optimizer and norms of the guard."""

    def make() -> Models:
        optimizer = {"optimizer": "yogi", "learning_rate": 0.01}
        guards = {"norm_window": 5, "norm_limit": 100.0}
        return make_models(tiny_workload(6), server=optimizer, guards=guards)

    whole, broken = make(), make()
    for version, step in enumerate(steps):
        do(whole, step, of, version)
        do(broken, step, of, version)
        saved = safetensors.numpy.load(safetensors.numpy.save(broken.lane.state()))
        broken = make()
        broken.lane.restore(saved)
    expected = whole.lane.state()
    assert broken.lane.state().keys() == expected.keys()
    assert all(np.array_equal(array, expected[name]) for name, array in broken.lane.state().items())


# The norm guard, with models that remote clients have sent. Version 0 is (2, 2). With a limit of 1, updates whose norm
# is above the median are rejected.


def test_weight_of_rejected_updates_goes_to_the_others() -> None:
    """Weights of 0.3 each: 0.4 of (2, 2) stays, and (3, 5) counts for 0.6."""
    server = received_models({0: [3, 5], 1: [90, 5], 2: [9, 9]}, norm_limit=1.0)
    assert aggregate(server, updates([0, 1]), [0.3, 0.3]) == [Rejection(1, 0, TOO_FAR)]
    assert server.versions[1].tolist() == pytest.approx([2.6, 3.8])
    assert len(aggregate(server, updates([1, 2]), [1.0, 0.0])) == 1, "an update without weight gets none"
    assert server.versions[1].tolist() == [2.0, 2.0]


def test_rejected_updates_from_any_version_are_left_out() -> None:
    """Two from (2, 2) and two from (5, 5), one of each rejected: (5, 5) moves by the mean of (1, 0) and (0, 3)."""
    server = received_models({0: [3, 2], 1: [90, 0], 2: [5, 8], 3: [0, 90]}, norm_limit=1.0)
    rejected = aggregate(server, updates([0, 1, 2, 3], [0, 0, 1, 1]), version=1, of="updates")
    assert [one.client for one in rejected] == [1, 3]
    assert server.versions[2].tolist() == pytest.approx([5.5, 6.5])


def test_merge_without_accepted_updates_creates_no_version() -> None:
    server = received_models({0: [90, 1], 1: [80, 1], **{client: [3, 2] for client in (2, 3, 4)}}, norm_limit=3.0)
    assert aggregate(server, updates([2, 3, 4])) == []
    assert len(aggregate(server, updates([0, 1]), version=1)) == 2
    assert list(server.versions) == [0, 1]


def test_group_without_accepted_updates_is_unchanged() -> None:
    server = received_models({0: [4, 4], 1: [90, 1]}, norm_limit=1.0)
    groups = GroupMemory(["fast", "slow"], {"fast": 0.5, "slow": 0.5})
    assert len(aggregate(server, updates([0, 1]), [1.0, 1.0], groups=groups)) == 1
    assert server.versions[1].tolist() == [3.0, 3.0]


def test_rejected_update_of_ca2fl_is_left_out_of_the_sum() -> None:
    """N = 4. Clients 0 and 2 move (2, 2) by (1, 0) and (0, 2) and fill their caches. Then client 1 is rejected, and
    client 2 has moved its (2.5, 3) by (1, 1): the model moves by ((1, 0) + (0, 2)) / 4 + ((1, 1) − (0, 2)) / 2."""

    def calibrated(clients: list[int], version: int) -> int:
        names = [f"client {client}" for client in clients]
        shares = dict.fromkeys(names, 0.5)
        groups = GroupMemory(names, shares, previous=dict.fromkeys(names, -0.5), previous_total=1 / 4)
        return len(aggregate(server, updates(clients, version), [1.0, 1.0], version, of="updates", groups=groups))

    server = received_models({0: [3, 2], 1: [90, 0], 2: [2, 4]}, norm_limit=2.0)
    assert calibrated([0, 2], 0) == 0
    assert server.versions[1].tolist() == [2.5, 3.0]
    server.executor.source.held[2, 0] = np.array([3.5, 4.0], np.float32)  # type: ignore[attr-defined]
    assert calibrated([1, 2], 1) == 1
    assert server.versions[2].tolist() == pytest.approx([2.5 + 0.25 + 0.5, 3.0 + 0.5 - 0.5])


def test_too_large_updates_are_rejected() -> None:
    """Norms 1, 2, 3 and 100: the median is 2.5, and 3 times that, 7.5, is the limit."""
    server = received_models({0: [3, 2], 1: [2, 4], 2: [5, 2], 3: [2, 102]}, norm_limit=3.0)
    assert aggregate(server, updates([0, 1, 2, 3])) == [Rejection(3, 0, TOO_FAR)]
    assert server.versions[1].tolist() == pytest.approx([2 + 4 / 3, 2 + 2 / 3])


def test_norms_are_relative_to_the_step_size() -> None:
    """Client 3 goes 8 times as far at 8 times the step size. Later, its norm of 1 counts among the last three."""
    server = received_models({0: [3, 2], 1: [2, 3], 2: [1, 2], 3: [10, 2]}, norm_limit=3.0, norm_window=3)
    step = TrainingSettings().learning_rate
    assert aggregate(server, updates([0, 1, 2, 3], scale=[1, 1, 1, 8])) == []
    assert server.lane.state()["transform.norms"] * step == pytest.approx([1, 1, 1])
    assert [one.client for one in aggregate(server, updates([3]))] == [3]


@pytest.mark.parametrize("guards", [{}, {"norm_limit": 3.0}], ids=str)
def test_no_guard_hides_that_training_diverges(guards: dict[str, Any]) -> None:
    made = make_models(tiny_workload(4), guards=guards)
    made.versions[0] = made.versions[0] * 1e30
    with pytest.raises(DivergedError, match="after round 1, with 3 clients that started from version 0"):
        aggregate(made, updates([0, 1, 2]))


@pytest.mark.parametrize("values", [{"norm_limit": 0.5}, {"norm_window": 0}, {"exclude_after_rejections": -1}], ids=str)
def test_invalid_guards_are_errors(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"\[guards\] {next(iter(values))} must be"):
        Settings(guards=values)
