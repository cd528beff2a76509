"""Which runs have collapsed. They are counted, and means and intervals include only the other runs.

Outcomes of unstable settings are bimodal: a run either learns or ends near guessing. A mean over both kinds describes
neither, and a t-interval around it assumes a single mode.
"""

import pandas as pd

from lesson.experiments.measures import value_by
from lesson.experiments.run import Run
from lesson.learn.metric import GUESSED, IN_A_ROW, ROUNDING

LOWEST = 2 * GUESSED
"""Accuracy up to which a run has collapsed: twice that of guessing among ten classes."""
SHARE_OF_BEST = 0.5
"""Share of its own best accuracy up to which a run has collapsed."""


def has_collapsed(run: Run, time_s: float) -> bool:
    """Return whether a run diverged, or its accuracy at a time is at most 20 %, or at most half of its best until then.

    Accuracies are means of three consecutive evaluations. A run that never learns counts as collapsed. A run with
    another metric collapses only if it diverges, because the value of guessing is unknown.
    """
    if run.diverged or not run.metric.is_share:
        return bool(run.diverged)
    final = value_by(run, time_s) - ROUNDING
    values: pd.Series = run.curve[run.metric.name][run.curve["time_s"] <= time_s].astype(float)
    best = values.rolling(IN_A_ROW).mean().max()  # NaN if there are fewer evaluations
    return bool(final <= LOWEST or final <= SHARE_OF_BEST * best)
