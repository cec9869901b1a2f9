"""How many processes of one daemon a machine is to run: ``brokerInstances``, ``proxyInstances``."""

import math
import os
from pathlib import Path

from skylark.mqcommon.errors import ConfigError

AUTO = "auto"
MOST = 64
_CGROUP = Path("/sys/fs/cgroup/cpu.max")


def instance_count(key: str, text: str, cores: int) -> int:
    """How many processes the value ``text`` of option ``key`` asks for, `AUTO` being one for each of ``cores``.

    ConfigError when the value is no number, or too large.
    """
    if text.strip().lower() == AUTO:
        return max(min(cores, MOST), 1)
    if not text.strip().isdecimal() or not 1 <= int(text) <= MOST:
        raise ConfigError(f"{key}: {text!r} is neither {AUTO} nor a number from 1 to {MOST}")
    return int(text)


def usable_cores() -> int:
    """The cores that this process may use, by its affinity and the quota of its container."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _CGROUP.read_text().split()
        return max(min(cores, math.ceil(int(quota) / int(period))), 1)
    except (OSError, ValueError):  # no quota
        return cores


def numbered(file: str, number: int) -> str:
    """The name of process ``number``'s own file, made of the name that all of them were given: a-1.log of a.log."""
    stem, dot, suffix = file.rpartition(".")
    return f"{stem}-{number}.{suffix}" if dot and "/" not in suffix else f"{file}-{number}"
