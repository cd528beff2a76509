"""Figures of the paper that need no runs."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from lesson import Settings, draw_fleet
from lesson.learn.data import load_samples
from lesson.learn.partition import make_partition
from lesson.report.paper.fleets import draw_latency_density, draw_schedule, draw_towards_zero
from lesson.report.paper.shares import draw_label_shares


def test_schedule_has_a_block_per_training_and_a_tick_per_upload() -> None:
    """Seed 0 at τ = 20 has tiers 1 to 4: in 12 rounds 12, 6, 4 and 3 trainings."""
    axes = draw_schedule().axes[0]
    blocks = [part for part in axes.collections if isinstance(part, PolyCollection)]
    assert [len(part.get_paths()) for part in blocks] == [12, 6, 4, 3]
    merges = [line.get_xdata() for line in axes.lines if line.get_marker() == "D"]
    np.testing.assert_allclose(merges[2], [60, 120, 180, 240])
    ticks = [part for part in axes.collections if isinstance(part, LineCollection)]
    uploads_s = np.concatenate([[path.vertices[0, 0] for path in part.get_paths()] for part in ticks])
    latencies = draw_fleet(Settings(), seed=0).latency_s
    assert len(uploads_s) == sum(int(12 // np.ceil(latency / 20)) for latency in latencies)
    np.testing.assert_allclose(min(uploads_s), latencies.min())


def test_density_marks_medians_and_integrates_to_one() -> None:
    figure = draw_latency_density(num_draws=5, seed=3, deadline_s=15.0)
    for axes, preset in zip(figure.axes, ("printed", "released"), strict=True):
        latencies = np.concatenate([draw_fleet(Settings(preset=preset), seed=seed).latency_s for seed in range(3, 8)])
        curve, median, paper, deadline = axes.lines
        assert np.trapezoid(curve.get_ydata(), curve.get_xdata()) == pytest.approx(1, abs=0.05)
        assert [line.get_xdata()[0] for line in (median, paper, deadline)] == [np.median(latencies), 10, 15]


def test_label_shares_equal_those_of_the_partition() -> None:
    figure = draw_label_shares(betas=(0.1, 10.0), num_clients=3, seed=2)
    labels = load_samples("mnist").train_targets
    for axes, beta in zip(figure.axes, (0.1, 10.0), strict=True):
        widths = np.array([[bar.get_width() for bar in bars] for bars in axes.containers])
        begins = np.array([[bar.get_x() for bar in bars] for bars in axes.containers])
        np.testing.assert_allclose(widths.sum(axis=0), 1)
        np.testing.assert_allclose(begins[1:], (begins + widths)[:-1], atol=1e-12)
        partition = make_partition(Settings(beta=beta, seed=2), len(labels), labels)
        np.testing.assert_allclose(widths[4, 1], np.mean(labels[partition[1]] == 4))


def test_bands_stay_between_0_and_1() -> None:
    """0.8, 0.9 and 1 have a half interval of 4.30265 · 0.1 / √3: 0.9 ± 0.24841, cut at 1."""
    shares = {"single_share": [0.8, 0.9, 1.0, 0.0, 0.05, 0.1], "wait_s": [0.04, 0.05, 0.06, 5.0, 5.0, 5.0]}
    left, right = Figure().subplots(1, 2)
    frame = pd.DataFrame({"deadline_s": [0.1] * 3 + [10.0] * 3, "draw": [0, 1, 2] * 2} | shares)
    draw_towards_zero(left, right, frame)
    assert left.lines[0].get_ydata().tolist() == pytest.approx([0.9, 0.05])
    band = left.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0, 1)
    assert band[np.argmin(np.abs(band - 0.65))] == pytest.approx(0.9 - 0.24841, abs=1e-5)
    assert right.lines[1].get_ydata().tolist() == [0.05, 5.0]
