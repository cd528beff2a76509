"""What holds for every strategy, and the registry."""

import math
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.fleets import make_fleet, traced
from helpers.strategies import KINDS, everyone, follow, make
from lesson import Fleet, InputError, Settings, draw_fleet, simulate
from lesson.clock.records import RoundRecord
from lesson.core.errors import RunStoppedError
from lesson.strategies import (
    CA2FL,
    FADAS,
    STRATEGIES,
    FedAsync,
    FedAT,
    FedAvg,
    FedBuff,
    FedCompass,
    FedCSGreedy,
    FedQueue,
    Lesson,
    LessonFitted,
    Malenia,
    Oort,
    Refl,
    Rennala,
    Ringleader,
    Ringmaster,
    Safa,
    SemiSyncSteps,
    TiFL,
    fleet_for,
    has_deadline,
    make_strategy,
    option_values,
    options_of,
    setting_names,
    split_changes,
)
from lesson.strategies.fedbuff import Buffered
from lesson.testing import check_strategy


def run(strategy: Any, fleet: Fleet, rounds: int = 25) -> list[RoundRecord]:
    return list(simulate(strategy, fleet, rounds=rounds))


FLEETS = {"unequal": make_fleet([33.0, 6.0, 18.0, np.inf, 45.0, 12.0]), "drawn": draw_fleet(Settings(num_clients=10))}
NUM_ROUNDS: dict[type[Any], int] = {CA2FL: 24, FADAS: 24, FedBuff: 24, Rennala: 24, Malenia: 40, Ringleader: 60}
"""Number of rounds in which these strategies create a version, where 16 are not enough."""


@pytest.mark.parametrize(
    "strategy",
    [
        *KINDS,
        Lesson(20.0, participation=2),
        FedBuff(3, 2),
        Ringmaster(3, stops=True),
        FedBuff(3, rate_per_s=0.1, start_times="poisson"),
        FedAsync(rate_per_s=0.1),
        Oort(2, 1.5, exploration=0.4, pacer_window=3),
        Refl(2, 2.0, round_limit_s=20.0, hold_off=1, max_staleness=2, adaptive_target=True),
    ],
    ids=lambda strategy: getattr(strategy, "__name__", str(strategy)),
)
def test_every_strategy_passes_the_contract_tests(strategy: Any) -> None:
    kind = strategy if isinstance(strategy, type) else type(strategy)
    check_strategy(strategy, rounds=NUM_ROUNDS.get(kind, 16), fleets=FLEETS)


@everyone
@settings(max_examples=5)
@given(data=st.data())
def test_time_moves_forward_and_an_update_is_merged_at_most_once(
    tmp_path_factory: pytest.TempPathFactory, kind: type[Any], data: st.DataObject
) -> None:
    """Four clients are always there, others come and leave; times vary, and clients disconnect."""
    folder = tmp_path_factory.mktemp("traces")
    latencies = [3.0, 7.0, 15.0, 25.0, *data.draw(st.lists(st.floats(3, 60), min_size=1, max_size=4))]
    factors = data.draw(st.lists(st.floats(0.4, 4), min_size=1, max_size=3))
    work, stays = "client,round,compute_s,upload_s", "client,from_s,to_s"
    for client, latency_s in enumerate(latencies):
        for round, factor in enumerate(factors, start=1):
            work += f" {client},{round},{factor * latency_s / 2},{factor * latency_s / 2}"
        if client >= 4:
            from_s = data.draw(st.floats(0, 40))
            stays += f" {client},{from_s},{from_s + data.draw(st.floats(1, 60))}"
    varying = Settings(
        trace=traced(folder / "work.csv", work),
        presence=traced(folder / "presence.csv", stays),
        faults={"disconnect_during": data.draw(st.sampled_from([0.0, 0.3])), "offline_s": 5.0, "offline_forever": 0.1},
    )
    seed = data.draw(st.integers(0, 9))
    records = list(
        islice(simulate(make(kind), make_fleet(latencies), until_s=100.0, seed=seed, settings=varying), 2_000)
    )
    assert len(records) < 2_000, "the run does not end"
    in_progress = set[tuple[int, float]]()
    for before, after in pairwise(records):
        assert after.start_s >= before.end_s
        assert after.version - before.version in ([1] if len(after.merged) else [0, 1])
    for record in records:
        assert record.start_s <= record.end_s <= 100
        assert np.all(record.merged_arrived_s <= record.end_s * (1 + 1e-12))
        assert np.all(record.staleness >= 0)
        assert record.bytes_down == 12_500 * len(record.started)
        in_progress |= {(client, record.start_s) for client in record.started.tolist()}
        for start in zip(record.merged.tolist(), record.merged_started_s.tolist(), strict=True):
            in_progress.remove(start)


@settings(max_examples=40)
@given(
    kind=st.sampled_from([kind for kind in KINDS if not issubclass(kind, Buffered)]),
    fleet=st.lists(st.integers(1, 10**6), min_size=3, max_size=9, unique=True),
    data=st.data(),
)
def test_relabeled_clients_give_the_relabeled_plan(kind: type[Any], fleet: list[int], data: st.DataObject) -> None:
    """For strategies that draw nothing."""
    latencies = [latency / 1e4 for latency in fleet] + [3.00005, 15.00005, 25.00005]
    relabel = np.array(data.draw(st.permutations(range(len(latencies)))))
    reordered = np.empty(len(latencies))
    reordered[relabel] = latencies
    records = run(make(kind), make_fleet(latencies), rounds=10)
    relabeled = run(make(kind), make_fleet(reordered.tolist()), rounds=10)
    for record, other in zip(records, relabeled, strict=True):
        assert record.end_s == other.end_s
        assert set(relabel[record.started]) == set(other.started)
        assert set(relabel[record.merged]) == set(other.merged)


@everyone
def test_scale_of_client_weights_does_not_matter(kind: type[Any]) -> None:
    """A sum of two weights of 2^1023 is infinite; as powers of two, they give the same bits as weights of 1."""

    def weights(weight: float) -> list[Any]:
        merges = follow(make(kind), make_fleet([3.0, 7.0, 15.0, 25.0], weight=[weight] * 4), 12).merges
        return [(merge.weights.tolist(), merge.groups and dict(merge.groups.weights)) for merge in merges]

    assert weights(2.0**1023) == weights(2.0**-1000) == weights(1.0)


@pytest.mark.parametrize("kind", [FedAvg, FedAT])
def test_reachable_clients_must_have_a_weight(kind: type[Any]) -> None:
    with pytest.raises(InputError, match="client_weight"):
        run(make(kind), make_fleet([3.0, 7.0, 15.0, np.inf], weight=[0.0, 0.0, 0.0, 1.0]))


def test_views_are_read_only() -> None:
    class Writing(FedAvg):
        def open_round(self, view: Any, rng: np.random.Generator) -> Any:
            view.idle[0] = False

    with pytest.raises(ValueError, match="read-only"):
        run(Writing(), make_fleet([1.0]))


@everyone
def test_unreachable_fleet_is_an_error_or_ends_the_run(kind: type[Any]) -> None:
    try:
        outcome = run(make(kind), make_fleet([np.inf, np.inf]), rounds=1)[0].note
    except (InputError, RunStoppedError) as error:
        outcome = str(error)
    assert "no client" in outcome


@pytest.mark.parametrize("strategy", [Oort(10**9, 100.0), Refl(10**9, 100.0)], ids=["oort", "refl"])
def test_all_clients_start_if_a_round_waits_for_more_than_all(strategy: Any) -> None:
    assert follow(strategy, make_fleet([5.0, 16.0]), 1).rounds == [(16.0, [0, 1], [0, 1])]


@pytest.mark.parametrize(
    ("strategy", "option"),
    [
        (FedBuff(buffer_size=5, concurrency=2), "buffer_size"),
        (FedBuff(buffer_size=2, concurrency=5), "concurrency"),
        (FedAT(num_tiers=5), "num_tiers"),
        (TiFL(num_tiers=5), "num_tiers"),
        (Safa(lag_tolerance=2, round_limit_s=2.4), "round_limit_s"),
        (FedCSGreedy(3.4), "deadline_s"),
    ],
    ids=str,
)
def test_options_that_do_not_suit_the_fleet_are_rejected(strategy: Any, option: str) -> None:
    """Four clients can be reached, the fastest in 5 s."""
    with pytest.raises((InputError, RunStoppedError), match=option):
        run(strategy, make_fleet([5.0, 16.0, 30.0, 38.0, np.inf]), rounds=1)


@pytest.mark.parametrize("strategy", [SemiSyncSteps(), FedCompass(), FedQueue(20.0)], ids=str)
@pytest.mark.parametrize("compute_s", [0.0, np.nan])
def test_strategies_that_plan_local_steps_need_compute_times(strategy: Any, compute_s: float) -> None:
    fleet = make_fleet([5.0, 16.0])
    fleet.compute_s[1] = compute_s
    with pytest.raises(InputError, match=r"compute_s .* client 1"):
        run(strategy, fleet, rounds=1)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_option_is_checked(name: str) -> None:
    for option in setting_names(STRATEGIES[name]):
        with pytest.raises(InputError, match=rf"\b{option}\b"):
            make_strategy(name, -1.0, {} if option == "deadline_s" else {option: -1, "deadline_s": 10.0})


@pytest.mark.parametrize(
    ("kind", "option", "accepted", "rejected"),
    [
        (FedAvg, "fraction", [0.001, 1], [0, 1.001, math.nan, True]),
        (FedAvg, "clients_per_round", [1, None], [0, 1.5]),
        (FedAvg, "select", ["age"], ["best"]),
        (Safa, "round_limit_s", [math.inf], [0]),
        (Safa, "lag_tolerance", [1], [0, 1.0]),
        (FedBuff, "server_lr", [1e300], [0, math.inf]),
        (FedBuff, "buffer_size", [1, None], [0, True]),
        (FedBuff, "scale_staleness", [False], [0, 1]),
        (FedQueue, "deadline_s", [1], [0, math.inf]),
        (FedQueue, "min_steps", [1, 10**7], [0, 10**7 + 1]),
        (FedQueue, "margin_s", [0], [-1e-9, math.inf]),
        (FedCompass, "latest_factor", [1], [0.999, math.inf]),
        (Oort, "exploration_decay", [1], [0, 1.5]),
        (Oort, "overcommitment", [1, 100], [0.999, 100.5]),
        (Oort, "penalty", [0], [math.inf]),
        (LessonFitted, "discount", [0, 100], [101]),
        (Lesson, "participation", [1, None], [0, 1.5, True]),
        (Lesson, "deadline_s", [math.inf], [0, math.nan, "x"]),
        (Lesson, "late", ["drop"], ["wait"]),
    ],
)
def test_bounds_of_options(kind: type[Any], option: str, accepted: list[Any], rejected: list[Any]) -> None:
    deadline = {"deadline_s": 10.0} if "deadline_s" in setting_names(kind) else {}
    for value in accepted:
        assert getattr(kind(**deadline | {option: value}), option) == value
    for value in rejected:
        with pytest.raises(InputError, match=option):
            kind(**deadline | {option: value})


def test_min_steps_must_not_exceed_max_steps() -> None:
    assert FedCompass(min_steps=3, max_steps=3).max_steps == 3
    with pytest.raises(InputError, match="max_steps"):
        FedCompass(min_steps=3, max_steps=2)


def test_strategies_are_made_by_name() -> None:
    assert make_strategy("lesson", 7.0, {"late": "drop"}) == Lesson(7.0, late="drop")
    assert make_strategy("fedavg", 7.0) == make_strategy("lesson.strategies.fedavg:FedAvg", 7.0) == FedAvg()
    assert (has_deadline("fedcs"), has_deadline("fedavg")) == (True, False)
    assert option_values(Lesson(7.0)) == {
        "late": "merge",
        "participation": None,
        "scaling": True,
        "close_early": True,
        "fit_upload": False,
    }


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("leson", {}, "did you mean 'lesson'"),
        ("lesson", {"lat": 1}, "unknown setting 'lat' for lesson; did you mean 'late'"),
        ("fedbuff", {"concurrency": 0}, r"^\[strategy\] concurrency must be >= 1, got 0$"),
        (f"{__name__}:make", {}, "must have the methods open_round"),
        (f"{__name__}:Needy", {}, "must have needs"),
        (f"{__name__}:Strict", {}, "cannot be created"),
    ],
)
def test_strategies_that_cannot_be_made(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make_strategy(name, 20.0, options)
    assert "\n" not in str(caught.value)


class Needy:
    """A strategy without `needs`."""

    open_round = merge = state = restore = lambda self: None


class Strict(FedAvg):
    """A strategy that cannot be made without an argument."""

    def __init__(self, required: int) -> None: ...


def test_options_of_single_strategies_override_common_ones() -> None:
    changes = ["radio.power_w=1", "fedbuff.concurrency=5", "fedbuff.server_lr = 2", "lesson.late=drop"]
    sections, own = split_changes(changes)
    assert sections == ["radio.power_w=1"]
    assert own == {"fedbuff": {"concurrency": 5, "server_lr": 2}, "lesson": {"late": "drop"}}
    common = {"late": "drop", "server_lr": 0.5, "participation": 3}
    assert options_of(["lesson", "fedbuff", "ca2fl"], common, {"fedbuff": own["fedbuff"]}) == {
        "lesson": {"late": "drop", "participation": 3},
        "fedbuff": {"concurrency": 5, "server_lr": 2},
        "ca2fl": {"server_lr": 0.5},
    }


@pytest.mark.parametrize(
    ("names", "common", "own", "message"),
    [
        (["lesson"], {}, {"fedbuff": {"concurrency": 2}}, "fedbuff.concurrency"),
        (["lesson", "fedavg"], {}, {"fedbuff": {"concurrency": 2}}, "lesson, fedavg"),
        (["lesson", "fedavg"], {"lat": 1}, {}, "did you mean 'late'"),
        (["lesson"], {"late": "drop"}, {"lesson": {"late": "merge"}}, "lesson.late is also set"),
    ],
)
def test_options_without_effect_are_rejected(names: list[str], common: Any, own: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        options_of(names, common, own)


def test_only_strategies_with_tiers_get_a_promoted_client() -> None:
    fleet = make_fleet([12.0, 25.0], ensure_first_tier=True)
    assert fleet_for("fedcs", fleet, 5.0).promoted is not None
    assert fleet_for("fedcs-greedy", fleet, 5.0) is fleet_for("fedavg", fleet, 5.0) is fleet
