"""What this process may use of the machine: cores, processor time and memory, within the limits of the system and its containers.

A container's limits stand in the files of control groups, of Linux' version 1 or 2. A group's limit holds for all groups below it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
CPU_INFO = Path("/proc/cpuinfo")
MEMORY_INFO = Path("/proc/meminfo")
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of both versions: the files of a group's limit and use, and the entry of `memory.stat` that counts cached files. The system drops
these, a model's mapped weights included, when memory is short."""


def own_groups(controller: str) -> Iterator[Path]:
    """The folders of the groups that may limit this process: its own and those above it; not all of them exist.

    Inside a container the paths may be those of the host, of which only the mounted root is visible: it is always among them.
    """
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    mounts = {GROUPS: "/", GROUPS / "unified": "/", GROUPS / controller: "/"}
    for line in lines:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            mounts |= {GROUPS: path, GROUPS / "unified": path}
        elif controller in names.split(","):
            mounts |= {GROUPS / names: path, GROUPS / controller: path}
    for mount, path in mounts.items():
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (mount.joinpath(*parts[:length]) for length in range(len(parts) + 1))


def numbers_in(*files: Path) -> list[int]:
    """All whole numbers of these files, separated by blanks; raises `OSError` or `ValueError`, also for the word "max"."""
    return [int(number) for file in files for number in file.read_text(encoding="utf-8").split()]


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_limit() -> float | None:
    """The least limit of processor time, in cores, that holds for this process; None without a limit."""
    limits = []
    for group in own_groups("cpu"):
        for files in ((group / "cpu.max",), (group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")):
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                quota, period = numbers_in(*files)
                limits += [quota / period] if quota > 0 < period else []
    return min(limits, default=None)


def physical_cores() -> int:
    """Physical cores among those that this process may run on: two hardware threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return usable_cores()
    allowed, found = os.sched_getaffinity(0), set[tuple[str, ...]]()
    with contextlib.suppress(OSError, ValueError):
        for block in CPU_INFO.read_text(encoding="utf-8").split("\n\n"):
            fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in block.splitlines())}
            if fields.get("processor", "").isdigit() and int(fields["processor"]) in allowed and "core id" in fields:
                found.add((fields.get("physical id", ""), fields["core id"]))
    return len(found) or len(allowed)


def threads_within_limits() -> int | None:
    """Threads that compute without waiting for each other's processor time; None where nothing limits this process.

    Threads beyond a limit of processor time are stopped for most of each period, and the others wait for them at every step.
    """
    limit = core_limit()
    if limit is None and usable_cores() == (os.cpu_count() or 1):
        return None
    most = physical_cores()
    return most if limit is None else max(1, min(most, int(limit)))


def available_bytes() -> int | None:
    """Bytes that can be allocated without swapping, within the limits of containers; None if the system does not tell."""
    try:
        free = [number_of("MemAvailable:", MEMORY_INFO) * 1024]
    except (OSError, LookupError, ValueError):
        return None
    for group in own_groups("memory"):
        for limit, used, cached in MEMORY_FILES:
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                free += [most - now for most, now in [numbers_in(group / limit, group / used)]]
                with contextlib.suppress(OSError, LookupError, ValueError):
                    free[-1] += number_of(cached, group / "memory.stat")
    return max(0, min(free))


def number_of(name: str, path: Path) -> int:
    """Read the number after a name in a file of lines "name number"; raises `LookupError` if the name is missing."""
    return int(dict(line.split()[:2] for line in path.read_text(encoding="utf-8").splitlines() if " " in line.strip())[name])
