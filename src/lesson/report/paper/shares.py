"""The paper's Fig. 4: label distributions of clients at several concentrations β."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from lesson.core.arrays import FloatArray, IntArray
from lesson.learn.data import load_samples
from lesson.learn.partition import make_partition
from lesson.report.files import COLUMN_IN, in_paper_style
from lesson.report.palette import LABEL_COLORS
from lesson.settings.settings import Settings


@in_paper_style
def draw_label_shares(
    betas: Sequence[float] = (0.1, 1.0, 10.0), num_clients: int = 5, seed: int = 0, dataset: str = "mnist"
) -> Figure:
    """Draw the label distribution of the first `num_clients` clients of `released`, one panel per β."""
    labels = load_samples(dataset).train_targets
    figure = Figure(figsize=(COLUMN_IN, 0.75 + 0.17 * num_clients), layout="constrained")
    panels = figure.subplots(1, len(betas), sharey=True, squeeze=False)[0]
    for beta, axes in zip(betas, panels, strict=True):
        shares = _label_shares(Settings(beta=beta), labels, num_clients, seed)
        begin = np.cumsum(shares, axis=1) - shares
        for label, color in zip(range(shares.shape[1]), LABEL_COLORS, strict=True):
            place = {"left": begin[:, label], "color": color, "label": f"{label}"}
            axes.barh(np.arange(1, num_clients + 1), shares[:, label], edgecolor="white", linewidth=0.3, **place)
        axes.set(title=f"β = {beta:g}", xlim=(0, 1))
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_yticks(range(1, num_clients + 1))
        axes.tick_params(left=False)
    panels[0].set_ylabel("client")
    panels[0].set_ylim(num_clients + 0.6, 0.4)
    figure.supxlabel("share of a client’s samples", fontsize=8)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, title="label", loc="outside right center", handlelength=0.8, labelspacing=0.2)
    return figure


def _label_shares(settings: Settings, labels: IntArray, num_clients: int, seed: int) -> FloatArray:
    """Return the share of each label in each client's samples, shape (num_clients, num_labels); rows sum to 1."""
    partition = make_partition(settings.with_changes(seed=seed), len(labels), labels)
    counts = np.array([np.bincount(labels[partition[client]], minlength=10) for client in range(num_clients)])
    shares: FloatArray = counts / counts.sum(axis=1, keepdims=True)
    return shares
