"""What /proc says about processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name: state, parent, ...; the times are fields 11 to 14."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _ticks(fields: Iterable[str]) -> float:
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """0 for a process that is gone."""
    try:
        return _ticks(_stat(pid)[11:13])
    except OSError:
        return 0.0


def inherited_cpu_seconds(child: int) -> float:
    """What the ended children of this process's parent have used."""
    return _ticks(_stat(int(_stat(child)[1]))[13:15])


def descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(_stat(int(folder.name))[1])
        except OSError:
            continue  # gone meanwhile
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def megabytes(pid: int, what: str = "Rss") -> float:
    """Resident; with `Pss` each shared page counts for a part. 0 for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1024
