"""The command `lesson data`."""

from dataclasses import dataclass
from pathlib import Path

from lesson.cli.parser import DIR, FILE, argument, option
from lesson.core.errors import InputError, unknown


@dataclass(frozen=True)
class DataCommand:
    """Download data sets and measured channels, or draw the labels of clients.

    Example: lesson data cifar10
    """

    name: str = argument(
        "name",
        metavar="NAME",
        help="cifar10, cifar100, fashion-mnist, femnist, shakespeare: download the data set if it is missing, and "
        "verify it. 5g: convert drive tests in a 5G network (Raca et al. 2020, GPL-3.0) to SNR traces for "
        "radio.snr_trace. shares: draw the label shares of 10 clients at beta = 0.1, 1 and 10.",
    )
    dir: Path | None = option(
        "--dir", type=DIR, show_default="$LESSON_DATA_DIR or the cache", help="Folder for data sets."
    )
    figure: Path | None = option("--figure", type=FILE, help="Output file for shares: .png, .pdf or .svg.")

    def run(self) -> None:
        if self.name == "shares":
            from lesson.report.files import check_figure_path, save_figure
            from lesson.report.paper.shares import draw_label_shares

            if self.figure is None:
                raise InputError("--figure must be given to draw shares, such as --figure shares.png")
            check_figure_path(self.figure)
            save_figure(draw_label_shares(num_clients=10), self.figure)
            print(f"figure: {self.figure}")
            return
        from lesson.learn.data import data_dir
        from lesson.learn.data.download import DOWNLOADS

        if self.name not in DOWNLOADS:
            raise unknown("data set", self.name, [*DOWNLOADS, "shares"])
        title, get = DOWNLOADS[self.name]
        print(f"{title} is in {get(data_dir(self.dir))}, verified")
