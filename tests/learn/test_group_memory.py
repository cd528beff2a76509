"""GroupMemory as `GroupMemory` says they are, against a server that keeps every client's model in plain numpy."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
import safetensors.numpy
import torch

from helpers.model_servers import make_server, trained, updates
from helpers.small_tasks import tiny_workload
from lesson.core.errors import InputError
from lesson.learn.model_server import ModelServer
from lesson.strategies.base import GroupMemory, Merge

Of = Literal["models", "updates"]
both = pytest.mark.parametrize("of", ["models", "updates"])


@pytest.fixture(params=["reference", "fused"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    made = make_server(tiny_workload(6), trainer=request.param)
    yield made
    made.close()


class PlainServer:
    """The docstring of `GroupMemory`, sentence by sentence, in double precision."""

    def __init__(self, server: ModelServer, of: Of) -> None:
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
    # GroupMemory alone, one of which is reset.
    ([], [], [], [], GroupMemory([], {"a": 0.4, "b": 0.2}, resets=["b"])),
    # Reset and filled in the same merge: filled wins.
    ([5, 1], [3, 2], [0, 1], [1.0, 1.0], GroupMemory(["b", "d"], {"a": 0.25, "b": 0.25, "c": 0.25}, resets=["a", "b"])),
    ([], [], [], [], GroupMemory([], {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4})),
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


def do(server: ModelServer, step: Step, of: Of, version: int) -> Merge:
    client, base, order, weights, groups = step
    merge = Merge(np.array(order, dtype=np.int64), np.array(weights), of=of, groups=groups)
    in_order = np.empty(len(order))
    in_order[order] = weights
    server.merge(updates(client, base, [1.0] * len(client)), in_order, merge, version, round=version + 1)
    return merge


@both
def test_groups_against_a_plain_server(server: ModelServer, of: Of) -> None:
    plain = PlainServer(server, of)
    for version, step in enumerate(STEPS):
        merge = do(server, step, of, version)
        expected = plain.merge(step[0], step[1], merge, version)
        assert server.versions[version + 1].numpy() == pytest.approx(expected, abs=2e-6)
    moved = server.versions[5] - server.versions[0]
    assert moved.norm() > 0.05


def test_previous_vectors_and_their_sum_against_a_plain_server(server: ModelServer) -> None:
    plain = PlainServer(server, "updates")
    for version, step in enumerate(PREVIOUS):
        merge = do(server, step, "updates", version)
        expected = plain.merge(step[0], step[1], merge, version)
        assert server.versions[version + 1].numpy() == pytest.approx(expected, abs=2e-6)
        assert (server.versions[version + 1] - server.versions[version]).norm() > 0.005


def test_the_sum_of_groups_survives_a_checkpoint_bit_identically() -> None:
    """It is added up in the order of changes, which a sum over the groups would not reproduce."""
    whole, broken = (make_server(tiny_workload(6)) for _ in range(2))
    for version, step in enumerate(PREVIOUS):
        do(whole, step, "updates", version)
        do(broken, step, "updates", version)
        saved = safetensors.numpy.load(safetensors.numpy.save(broken.state()))
        assert ("groups.total" in saved) == (version > 0)
        broken.close()
        broken = make_server(tiny_workload(6))
        broken.restore(saved)
    assert torch.equal(broken.versions[4], whole.versions[4])
    whole.close()
    broken.close()


@both
def test_groups_leave_no_choice_of_what_is_aggregated(of: Of) -> None:
    """Old updates, applied again in every round, are another strategy than old models."""
    other: Of = "updates" if of == "models" else "models"
    with_setting = make_server(tiny_workload(6), server={"aggregate": other})
    with pytest.raises(
        InputError, match=f"aggregate must be 'strategy' or '{of}' for this strategy, which stores {of}"
    ):
        do(with_setting, STEPS[0], of, 0)
    with_setting.close()


YOGI = {"optimizer": "yogi", "learning_rate": 0.01}
ODD = ["", "tier 1", 'a "quoted" \\ name', "β/τ\n\0", "\ud800", "version.0", "__metadata__"]


@both
def test_groups_and_moments_survive_a_checkpoint_bit_identically(of: Of) -> None:
    """Whatever groups are called."""
    share = dict.fromkeys(ODD, 0.1)
    steps: list[Step] = [
        ([0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 2, 3], [1.0, 1.0, 0.5, 0.5], GroupMemory([*ODD[:3], ODD[2]], share)),
        ([0, 1, 2, 4], [1, 1, 0, 1], [3, 0, 1, 2], [1.0] * 4, GroupMemory([ODD[3], *ODD[4:]], share, resets=ODD[:1])),
        ([], [], [], [], GroupMemory([], dict(reversed(share.items())))),
    ]
    whole = make_server(tiny_workload(6), server=YOGI)
    for version, step in enumerate(steps):
        do(whole, step, of, version)
    broken = make_server(tiny_workload(6), server=YOGI)
    for version, step in enumerate(steps):
        do(broken, step, of, version)
        saved = safetensors.numpy.load(safetensors.numpy.save(broken.state()))
        broken.close()
        broken = make_server(tiny_workload(6), server=YOGI)
        broken.restore(saved)
    assert broken.versions.keys() == whole.versions.keys()
    assert torch.equal(broken.versions[3], whole.versions[3])
    assert {name for name in saved if name.startswith("group.")} <= {f"group.{json.dumps(name)}" for name in ODD}
    assert {name for name in saved if name.startswith("moment.")} == {"moment.m", "moment.v"}
    whole.close()
    broken.close()
