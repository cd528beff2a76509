"""Full and read-only disks. Small file systems are mounted in memory where that is permitted."""

import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.stress.command import UNLIMITED, Limits, call
from tests.stress.runs import COMPARE, RUN, SWEEP, Command, Undisturbed, check_complete, write_grid
from tests.stress.trial import Facts, Trial

SIZE_KB = 65_536


def trials(undisturbed: Undisturbed, short: bool) -> list[Trial]:
    """Return trials on disks with little free space, and on a read-only disk."""
    full = [(RUN, 600)]
    if not short:
        full += [(RUN, free_kb) for free_kb in (0, 4, 12, 100, 270, 1100)]
        full += [(command, free_kb) for command in (COMPARE, SWEEP) for free_kb in (300, 900, 2000)]
    read_only = [] if short else [Trial("read-only disk", "run", partial(_read_only_disk, undisturbed))]
    return read_only + [
        Trial("full disk", f"{command.name} {free_kb} kB", partial(_full_disk, command, undisturbed, free_kb))
        for command, free_kb in full
    ]


def _full_disk(command: Command, undisturbed: Undisturbed, free_kb: int, folder: Path, _: random.Random) -> Facts:
    write_grid(folder)
    with _disk(folder / "disk") as mounted:
        out, ballast = folder / "disk" / "runs", folder / "disk" / "ballast"
        if mounted:
            ballast.write_bytes(bytes((SIZE_KB - free_kb) * 1024))
        limits = UNLIMITED if mounted else Limits(file_bytes=free_kb * 1024)
        stopped = call(command.argv(out), folder, limits).check(0, 2, 3).status != 0
        check_complete(out)
        ballast.unlink(missing_ok=True)
        call(command.argv(out), folder).check(0)
        undisturbed.check_same(command, out)
    return {"stopped": stopped, "mounted": mounted}


def _read_only_disk(undisturbed: Undisturbed, folder: Path, _: random.Random) -> Facts:
    """A finished run can be read; an unfinished one cannot be resumed, nor a new one started."""
    with _disk(folder / "disk") as mounted:
        for name in ("finished", "unfinished"):
            shutil.copytree(undisturbed.folder(RUN), folder / "disk" / name)
        (folder / "disk" / "unfinished" / "summary.json").unlink()
        if mounted:
            assert _mount("-o", "remount,ro", str(folder / "disk")), "the disk must become read-only"
            call(["report", "disk/finished", "-o", "page.html"], folder).check(0)
            for name in ("unfinished", "new"):
                call(RUN.argv(Path("disk", name)), folder).check(2)
    return {"mounted": mounted}


@contextmanager
def _disk(folder: Path) -> Iterator[bool]:
    """Make a folder, if possible the root of a small file system; yield whether it is one."""
    folder.mkdir()
    mounted = _mount("-t", "tmpfs", "-o", f"size={SIZE_KB}k", "tmpfs", str(folder))
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
