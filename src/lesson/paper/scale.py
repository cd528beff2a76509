"""The scale of a reproduction: full, or a quick look on MNIST."""

import math
from dataclasses import dataclass, replace
from typing import Any

from lesson.experiments.grid import check_num_seeds

QUICK_EPOCHS = 6


@dataclass(frozen=True)
class Scale:
    """How much of the paper is run: all of it, or a quick look that shows only that everything works."""

    seeds: int = 5
    max_rounds: int | None = None
    max_time_s: float = math.inf
    dataset: str | None = None
    """Data set that replaces all others in a quick look; None at full scale."""

    @property
    def quick(self) -> bool:
        return self.dataset is not None

    @property
    def note(self) -> str:
        """Disclaimer for all outputs of a quick look; empty at full scale."""
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        short = f"MNIST only, at most {self.max_rounds} rounds, {seeds}"
        return f"a quick look (--quick): {short}; not a valid reproduction" if self.quick else ""

    def series(self, name: str) -> str:
        """Return the name of the series to run for this one: in a quick look, `dataset` replaces CIFAR-10 in it."""
        return name.replace("cifar10", self.dataset) if self.dataset else name

    @property
    def flag(self) -> str:
        """Command-line option for this number of seeds, with a leading space; empty if it is the default."""
        usual = QUICK.seeds if self.quick else FULL.seeds
        return "" if self.seeds == usual else f" --seeds {self.seeds}"

    def header(self, name: str) -> str:
        """Return a comment for the top of an item's settings file: the command, its seeds and `note`."""
        quick = f"# {self.note}\n" if self.quick else ""
        seeds = f"seeds 0 to {self.seeds - 1}" if self.seeds > 1 else "seed 0"
        return f"{quick}# lesson reproduce {name}: {seeds}; all other settings are those of the preset `released`\n\n"

    def title(self, words: str) -> str:
        """Return a title that, in a quick look, says that MNIST replaces CIFAR-10."""
        return words.replace("CIFAR-10", "MNIST instead of CIFAR-10") if self.quick else words

    def shorten(self, sections: dict[str, dict[str, Any]]) -> None:
        """Shorten the runs of a block in place for a quick look; runs with local epochs get QUICK_EPOCHS rounds."""
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


def make_scale(quick: bool, num_seeds: int | None = None) -> Scale:
    """Return the full scale or a quick look, by default with its usual number of seeds."""
    scale = QUICK if quick else FULL
    if num_seeds is None:
        return scale
    check_num_seeds(num_seeds)
    return replace(scale, seeds=num_seeds)
