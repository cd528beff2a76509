"""Prints a replay: the recorded run, the simulated alternatives, the recommendation, and the check of predictions."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from lesson.flight.advice import Advice
from lesson.flight.check import Check
from lesson.flight.fit import listed
from lesson.flight.replay import Replay
from lesson.report.replay.tables import MAX_NAMED, check_table, strategy_table
from lesson.report.words import percent

if TYPE_CHECKING:  # it imports torch, which takes seconds
    from lesson.experiments.study import Study

MIN_WIDTH = 100
"""Width of output that is piped or written to a file, in characters."""


def print_replay(result: Replay, sentence: str, notes: Sequence[str], console: Console) -> None:
    """Print the recorded run, the simulated strategies and the recommendation."""
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    console.print(strategy_table(result).to_rich())
    console.print(Text(sentence, style="bold"))
    for note in notes:
        console.print(Text.assemble(("note: ", "yellow"), note))


def print_check(check: Check, name: str, console: Console) -> None:
    """Print how well the first half of a recording predicts the second."""
    console.print(check_table(check, name).to_rich())
    if check.num_pairs:
        console.print(
            f"order of clients by latency: {percent(check.order)} of {check.num_pairs} pairs predicted correctly"
        )
    moved = [f"{name} (tier {first}, then {second})" for name, first, second in check.wrong_tiers]
    line = (
        f"tiers at {check.deadline_s:g} s: {check.num_clients - len(moved)} of {check.num_clients} predicted correctly"
    )
    console.print(Text(f"{line}; {listed(moved, MAX_NAMED)}" if moved else line))
    console.print(f"latencies within the 95 % interval predicted for their client: {percent(check.latency_coverage)}")
    if not math.isnan(check.round_coverage):
        console.print(f"round lengths within the predicted 95 % interval: {percent(check.round_coverage)}")


def accuracy_sentence(study: "Study", advice: Advice) -> str:
    """Return which strategy has the best score after training, as on a report, and whether the advice differs."""
    from lesson.report.groups import groups_of
    from lesson.report.page.study_words import cards

    groups = groups_of(study)
    if not groups:
        return ""
    card = cards(study, groups)[0]
    sentence = f"{card['label']} after training: {card['who']}."
    named = advice.outcome.candidate.strategy if advice.outcome is not None else ""
    if named in ("", card["who"]) or card["who"] not in [group.name for group in groups]:
        return sentence
    return f"{sentence} The recommendation compares schedules only, so prefer {card['who']} to {named} for this task."
