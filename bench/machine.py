"""Describes the machine of a measurement, without anything that identifies it."""

import os
import platform
import subprocess
from pathlib import Path


def describe_machine(data_folder: Path) -> dict[str, str | int]:
    """Return the machine and the file system of the data."""
    return {
        "processor": _after("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(data_folder),
        "python": platform.python_version(),
    }


def _after(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _file_system(folder: Path) -> str:
    shown = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], stdout=subprocess.PIPE, text=True, check=True)
    return shown.stdout.strip()
