"""Compare the aggregation of FedAsync, FedBuff and TiFL in other packages with this project's, as a Markdown table.

Models are single numbers. Each package aggregates them with its own server code; this project's column applies the
weights of the strategy's Merge with NumPy. Packages that are not installed are listed as absent. The last column
explains each difference by a rule, which is checked to give the other package's numbers.
"""

import argparse
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace

import merges
import numpy as np
from merges import ALPHA, BUFFER, HINGE, NOW, POLYNOMIAL, STALENESS, Arrival, Numbers

from lesson.core.arrays import FloatArray
from lesson.strategies import FedAsync, FedBuff, Strategy, TiFL
from lesson.strategies.base import ServerView, Updates

SHOWN = [0, 1, 4, 5, 10]
"""Staleness of the numbers shown in the table; all of them are compared."""


def view_of(num_clients: int, version: int = 0, round: int = 1, **signals: FloatArray) -> ServerView:
    """Return a server's view of idle clients, each of them slower than the one before."""
    zeros, ones = np.zeros(num_clients), np.ones(num_clients)
    everybody, int_zeros = np.ones(num_clients, dtype=np.bool_), np.zeros(num_clients, dtype=np.int64)
    latency_s = np.arange(1.0, num_clients + 1)
    return ServerView(
        round=round,
        version=version,
        now_s=0.0,
        num_connected=num_clients,
        connected=everybody,
        compute_s=latency_s,
        upload_s=zeros,
        shared_upload_s=zeros,
        download_s=zeros,
        latency_s=latency_s,
        first_latency_s=latency_s,
        local_steps=int_zeros + 1,
        num_samples=int_zeros + 1,
        client_weight=ones,
        idle=everybody,
        busy=~everybody,
        num_busy=0,
        waiting=int_zeros,
        freed=np.arange(num_clients),
        started_round=int_zeros,
        started_s=zeros,
        signals=signals,
    )


def ours(strategy: Strategy, now: float, arrivals: Sequence[Arrival]) -> float:
    """Return the global model after this project has aggregated these arrivals."""
    count, latest = len(arrivals), max(STALENESS)
    zeros, ids, int_zeros = np.zeros(count), np.arange(count), np.zeros(count, dtype=np.int64)
    bases = np.array([latest - arrival.staleness for arrival in arrivals])
    updates = Updates(
        id=ids,
        client=ids,
        base_version=bases,
        started_round=int_zeros,
        started_s=zeros,
        expected_s=zeros,
        arrived_s=zeros,
        index=int_zeros,
        lr_scale=zeros,
        local_steps=int_zeros,
        batches=int_zeros,
        compute_scale=zeros + 1,
        in_turn=int_zeros > 0,
    )
    merge = strategy.merge(view_of(count, version=latest), updates)
    taken = [arrivals[row] for row in merge.updates]
    if merge.of == "updates":
        return now + float(merge.weights @ [arrival.model - arrival.base for arrival in taken])
    return (1 - float(merge.weights.sum())) * now + float(merge.weights @ [arrival.model for arrival in taken])


def mixed(strategy: FedAsync) -> Numbers:
    """Return α_t of this project's FedAsync at every staleness: a global model of 0 after aggregating a model of 1."""
    return [ours(strategy, 0.0, [Arrival(staleness, 0.0, 1.0)]) for staleness in STALENESS]


def our_scales() -> Numbers:
    """Return s(d) of this project's FedBuff at every staleness: what an update of 1, alone in the buffer, adds."""
    strategy = FedBuff(buffer_size=1, concurrency=1)
    return [ours(strategy, 0.0, [Arrival(staleness, 0.0, 1.0)]) for staleness in STALENESS]


our_poly = functools.partial(mixed, FedAsync(ALPHA, "polynomial", **POLYNOMIAL))
our_hinge = functools.partial(mixed, FedAsync(ALPHA, "hinge", **HINGE))


def our_together() -> Numbers:
    """Return the global model of this project's FedAsync when two models arrive at the same time."""
    return [ours(FedAsync(ALPHA, "constant"), 0.0, [Arrival(0, 0.0, 1.0), Arrival(0, 0.0, 2.0)])]


def our_buffered() -> Numbers:
    """Return the global model of this project's FedBuff."""
    return [ours(FedBuff(buffer_size=len(BUFFER)), NOW, BUFFER)]


def our_tiers() -> Numbers:
    """Return the probabilities of this project's TiFL for four tiers, the last of which has used up its credits."""
    strategy = TiFL(num_tiers=4, clients_per_round=1, interval=1, credits=1)
    takes_last = SimpleNamespace(choice=lambda tiers, **_: tiers[-1])
    for number in (1, 2):
        view = view_of(4, round=number, client_accuracy=np.array([0.9, 0.5, 0.7, 0.6]))
        strategy.open_round(view, takes_last)  # type: ignore[arg-type]  # `choice` is the only method used
    return list(strategy.state()["probabilities"])


def hinged(late: Callable[[float], float]) -> Numbers:
    """Return α_t of a hinge function at every staleness d; `late` maps d − b to the scale beyond b."""
    return [ALPHA if stale <= HINGE["b"] else ALPHA * late(stale - HINGE["b"]) for stale in STALENESS]


@dataclass(frozen=True)
class Case:
    """One row of the table: a package, an aggregation, and the rule that explains a difference, if there is one."""

    strategy: str
    package: str
    case: str
    theirs: Callable[[], Numbers]
    ours: Callable[[], Numbers]
    rule: str = ""
    by_rule: Callable[[], Numbers] | None = None

    def row(self, import_packages: bool) -> str:
        """Return the row as Markdown, without the other package's numbers if it is absent or must not be imported."""
        ours = self.ours()
        by_rule = self.by_rule() if self.by_rule is not None else None
        try:
            title = f"{self.package} {version(self.package)}"
        except PackageNotFoundError:
            return f"| {self.strategy} | {self.package} | {self.case} | absent | {shown(ours)} | |"
        if not import_packages:
            return f"| {self.strategy} | {title} | {self.case} | not imported | {shown(ours)} | |"
        theirs = self.theirs()
        if same(theirs, ours):
            verdict = "same"
        else:
            verdict = self.rule if by_rule is not None and same(theirs, by_rule) else "differs, unexplained"
        return f"| {self.strategy} | {title} | {self.case} | {shown(theirs)} | {shown(ours)} | {verdict} |"


def same(some: Numbers, others: Numbers) -> bool:
    """Return whether the numbers agree to single precision."""
    return bool(np.allclose(some, others, rtol=1e-5, atol=0))


def shown(numbers: Numbers) -> str:
    """Return the numbers to three digits; of one number per staleness, only those in `SHOWN`."""
    some = [numbers[staleness] for staleness in SHOWN] if len(numbers) == len(STALENESS) else numbers
    return ", ".join(f"{number:#.3g}" for number in some)


POLY, HINGED, SCALES, FILLED = "polynomial: α_t", "hinge: α_t", "s(d)", "a full buffer: w"
DELTA = np.array([each.model - each.base for each in BUFFER])
MODEL = np.array([each.model for each in BUFFER])
LATE = np.array([each.staleness for each in BUFFER])
KEPT = 1 / np.sqrt(1.0 + LATE)
CASES = [
    Case("fedasync", "fedlab", POLY, lambda: merges.fedlab_mixed("polynomial", POLYNOMIAL), our_poly),
    Case("fedasync", "flgo", POLY, lambda: merges.flgo_mixed("poly"), our_poly),
    Case("fedasync", "appfl", POLY, lambda: merges.appfl_mixed("polynomial", POLYNOMIAL), our_poly),
    Case("fedasync", "flsim", POLY, merges.flsim_mixed, our_poly),
    Case(
        "fedasync",
        "fedlab",
        HINGED,
        lambda: merges.fedlab_mixed("hinge", HINGE),
        our_hinge,
        "s = 1 / (a·(d − b + 1))",
        lambda: hinged(lambda beyond: 1 / (HINGE["a"] * (beyond + 1))),
    ),
    Case(
        "fedasync",
        "flgo",
        HINGED,
        lambda: merges.flgo_mixed("hinge"),
        our_hinge,
        "s = 1 / (a·(d − b))",
        lambda: hinged(lambda beyond: 1 / (HINGE["a"] * beyond)),
    ),
    Case("fedasync", "appfl", HINGED, lambda: merges.appfl_mixed("hinge", HINGE), our_hinge),
    Case(
        "fedasync",
        "appfl",
        "polynomial, four clients: α_t",
        lambda: merges.appfl_mixed("polynomial", POLYNOMIAL, num_clients=4),
        our_poly,
        "α_t / number of clients",
        lambda: [mixing / 4 for mixing in our_poly()],
    ),
    Case(
        "fedasync",
        "flgo",
        "constant, two at once: w",
        merges.flgo_together,
        our_together,
        "mean of the two mixtures",
        lambda: [(ALPHA * 1 + ALPHA * 2) / 2],
    ),
    Case("fedbuff", "flgo", FILLED, merges.flgo_buffered, our_buffered),
    Case(
        "fedbuff",
        "appfl",
        FILLED,
        merges.appfl_buffered,
        our_buffered,
        "w + Σ s·(m − w)",
        lambda: [NOW + float(KEPT @ (MODEL - NOW))],
    ),
    Case(
        "fedbuff",
        "nvflare",
        FILLED,
        merges.nvflare_buffered,
        our_buffered,
        "s = 1 / (1 + √(d + 1))",
        lambda: [NOW + np.mean(DELTA / (1 + np.sqrt(LATE + 1)))],
    ),
    Case(
        "fedbuff",
        "flsim",
        SCALES,
        merges.flsim_scales,
        our_scales,
        "s(d) / s(1)",
        lambda: [scale * 2**0.5 for scale in our_scales()],
    ),
    Case("fedbuff", "flsim", f"{SCALES}, avg_staleness = 0", lambda: merges.flsim_scales(avg_staleness=0), our_scales),
    Case("fedbuff", "flsim", FILLED, merges.flsim_buffered, our_buffered, "w + Σ s·Δ", lambda: [NOW + KEPT @ DELTA]),
    Case(
        "fedbuff",
        "fedscale",
        FILLED,
        merges.fedscale_buffered,
        our_buffered,
        "Σ s·m / Σ s",
        lambda: [KEPT @ MODEL / KEPT.sum()],
    ),
    Case("tifl", "flgo", "chances of four tiers", merges.flgo_tiers, our_tiers),
]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="compute this project's column only, import no package")
    quick = parser.parse_args().quick
    logging.disable(logging.INFO)
    print("| strategy | package | case | theirs | ours | |", "|---|---|---|---|---|---|", sep="\n")
    for case in CASES:
        print(case.row(import_packages=not quick), flush=True)


if __name__ == "__main__":
    main()
