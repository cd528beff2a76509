"""Small file systems of one's own, where the machine lets one mount them."""

import subprocess
from pathlib import Path


def mount_small(folder: Path, size_kb: int) -> bool:
    """Whether a file system in memory, of so many kilobytes, is at an empty folder now."""
    return _mount("-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder))


def make_read_only(folder: Path) -> bool:
    """Whether what was mounted at a folder cannot be written any more."""
    return _mount("-o", "remount,ro", str(folder))


def unmount_all(folder: Path) -> None:
    """Take away what is mounted in a folder."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for path in (path for path in mounted if path.startswith(f"{folder}/")):
        subprocess.run(["umount", "--lazy", path], capture_output=True, check=False)


def _mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
