from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread

from lesson import InputError, Settings, draw_fleet
from lesson.learn.data import load_dataset
from lesson.learn.partition import make_partition
from lesson.report.files import save_figure
from lesson.report.palette import LABEL_COLORS, tier_colors
from lesson.report.paper.fleets import draw_latency_density, draw_schedule, draw_towards_zero
from lesson.report.shares_figure import draw_label_shares

TOWARDS_ZERO = pd.DataFrame(
    {
        "deadline_s": [0.1, 0.1, 10.0, 10.0],
        "draw": [0, 1, 0, 1],
        "single_share": [0.9, 0.92, 0.0, 0.1],
        "wait_s": [0.04, 0.06, 5.0, 5.0],
        "updates_of_async": [1.0, 1.0, 0.8, 0.9],
    }
)
FIGURES: dict[str, Callable[[], Figure]] = {
    "schedule": draw_schedule,
    "density": lambda: draw_latency_density(num_draws=5),
    "shares": draw_label_shares,
}


def legend(axes: Axes) -> list[str]:
    box = axes.get_legend()
    assert box is not None
    return [text.get_text() for text in box.get_texts()]


@pytest.mark.parametrize("name", FIGURES)
def test_figures_fit_a_column_or_a_page_in_small_type(name: str, tmp_path: Path) -> None:
    """Whoever saves them needs no style, and gets the same size, type and letters."""
    with matplotlib.rc_context({"font.size": 30, "font.family": "monospace", "xtick.labelsize": 30}):
        figure = FIGURES[name]()
        assert figure.get_figwidth() == (7.16 if name == "schedule" else 3.5)
        save_figure(figure, tmp_path / "figure.png")
        save_figure(figure, tmp_path / "figure.pdf")
    assert imread(tmp_path / "figure.png").shape[1] == round(figure.get_figwidth() * 300)
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
    assert {text.get_fontsize() for text in texts} <= {7, 8}
    assert {text.get_fontname() for text in texts} == {"STIXGeneral"}
    page = (tmp_path / "figure.pdf").read_bytes()
    assert b"STIXGeneral" in page
    assert b"/Type3" not in page


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_overlaps_the_edge(name: str) -> None:
    figure = FIGURES[name]()
    box = figure.get_tightbbox()
    assert box.x0 > -0.02
    assert box.y0 > -0.02
    assert box.x1 < figure.get_figwidth() + 0.02
    assert box.y1 < figure.get_figheight() + 0.02


def test_the_schedule_has_a_block_per_training_and_a_tick_per_upload() -> None:
    """Seed 0 at τ = 20 has tiers 1 to 4: in 12 rounds 12, 6, 4 and 3 trainings."""
    figure = draw_schedule()
    axes = figure.axes[0]
    blocks = [part for part in axes.collections if isinstance(part, PolyCollection)]
    assert [len(part.get_paths()) for part in blocks] == [12, 6, 4, 3]
    assert [to_hex(part.get_facecolor()[0]) for part in blocks] == tier_colors(4, strength=0.6)
    merges = [line.get_xdata() for line in axes.lines if line.get_marker() == "D"]
    np.testing.assert_allclose(merges[2], [60, 120, 180, 240])
    ticks = [part for part in axes.collections if isinstance(part, LineCollection)]
    uploads_s = np.concatenate([[path.vertices[0, 0] for path in part.get_paths()] for part in ticks])
    latencies = draw_fleet(Settings(), seed=0).latency_s
    assert len(uploads_s) == sum(int(12 // np.ceil(latency / 20)) for latency in latencies)
    np.testing.assert_allclose(min(uploads_s), latencies.min())
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["tier 1: 11 clients", "tier 2: 30 clients", "tier 3: 8 clients", "tier 4: 1 client"]
    above = axes.child_axes[0]
    assert [label.get_text() for label in above.get_xticklabels()] == [f"{round}" for round in range(1, 13)]


def test_a_schedule_of_too_many_tiers_is_rejected() -> None:
    with pytest.raises(InputError, match="at most 16 tiers and 60 rounds, got 26 and 12; use a longer deadline_s"):
        draw_schedule(deadline_s=1.0)
    assert len(draw_schedule(num_rounds=40).axes[0].get_xticks()) < 20


def test_the_density_marks_medians_and_sums_to_one() -> None:
    figure = draw_latency_density(num_draws=5, seed=3, deadline_s=15.0)
    for axes, preset in zip(figure.axes, ("printed", "released"), strict=True):
        latencies = np.concatenate([draw_fleet(Settings(preset=preset), seed=seed).latency_s for seed in range(3, 8)])
        curve, median, paper, deadline = axes.lines
        assert np.trapezoid(curve.get_ydata(), curve.get_xdata()) == pytest.approx(1, abs=0.05)
        assert median.get_xdata()[0] == np.median(latencies)
        assert paper.get_xdata()[0] == 10
        assert deadline.get_xdata()[0] == 15
        assert legend(axes)[:2] == [f"{preset} parameters", f"median: {np.median(latencies):.1f} s"]
    assert len(legend(figure.axes[0])) == 4


def test_label_shares_are_those_of_the_partition() -> None:
    figure = draw_label_shares(betas=(0.1, 10.0), num_clients=3, seed=2)
    labels = load_dataset("mnist").train_labels
    for axes, beta in zip(figure.axes, (0.1, 10.0), strict=True):
        assert axes.get_title() == f"β = {beta:g}"
        assert len(axes.containers) == 10
        widths = np.array([[bar.get_width() for bar in bars] for bars in axes.containers])
        begins = np.array([[bar.get_x() for bar in bars] for bars in axes.containers])
        np.testing.assert_allclose(widths.sum(axis=0), 1)
        np.testing.assert_allclose(begins[1:], (begins + widths)[:-1], atol=1e-12)
        partition = make_partition(Settings(beta=beta), len(labels), labels, 50, 2)
        np.testing.assert_allclose(widths[4, 1], np.mean(labels[partition[1]] == 4))
        assert [to_hex(bars[0].get_facecolor()).upper() for bars in axes.containers] == list(LABEL_COLORS)


def test_towards_zero_has_bands_within_what_is_possible() -> None:
    """Two values 0.9 and 0.92 have a half interval of 12.7062 · 0.01: 0.91 ± 0.127062, cut at 1."""
    left, right = Figure().subplots(1, 2)
    draw_towards_zero(left, right, TOWARDS_ZERO)
    assert left.lines[0].get_ydata().tolist() == pytest.approx([0.91, 0.05])
    band = left.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0, 1)
    assert band[np.argmin(np.abs(band - 0.783))] == pytest.approx(0.91 - 0.127062)
    assert right.lines[1].get_ydata().tolist() == [0.05, 5.0]
    assert (left.get_xscale(), right.get_xscale(), right.get_yscale()) == ("log", "log", "log")
