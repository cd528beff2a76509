"""The rules that explain what other implementations do differently, applied to the inputs of all cases."""

from collections.abc import Callable

import numpy as np
import ours
from servers.inputs import (
    ADAPTIVE,
    AGES,
    ALPHA,
    BETA,
    CACHED,
    DELAYS,
    FRESH,
    HINGE,
    LAST_ROUND,
    LATENCY_S,
    MEANS,
    NOW,
    NUM_CLIENTS,
    NUM_SELECTED,
    ROUND,
    SERIES,
    SERIES_LR,
    STALENESS,
    UTILITY,
    Numbers,
)

from lesson.core.arrays import BoolArray, FloatArray


def hinged(late: Callable[[float], float]) -> Numbers:
    """Return α_t of a hinge function at every staleness d; `late` maps d to the scale beyond b."""
    return [ALPHA if stale <= HINGE["b"] else ALPHA * late(stale) for stale in STALENESS]


def calibrate(pairs: list[list[tuple[int, float]]]) -> Numbers:
    """Return the global model of CA²FL after each buffer if h_i changes as soon as an update is added."""
    model, cache, after = NOW, np.zeros(NUM_CLIENTS), Numbers()
    for pairing in pairs:
        mean, change = cache.mean(), 0.0
        for client, update in pairing:
            change += update - cache[client]
            cache[client] = update
        model += mean + change / len(pairing)
        after.append(float(model))
    return after


def only_cached() -> Numbers:
    """Return the global model of CA²FL after each buffer if only the mean of the new caches is applied."""
    cache, model, after = np.zeros(NUM_CLIENTS), NOW, Numbers()
    for buffer in CACHED:
        cache[list(buffer)] = list(buffer.values())
        model += float(cache.mean())
        after.append(model)
    return after


def reversed_pairs() -> Numbers:
    """Return the global model of CA²FL if clients and updates of a buffer are paired in opposite orders."""
    return calibrate([list(zip(buffer, reversed(buffer.values()), strict=True)) for buffer in CACHED])


def adapted(largest: bool, corrected: bool) -> Numbers:
    """Return the global model of FADAS after each mean update, with √v̂ or √v, with or without bias correction."""
    model, m, v, v_max, after = 0.0, 0.0, 0.0, 0.0, Numbers()
    eta, beta1, beta2 = ADAPTIVE["eta"], ADAPTIVE["beta1"], ADAPTIVE["beta2"]
    for step, (mean, delay) in enumerate(zip(MEANS, DELAYS, strict=True), start=1):
        m, v = beta1 * m + (1 - beta1) * mean, beta2 * v + (1 - beta2) * mean**2
        v_max = max(v_max, v)
        root = (v_max if largest else v) ** 0.5
        first, second = (1 - beta1**step, (1 - beta2**step) ** 0.5) if corrected else (1.0, 1.0)
        model += eta / max(delay, 1) * (m / first) / (root / second + ADAPTIVE["epsilon"])
        after.append(model)
    return after


def draw(scores: FloatArray, admitted: BoolArray) -> Numbers:
    """Return probabilities in proportion to the scores of admitted clients."""
    chances = np.where(admitted, scores, 0.0)
    return list(map(float, chances / chances.sum()))


def oort_scores(scaled: FloatArray, rounds: FloatArray, preferred_s: float) -> FloatArray:
    """Return Oort's utilities, given the scaled statistical ones and the rounds R in the term for uncertainty."""
    latency_s = np.array(LATENCY_S)
    speed = np.minimum(1.0, preferred_s / latency_s) ** 2
    return np.asarray((scaled + np.sqrt(0.1 * np.log(rounds) / np.array(LAST_ROUND))) * speed)


def oort_drawn(cuts_off: bool) -> Numbers:
    """Return the chances in the code of Oort's authors, or in FedScale, where all of a few clients are candidates."""
    utility = np.array(UTILITY)
    least, index = 0.999 * utility.min(), int(0.3 * len(utility))
    scaled = (utility - least) / (utility.max() - least)
    scores = oort_scores(scaled, np.full(len(utility), ROUND), sorted(LATENCY_S)[index])
    cut = 0.95 * np.sort(scores)[::-1][NUM_SELECTED]
    return draw(scores, scores >= cut if cuts_off else scores >= 0)


def plato_drawn() -> Numbers:
    """Return the chances in Plato's Oort."""
    scores = oort_scores(np.array(UTILITY), np.array(LAST_ROUND), ours.preferred_s())
    return draw(scores, scores > 0.95 * np.sort(scores)[::-1][NUM_SELECTED - 1])


def refl_scales(scale_coff: float) -> FloatArray:
    """Return REFL's weights of stale updates with a divisor of the exponential function."""
    deviations = ours.deviations()
    boost = 1 - np.exp(-deviations / deviations.max()) / scale_coff
    return np.asarray((1 - BETA) / (np.array(AGES) + 1) + BETA * boost)


def counted_only() -> Numbers:
    """Return REFL's global model if stale updates count in the divisor, but not in the sum."""
    return [sum(FRESH) / (len(FRESH) + float(refl_scales(1.0).sum()))]


def gradients_as_models() -> Numbers:
    """Return Malenia's model if (m − g) / δ is taken for the gradient; with a squared error, g = −2·Δ."""
    first = [SERIES[0], SERIES[1], SERIES[0]]
    return [NOW - SERIES_LR * float(np.mean([(NOW + delta + 2 * delta) / SERIES_LR for delta in first]))]
