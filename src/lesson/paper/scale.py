"""The scale of a reproduction: full, or a quick look on MNIST."""

import math
from dataclasses import dataclass, replace
from typing import Any

from lesson.core.errors import ArgumentError
from lesson.experiments.grid import check_num_seeds

QUICK_EPOCHS = 6


@dataclass(frozen=True)
class Scale:
    """The extent of a reproduction: the whole paper, or a quick look that only shows that everything works."""

    seeds: int = 5
    max_rounds: int | None = None
    max_time_s: float = math.inf
    eval_jitter: float = 0.0
    """The setting `eval_jitter` of all runs."""
    dataset: str | None = None
    """Data set that replaces all others in a quick look; None at full scale."""

    @property
    def quick(self) -> bool:
        return self.dataset is not None

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments of `make_scale` that give this scale, as in study.toml."""
        return {"quick": self.quick, "seeds": self.seeds} | (
            {"eval_jitter": self.eval_jitter} if self.eval_jitter else {}
        )

    @property
    def note(self) -> str:
        """Disclaimer for all outputs of a quick look; empty at full scale."""
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        short = f"MNIST in place of CIFAR-10, at most {self.max_rounds} rounds, {seeds}"
        return f"a quick look (--quick): {short}; not a valid reproduction" if self.quick else ""

    def series(self, name: str) -> str:
        """Return the name of the series to run for this one: in a quick look, `dataset` replaces CIFAR-10 in it."""
        return name.replace("cifar10", self.dataset) if self.dataset else name

    @property
    def flag(self) -> str:
        """Command-line options for this number of seeds and jitter, each with a leading space; empty by default."""
        usual = QUICK.seeds if self.quick else FULL.seeds
        seeds = "" if self.seeds == usual else f" --seeds {self.seeds}"
        return seeds + (f" --eval-jitter {self.eval_jitter:g}" if self.eval_jitter else "")

    def adapt(self, sections: dict[str, dict[str, Any]]) -> None:
        """Set the jitter of the runs of a block in place, and shorten them for a quick look.

        In a quick look, runs with local epochs get QUICK_EPOCHS rounds.
        """
        sections["run"] |= {"eval_jitter": self.eval_jitter} if self.eval_jitter else {}
        if self.dataset is None:
            return
        run = sections["run"]
        sections["data"]["dataset"] = self.dataset
        run |= {"eval_every_s": 200.0, "client_scores_every_s": math.inf}
        if "local_epochs" in sections["training"]:
            run |= {"rounds": QUICK_EPOCHS, "eval_every_s": 20.0}
        elif "rounds" in run:
            run["rounds"] = min(run["rounds"], self.max_rounds or run["rounds"])
        else:
            run["time_budget_s"] = min(run["time_budget_s"], self.max_time_s)


FULL = Scale()
QUICK = Scale(seeds=2, max_rounds=60, max_time_s=600.0, dataset="mnist")


def make_scale(quick: bool, seeds: int | None = None, eval_jitter: float = 0.0) -> Scale:
    """Return the full scale or a quick look, by default with its usual number of seeds and evaluations on time."""
    if not 0 <= eval_jitter <= 1:
        raise ArgumentError("eval_jitter", f"must be a number from 0 to 1, got {eval_jitter}")
    usual = QUICK if quick else FULL
    if seeds is not None:
        check_num_seeds(seeds)
    return replace(usual, seeds=seeds or usual.seeds, eval_jitter=float(eval_jitter))
