"""Small temporary file systems, on machines that permit mounting them."""

import subprocess
from pathlib import Path


def mount_small(folder: Path, size_kb: int) -> bool:
    """Mount an in-memory file system of this size at an empty folder; return whether that succeeded."""
    return _mount("-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder))


def make_read_only(folder: Path) -> bool:
    """Remount the file system at a folder read-only; return whether that succeeded."""
    return _mount("-o", "remount,ro", str(folder))


def unmount_all(folder: Path) -> None:
    """Unmount everything below a folder."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for path in (path for path in mounted if path.startswith(f"{folder}/")):
        subprocess.run(["umount", "--lazy", path], capture_output=True, check=False)


def _mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
