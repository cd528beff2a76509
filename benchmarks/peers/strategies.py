"""Compare strategies in other packages and repositories with this project's, as a Markdown table.

Models are single numbers. Each implementation aggregates them, or selects a few clients, with its own server code; this
project's column uses its strategies, its group memory and its server optimizer. Packages that are not installed and
repositories that are not given are listed as absent. The last but one column explains each difference by a rule, which
is checked to give the other implementation's numbers.
"""

import argparse
import logging
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from cases import CASES, Case
from servers.inputs import STALENESS, Numbers
from servers.loading import checkouts


@dataclass(frozen=True)
class Origin:
    """A repository on GitHub, and the commit that links lead to; a package of the same code, if there is one."""

    title: str
    repository: str
    commit: str
    is_package: bool = False


ORIGINS = {
    "appfl": Origin("appfl", "APPFL/APPFL", "b9f1bc1534341cac371f1aeda96b5b64fcc9a43e", True),
    "fedlab": Origin("fedlab", "SMILELab-FL/FedLab", "92552a742debc9d7bcf06378720c92fe90e15aa3", True),
    "fedscale": Origin("fedscale", "SymbioticLab/FedScale", "7ec441c2afa99510535adebe155d89fa8bb2c637", True),
    "flgo": Origin("flgo", "WwZzz/easyFL", "ea07f1d082efacca2eff27ee401a7ab4ec604825", True),
    "flsim": Origin("flsim", "facebookresearch/FLSim", "7311f2db471f89f14a0c8c9ea1c9584171677f5a", True),
    "nvflare": Origin("nvflare", "NVIDIA/NVFlare", "f3b7c1bffdfed90338d695a67b52a46d8bc4d28c", True),
    "afl-lib": Origin("AFL-Lib", "boyi-liu/AFL-Lib", "b6dab187df2c7cdd9fe9eff998790af9f96b9558"),
    "asyncfl": Origin("AsyncFL", "xchang1121/AsyncFL", "1fe1799d4c8101e4c318a4c11efa7b1b496fff94"),
    "easyfl-fork": Origin("easyFL fork", "quan-xiao158/easyFL", "58fc26acc8d46af10c7c79b7f7d79b71b1408b69"),
    "fadas": Origin("FADAS (authors)", "yujiaw98/FADAS", "8c4df2367b1b4ef485d0334e19335260a8547417"),
    "fedcompass": Origin("FedCompass (authors)", "APPFL/FedCompass", "af96db2204795b0b0addfdec219b2a541f4b1ab3"),
    "fedscale-oort": Origin("FedScale", "SymbioticLab/FedScale", "7ec441c2afa99510535adebe155d89fa8bb2c637"),
    "oort": Origin("Oort (authors)", "SymbioticLab/Oort", "05a3aa1677a10f8e621055b1626ef82e73d09759"),
    "plato": Origin("Plato", "TL-System/plato", "60d6779a0be16bd529f5f9d9cd34fd4d47f4e95a"),
    "refl": Origin("REFL (authors)", "ahmedcs/REFL", "aa7e6425fe8b888bccfcc722a086df120cbd833e"),
    "safa": Origin("SAFA (authors)", "wingter562/SAFA", "f6fa6b4569a8cbc7842f265f6ea18680aa511819"),
}
"""Packages and repositories by name. The latter are read from checkouts that are given on the command line."""

SHOWN = [0, 1, 4, 5, 10]
"""Staleness of the numbers shown in the table; all of them are compared."""


def same(some: Numbers, others: Numbers) -> bool:
    """Return whether the numbers agree to single precision."""
    return len(some) == len(others) and bool(np.allclose(some, others, rtol=1e-5, atol=0))


def shown(numbers: Numbers, whole: bool = False) -> str:
    """Return the numbers to three digits, or as whole numbers; of one per staleness, those in `SHOWN`."""
    some = [numbers[staleness] for staleness in SHOWN] if len(numbers) == len(STALENESS) else numbers
    return ", ".join(f"{number:.0f}" if whole else f"{number:#.3g}" for number in some)


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def found(name: str) -> tuple[str, str] | None:
    """Return the title of an implementation, with its version, and the commit for links; None if it is absent."""
    origin = ORIGINS[name]
    if origin.is_package:
        try:
            return f"{origin.title} {version(origin.title)}", origin.commit
        except PackageNotFoundError:
            return None
    if name not in checkouts:
        return None
    commit = commit_of(checkouts[name])
    return f"{origin.title} {commit[:7]}", commit


def row(case: Case, run: bool) -> str:
    """Return a case as a row; without the other implementation's numbers if it is absent or must not be run."""
    here = found(case.origin)
    title = ORIGINS[case.origin].title if here is None else here[0]
    start, numbers = f"| {case.strategy} | {title} | {case.case} |", case.ours()
    expected = None if case.by_rule is None else case.by_rule()
    if here is None or not run:
        return f"{start} {'absent' if here is None else 'not run'} | {shown(numbers)} | | |"
    theirs = case.theirs()
    whole = all(number == round(number) for number in [*theirs, *numbers])
    both = f"{start} {shown(theirs, whole)} | {shown(numbers, whole)} |"
    if same(theirs, numbers):
        return f"{both} same | {case.paper or 'both'} |"
    if expected is None or not same(theirs, expected):
        return f"{both} unexplained | |"
    link = f"https://github.com/{ORIGINS[case.origin].repository}/blob/{here[1]}/{case.where}"
    return f"{both} [{case.rule}]({link}) | {case.paper or 'LESSON'} |"


def source(text: str) -> tuple[str, Path]:
    """Parse NAME=PATH, the name of a repository and the folder of its checkout."""
    name, _, path = text.partition("=")
    names = [name for name, origin in ORIGINS.items() if not origin.is_package]
    if name not in names:
        raise argparse.ArgumentTypeError(f"unknown repository {name!r}; available: {', '.join(sorted(names))}")
    if not (Path(path) / ".git").exists():
        raise argparse.ArgumentTypeError(f"{name} must be the folder of a git checkout, got {path!r}")
    return name, Path(path)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="compute this project's column only, run no other code")
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        type=source,
        metavar="NAME=PATH",
        help="checkout of a repository that is not a package, such as oort=../Oort; repeat for several",
    )
    options = parser.parse_args()
    checkouts.update(options.source)
    logging.disable(logging.INFO)
    print("| strategy | implementation | case | theirs | LESSON | difference | as in the paper |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        print(row(case, run=not options.quick), flush=True)


if __name__ == "__main__":
    main()
