"""`check_world`: the rules that every world must obey, wherever its times come from.

Checks of single calls are functions that `_Watched` calls whenever the round loop calls the world; checks of whole runs
take a `Subject`. All raise AssertionError with one line; `Subject` adds the strategy and the round.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from lesson.clock.ledger import Ledger
from lesson.clock.loop import RoundLoop
from lesson.clock.worlds.base import Collected, World, closing_time
from lesson.core.arrays import FloatArray
from lesson.fleet.fleet import Fleet
from lesson.fleet.tiers import TOLERANCE
from lesson.strategies.base import Closing, Strategy, Updates
from lesson.strategies.fedasync import FedAsync
from lesson.strategies.fedavg import FedAvg
from lesson.strategies.lesson import Lesson
from lesson.strategies.safa import Safa
from lesson.testing.runs import SEED, PlainRound, default_fleets, difference, plain, rounds_of, with_signals


def check_world(make_world: Callable[..., World], *, rounds: int = 40, simulated: bool = True) -> None:
    """Run the contract tests on a world.

    FedAvg, LESSON, FedAsync and SAFA, which cancels local trainings, are run in it; updates of some clients are
    rejected until they are excluded.

    Args:
        make_world: Function that returns a new world. If it has an argument without a default, it is called with a
            fleet of 24 clients.
        rounds: Number of rounds of each strategy.
        simulated: False for a world in real time, which may close rounds late and whose runs need not be repeatable.

    Raises:
        AssertionError: The world breaks a rule. The message is one line that names the strategy, the round and the
            rule.
    """
    subject = Subject(make_world, rounds, simulated)
    for check in WORLD_CHECKS:
        if simulated or check not in (check_repeats, check_resume):
            check(subject)


class Subject:
    """A world, the strategies that are run in it, and their rounds."""

    def __init__(self, make_world: Callable[..., World], num_rounds: int, simulated: bool) -> None:
        self.num_rounds, self.simulated = num_rounds, simulated
        fleet = default_fleets()["24 drawn clients"]
        self.make: Callable[[], World] = (lambda: make_world(fleet)) if _takes_fleet(make_world) else make_world
        """Returns a new world."""
        first = self.make()
        self.name, self.fleet = type(first).__name__, plain(first.fleet)
        """The fleet of a new world as plain values, before anything was run."""
        reachable_s = first.fleet.latency_s[first.fleet.reachable]
        deadline_s = float(np.median(reachable_s)) if len(reachable_s) else 1.0
        self.strategies: tuple[Strategy, ...] = (
            FedAvg(),
            Lesson(deadline_s),
            FedAsync(),
            Safa(lag_tolerance=1, round_limit_s=deadline_s),
        )

    @cached_property
    def rounds(self) -> list[list[PlainRound]]:
        """The rounds of each strategy."""
        return [self.run(strategy, self.begin(strategy)) for strategy in self.strategies]

    def begin(self, strategy: Strategy) -> RoundLoop:
        """Return the loop of a run in a new world that is watched."""
        world = _Watched(self.make(), self.simulated)
        return with_signals(RoundLoop(strategy, world, seed=SEED, exclude_after=2))

    def run(
        self, strategy: Strategy, loop: RoundLoop, resume: Callable[[], RoundLoop] | None = None
    ) -> list[PlainRound]:
        """Return the rounds of a loop; see `rounds_of`."""
        rounds: list[PlainRound] = []
        with self.told(strategy, rounds):
            rounds.extend(rounds_of(loop, self.num_rounds, resume, rejects=isinstance(strategy, Lesson)))
        return rounds

    def check_same(self, strategy: Strategy, expected: list[PlainRound], got: list[PlainRound], rule: str) -> None:
        """Raise, with the rule that is broken, unless two runs of a strategy have the same rounds."""
        if found := difference(expected, got):
            raise AssertionError(f"{self.name}: {type(strategy).__name__}: {found}; {rule}")

    @contextmanager
    def told(self, strategy: Strategy, rounds: Sequence[PlainRound]) -> Iterator[None]:
        """Turn exceptions into errors in one line that names the strategy and the round."""
        try:
            yield
        except Exception as error:  # a custom world may raise anything
            text = " ".join(str(error).split())
            what = text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
            name = type(strategy).__name__
            raise AssertionError(f"{self.name}: {name}: round {len(rounds) + 1}: {what}") from error


def check_arrivals(updates: Updates) -> None:
    """No update arrives before it starts, rescheduled ones included."""
    early = np.flatnonzero(~(updates.arrived_s >= updates.started_s))
    if len(early):
        client, start_s, at_s = (column[early[0]] for column in (updates.client, updates.started_s, updates.arrived_s))
        raise AssertionError(f"client {client} starts at {start_s:g} s, and its update arrives at {at_s:g} s")


def check_closing(closes: Closing, ledger: Ledger, now_s: float, end_s: float, simulated: bool) -> None:
    """A round closes when its closing condition says, and not before now; in real time, it may close later."""
    due_s, _ = closing_time(closes, ledger, now_s)
    late = end_s > due_s * (1 + TOLERANCE) and simulated
    if not end_s >= max(now_s, due_s * (1 - TOLERANCE)) or late:
        raise AssertionError(
            f"wait must return {due_s:g} s, when {type(closes).__name__} closes the round, got {end_s:g} s"
        )


def check_collected(due: Updates, collected: Collected) -> None:
    """Every update that is due has arrived, is lost or was rejected, and only one of these."""
    rejected = {(rejection.client, rejection.index) for rejection in collected.rejections}
    ends = Counter([*collected.arrived.keys, *collected.lost.keys, *collected.unfit.keys])
    ends.update(key for key in due.keys if key in rejected and key not in ends)
    for key in due.keys:
        if ends[key] != 1:
            raise AssertionError(
                f"collect must return update {key[1]} of client {key[0]} once, as arrived, lost, unfit or rejected, "
                f"got it {ends[key]} times"
            )
    unknown = set(ends) - set(due.keys) - rejected
    if unknown:
        client, index = min(unknown)
        raise AssertionError(f"collect returned update {index} of client {client}, which was not due")


def check_energy(energy_j: FloatArray) -> None:
    """Energies are two numbers >= 0, for computing and transmitting; NaN if unknown."""
    if np.shape(energy_j) != (2,) or np.any(np.isinf(energy_j)) or np.any(energy_j < 0):
        raise AssertionError(f"energy_j must return two finite numbers >= 0, or NaN, got {energy_j}")


def check_next_change(change_s: float, now_s: float) -> None:
    """The next client joins or leaves in the future; otherwise, a run could stand still."""
    if not change_s > now_s:
        raise AssertionError(f"next_change_s must return a time > now_s = {now_s:g}, or inf, got {change_s:g}")


def check_ledger(ledger: Ledger) -> None:
    """Clients and updates in the ledger agree with each other.

    A connected client is either idle or busy, and an excluded one is not connected. A version is in use while it is the
    newest or an update in flight or at the server started from it.
    """
    everybody = np.arange(len(ledger))
    training, in_flight = ledger.in_flight(everybody), ledger.updates_of(ledger.clients_in_flight())
    used = {ledger.version, *in_flight.base_version.tolist(), *ledger.at_server.base_version.tolist()}
    waiting = np.bincount(ledger.at_server.client, minlength=len(ledger))
    rules = {
        "clients are idle if they are connected and not training": ledger.idle == (ledger.connected & ~training),
        "clients are busy if they are connected and training": ledger.busy == (ledger.connected & training),
        "excluded clients are not connected": ~(ledger.excluded & ledger.connected),
        "num_connected counts connected clients": ledger.num_connected == np.count_nonzero(ledger.connected),
        "num_busy counts busy clients": ledger.num_busy == np.count_nonzero(ledger.busy),
        "num_in_flight counts updates in flight": ledger.num_in_flight == len(in_flight),
        "waiting counts updates at the server": ledger.waiting == waiting,
        f"versions in use are {sorted(used)}, got {ledger.versions}": ledger.versions == sorted(used),
    }
    for rule, holds in rules.items():
        if not np.all(holds):
            who = "" if np.ndim(holds) == 0 else f": violated for client {np.flatnonzero(~np.asarray(holds))[0]}"
            raise AssertionError(f"ledger: {rule}{who}; change it through its methods")


def check_estimates(shown: Fleet, world: World, ledger: Ledger) -> None:
    """The fleet that strategies see stays the same object, and connected clients have finite latencies in it."""
    if world.fleet is not shown:
        raise AssertionError("world.fleet must stay the same object: update its arrays in place")
    unknown = ledger.connected & ~np.isfinite(shown.latency_s)
    if unknown.any():
        client = np.flatnonzero(unknown)[0]
        raise AssertionError(f"client {client} is connected, but its latency is {shown.latency_s[client]:g} s")


def check_runs(subject: Subject) -> None:
    """All strategies run in the world, every call keeps the checks above, and some update is aggregated."""
    if not any(one["merged"] for rounds in subject.rounds for one in rounds):
        raise AssertionError(f"{subject.name}: no update arrives in {subject.num_rounds} rounds of any strategy")


def check_fleet_is_unchanged(subject: Subject) -> None:
    """Runs do not change the fleet from which worlds are made."""
    _ = subject.rounds
    if found := difference([subject.fleet], [plain(subject.make().fleet)]):
        what = found.removeprefix("round 1: ")
        raise AssertionError(f"{subject.name}: a run must not change the fleet that the caller passes: {what}")


def check_repeats(subject: Subject) -> None:
    """A second run in a new world gives the same rounds."""
    rule = "a new world must give the same rounds: seed its random numbers"
    for strategy, rounds in zip(subject.strategies, subject.rounds, strict=True):
        subject.check_same(strategy, rounds, subject.run(strategy, subject.begin(strategy)), rule)


def check_resume(subject: Subject) -> None:
    """A run that is saved after every round, as JSON and arrays, and resumed in a new world has the same rounds."""
    rule = "a resumed run must have the same rounds: state() must return all that restore() needs"
    for strategy in subject.strategies:

        def resume(strategy: Strategy = strategy) -> RoundLoop:
            return subject.begin(strategy)

        whole, resumed = resume(), resume()
        with subject.told(strategy, []):
            resumed.restore(*whole.state())
        subject.check_same(strategy, subject.run(strategy, whole), subject.run(strategy, resumed, resume), rule)


WORLD_CHECKS: tuple[Callable[[Subject], None], ...] = (
    check_runs,
    check_fleet_is_unchanged,
    check_repeats,
    check_resume,
)


class _Watched:
    """Passes everything on to a world and checks its answers."""

    def __init__(self, world: World, simulated: bool) -> None:
        self._world, self._simulated = world, simulated
        self.fleet = world.fleet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def open(self, ledger: Ledger, round: int, now_s: float, until_s: float) -> float:
        open_s = self._world.open(ledger, round, now_s, until_s)
        if not open_s >= now_s:
            raise AssertionError(f"open must return a time >= now_s = {now_s:g}, got {open_s:g}")
        check_ledger(ledger)
        if self._simulated:
            check_estimates(self.fleet, self._world, ledger)
        return open_s

    def wait(self, closes: Closing, ledger: Ledger, now_s: float, until_s: float) -> tuple[float, str]:
        end_s, note = self._world.wait(closes, ledger, now_s, until_s)
        check_arrivals(ledger.updates_of(ledger.clients_in_flight()))
        check_closing(closes, ledger, now_s, end_s, self._simulated)
        check_ledger(ledger)
        return end_s, note

    def collect(self, due: Updates, ledger: Ledger, now_s: float) -> Collected:
        collected = self._world.collect(due, ledger, now_s)
        check_collected(due, collected)
        return collected

    def next_change_s(self, now_s: float) -> float:
        change_s = self._world.next_change_s(now_s)
        check_next_change(change_s, now_s)
        return change_s

    def energy_j(self, updates: Updates, elapsed_s: FloatArray | float) -> FloatArray:
        energy_j = self._world.energy_j(updates, elapsed_s)
        check_energy(energy_j)
        return energy_j


def _takes_fleet(make_world: Callable[..., World]) -> bool:
    """Return whether a function has a positional argument without default."""
    arguments = inspect.signature(make_world).parameters.values()
    return any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in arguments
    )
