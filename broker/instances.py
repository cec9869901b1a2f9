"""Several brokers of one conf file on one machine: their number, names, ports and directories.

One broker uses one core. With ``brokerInstances=4`` the command `broker` starts four: NAME-0 to NAME-3, each a broker
set of its own with its own store. Instance i listens at ``listenPort`` + 10 i, and so do its other ports; its store is
``instance-i`` in ``storePathRootDir``.
A store that a single broker made is in ``storePathRootDir`` itself. Instances must not hide such a store, and no
instance may be left out because the number was lowered: its messages would be in no route. In both cases the start is
refused, and the error says what to do.
Neighbour: supervisor.py starts the instances.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from skylark.broker.options import BrokerOptions
from skylark.mqcommon.errors import ConfigError

AUTO = "auto"
MOST = 64
# Ports of one broker: listenPort - 2, listenPort, listenPort + 1.
STRIDE = 10
_KEY = "brokerInstances"
# Files that every broker's directory has.
_OF_A_STORE = ("commitlog", "config", "checkpoint", "lock")
_CGROUP = Path("/sys/fs/cgroup/cpu.max")


class Instance(NamedTuple):
    """One broker: its number, name and directory, and the options, by name, that differ from the conf file."""

    number: int
    name: str
    directory: Path
    given: Mapping[str, str]


def instance_count(text: str, cores: int) -> int:
    """How many brokers ``brokerInstances`` asks for. ConfigError when it is no number, or too large."""
    if text.strip().lower() == AUTO:
        return max(min(cores, MOST), 1)
    if not text.strip().isdecimal() or not 1 <= int(text) <= MOST:
        raise ConfigError(f"{_KEY}: {text!r} is neither {AUTO} nor a number from 1 to {MOST}")
    return int(text)


def usable_cores() -> int:
    """The cores that this process may use, by its affinity and the quota of its container."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _CGROUP.read_text().split()
        return max(min(cores, math.ceil(int(quota) / int(period))), 1)
    except (OSError, ValueError):  # no quota
        return cores


def instances_of(options: BrokerOptions, count: int) -> list[Instance]:
    """``count`` instances of ``resolved`` options. ConfigError when these do not allow for several."""
    for is_set, key, why in (
        (options.enable_controller_mode, "enableControllerMode", "each broker set needs a conf file of its own"),
        (options.enable_dleger_commit_log, "enableDLegerCommitLog", "each member needs a conf file of its own"),
        (options.ha_master_address, "haMasterAddress", "all instances would follow one master; leave it out"),
    ):
        if is_set:
            raise ConfigError(f"{_KEY}: {count} brokers of one conf file cannot have {key}: {why}")
    last = max(options.listen_port, options.ha_listen_port, options.fast_listen_port) + STRIDE * (count - 1) + 1
    if last > 65_535:
        raise ConfigError(f"listenPort: {count} instances need ports up to {last}; set a smaller one")
    return [_instance(options, number) for number in range(count)]


def _instance(options: BrokerOptions, number: int) -> Instance:
    shift = STRIDE * number
    directory = Path(options.store_path_root_dir, f"instance-{number}")
    given = {
        "broker_instances": "1",
        # All instances share one proxy, which the supervisor's process starts.
        "enable_proxy": "false",
        "broker_name": f"{options.broker_name}-{number}",
        "store_path_root_dir": str(directory),
        # RocketMQ's conf files have this key. It names a place in the directory that all instances share.
        "store_path_commit_log": "",
        # A topic that a send creates gets queues on all instances.
        "auto_create_on_all_masters": "true",
    }
    # 0 takes any free port, and -1 follows listenPort.
    for option in ("listen_port", "ha_listen_port", "fast_listen_port"):
        port = getattr(options, option)
        if port > 0:
            given[option] = str(port + shift)
    if options.log_file:
        stem, dot, suffix = options.log_file.rpartition(".")
        given["log_file"] = f"{stem}-{number}.{suffix}" if dot and "/" not in suffix else f"{options.log_file}-{number}"
    return Instance(number, given["broker_name"], directory, given)


def check_directory(options: BrokerOptions, count: int) -> None:
    """ConfigError when ``storePathRootDir`` has messages that ``count`` brokers would not serve."""
    root = Path(options.store_path_root_dir)
    if not root.is_dir():
        return
    if count > 1 and any((root / name).exists() for name in _OF_A_STORE):
        raise ConfigError(
            f"{_KEY}: {root} is the store of one broker, which {count} instances would not serve. To make it the store"
            f" of instance 0: mkdir {root}.new && mv {root} {root}.new/instance-0 && mv {root}.new {root}"
        )
    left = sorted(
        path
        for path in root.glob("instance-*")
        if path.name[9:].isdecimal() and (count == 1 or int(path.name[9:]) >= count) and any(path.iterdir())
    )
    if left:
        names = ", ".join(str(path) for path in left)
        raise ConfigError(
            f"{_KEY}: {count} would leave out stores of other instances: {names}. Start as many as before, empty the"
            " last ones with mqadmin drain, stop, and move their directories away; or set the number back"
        )
