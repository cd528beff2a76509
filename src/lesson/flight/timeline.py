"""Rounds of a recording, and whether they were synchronous."""

from itertools import pairwise

import numpy as np

from lesson.flight.recording import ARRIVED, OPEN, Recording, Round


def rounds_of(recording: Recording) -> tuple[Round, ...]:
    """Return the rounds of a recording in order: as recorded, or inferred from the round numbers of its jobs.

    An inferred round ends with its last job, and aggregates all updates that arrived. There are none if neither rounds
    nor their numbers were recorded.
    """
    if recording.rounds:
        return recording.rounds
    jobs, rounds = recording.jobs, list[Round]()
    for number in np.unique(jobs.round[jobs.round > 0]).tolist():
        mine = np.flatnonzero(jobs.round == number)
        if not np.any(jobs.outcome[mine] == OPEN):
            merged = tuple(jobs.client[mine[jobs.outcome[mine] == ARRIVED]].tolist())
            rounds.append(Round(number, float(jobs.ended_s[mine].max()), merged, (0,) * len(merged)))
    return tuple(sorted(rounds, key=lambda one: one.end_s))


def is_synchronous(recording: Recording) -> bool:
    """Return whether all jobs of a round had ended before a client was asked in the next one."""
    jobs, last_s = recording.jobs, -np.inf
    if not np.all(jobs.round > 0):
        return False
    for number in np.unique(jobs.round).tolist():
        mine = jobs.round == number
        if jobs.asked_s[mine].min() < last_s:
            return False
        ended_s = jobs.ended_s[mine]
        last_s = np.inf if np.isnan(ended_s).any() else float(ended_s.max())
    return True


def round_lengths_s(recording: Recording) -> list[tuple[int, float]]:
    """Return the number of each round and its length in seconds, from the first request in it to that in the next."""
    jobs = recording.jobs
    numbers = np.unique(jobs.round[jobs.round > 0]).tolist()
    starts = {number: float(jobs.asked_s[jobs.round == number].min()) for number in numbers}
    return [(one, starts[other] - starts[one]) for one, other in pairwise(numbers)]
