"""Several brokers of one conf file on one machine: their number, names, ports and directories.

One broker uses one core. With ``brokerInstances=4`` the command `broker` starts four: NAME-0 to NAME-3, each a broker
set of its own with its own store. Instance i listens at ``listenPort`` + 10 i, and so do its other ports; its store is
``instance-i`` in ``storePathRootDir``.
A store that a single broker made is in ``storePathRootDir`` itself. Instances must not hide such a store, and no
instance may be left out because the number was lowered: its messages would be in no route. In both cases the start is
refused, and the error says what to do.
Neighbour: remoting/net/supervisor.py runs the instances.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from skylark.broker.options import BrokerOptions
from skylark.mqcommon.daemons.instances import numbered
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.options.fields import options_of
from skylark.remoting.net.supervisor import Child, Supervisor

# Ports of one broker: listenPort - 2, listenPort, listenPort + 1.
STRIDE = 10
KEY = "brokerInstances"
# Files that every broker's directory has.
_OF_A_STORE = ("commitlog", "config", "checkpoint", "lock")


class Instance(NamedTuple):
    """One broker: its number, name and directory, and the options, by name, that differ from the conf file."""

    number: int
    name: str
    directory: Path
    given: Mapping[str, str]


def instances_of(options: BrokerOptions, count: int) -> list[Instance]:
    """``count`` instances of ``resolved`` options. ConfigError when these do not allow for several."""
    for is_set, key, why in (
        (options.enable_controller_mode, "enableControllerMode", "each broker set needs a conf file of its own"),
        (options.enable_dleger_commit_log, "enableDLegerCommitLog", "each member needs a conf file of its own"),
        (options.ha_master_address, "haMasterAddress", "all instances would follow one master; leave it out"),
    ):
        if is_set:
            raise ConfigError(f"{KEY}: {count} brokers of one conf file cannot have {key}: {why}")
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
        given["log_file"] = numbered(options.log_file, number)
    return Instance(number, given["broker_name"], directory, given)


def supervisor_of(
    options: BrokerOptions, instances: Iterable[Instance], conf: str | None, given: Mapping[str, str]
) -> Supervisor:
    """Runs ``instances``. ``conf`` and ``given``: the conf file and the command line's options, for each instance."""
    children = [_child(instance, conf, given) for instance in instances]
    return Supervisor("broker", "brokers", children, logs=options, metrics=options, health=options)


def _child(instance: Instance, conf: str | None, given: Mapping[str, str]) -> Child:
    flags = {o.name: o.flag for o in options_of(BrokerOptions)}

    def command(more: Mapping[str, str]) -> list[str]:
        values = {**given, **instance.given, **more}
        start = [sys.executable, "-P", "-m", "skylark.broker"]
        if conf is not None:
            values.pop("broker_config_path", None)  # set by -c, as here
            start += ["-c", conf]
        return start + [part for name, value in values.items() for part in (flags[name], value)]

    return Child(instance.name, command)


def check_directory(options: BrokerOptions, count: int) -> None:
    """ConfigError when ``storePathRootDir`` has messages that ``count`` brokers would not serve."""
    root = Path(options.store_path_root_dir)
    if not root.is_dir():
        return
    if count > 1 and any((root / name).exists() for name in _OF_A_STORE):
        raise ConfigError(
            f"{KEY}: {root} is the store of one broker, which {count} instances would not serve. To make it the store"
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
            f"{KEY}: {count} would leave out stores of other instances: {names}. Start as many as before, empty the"
            " last ones with mqadmin drain, stop, and move their directories away; or set the number back"
        )
