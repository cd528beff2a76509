"""lesson data"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import arg

from lesson.core.errors import InputError, unknown


@dataclass(frozen=True)
class DataCommand:
    """Get a data set and check it, or draw how labels are shared among clients.

    Example: lesson data cifar10
    """

    name: Annotated[tyro.conf.Positional[str], arg(metavar="cifar10|shares")]
    """cifar10: download it unless it is there. shares: draw 10 clients' label shares at β = 0.1, 1 and 10."""
    dir: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: LESSON_DATA_DIR or the cache)")] = None
    """Where data sets are kept."""
    figure: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """What shares draws: png, pdf or svg."""

    def run(self) -> None:
        """Do it."""
        if self.name == "cifar10":
            from lesson.learn.data.dataset import data_dir
            from lesson.learn.data.download import get_cifar10

            print(f"CIFAR-10 is in {get_cifar10(data_dir(self.dir))}, checked")
        elif self.name == "shares":
            from lesson.report.files import check_figure_path, save_figure
            from lesson.report.shares_figure import draw_label_shares

            if self.figure is None:
                raise InputError("--figure must be given for shares, such as --figure shares.png")
            check_figure_path(self.figure)
            save_figure(draw_label_shares(num_clients=10), self.figure)
            print(f"figure: {self.figure}")
        else:
            raise unknown("data set", self.name, ["cifar10", "shares"])
