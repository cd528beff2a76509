"""Compare the seconds per round of this project and its peers, and write them to the end of benchmarks/RESULTS.md.

Run it with this project's Python. Every peer has a folder with its recipe, bench.py, and its requirements.txt, and gets
its own virtual environment in .venvs/, created once; `--installed` uses this Python for all instead. A peer that fails
is reported and does not stop the others. If there is a GPU, the peers that can use it are measured on it.
"""

import argparse
import datetime
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from common import WORKLOADS, Workload, tiny
from peers import (
    CORES,
    DATA,
    GPU,
    HERE,
    LEFT_OUT,
    OURS,
    PEERS,
    Choice,
    UnfinishedError,
    is_installed,
    seconds_of,
    version_of,
)

from lesson import InputError
from lesson.learn.data import load_samples

RESULTS = HERE.parent / "RESULTS.md"
CHOICES = DATA / "choices.json"
QUICK_WORKLOAD, QUICK_SAMPLES = "lenet-step", 2000
TITLE = "# Comparison with other frameworks" + (f": {torch.cuda.get_device_name()}" if GPU else "")
OUR_ROUNDS = 20
"""Rounds of this project on a GPU for each round of a peer, because its rounds are the shortest by far."""


def export_data(folder: Path, workloads: Iterable[str], num_samples: int | None = None) -> set[str]:
    """Write the shuffled data sets of workloads for the peers; return the names of the data sets that are installed."""
    folder.mkdir(exist_ok=True)
    there = set()
    for name in {WORKLOADS[workload].dataset for workload in workloads}:
        try:
            dataset = load_samples(name)
        except InputError:
            continue
        order = np.random.default_rng(0).permutation(len(dataset.train_targets))[:num_samples]
        np.save(folder / f"{name}-images.npy", dataset.train_inputs[order])
        np.save(folder / f"{name}-labels.npy", dataset.train_targets[order])
        there.add(name)
    return there


class Table:
    """Seconds of every peer on one workload, by processes and threads, for each repeat.

    `installed` runs all peers with this interpreter, `quick` a tiny case.
    """

    def __init__(
        self, workload: str, names: list[str], data: Path = DATA, installed: bool = False, quick: bool = False
    ) -> None:
        self.workload, self.names, self.data, self.installed, self.quick = workload, names, data, installed, quick
        self.failed: dict[tuple[str, Choice], str] = {}
        self.seconds: dict[tuple[str, Choice], list[float]] = {}

    def work_of(self, name: str) -> Workload:
        """Return the workload with the number of rounds that a peer runs."""
        work = WORKLOADS[self.workload]
        if self.quick:
            return tiny(work)
        return replace(work, rounds=work.gpu_rounds * (OUR_ROUNDS if name == OURS else 1)) if GPU else work

    def seconds_of(self, name: str, choice: Choice) -> float:
        """Return the seconds per round of one run of a peer."""
        options = ["--quick"] if self.quick else ["--rounds", str(self.work_of(name).rounds)]
        return seconds_of(name, self.workload, choice, self.data, self.installed, options)

    def choose_smallest(self) -> None:
        """Use each peer's choice with the fewest processes and threads."""
        self.seconds = {(name, min(PEERS[name].choices)): [] for name in self.names}

    def choose_all_on_gpu(self) -> None:
        """Measure every number of processes that may share a GPU, in a row of its own."""
        self.seconds = {(name, choice): [] for name in self.names for choice in PEERS[name].gpu_choices}

    def choose(self, before: dict[str, Choice]) -> None:
        """Try each peer's choices of processes and threads once and keep the fastest, unless `before` has a choice.

        Choices that are made are added to `before`.
        """
        for name in self.names:
            if name not in before:
                tried, why = {}, ""
                for choice in dict.fromkeys(PEERS[name].choices):
                    try:
                        tried[choice] = self.seconds_of(name, choice) if len(PEERS[name].choices) > 1 else 0.0
                    except RuntimeError as error:
                        why = str(error)
                print(f"{self.workload}: {name} {tried or why}", flush=True)
                if not tried:
                    self.seconds[name, choice], self.failed[name, choice] = [], why
                    continue
                before[name] = min(tried, key=tried.__getitem__)
            processes, threads = before[name]
            self.seconds[name, (processes, threads)] = []

    def repeat(self) -> None:
        """Run every peer once, and a second time if it fails."""
        for name, choice in [key for key in self.seconds if key not in self.failed]:
            title = f"{self.workload}: {name} {choice[0]} × {choice[1]}"
            for last_try in (False, True):
                try:
                    self.seconds[name, choice].append(self.seconds_of(name, choice))
                    print(f"{title}: {self.seconds[name, choice][-1]:.4f}", flush=True)
                    break
                except RuntimeError as error:
                    print(f"{title} failed: {error}", flush=True)
                    if last_try or isinstance(error, UnfinishedError):
                        self.failed[name, choice] = str(error)
                        break

    def row(self, name: str, choice: Choice) -> str:
        """Return a row of the table: median seconds, median of the ratios within repeats, and processes × threads."""
        title, processes = PEERS[name].title, "default" if name == OURS else f"{choice[0]} × {choice[1]}"
        if (name, choice) in self.failed:
            return f"| {title} | failed: {self.failed[name, choice]} | | {processes} |"
        seconds, ratio = self.seconds[name, choice], ""
        ours = next((ours for (other, _), ours in self.seconds.items() if other == OURS), [])
        if len(ours) == len(seconds):
            ratio = f"{statistics.median(theirs / our for theirs, our in zip(seconds, ours, strict=True)):.2f} ×"
        median = statistics.median(seconds)
        return f"| {title} | {f'{1000 * median:.2f}' if GPU else f'{median:.4f}'} | {ratio} | {processes} |"

    def lines(self) -> list[str]:
        """Return the table as lines of Markdown."""
        return [
            f"## {self.workload}",
            "",
            describe(self.work_of("")) + (f" This project: {self.work_of(OURS).rounds} rounds." if GPU else ""),
            "",
            f"| | {'ms' if GPU else 's'} per round | ratio to this project | processes × threads |",
            "|---|---|---|---|",
            *(self.row(name, choice) for name, choice in self.seconds),
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


def report(tables: list[Table], missing: dict[str, str], repeats: int, installed: bool) -> str:
    """Return the whole report as Markdown; `missing` has the reasons why something is not measured."""
    names = tables[0].names if tables else []
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, " if GPU else ""
    choosing = (
        "All tensors are in the GPU's memory, products use TF32, and a round ends when the GPU has finished it. Each "
        "number of processes that share the GPU has its own row."
        if GPU
        else "If the number of processes or threads can be chosen, "
        "each choice is tried once per workload and the fastest is used; .data/choices.json stores it."
    )
    return "\n".join(
        [
            TITLE,
            "",
            f"`python {' '.join(['benchmarks/peers/run.py', *sys.argv[1:]])}` on {datetime.date.today()}: {where}"
            f"{processor}, {CORES} cores, {platform.system()}, Python {platform.python_version()}. Medians of "
            f"{repeats} repeats, in each of which all peers run in turn. Ratios are taken within a repeat; above 1, "
            "this project is faster.",
            "",
            *(line for table in tables for line in table.lines()),
            "## Settings of each framework",
            "",
            "All frameworks train the same network with initial values of the same kind, on images as 32-bit "
            "numbers in memory, channels last (the fastest layout for convolutions; this project keeps bytes and "
            "scales them each time), with SGD without momentum and without evaluation. Each script checks the "
            f"number of parameters and that the loss falls. {choosing}",
            "",
            *(
                f"- **{PEERS[name].title}** ({PEERS[name].package} {version_of(name, installed)}). {PEERS[name].note}"
                for name in names
            ),
            "",
            "Not included:",
            *(f"- {name}: {reason}." for name, reason in (LEFT_OUT | missing).items()),
            "",
        ]
    )


def run_quick(names: list[str], workload: str) -> str:
    """Run a tiny case once with the peers that this interpreter can import, and return the report."""
    with tempfile.TemporaryDirectory() as folder:
        export_data(Path(folder), [workload], QUICK_SAMPLES)
        there = [name for name in names if is_installed(name)]
        table = Table(workload, there, Path(folder), installed=True, quick=True)
        table.choose_smallest()
        table.repeat()
    if table.failed:
        raise SystemExit("failed: " + "; ".join(f"{name}: {why}" for (name, _), why in table.failed.items()))
    absent = [name for name in names if not is_installed(name)]
    print(f"not installed beside this interpreter: {', '.join(absent) or 'none'}")
    return report([table], {}, 1, installed=True)


def run_all(names: list[str], chosen: list[str], repeats: int, installed: bool) -> str:
    """Measure these peers on the chosen workloads, and return the report."""
    there = export_data(DATA, WORKLOADS)
    missing = {name: "its data set is not installed" for name in chosen if WORKLOADS[name].dataset not in there}
    for name in names:
        if GPU and not PEERS[name].gpu_choices:
            missing[PEERS[name].title] = "its recipe trains on the CPU only"
        elif installed and not is_installed(name):
            missing[PEERS[name].title] = "not installed"
    measured = [name for name in names if PEERS[name].title not in missing]
    tables = [Table(name, measured, installed=installed) for name in chosen if name not in missing]
    choices = json.loads(CHOICES.read_text()) if CHOICES.exists() else {}
    for table in tables:
        if GPU:
            table.choose_all_on_gpu()
        else:
            table.choose(choices.setdefault(table.workload, {}))
            CHOICES.write_text(json.dumps(choices, indent=1))
    for _ in range(repeats):
        for table in tables:
            table.repeat()
    return report(tables, missing, repeats, installed)


def with_section(text: str, section: str) -> str:
    """Return a text in which a section replaces the one with the same title, or follows the others."""
    title = section.partition("\n")[0]
    before, _, after = f"\n{text}".partition(f"\n{title}\n")
    _, next_title, others = after.partition("\n# ")
    return f"{before}\n{section}{next_title}{others}".removeprefix("\n")


def main() -> None:
    """Measure the peers, print the report and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PEERS), help="names of peers, separated by commas")
    parser.add_argument("--workloads", help="names of workloads, separated by commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--installed",
        action="store_true",
        help="create no environments: run the peers that this interpreter can import, in the versions it has",
    )
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
    text = run_all(names, chosen, arguments.repeats, arguments.installed)
    print("\n" + text)
    before = arguments.out.read_text() if arguments.out.exists() else ""
    arguments.out.write_text(with_section(before, text))


if __name__ == "__main__":
    main()
