"""Full and read-only disks."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.stress.command import Limits, call
from tests.stress.commands import COMPARE, RUN, SWEEP, Command, undisturbed, write_grid
from tests.stress.folders import check_same, check_whole
from tests.stress.mounts import make_read_only, mount_small
from tests.stress.trial import Facts, Skip, Trial

SIZE_KB = 65_536
FREE_KB = (0, 4, 12, 100, 270, 600, 1100, 1700)


def trials(shared: Path, short: bool) -> list[Trial]:
    """Return trials on disks with a few kilobytes of free space, and on a read-only disk."""
    full = (
        [(RUN, 600)]
        if short
        else [(RUN, free) for free in FREE_KB] + [(one, free) for one in (COMPARE, SWEEP) for free in (300, 900, 2000)]
    )
    made = [
        Trial("full disk", f"{command.name} {free_kb}k", _full(command, shared, free_kb)) for command, free_kb in full
    ]
    cases = {
        "new run": (RUN.argv(Path("disk/new")), 2),
        "unfinished run": (RUN.argv(Path("disk/unfinished")), 2),
        "finished run": (["report", "disk/run", "-o", "page.html"], 0),
        "report": (["report", "disk/run"], 2),
        "compare": (COMPARE.argv(Path("disk/compare")), 2),
        "sweep": (SWEEP.argv(Path("disk/sweep")), 2),
        "plan": (["plan", "--figure", "disk/plan.png"], 2),
        "page": (["plan", "--html", "disk/plan.html"], 2),
    }
    chosen = ["unfinished run", "finished run"] if short else list(cases)
    return made + [Trial("read-only", case, _read_only(shared, *cases[case], real=not short)) for case in chosen]


def _full(command: Command, shared: Path, free_kb: int) -> Callable[[Path, random.Random], Facts]:
    def do(folder: Path, _: random.Random) -> Facts:
        disk = folder / "disk"
        disk.mkdir()
        write_grid(folder)
        mounted, limits = mount_small(disk, SIZE_KB), Limits(200.0)
        if mounted:
            (disk / "ballast").write_bytes(bytes((SIZE_KB - free_kb) * 1024))
        else:
            limits = Limits(200.0, file_bytes=free_kb * 1024)
        outcome = call(command.argv(disk / "runs"), folder, limits).check(0, 2, 3)
        if (disk / "runs").exists():
            check_whole(disk / "runs")
        (disk / "ballast").unlink(missing_ok=True)
        call(command.argv(disk / "runs"), folder, Limits(200.0), real=False).check(0)
        check_same(disk / "runs", undisturbed(command, shared))
        return {"stopped": int(outcome.status != 0), "disk": "a small one" if mounted else "a limit on files"}

    return do


def _read_only(shared: Path, argv: list[str], status: int, real: bool) -> Callable[[Path, random.Random], Facts]:
    def do(folder: Path, _: random.Random) -> Facts:
        disk = folder / "disk"
        disk.mkdir()
        write_grid(folder)
        mounted = mount_small(disk, SIZE_KB)
        for name in ("run", "unfinished"):
            shutil.copytree(undisturbed(RUN, shared), disk / name)
        (disk / "unfinished" / "summary.json").unlink()
        if not mounted and os.getuid() == 0:
            raise Skip("nothing can be mounted here, and root may write everywhere")
        if mounted:
            assert make_read_only(disk), "a small disk must let itself be made read-only"
        else:
            for path in (disk, *disk.iterdir()):
                path.chmod(0o555)
        try:
            call(argv, folder, real=real).check(status)
        finally:
            if not mounted:
                for path in (disk, *disk.iterdir()):
                    path.chmod(0o755)
        return {}

    return do
