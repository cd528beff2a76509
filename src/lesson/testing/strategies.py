"""`check_strategy`: the rules that every strategy must obey, whatever it decides.

Each check is a function. It takes a `Subject`, the strategy with the cases it is run in, and raises AssertionError with
one line that names the case, the round and what is wrong. The round loop checks plans and merges; a strategy cannot
make time go back, nor start a client that is not idle, without an error from the loop, which `check_runs` reports.
"""

import copy
import dataclasses
import inspect
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lesson.clock.loop import RoundLoop
from lesson.core.errors import InputError
from lesson.core.validation import shown
from lesson.fleet.fleet import Fleet
from lesson.strategies.base import Merge, RoundPlan, ServerView, Strategy, Updates
from lesson.testing.runs import DEADLINE_S, SIGNALS, Case, default_fleets, make_cases, rejections_of

MAX_WAIT = 0.75
"""Share of a run's rounds that an update may wait at the server. `malenia`, which waits for all clients, needs 100."""

PlainRound = dict[str, Any]
"""What happened in a round, as plain values by name."""
Decision = TypeVar("Decision", RoundPlan, Merge)


def check_strategy(
    strategy: Strategy | type[Strategy] | Callable[[], Strategy],
    *,
    rounds: int = 40,
    fleets: Mapping[str, Fleet] | None = None,
) -> None:
    """Run the contract tests on a strategy.

    The largest fleet is also run with varying times, with clients that join and leave or disconnect, and with rejected
    updates. In round 1, a strategy may raise InputError on fleets that do not suit it, but not on all of them.

    Args:
        strategy: A class, an object or a function without arguments that returns one. A class is called with
            `deadline_s`, if it has such an argument, and with its defaults otherwise.
        rounds: Number of rounds in each fleet.
        fleets: Fleets by name; by default, fleets of one client, four equal clients, six unequal clients (one of them
            unreachable) and 24 drawn clients.

    Raises:
        AssertionError: The strategy breaks a rule. The message is one line that names the case, the round and the rule.
    """
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(strategy, make_cases(fleets or default_fleets(), Path(folder)), rounds)
        for check in STRATEGY_CHECKS:
            check(subject)


class Subject:
    """A strategy, the cases in which it is run, and its rounds in each of them."""

    def __init__(self, strategy: Any, cases: list[Case], num_rounds: int) -> None:
        self.cases, self.num_rounds = cases, num_rounds
        self.make = _maker(strategy)
        """Returns a new strategy."""
        self.strategy: Strategy = strategy if _is_strategy(strategy) else self.make()
        self.name = type(self.strategy).__name__

    @cached_property
    def accepted(self) -> dict[Case, list[PlainRound]]:
        """The rounds of the strategy in each case whose fleet it accepts; raises if it accepts none."""
        accepted, reason = {}, ""
        for case in self.cases:
            loop = self.begin(case, self.strategy)
            try:
                accepted[case] = self.run(case, loop)
            except AssertionError as error:
                if loop.round > 1 or not isinstance(error.__cause__, InputError):
                    raise
                reason = str(error)
        if not accepted:
            raise AssertionError(f"{self.name}: must accept at least one fleet; {reason}")
        return accepted

    def nominal(self) -> Iterator[tuple[Case, list[PlainRound]]]:
        """Yield the accepted cases in which nothing varies, and their rounds."""
        yield from ((case, rounds) for case, rounds in self.accepted.items() if case.is_nominal)

    def begin(self, case: Case, strategy: Strategy, *, signals: bool = True, poison: bool = False) -> RoundLoop:
        """Return the loop of a run that keeps the decisions of its strategy."""
        with self._told(case):
            loop = case.begin(strategy, signals)
        loop.strategy = _watched(loop.strategy, poison)
        return loop

    def run(self, case: Case, loop: RoundLoop, resume: Callable[[], RoundLoop] | None = None) -> list[PlainRound]:
        """Run a loop and return its rounds; fewer than `num_rounds` if the run ends.

        With `resume`, which returns new loops, the run is saved after every round and continues in a new loop.
        """
        rounds: list[PlainRound] = []
        with self._told(case, rounds):
            while loop.round < self.num_rounds and not loop.stop_reason:
                if (current := loop.begin()) is not None:
                    record = loop.close(current, rejections_of(current) if case.rejects else ())
                    decided = getattr(loop.strategy, "decided", {})
                    rounds.append(_plain(record) | decided | {"at_server": loop.ledger.at_server.id.tolist()})
                if resume is not None:
                    values, arrays = loop.state()
                    loop = resume()
                    loop.restore(json.loads(json.dumps(values, allow_nan=False)), arrays)
        return rounds

    def check_same(self, case: Case, loop: RoundLoop, rule: str, resume: Callable[[], RoundLoop] | None = None) -> None:
        """Raise, with the rule that is broken, unless another run of a case has the same rounds as the first one."""
        try:
            first, again = self.accepted[case], self.run(case, loop, resume)
        except AssertionError as error:
            raise AssertionError(f"{error}; {rule}") from error.__cause__
        for number, (one, other) in enumerate(zip(first, again, strict=False), start=1):
            for name in one | other:
                there, here = one.get(name), other.get(name)
                if repr(there) != repr(here):
                    raise self.error(case, f"round {number}: {name} was {shown(there)}, then {shown(here)}; {rule}")
        if len(first) != len(again):
            number = min(len(first), len(again)) + 1
            raise self.error(case, f"round {number} took place in only one of two runs; {rule}")

    def error(self, case: Case, what: str) -> AssertionError:
        """Return the error to raise if something is wrong in a case."""
        return AssertionError(f"{self.name}: {case.name}: {what}")

    @contextmanager
    def _told(self, case: Case, rounds: Sequence[PlainRound] = ()) -> Iterator[None]:
        """Turn exceptions into errors in one line that names the case and the round."""
        try:
            yield
        except Exception as error:  # a custom strategy may raise anything
            text = " ".join(str(error).split()).replace(f" {self.name}:", "")
            at = "" if text.startswith("round ") else f"round {len(rounds) + 1}: {type(error).__name__}: "
            raise self.error(case, at + text) from error


def check_needs(subject: Subject) -> None:
    """`needs` is a frozenset of names of signals that exist."""
    needs = subject.strategy.needs
    if not isinstance(needs, frozenset) or not needs <= SIGNALS.keys():
        raise AssertionError(
            f"{subject.name}: needs must be a frozenset of signals among {', '.join(SIGNALS)}, got {needs!r}"
        )


def check_runs(subject: Subject) -> None:
    """The strategy runs in every case: it raises nothing, and the round loop accepts its plans and merges.

    The loop accepts only idle clients among the starts, and weights that are finite, >= 0 and, for models, sum to at
    most 1.
    """
    _ = subject.accepted


def check_progress(subject: Subject) -> None:
    """If nothing fails, something is aggregated, or a note of a plan says why not."""
    for case, rounds in subject.nominal():
        if not any(one["version"] or one["plan.note"] for one in rounds):
            raise subject.error(case, f"nothing is aggregated in {len(rounds)} rounds, and no note explains why")


def check_waiting(subject: Subject) -> None:
    """Every update at the server is aggregated or dropped after a while."""
    for case, rounds in subject.accepted.items():
        waited = Counter[int]()
        for one in rounds:
            waited = Counter({update: waited[update] + 1 for update in one["at_server"]})
            update, count = max(waited.items(), key=lambda item: item[1], default=(0, 0))
            if count > MAX_WAIT * subject.num_rounds:
                raise subject.error(
                    case, f"round {one['round']}: update {update} has waited at the server for {count} rounds"
                )


def check_without_signals(subject: Subject) -> None:
    """The strategy runs without the signals that it needs, as in `simulate` and `lesson plan`."""
    if subject.strategy.needs:
        for case, _ in subject.nominal():
            subject.run(case, subject.begin(case, subject.strategy, signals=False))


def check_weights(subject: Subject) -> None:
    """Weights of a merge do not depend on the unit of `client_weight`, such as samples or thousands of samples."""
    rule = "Merge.weights must not depend on the unit of client_weight: divide by a sum"
    for case, rounds in subject.nominal():
        fleet = dataclasses.replace(case.fleet, client_weight=1024 * case.fleet.client_weight)
        scaled = dataclasses.replace(case, fleet=fleet)
        for one, other in zip(rounds, subject.run(case, subject.begin(scaled, subject.strategy)), strict=False):
            if not np.allclose(one["merge.weights"], other["merge.weights"], rtol=1e-9):
                raise subject.error(case, f"round {one['round']}: {rule}")


def check_views(subject: Subject) -> None:
    """A second run of the same object, whose views are overwritten after each call, has the same rounds."""
    rule = "a strategy must copy what it keeps: arrays of a view, and all of its state in copy.deepcopy"
    for case in subject.accepted:
        subject.check_same(case, subject.begin(case, subject.strategy, poison=True), rule)


def check_repeats(subject: Subject) -> None:
    """A new strategy with the same seed decides the same: random numbers come from `rng`."""
    rule = "the same seed must give the same rounds: draw from the `rng` of open_round"
    for case, _ in subject.nominal():
        subject.check_same(case, subject.begin(case, subject.make()), rule)


def check_resume(subject: Subject) -> None:
    """A run that is saved after every round, as JSON and arrays, and resumed with a new object has the same rounds."""
    rule = "a resumed run must have the same rounds: a checkpoint must hold all that later rounds need"
    for case in subject.accepted:

        def resume(case: Case = case) -> RoundLoop:
            return subject.begin(case, subject.make())

        subject.check_same(case, subject.begin(case, subject.strategy), rule, resume)


STRATEGY_CHECKS: tuple[Callable[[Subject], None], ...] = (
    check_needs,
    check_runs,
    check_progress,
    check_waiting,
    check_without_signals,
    check_weights,
    check_views,
    check_repeats,
    check_resume,
)


class _Watched:
    """Passes everything on to a strategy, and keeps what it decided in the latest round.

    With `poison`, the strategy is shown copies of all arrays, which are overwritten with nonsense when it has returned.
    """

    SAVED = ("_strategy",)

    def __init__(self, strategy: Strategy, poison: bool) -> None:
        self._strategy, self._poison = strategy, poison
        self.decided: PlainRound = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def open_round(self, view: ServerView, rng: np.random.Generator) -> RoundPlan:
        with self._shown(view) as (seen,):
            plan = self._strategy.open_round(seen, rng)
            return self._noted("plan", plan)

    def merge(self, view: ServerView, arrived: Updates) -> Merge:
        with self._shown(view, arrived) as (seen, updates):
            merge = self._strategy.merge(seen, updates)
            return self._noted("merge", merge)

    def _noted(self, name: str, decision: Decision) -> Decision:
        if isinstance(decision, RoundPlan | Merge):  # the loop reports anything else
            self.decided |= {f"{name}.{key}": value for key, value in _plain(decision).items()}
        return copy.deepcopy(decision) if self._poison else decision

    @contextmanager
    def _shown(self, *values: Any) -> Iterator[tuple[Any, ...]]:
        if not self._poison:
            yield values
            return
        arrays = [{name: array.copy() for name, array in _arrays(value).items()} for value in values]
        for array in itertools.chain(*(own.values() for own in arrays)):
            array.flags.writeable = False
        yield tuple(dataclasses.replace(value, **own) for value, own in zip(values, arrays, strict=True))
        for array in itertools.chain(*(own.values() for own in arrays)):
            array.flags.writeable = True
            array[...] = ~array if array.dtype == np.bool_ else -7


def _watched(strategy: Strategy, poison: bool) -> Strategy:
    """Return a strategy that is watched. Its class has the same name, which errors of the round loop mention."""
    made: Strategy = type(type(strategy).__name__, (_Watched,), {})(strategy, poison)
    return made


def _plain(value: Any) -> Any:
    """Return a value with dictionaries and lists in place of dataclasses and arrays, so that it can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _arrays(seen: ServerView | Updates) -> dict[str, npt.NDArray[Any]]:
    values = {one.name: getattr(seen, one.name) for one in dataclasses.fields(seen)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _is_strategy(value: object) -> bool:
    return not isinstance(value, type) and hasattr(value, "open_round")


def _maker(strategy: Any) -> Callable[[], Strategy]:
    """Return a function that makes a new strategy from the argument of `check_strategy`."""
    if _is_strategy(strategy):
        return lambda: copy.deepcopy(strategy)
    if isinstance(strategy, type) and "deadline_s" in inspect.signature(strategy).parameters:
        return lambda: strategy(deadline_s=DEADLINE_S)
    made: Callable[[], Strategy] = strategy
    return made
