"""The cases that strategies.py prints: who computes what, and which rule explains a difference."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import ours
import rules
from servers import appfl, buffered, packages, selection
from servers.inputs import (
    ALPHA,
    BUFFER,
    COMPASS_ALPHA,
    HINGE,
    NOW,
    POLYNOMIAL,
    QUEUE_BETA,
    SERIES,
    TWICE,
    Numbers,
)


@dataclass(frozen=True)
class Case:
    """A row of the table: an implementation, what it does, and the rule that explains a difference, if there is one."""

    strategy: str
    origin: str
    case: str
    theirs: Callable[[], Numbers]
    ours: Callable[[], Numbers]
    rule: str = ""
    by_rule: Callable[[], Numbers] | None = None
    where: str = ""
    """File and lines of the rule, as in a link to GitHub."""
    paper: str = ""
    """Which of the two follows the paper. Empty: both if they agree, else LESSON."""


POLY, HINGED, SCALES, FILLED = "polynomial: α_t", "hinge: α_t", "s(d)", "a full buffer: w"
UNSCALED, TWO_BUFFERS, THREE_STEPS = "a full buffer, unscaled: w", "two buffers: w", "three steps: w"
DRAWN, STEPS, A_GROUP = "chances of six clients", "local steps", "a group: w"
DELTA = np.array([each.model - each.base for each in BUFFER])
MODEL = np.array([each.model for each in BUFFER])
LATE = np.array([each.staleness for each in BUFFER])
KEPT = 1 / np.sqrt(1.0 + LATE)
HARMONIC = 1 / (1 + QUEUE_BETA * LATE)
COMPASS = COMPASS_ALPHA / len(BUFFER)

CASES = [
    Case("fedasync", "fedlab", POLY, lambda: packages.fedlab_mixed("polynomial", POLYNOMIAL), ours.polynomial),
    Case("fedasync", "flgo", POLY, lambda: packages.flgo_mixed("poly"), ours.polynomial),
    Case("fedasync", "appfl", POLY, lambda: appfl.appfl_mixed("polynomial", POLYNOMIAL), ours.polynomial),
    Case("fedasync", "flsim", POLY, packages.flsim_mixed, ours.polynomial),
    Case("fedasync", "afl-lib", POLY, lambda: buffered.afl_lib_mixed("poly"), ours.polynomial),
    Case(
        "fedasync",
        "plato",
        "polynomial, three in a row: α_t",
        buffered.plato_mixed,
        ours.in_a_row,
        "α_t = α_(t−1)·s(d)",
        lambda: [ALPHA * 2 ** (-POLYNOMIAL["a"] * count) for count in (1, 2, 3)],
        "examples/async/fedasync/fedasync_server.py#L72-L73",
    ),
    Case(
        "fedasync",
        "appfl",
        "polynomial, four clients: α_t",
        lambda: appfl.appfl_mixed("polynomial", POLYNOMIAL, num_clients=4),
        ours.polynomial,
        "α_t / number of clients",
        lambda: [mixing / 4 for mixing in ours.polynomial()],
        "src/appfl/algorithm/aggregator/fedasync_aggregator.py#L224-L228",
    ),
    Case("fedasync", "appfl", HINGED, lambda: appfl.appfl_mixed("hinge", HINGE), ours.hinge),
    Case(
        "fedasync",
        "fedlab",
        HINGED,
        lambda: packages.fedlab_mixed("hinge", HINGE),
        ours.hinge,
        "s = 1 / (a·(d − b + 1))",
        lambda: rules.hinged(lambda stale: 1 / (HINGE["a"] * (stale - HINGE["b"] + 1))),
        "fedlab/contrib/algorithm/basic_server.py#L244",
    ),
    Case(
        "fedasync",
        "flgo",
        HINGED,
        lambda: packages.flgo_mixed("hinge"),
        ours.hinge,
        "s = 1 / (a·(d − b))",
        lambda: rules.hinged(lambda stale: 1 / (HINGE["a"] * (stale - HINGE["b"]))),
        "flgo/algorithm/fedasync.py#L43",
    ),
    Case(
        "fedasync",
        "afl-lib",
        HINGED,
        lambda: buffered.afl_lib_mixed("hinge"),
        ours.hinge,
        "s = 1 / (a·(d + b) + 1)",
        lambda: rules.hinged(lambda stale: 1 / (HINGE["a"] * (stale + HINGE["b"]) + 1)),
        "alg/fedasync.py#L40",
    ),
    Case(
        "fedasync",
        "flgo",
        "constant, two at once: w",
        packages.flgo_together,
        ours.together,
        "mean of the two mixtures",
        lambda: [(ALPHA * 1 + ALPHA * 2) / 2],
        "flgo/algorithm/fedasync.py#L31-L36",
    ),
    Case("fedbuff", "flgo", FILLED, packages.flgo_buffered, ours.buffered),
    Case(
        "fedbuff",
        "appfl",
        FILLED,
        appfl.appfl_buffered,
        ours.buffered,
        "w + Σ s·(m − w)",
        lambda: [NOW + float(KEPT @ (MODEL - NOW))],
        "src/appfl/algorithm/aggregator/fedbuff_aggregator.py#L138-L157",
    ),
    Case(
        "fedbuff",
        "nvflare",
        FILLED,
        packages.nvflare_buffered,
        ours.buffered,
        "s = 1 / (1 + √(d + 1))",
        lambda: [NOW + float(np.mean(DELTA / (1 + np.sqrt(LATE + 1))))],
        "nvflare/edge/assessors/buff_model_manager.py#L111-L114",
    ),
    Case(
        "fedbuff",
        "flsim",
        SCALES,
        packages.flsim_scales,
        ours.scales,
        "s(d) / s(1)",
        lambda: [scale * 2**0.5 for scale in ours.scales()],
        "flsim/utils/async_trainer/async_staleness_weights.py#L42",
        "both, up to η",
    ),
    Case(
        "fedbuff", "flsim", f"{SCALES}, avg_staleness = 0", lambda: packages.flsim_scales(avg_staleness=0), ours.scales
    ),
    Case(
        "fedbuff",
        "flsim",
        FILLED,
        packages.flsim_buffered,
        ours.buffered,
        "w + Σ s·Δ",
        lambda: [NOW + float(KEPT @ DELTA)],
        "flsim/optimizers/async_aggregators.py#L378-L400",
        "both, up to η",
    ),
    Case(
        "fedbuff",
        "fedscale",
        FILLED,
        packages.fedscale_buffered,
        ours.buffered,
        "Σ s·m / Σ s",
        lambda: [float(KEPT @ MODEL / KEPT.sum())],
        "fedscale/cloud/aggregation/async_aggregator.py#L126-L135",
    ),
    Case("fedbuff", "plato", UNSCALED, buffered.plato_buffered, ours.unscaled),
    Case(
        "fedbuff",
        "afl-lib",
        UNSCALED,
        buffered.afl_lib_buffered,
        ours.unscaled,
        "w + Σ Δ / K²",
        lambda: [NOW + float(DELTA.sum()) / len(DELTA) ** 2],
        "alg/fedbuff.py#L39",
    ),
    Case("ca2fl", "asyncfl", TWO_BUFFERS, lambda: buffered.asyncfl_calibrated(buffered.TOGETHER), ours.cached),
    Case(
        "ca2fl",
        "asyncfl",
        "a client twice in a buffer: w",
        lambda: buffered.asyncfl_calibrated(TWICE),
        ours.cached_twice,
        "hᵢ ← Δᵢ at every arrival",
        lambda: rules.calibrate([TWICE]),
        "algorithms/ca2fl.py#L143-L152",
        "left open",
    ),
    Case(
        "ca2fl",
        "afl-lib",
        TWO_BUFFERS,
        buffered.afl_lib_calibrated,
        ours.cached,
        "w + mean of the new hᵢ",
        rules.only_cached,
        "alg/ca2fl.py#L44-L51",
    ),
    Case(
        "ca2fl",
        "easyfl-fork",
        TWO_BUFFERS,
        buffered.easyfl_calibrated,
        ours.cached,
        "hᵢ of clients in reverse order",
        rules.reversed_pairs,
        "flgo/algorithm/ca2fl.py#L45-L48",
    ),
    Case(
        "fadas",
        "fadas",
        THREE_STEPS,
        buffered.fadas_adaptive,
        ours.adaptive,
        "m and v̂ with bias correction",
        lambda: rules.adapted(largest=True, corrected=True),
        "update.py#L335-L347",
        "LESSON, except for η / d",
    ),
    Case(
        "fadas",
        "afl-lib",
        THREE_STEPS,
        buffered.afl_lib_adaptive,
        ours.adaptive,
        "√v instead of √v̂",
        lambda: rules.adapted(largest=False, corrected=False),
        "alg/fadas.py#L84-L89",
        "LESSON, except for η / d",
    ),
    Case(
        "malenia",
        "asyncfl",
        "three clients: w",
        lambda: buffered.asyncfl_series(own_clients=False),
        ours.series,
        "mean of the first S updates",
        lambda: [NOW + (2 * SERIES[0] + SERIES[1]) / 3],
        "algorithms/malenia_sgd.py#L163-L179",
    ),
    Case(
        "malenia",
        "asyncfl",
        "three clients of AsyncFL: w",
        lambda: buffered.asyncfl_series(own_clients=True),
        ours.series,
        "(m − g) / δ as the gradient",
        rules.gradients_as_models,
        "algorithms/malenia_sgd.py#L132-L136",
    ),
    Case("fedcompass", "fedcompass", STEPS, appfl.original_compass_steps, ours.steps),
    Case("fedcompass", "appfl", STEPS, appfl.appfl_compass_steps, ours.steps),
    Case(
        "fedcompass",
        "fedcompass",
        A_GROUP,
        appfl.original_compass_merged,
        ours.group,
        "s = (1 + d)^a",
        lambda: [NOW + COMPASS * float(DELTA @ np.sqrt(1.0 + LATE))],
        "src/appfl/aggregator/fedcompass_aggregator.py#L80",
    ),
    Case("fedcompass", "appfl", A_GROUP, lambda: appfl.appfl_compass_merged(sends_updates=True), ours.group),
    Case(
        "fedcompass",
        "appfl",
        "a group that sends models: w",
        lambda: appfl.appfl_compass_merged(sends_updates=False),
        ours.group,
        "w + α·Σ p·s·(m − w)",
        lambda: [NOW + COMPASS * float(KEPT @ (MODEL - NOW))],
        "src/appfl/algorithm/aggregator/fedcompass_aggregator.py#L263-L284",
    ),
    Case("fedqueue", "appfl", "a window: w", lambda: appfl.appfl_queue_merged(sends_updates=True), ours.window),
    Case(
        "fedqueue",
        "appfl",
        "a window of models: w",
        lambda: appfl.appfl_queue_merged(sends_updates=False),
        ours.window,
        "Σ s·m / Σ s",
        lambda: [float(HARMONIC @ MODEL / HARMONIC.sum())],
        "src/appfl/algorithm/aggregator/fedqueue_aggregator.py#L119-L126",
        "not checked",
    ),
    Case("tifl", "flgo", "chances of four tiers", packages.flgo_tiers, ours.tiers),
    Case("safa", "safa", "two rounds: w", selection.safa_merged, ours.safa_merged),
    Case("safa", "safa", "clients picked", selection.safa_picked, ours.safa_picked),
    Case("fedcs", "safa", "clients selected", selection.fedcs_selected, ours.in_parallel, paper="neither"),
    Case(
        "fedcs-greedy",
        "safa",
        "clients selected",
        selection.fedcs_selected,
        ours.one_by_one,
        "uploads in parallel",
        ours.in_parallel,
        "FedCS_Nishio.py#L284-L289",
    ),
    Case(
        "oort",
        "oort",
        DRAWN,
        lambda: selection.oort_chances("oort"),
        ours.chances,
        "cut-off at the (m + 1)-th utility; U from 0.999·min U",
        lambda: rules.oort_drawn(cuts_off=True),
        "oort/oort.py#L319",
        "LESSON in the cut-off",
    ),
    Case(
        "oort",
        "fedscale-oort",
        DRAWN,
        lambda: selection.oort_chances("fedscale-oort", "thirdparty"),
        ours.chances,
        "no cut-off for up to 10·m clients; U from 0.999·min U",
        lambda: rules.oort_drawn(cuts_off=False),
        "thirdparty/oort/oort.py#L328-L332",
        "LESSON in the cut-off",
    ),
    Case(
        "oort",
        "plato",
        DRAWN,
        lambda: selection.plato_chances(ours.preferred_s()),
        ours.chances,
        "U is not scaled; R = Lᵢ",
        rules.plato_drawn,
        "examples/client_selection/oort/oort_server.py#L216-L228",
        "Plato in U, LESSON in R",
    ),
    Case("refl", "refl", "weights, scale_coff = 1", lambda: selection.refl_scales(1.0), ours.stale_scales),
    Case(
        "refl",
        "refl",
        "weights, scale_coff = 10",
        lambda: selection.refl_scales(10.0),
        ours.stale_scales,
        "1 − e^(−Λ / Λ_max) / 10",
        lambda: list(map(float, rules.refl_scales(10.0))),
        "core/aggregator.py#L1220-L1222",
    ),
    Case(
        "refl",
        "refl",
        "two fresh, two stale updates: w",
        selection.refl_merged,
        ours.refl_merged,
        "stale updates in the divisor only",
        rules.counted_only,
        "core/aggregator.py#L1018-L1036",
    ),
]
