"""Replays of recordings agree with hand-worked schedules and with the truth from which recordings were drawn."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.flights import flight, job, write_flight, write_lines
from lesson.core.errors import InputError
from lesson.flight.advice import choose_deadline_s, deadlines_of
from lesson.flight.check import check_recording, first_half
from lesson.flight.fit import FittedFleet, fit
from lesson.flight.outcomes import Candidate, Outcome, Spread, horizon_of, reality_of
from lesson.flight.recording import OPEN, Recording, read_recording
from lesson.flight.replay import replay_fitted

NAN = float("nan")
CANDIDATES = [Candidate("lesson", 10.0), Candidate("fedavg", 10.0), Candidate("fedcs", 10.0)]


def constant(tmp_path: Path, **options: Any) -> FittedFleet:
    """A fleet of three clients that always take 4 s, 9 s and 19 s, recorded for 20 rounds of FedAvg."""
    return fit(flight(tmp_path / "flight.jsonl", [[4.0, 9.0, 19.0]] * 20, **options))


def test_constant_times_by_hand(tmp_path: Path) -> None:
    result = replay_fitted(constant(tmp_path), CANDIDATES, num_replicates=3)
    lesson, fedavg, fedcs = result.outcomes
    # The recording lasts 20 · 19 s = 380 s. LESSON: 38 rounds of 10 s; a and b are in tier 1, c in tier 2. That gives
    # 38 · 2 + 19 = 95 updates, or 95 / 380 · 3600 = 900 per hour. An update of c misses one version, so the mean
    # staleness is 19 / 95.
    assert result.horizon_s == 380.0
    assert lesson.values["round_s"].tolist() == [10.0] * 3
    assert lesson.values["updates_per_h"] == pytest.approx([900.0] * 3)
    assert lesson.values["staleness"] == pytest.approx([0.2] * 3)
    assert lesson.values["on_time"].tolist() == [1.0] * 3
    assert lesson.num_merged.tolist() == [[38, 38, 19]] * 3
    # FedAvg: 20 rounds of 19 s with 3 updates each.
    assert fedavg.values["updates_per_h"] == pytest.approx([60 / 380 * 3600] * 3)
    assert fedavg.values["round_s"].tolist() == [19.0] * 3
    assert np.isnan(fedavg.values["on_time"]).all()  # it has no slots
    # FedCS: a and b in 38 rounds of 10 s; c never.
    assert fedcs.values["updates_per_h"] == pytest.approx([76 / 380 * 3600] * 3)
    assert fedcs.not_served.tolist() == [2]
    reality = result.reality
    assert (reality.strategy, reality.num_rounds) == ("fedavg", 20)
    assert reality.values["round_s"] == 19.0
    assert reality.values["updates_per_h"] == pytest.approx(60 / 380 * 3600)
    assert reality.values["staleness"] == 0.0
    assert not len(reality.not_served)


def test_table_has_a_row_for_reality_and_each_strategy(tmp_path: Path) -> None:
    result = replay_fitted(constant(tmp_path), [*CANDIDATES, Candidate("fedcs", 1.0)], num_replicates=2)
    table = result.table()
    assert list(table.index) == ["recorded: fedavg", "lesson, 10 s", "fedavg", "fedcs, 10 s"]
    assert table.loc["lesson, 10 s", "updates_per_h_mean"] == pytest.approx(900)
    assert table.loc["fedcs, 10 s", "not_served"] == 1


def test_overhead_and_energy(tmp_path: Path) -> None:
    fitted = constant(tmp_path, overhead_s=1.0)
    result = replay_fitted(fitted, CANDIDATES, num_replicates=2)
    # Rounds of FedAvg last 19 s, with 1 s between them; the last round is not followed by any.
    assert result.horizon_s == 20 * 19 + 19
    assert result.outcomes[1].values["round_s"] == pytest.approx([399 / 20] * 2)
    assert result.reality.values["round_s"] == pytest.approx(399 / 20)
    assert np.isnan(result.outcomes[0].values["joules"]).all()
    known = replay_fitted(replace(constant(tmp_path), energy_j=np.array([1.0, 2.0, 3.0])), CANDIDATES, num_replicates=2)
    # LESSON aggregates 38, 38 and 19 updates: (38 · 1 + 38 · 2 + 19 · 3) / 95 J. FedAvg aggregates 20 of each client.
    assert known.outcomes[0].values["joules"] == pytest.approx([171 / 95] * 2)
    assert known.reality.values["joules"] == 2.0


def test_horizon_by_hand(tmp_path: Path) -> None:
    # Two rounds of 4 s with 1 s between them are less than 10 · (4 + 1) s, and 300 of them more than 200 · (4 + 1) s.
    assert horizon_of(fit(flight(tmp_path / "short", [[4.0]] * 2, overhead_s=1.0))) == 50.0
    assert horizon_of(fit(flight(tmp_path / "long", [[4.0]] * 300, overhead_s=1.0))) == 1000.0
    assert horizon_of(fit(flight(tmp_path / "usual", [[4.0]] * 20, overhead_s=1.0))) == 20 * 4 + 19


@pytest.mark.parametrize(
    ("strategy", "deadline_s", "compared_with"),
    [
        ("lesson", 10.0, "lesson, 10 s"),
        ("lesson", 5.0, "the recorded run (lesson)"),
        ("FedAvg", None, "fedavg"),
        ("", None, "fedavg"),  # synchronous rounds
    ],
)
def test_baseline_of_a_recommendation(
    tmp_path: Path, strategy: str, deadline_s: float | None, compared_with: str
) -> None:
    recording = constant(tmp_path, strategy=strategy).recording
    header = recording.header.model_copy(update={"deadline_s": deadline_s})
    result = replay_fitted(fit(replace(recording, header=header)), CANDIDATES, num_replicates=2)
    assert result.advice.compared_with == compared_with


def test_staleness_of_overlapping_rounds_must_be_recorded(tmp_path: Path) -> None:
    (asked, arrived), (asked_too, arrived_too) = job(1, "a", 0.0, 9.0), job(2, "b", 5.0, 10.0, round=2)
    for staleness, mean in ((None, np.nan), ([0, 3], 1.5)):
        last = {"event": "round", "t_s": 10.0, "round": 2, "merged": ["a", "b"], "staleness": staleness}
        path = write_lines(tmp_path / "f", {"flight": 1}, asked, asked_too, arrived, arrived_too, last)
        values = reality_of(fit(read_recording(path))).values
        assert values["updates_per_h"] == 720.0
        assert values["staleness"] == pytest.approx(mean, nan_ok=True)


@pytest.mark.parametrize(
    ("latency_s", "strategy", "candidates", "recommended", "gain"),
    [
        # 38 + 38 + 19 updates of LESSON in the time of 60 of FedAvg.
        ([4.0, 9.0, 19.0], "fedavg", CANDIDATES, "lesson, 10 s", 95 / 60),
        # 1/10 + 1/20 = 0.15 updates per second, a third of them stale; FedAvg has 2 / 14.5 = 0.138, all of them fresh.
        ([10.0, 14.5], "Mine", CANDIDATES, "lesson, 10 s", 0.15 * 14.5 / 2),
        # FedCS would have more updates, but leaves a client out, even if it was recorded.
        ([1.0, 50.0], "fedavg", [Candidate("fedcs", 1.0), Candidate("fedavg", 1.0)], "fedavg", 0.0),
        ([1.0, 50.0], "FedCS", [Candidate("fedcs", 10.0), Candidate("fedavg", 10.0)], "fedavg", 2 / 50 / (1 / 10)),
        # FedAvg has 3 updates in 9 s; LESSON has 3 in 20 s if it must wait for its deadline.
        ([4.0, 9.0, 9.0], "Mine", [Candidate("lesson", 20.0, {"close_early": False})], "lesson, 20 s", 9 / 20),
    ],
)
def test_recommended_strategy_by_hand(
    tmp_path: Path,
    latency_s: list[float],
    strategy: str,
    candidates: list[Candidate],
    recommended: str,
    gain: float,
) -> None:
    fitted = fit(flight(tmp_path / "f", [latency_s] * 20, strategy=strategy))
    advice = replay_fitted(fitted, candidates, num_replicates=2).advice
    assert advice.outcome.candidate.label.startswith(recommended)
    assert (0.0 if advice.gain is None else advice.gain.mean) == pytest.approx(gain, rel=0.02)
    assert advice.sentence.startswith("Use " if gain > 1 or strategy == "FedCS" else "Keep ")


def test_recorded_run_without_updates_is_not_a_baseline(tmp_path: Path) -> None:
    path = write_flight(tmp_path / "f", [[4.0, 9.0]] * 8, strategy="other")
    path.write_text(re.sub(r'"merged": \[.*?\]', '"merged": []', path.read_text()))
    advice = replay_fitted(fit(read_recording(path)), [Candidate("fedavg", 10.0)], num_replicates=2).advice
    # Two updates in rounds of 9 s: 800 per hour.
    assert "800 per hour" in advice.sentence
    assert advice.gain is None


def test_gain_below_one_percent_changes_nothing(tmp_path: Path) -> None:
    # Both clients always take 10 s. The recorded rounds lasted 10.05 s, the last one 10 s, so that 20 rounds took
    # 200.95 s; LESSON needs 10.05 s per round as well, which is at most 1.005 times as fast.
    fitted = fit(flight(tmp_path / "f", [[10.0, 10.0]] * 20, strategy="Mine", overhead_s=0.05))
    assert replay_fitted(fitted, [Candidate("lesson", 11.0)], num_replicates=2).advice.sentence.startswith("Keep ")


def test_client_is_served_if_95_percent_of_simulations_serve_it() -> None:
    # a is aggregated in all of 100 simulations, b in 95, c in 94, d in none.
    merged = (np.arange(100)[:, None] < [100, 95, 94, 0]).astype(np.int64) * 7
    assert Outcome(CANDIDATES[0], num_merged=merged).not_served.tolist() == [2, 3]


def test_rate_of_a_recorded_run_leaves_out_its_start(tmp_path: Path) -> None:
    # Nine rounds of 10 s with two updates follow a first round of 100 s: 2 / 10 · 3600 updates per hour.
    fitted = fit(flight(tmp_path / "f", [[100.0, 100.0]] + [[10.0, 10.0]] * 9, strategy="Mine"))
    result = replay_fitted(fitted, [Candidate("fedavg", 10.0)], num_replicates=2)
    assert result.reality.warm_per_h == pytest.approx(720.0)


def test_nothing_is_recommended_if_nothing_arrives_in_time(tmp_path: Path) -> None:
    result = replay_fitted(constant(tmp_path), CANDIDATES[:2], num_replicates=2, horizon_s=1.0)
    assert result.advice.outcome is None
    # In 12 s, LESSON aggregates updates of a and b, and FedAvg, which was recorded, none: no gain can be computed.
    advice = replay_fitted(constant(tmp_path), CANDIDATES[:2], num_replicates=2, horizon_s=12.0).advice
    assert advice.gain is None
    assert "720 per hour" in advice.sentence


def test_search_for_a_deadline_simulates_the_given_time(tmp_path: Path) -> None:
    # In 10 s, only 4.4 s and 9.9 s see the end of a round: a at 4.4 s and 8.8 s, and a and b at 9.9 s. Two updates in
    # 8.8 s are more per hour than two in 9.9 s. In the whole recording, 9.9 s has more than 4.4 s.
    assert choose_deadline_s(constant(tmp_path), horizon_s=10.0) == 4.4


def test_longest_of_equally_good_deadlines_is_chosen(tmp_path: Path) -> None:
    """Deadlines to try are 1.1 times quantiles of the latencies, rounded up to two digits."""
    assert deadlines_of(constant(tmp_path)) == [4.4, 9.9, 21.0]
    # a, b and c take 9, 18 and 27.1 s. With 9.9 s, LESSON aggregates 1 + 1/2 + 1/3 updates in a round: 0.1852 per
    # second. With 20 s: 2 + 1/2 in 20 s, 0.125. With 30 s, it closes after 27.1 s: 3 / 27.1 = 0.1107. Overhead favors
    # longer rounds: with 100 s of it, 30 s has the most.
    latency_s = [[9.0, 18.0, 27.1]] * 6
    assert choose_deadline_s(fit(flight(tmp_path / "f", latency_s))) == 9.9
    assert choose_deadline_s(fit(flight(tmp_path / "g", latency_s, overhead_s=100.0))) == 30.0
    # Three clients at 10 s and one at 10.05 s: with 11 s and 12 s, all of them are in tier 1.
    equal = fit(flight(tmp_path / "h", [[10.0, 10.0, 10.0, 10.05]] * 6))
    assert choose_deadline_s(equal) == deadlines_of(equal)[-1]


def test_strategy_that_cannot_run_is_explained(tmp_path: Path) -> None:
    result = replay_fitted(constant(tmp_path), [Candidate("fedcs", 1.0), Candidate("fedavg", 1.0)], num_replicates=2)
    assert ["deadline_s" in one.problem for one in result.outcomes] == [True, False]
    with pytest.raises(InputError, match="update_loss"):
        replay_fitted(constant(tmp_path), [Candidate("oort", 10.0)])
    unsplit = fit(flight(tmp_path / "g", [[4.0, 9.0]] * 5, compute_share=None))
    result = replay_fitted(unsplit, [Candidate("lesson-fitted", 10.0)], num_replicates=2)
    assert "compute_s" in result.outcomes[0].problem
    assert any("report_times" in note for note in result.notes)


def test_very_short_deadlines(tmp_path: Path) -> None:
    """With 0.019 s, there would be 20,000 rounds in 380 s. Clients compute for half of their 4 s, 9 s and 19 s."""
    fitted = constant(tmp_path, compute_share=0.5)
    result = replay_fitted(fitted, [Candidate("lesson", 0.018), Candidate("fedavg", 0.018)], num_replicates=2)
    assert ["0.019" in one.problem for one in result.outcomes] == [True, False]
    assert fitted.transfer_s == pytest.approx(4.5)
    noted = [
        any(
            "4.5 s" in note for note in replay_fitted(fitted, [Candidate("lesson", deadline_s)], num_replicates=2).notes
        )
        for deadline_s in (4.0, 5.0)
    ]
    assert noted == [True, False]


def test_strategy_that_can_run_in_some_draws_has_a_note(tmp_path: Path) -> None:
    # FedCS has no client if the first reply of the only fast client is drawn as 12 s, over the deadline of 10 s.
    fitted = fit(flight(tmp_path / "f", [[8.0, 30.0], [8.0, 30.0], [8.0, 30.0], [12.0, 30.0]] * 5))
    outcome = replay_fitted(fitted, [Candidate("fedcs", 10.0)], num_replicates=20).outcomes[0]
    assert not outcome.problem
    assert 0 < np.count_nonzero(outcome.values["updates_per_h"] == 0) < 20
    assert outcome.note


def test_failures_are_counted_as_waste(tmp_path: Path) -> None:
    fitted = fit(flight(tmp_path / "f", [[5.0, 8.0], [-2.0, 8.0]] * 20))
    outcome = replay_fitted(fitted, [Candidate("fedavg", 1.0)], num_replicates=30).outcomes[0]
    assert abs(outcome.spread("wasted").mean - 0.25) < 0.04  # a quarter of all local trainings fail


TRUE_S = np.array([8.0, 12.0, 20.0, 30.0, 45.0])


def drawn(path: Path, seed: int, num_rounds: int) -> Recording:
    """A recording of FedAvg whose latencies are log-normal around TRUE_S."""
    factors = np.random.default_rng(seed).lognormal(0, 0.15, (num_rounds, len(TRUE_S)))
    return flight(path, (TRUE_S * factors).tolist(), overhead_s=1.5)


def test_intervals_cover_another_recording_of_the_same_fleet(tmp_path: Path) -> None:
    """Six recordings of one truth: intervals fitted to each cover the mean round length of the next one."""
    fits = [fit(drawn(tmp_path / "f", seed, num_rounds=20)) for seed in range(6)]
    covered = 0
    for number, fitted in enumerate(fits):
        spread = replay_fitted(fitted, [Candidate("fedavg", 1.0)], num_replicates=30).outcomes[0].spread("round_s")
        covered += reality_of(fits[number - 1]).values["round_s"] in spread
    assert covered >= 5  # nominally 95 %


def test_check_predicts_the_second_half(tmp_path: Path) -> None:
    check = check_recording(drawn(tmp_path / "f", 3, num_rounds=40), num_replicates=30)
    length, _, late = check.predictions
    assert (length.what, late.what) == ("round length", "share of late replies")
    assert length.error < 0.1
    assert length.is_covered
    assert late.is_covered
    assert (check.strategy, check.num_pairs, check.num_clients) == ("fedavg", 10, 5)
    assert check.order >= 0.9
    assert check.round_coverage > 0.8
    assert check.latency_coverage > 0.8


def test_check_notices_a_fleet_that_has_changed(tmp_path: Path) -> None:
    rows = [[5.0, 6.0, 7.0]] * 9 + [[5.0, 60.0, 7.0]] * 11
    check = check_recording(flight(tmp_path / "f", rows), num_replicates=10)
    assert check.predictions[0].error > 0.5
    assert not check.predictions[0].is_covered
    assert [name for name, _, _ in check.wrong_tiers] == ["b"]
    assert check.order == pytest.approx(2 / 3)  # b was faster than c, and is slower now
    assert check.latency_coverage == pytest.approx(2 / 3)


def test_first_half_contains_nothing_of_the_second(tmp_path: Path) -> None:
    recording = flight(tmp_path / "f", [[4.0, 9.0]] * 4)
    half = first_half(recording, 20.0)
    assert half.jobs.asked_s.max() == 18.0
    # The jobs of the third round began at 18 s; neither had ended at 20 s.
    assert half.jobs.outcome[-2:].tolist() == [OPEN, OPEN]
    assert np.isnan(half.jobs.compute_s[-2:]).all()
    assert [one.round for one in half.rounds] == [1, 2]


def test_check_samples_as_many_clients_as_the_recording(tmp_path: Path) -> None:
    # Two of four clients are asked in each round of 5 s: 2 / 5 · 3600 updates per hour.
    rows = [[5.0, 5.0, NAN, NAN], [NAN, NAN, 5.0, 5.0]] * 8
    updates = check_recording(flight(tmp_path / "f", rows), num_replicates=2).predictions[1]
    assert updates.predicted.mean == pytest.approx(1440)
    assert updates.measured == pytest.approx(1440)


def test_check_knows_how_many_clients_train_at_once(tmp_path: Path) -> None:
    # Six clients take 10 s, and two of them train at all times: 2 / 10 · 3600 updates per hour, not 6 / 10 · 3600.
    # Every update is aggregated at once, which the recording does not say.
    events: list[dict[str, Any]] = []
    for number in range(60):
        client, end_s = "abcdef"[number % 6], 5.0 * number + 10
        events += job(number, client, end_s - 10, end_s, round=max(1, number))
        events.append({"event": "round", "t_s": end_s, "round": number + 1, "merged": [client]})
    events.sort(key=lambda event: (event["t_s"], ["arrived", "round", "asked"].index(event["event"])))
    recording = read_recording(write_lines(tmp_path / "f", {"flight": 1, "strategy": "FedBuff"}, *events))
    observed = check_recording(recording, options={"fedbuff": {"buffer_size": 1}}, num_replicates=2)
    assert observed.strategy == "fedbuff, concurrency = 2, buffer_size = 1"
    updates = observed.predictions[1]
    assert updates.measured == pytest.approx(720, rel=0.05)
    assert updates.predicted.mean == pytest.approx(720, rel=0.1)
    given = check_recording(recording, options={"fedbuff": {"concurrency": 6}}, num_replicates=2)
    assert given.predictions[1].predicted.mean > 1500


def test_share_of_late_replies_by_hand(tmp_path: Path) -> None:
    # Rounds 1 to 6 are the first half: medians are 4 s and 9 s, so a deadline of 5 s puts a in tier 1 and b in tier 2.
    # In rounds 7 to 13, a takes longer than 5 s twice and b longer than 10 s once: 3 of 14 replies are late.
    rows = [[4.0, 9.0]] * 6 + [[6.0, 9.0], [4.0, 11.0], [6.0, 9.0], *([[4.0, 9.0]] * 4)]
    recording = flight(tmp_path / "f", rows)
    recording = replace(recording, header=recording.header.model_copy(update={"deadline_s": 5.0}))
    late = check_recording(recording, num_replicates=2).predictions[2]
    assert late.measured == pytest.approx(3 / 14)
    assert late.predicted == Spread(0.0, 0.0, 0.0)


def test_recordings_that_cannot_be_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 6 complete rounds"):
        check_recording(flight(tmp_path / "f", [[4.0]] * 4))
    rows = [[4.0, 9.0, NAN, NAN]] * 5 + [[NAN, NAN, 4.0, 9.0]] * 6
    with pytest.raises(InputError, match="both halves"):
        check_recording(flight(tmp_path / "f", rows), num_replicates=2)
