"""Free memory, and early errors for data that exceed it or the size of their file.

What is read from a file passes `check_memory` before memory is taken for it, with the bytes that
the file has for it where they are packed: a file of 10 kB can claim to hold gigabytes.
"""

import math
import os
from pathlib import Path

from wflow._core.errors import InputError

SMALL = 2.0**20  # bytes that are not worth a look at the system, which takes 0.3 ms
UNPACKED = 2.0**26  # bytes that anything may unpack to, however small it is
RATIO = 100.0  # bytes for each byte of the file beyond that; deflate reaches 1,032


def free_memory() -> float:
    """Return the bytes that this process can still allocate; inf where that is unknown."""
    return min(_of_machine(), _of_process(), _of_cgroups())


def most_unpacked(stored: float) -> float:
    """Return the largest number of bytes that so many bytes of a file may unpack to."""
    return UNPACKED + RATIO * stored


def check_memory(needed: float, what: str, advice: str, *, stored: float | None = None) -> None:
    """Raise InputError where `what` needs more bytes than are free, or than its file can hold.

    Without this check a huge size is a MemoryError, a ValueError of NumPy, or the end of the
    process: a system that overcommits memory kills the process that writes to it.

    Parameters
    ----------
    needed : bytes of memory
    what : for the message
    advice : what to do, for the message
    stored : bytes that it has in its file, where they are unpacked before anybody asked for that
        many: needs up to `most_unpacked` are then admitted
    """
    if needed <= SMALL:
        return
    if stored is not None and needed > most_unpacked(stored):
        raise InputError(
            f"{what} would take {needed / 1e9:.3g} GB of memory, and has {stored / 1e6:.3g} MB in "
            f"its file; expected at most {most_unpacked(stored) / 1e9:.3g} GB of so few; {advice}"
        )
    free = free_memory()
    if needed > free:
        raise InputError(
            f"{what} needs {needed / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free; "
            f"{advice}"
        )


def _of_machine() -> float:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return 1024.0 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    try:  # a system without /proc: what is installed
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError, AttributeError):
        return math.inf


def _of_process() -> float:
    """Return the bytes left under the limit of address space (ulimit -v), which clusters set."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return math.inf
        with open("/proc/self/statm", encoding="ascii") as sizes:
            used = int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        return float(max(limit - used, 0))
    except (ImportError, OSError, ValueError):
        return math.inf


def _of_cgroups(root: Path = Path("/")) -> float:
    """Return the bytes left under control groups, which containers and batch systems set.

    root : root of the file system
    """
    least = math.inf
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return least
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:  # version 2
            top, prefix, limit, usage = "", "", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            top, prefix = "memory", "total_"  # of the group and those below it
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # A group has the limits of those above it. Within a container the path may be that of the
        # host, of which only the top is there.
        parts = os.path.normpath(f"/{path.lstrip('/')}").split("/")
        for count in range(1, len(parts) + 1):
            folder = root.joinpath("sys/fs/cgroup", top, *parts[1:count])
            least = min(least, _left(folder, limit, usage, prefix))
    return least


def _left(group: Path, limit: str, usage: str, prefix: str) -> float:
    """Return the bytes that a control group has left; inf without a limit."""
    try:
        most, used = (float((group / name).read_text(encoding="ascii")) for name in (limit, usage))
    except (OSError, ValueError):  # "max": no limit
        return math.inf
    try:  # pages of files count as used, and go when memory is wanted
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        sizes = dict(line.split() for line in lines)
        used -= sum(float(sizes[f"{prefix}{kind}_file"]) for kind in ("active", "inactive"))
    except (OSError, ValueError, KeyError):
        pass
    return max(most - used, 0.0)
