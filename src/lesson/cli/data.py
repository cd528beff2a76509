"""The command `lesson data`."""

from dataclasses import dataclass
from pathlib import Path

from lesson.cli.parser import DIR, argument, option
from lesson.core.errors import unknown


@dataclass(frozen=True)
class DataCommand:
    """Download data sets and measured channels.

    Example: lesson data cifar10
    """

    name: str = argument(
        "name",
        metavar="NAME",
        help="cifar10, cifar100, fashion-mnist, femnist, shakespeare: download the data set if it is missing, and "
        "verify it. 5g: convert drive tests in a 5G network (Raca et al. 2020, GPL-3.0) to SNR traces for "
        "radio.snr_trace.",
    )
    dir: Path | None = option(
        "--dir", type=DIR, show_default="$LESSON_DATA_DIR or the cache", help="Folder for data sets."
    )

    def run(self) -> None:
        from lesson.learn.data import data_dir
        from lesson.learn.data.download import DOWNLOADS

        if self.name not in DOWNLOADS:
            raise unknown("data set", self.name, list(DOWNLOADS))
        title, get = DOWNLOADS[self.name]
        print(f"{title} is in {get(data_dir(self.dir))}, verified")
