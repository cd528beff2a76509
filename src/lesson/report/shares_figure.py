"""The paper's Fig. 4: how the labels of MNIST are shared out within clients at three concentrations β."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lesson.learn.data import load_dataset
from lesson.learn.partition import make_partition
from lesson.report.files import STYLE, save_figure
from lesson.scenario import Scenario

BETAS, CLIENTS_SHOWN = (0.1, 1.0, 10.0), 10


def draw_shares(path: Path, seed: int = 0) -> None:
    """Write the figure for the first ten of fifty clients of `released`."""
    labels = load_dataset("mnist").train_labels
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        colours = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
        for beta, axes in zip(BETAS, figure.subplots(1, len(BETAS), sharey=True), strict=True):
            partition = make_partition(Scenario(beta=beta), labels, Scenario().num_clients, seed)
            counts = np.array([np.bincount(labels[partition[client]], minlength=10) for client in range(CLIENTS_SHOWN)])
            shares = counts / counts.sum(axis=1, keepdims=True)
            begin = np.cumsum(shares, axis=1) - shares
            for label in range(shares.shape[1]):
                place = {"left": begin[:, label], "color": colours[label], "label": f"{label}"}
                axes.barh(np.arange(CLIENTS_SHOWN), shares[:, label], **place)
            axes.set(title=f"β = {beta:g}", xlabel="share of a client's samples", xlim=(0, 1))
            axes.set_yticks(range(CLIENTS_SHOWN))
            axes.invert_yaxis()
        figure.axes[0].set_ylabel("client")
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, title="label", loc="outside right center", frameon=False)
        save_figure(figure, path)
