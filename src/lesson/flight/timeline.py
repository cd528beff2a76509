"""Rounds of a recording, and whether they were synchronous.

A recording may hold several runs of the server, one after the other: a resumed run repeats rounds, and a new one begins
with round 1. So requests belong to the same round only if no restart lies between them.
"""

from itertools import pairwise

import numpy as np

from lesson.core.arrays import IntArray
from lesson.flight.recording import ARRIVED, OPEN, Recording, Round


def rounds_of(recording: Recording) -> tuple[Round, ...]:
    """Return the rounds of a recording in order: as recorded, or inferred from the round numbers of its jobs.

    An inferred round ends with its last job, and aggregates all updates that arrived. There are none if neither rounds
    nor their numbers were recorded.
    """
    if recording.rounds:
        return recording.rounds
    jobs, rounds = recording.jobs, list[Round]()
    for _, number, mine in _jobs_by_round(recording):
        if not np.any(jobs.outcome[mine] == OPEN):
            merged = tuple(jobs.client[mine[jobs.outcome[mine] == ARRIVED]].tolist())
            rounds.append(Round(number, float(jobs.ended_s[mine].max()), merged, (0,) * len(merged)))
    return tuple(sorted(rounds, key=lambda one: one.end_s))


def is_synchronous(recording: Recording) -> bool:
    """Return whether all jobs of a round had ended before a client was asked in the next one."""
    jobs, last_s = recording.jobs, -np.inf
    if not np.all(jobs.round > 0):
        return False
    for _, _, mine in _jobs_by_round(recording):
        if jobs.asked_s[mine].min() < last_s:
            return False
        ended_s = jobs.ended_s[mine]
        last_s = np.inf if np.isnan(ended_s).any() else float(ended_s.max())
    return True


def recorded_strategy(recording: Recording) -> str:
    """Return the name of the recorded strategy in lower case (Flower writes FedAvg); empty if it is unknown.

    Synchronous rounds without a name have the schedule of FedAvg.
    """
    return recording.header.strategy.lower() or ("fedavg" if is_synchronous(recording) else "")


def round_lengths_s(recording: Recording) -> list[tuple[float, float]]:
    """Return the start of each round and its length in seconds, from the first request in it to that in the next.

    A round in which nobody was asked begins when the one before it ended. A round in which the server was restarted is
    left out.
    """
    starts = [(run, float(recording.jobs.asked_s[mine[0]])) for run, _, mine in _jobs_by_round(recording)]
    ends_s, lengths = np.array([one.end_s for one in recording.rounds]), list[tuple[float, float]]()
    for (one, begin_s), (other, next_s) in pairwise(starts):
        if one == other:
            low, high = np.searchsorted(ends_s, [begin_s, next_s], side="right").tolist()
            marks = [begin_s, *ends_s[low : high - 1].tolist(), next_s]
            lengths += [(first_s, last_s - first_s) for first_s, last_s in pairwise(marks)]
    return lengths


def grouped(keys: IntArray, num_groups: int) -> list[IntArray]:
    """Return the places of each key from 0 to `num_groups` − 1, in order."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.searchsorted(keys[order], np.arange(1, num_groups)))


def _jobs_by_round(recording: Recording) -> list[tuple[int, int, IntArray]]:
    """Return the run of the server, the number and the jobs of each round, in the order of their first requests."""
    jobs = recording.jobs
    known = np.flatnonzero(jobs.round > 0)
    if not len(known):
        return []
    runs = np.searchsorted(np.array(recording.resumed_s), jobs.asked_s[known], side="right")
    rounds, places = np.unique(np.stack([runs, jobs.round[known]]), axis=1, return_inverse=True)
    mine = [known[group] for group in grouped(places.reshape(-1), rounds.shape[1])]
    found = [(int(run), int(number), group) for (run, number), group in zip(rounds.T, mine, strict=True)]
    return sorted(found, key=lambda one: int(one[2][0]))
