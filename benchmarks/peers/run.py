"""Compare the seconds per round of this project and its peers, and write them to the end of benchmarks/RESULTS.md.

Run it with this project's Python. Every peer has a folder with its recipe, bench.py, and its requirements.txt, and gets
its own virtual environment in .venvs/, created once. A peer that fails is reported and does not stop the others.
"""

import argparse
import datetime
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from common import WORKLOADS, Workload, tiny
from peers import CORES, DATA, HERE, LEFT_OUT, OURS, PEERS, is_installed, seconds_of, version_of

from lesson import InputError
from lesson.learn.data import load_dataset

RESULTS = HERE.parent / "RESULTS.md"
CHOICES = DATA / "choices.json"
QUICK_WORKLOAD, QUICK_SAMPLES = "lenet-step", 2000
TITLE = "# Comparison with other frameworks"


def export_data(folder: Path, workloads: Iterable[str], num_samples: int | None = None) -> set[str]:
    """Write the shuffled data sets of workloads for the peers; return the names of the data sets that are installed."""
    folder.mkdir(exist_ok=True)
    there = set()
    for name in {WORKLOADS[workload].dataset for workload in workloads}:
        try:
            dataset = load_dataset(name)
        except InputError:
            continue
        order = np.random.default_rng(0).permutation(len(dataset.train_labels))[:num_samples]
        np.save(folder / f"{name}-images.npy", dataset.train_images[order])
        np.save(folder / f"{name}-labels.npy", dataset.train_labels[order])
        there.add(name)
    return there


class Table:
    """Seconds of every peer on one workload, by repeat; `quick` runs a tiny case with this interpreter."""

    def __init__(self, workload: str, names: list[str], data: Path = DATA, quick: bool = False) -> None:
        self.workload, self.data, self.quick = workload, data, quick
        self.choices: dict[str, tuple[int, int]] = {}
        self.failed: dict[str, str] = {}
        self.seconds: dict[str, list[float]] = {name: [] for name in names}

    def seconds_of(self, name: str, choice: tuple[int, int]) -> float:
        """Return the seconds per round of one run of a peer."""
        return seconds_of(name, self.workload, choice, self.data, self.quick)

    def choose_smallest(self) -> None:
        """Use each peer's choice with the fewest processes and threads."""
        self.choices = {name: min(PEERS[name].choices) for name in self.seconds}

    def choose(self, before: dict[str, list[int]]) -> None:
        """Try each peer's choices of processes and threads once and keep the fastest, unless `before` has a choice."""
        for name in self.seconds:
            if name in before:
                processes, threads = before[name]
                self.choices[name] = processes, threads
                continue
            tried = {}
            for choice in dict.fromkeys(PEERS[name].choices):
                try:
                    tried[choice] = self.seconds_of(name, choice) if len(PEERS[name].choices) > 1 else 0.0
                except RuntimeError as error:
                    self.failed[name] = str(error)
            if tried:
                self.choices[name] = min(tried, key=tried.__getitem__)
                self.failed.pop(name, None)
            print(f"{self.workload}: {name} {tried or self.failed[name]}", flush=True)

    def repeat(self) -> None:
        """Run every peer once, and a second time if it fails."""
        for name in [name for name in self.seconds if name not in self.failed]:
            for last_try in (False, True):
                try:
                    self.seconds[name].append(self.seconds_of(name, self.choices[name]))
                    print(f"{self.workload}: {name} {self.seconds[name][-1]:.4f}", flush=True)
                    break
                except RuntimeError as error:
                    print(f"{self.workload}: {name} failed: {error}", flush=True)
                    if last_try:
                        self.failed[name] = str(error)

    def row(self, name: str) -> str:
        """Return a row of the table: median seconds, median of the ratios within repeats, and processes × threads."""
        title = PEERS[name].title
        if name in self.failed:
            return f"| {title} | failed: {self.failed[name]} | | |"
        processes, threads = self.choices[name]
        ratio = ""
        if len(self.seconds.get(OURS, [])) == len(self.seconds[name]):
            pairs = zip(self.seconds[name], self.seconds[OURS], strict=True)
            ratio = f"{statistics.median(theirs / ours for theirs, ours in pairs):.2f} ×"
        how = "default" if name == OURS else f"{processes} × {threads}"
        return f"| {title} | {statistics.median(self.seconds[name]):.4f} | {ratio} | {how} |"

    def lines(self) -> list[str]:
        """Return the table as lines of Markdown."""
        workload = WORKLOADS[self.workload]
        head = [f"## {self.workload}", "", describe(tiny(workload) if self.quick else workload), ""]
        return [
            *head,
            "| | s per round | ratio to this project | processes × threads |",
            "|---|---|---|---|",
            *map(self.row, self.seconds),
            "",
        ]


def describe(work: Workload) -> str:
    """Describe a workload."""
    who = f"all {work.num_clients}" if work.cohort == work.num_clients else f"{work.cohort} of {work.num_clients}"
    how = "one step" if work.steps == 1 else f"{work.steps} steps (one epoch)"
    return (
        f"{work.net.__name__}, {work.num_parameters:,} parameters, on {work.dataset}: {who} clients a round with "
        f"{work.samples_per_client} samples each, {how} of {work.batch_size}, step size 0.1, plain average. "
        f"{work.rounds} rounds a run after {work.warm_up} to warm up."
    )


def report(tables: list[Table], absent: list[str], repeats: int, quick: bool = False) -> str:
    """Return the whole report as Markdown."""
    names = list(tables[0].seconds) if tables else []
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    missing = [f"- {name}: its data set is not installed" for name in absent]
    return "\n".join(
        [
            TITLE,
            "",
            f"`python {' '.join(['benchmarks/peers/run.py', *sys.argv[1:]])}` on {datetime.date.today()}: {processor}, "
            f"{CORES} cores, {platform.system()}, Python {platform.python_version()}. Medians of {repeats} repeats, in "
            "each of which all peers run in turn. Ratios are taken within a repeat; above 1, this project is faster.",
            "",
            *(line for table in tables for line in table.lines()),
            "## Settings of each framework",
            "",
            "All frameworks train the same network with initial values of the same kind, on images as 32-bit "
            "numbers in memory, channels last (the fastest layout for convolutions; this project keeps bytes and "
            "scales them each time), with SGD without momentum and without evaluation. Each script checks the "
            "number of parameters and that the loss falls. If the number of processes or threads can be chosen, "
            "each choice is tried once per workload and the fastest is used; .data/choices.json stores it.",
            "",
            *(
                f"- **{PEERS[name].title}** ({PEERS[name].package} {version_of(name, quick)}). {PEERS[name].note}"
                for name in names
            ),
            "",
            "Not included:",
            *(f"- {name}: {reason}." for name, reason in LEFT_OUT.items()),
            *missing,
            "",
        ]
    )


def run_quick(names: list[str], workload: str) -> str:
    """Run a tiny case once with the peers that this interpreter can import, and return the report."""
    with tempfile.TemporaryDirectory() as folder:
        export_data(Path(folder), [workload], QUICK_SAMPLES)
        table = Table(workload, [name for name in names if is_installed(name)], Path(folder), quick=True)
        table.choose_smallest()
        table.repeat()
    if table.failed:
        raise SystemExit("failed: " + "; ".join(f"{name}: {why}" for name, why in table.failed.items()))
    absent = [name for name in names if not is_installed(name)]
    print(f"not installed beside this interpreter: {', '.join(absent) or 'none'}")
    return report([table], [], 1, quick=True)


def run_all(names: list[str], chosen: list[str], repeats: int) -> str:
    """Measure these peers on the chosen workloads, and return the report."""
    there = export_data(DATA, WORKLOADS)
    absent = [name for name in chosen if WORKLOADS[name].dataset not in there]
    tables = [Table(name, names) for name in chosen if name not in absent]
    choices = json.loads(CHOICES.read_text()) if CHOICES.exists() else {}
    for table in tables:
        table.choose(choices.setdefault(table.workload, {}))
        choices[table.workload] |= table.choices
    CHOICES.write_text(json.dumps(choices, indent=1))
    for _ in range(repeats):
        for table in tables:
            table.repeat()
    return report(tables, absent, repeats)


def main() -> None:
    """Measure the peers, print the report and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PEERS), help="names of peers, separated by commas")
    parser.add_argument("--workloads", help="names of workloads, separated by commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"run a tiny case of one workload ({QUICK_WORKLOAD} if none is named) with the peers that are installed "
        "beside this interpreter, to check that it works; nothing is written",
    )
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    default = [QUICK_WORKLOAD] if arguments.quick else list(WORKLOADS)
    chosen = arguments.workloads.split(",") if arguments.workloads else default
    for kind, given, known in (("peer", names, PEERS), ("workload", chosen, WORKLOADS)):
        if unknown := set(given) - set(known):
            parser.error(f"{kind} '{min(unknown)}' is unknown; one of: {', '.join(known)}")
    if arguments.quick:
        print("\n" + run_quick(names, chosen[0]))
        return
    text = run_all(names, chosen, arguments.repeats)
    print("\n" + text)
    before = arguments.out.read_text().partition(TITLE)[0] if arguments.out.exists() else ""
    arguments.out.write_text(before + text)


if __name__ == "__main__":
    main()
