"""The daemons that nodes run, with options for tests: small files, loopback, no rules about the disk or the hour.

This is the only module of `sdk` that imports the daemons.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import trio

from skylark.broker.broker import Broker
from skylark.broker.options import BrokerOptions, check_file_size
from skylark.mqcommon.options.conf_file import load_conf
from skylark.namesrv.namesrv import Namesrv
from skylark.namesrv.options import NamesrvOptions


def silent_by_default(*packages: str) -> None:
    """Keep warnings of these packages off stderr in a program without handlers, which Python would print."""
    for package in packages:
        logger = logging.getLogger(package)
        if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            logger.addHandler(logging.NullHandler())


silent_by_default("skylark.broker", "skylark.namesrv")

HOST = "127.0.0.1"
# Small files are made at once on any disk. The log's must be larger than the largest message (4 MiB).
SMALL = {
    "mappedFileSizeCommitLog": str(8 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(3_000 * 20),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
}
# A test must not depend on how full this machine's disk is, nor on the hour.
ANY_DISK = {
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceCleanForciblyRatio": "100",
    "diskSpaceWarningLevelRatio": "100",
    "cleanFileForciblyEnable": "false",
    "fileReservedTime": "1000000",
}


def broker_options(
    name: str, directory: Path, nameserver: str, port: int, ha_port: int, given: Mapping[str, object]
) -> BrokerOptions:
    """The options of one broker; ``given`` has keys of broker.conf. Raises ConfigError for an invalid option."""
    own = {
        "brokerName": name,
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "listenPort": str(port),
        "haListenPort": str(ha_port),
        "fastListenPort": "0",
        "namesrvAddr": nameserver,
        "storePathRootDir": str(directory),
    }
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}
    options = load_conf(BrokerOptions, None, SMALL | ANY_DISK | texts | own, environ={})
    check_file_size(options)
    return options


class BrokerDaemon:
    """A broker."""

    def __init__(self, options: BrokerOptions) -> None:
        self._broker = Broker(options)
        self._ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None:
        """Serve until `stop`."""
        try:
            await self._broker.run(task_status=task_status)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Stop gracefully."""
        self._broker.stop()
        await self._ended.wait()


class NamesrvDaemon:
    """A NameServer."""

    def __init__(self, directory: Path, port: int) -> None:
        self._namesrv = Namesrv(
            NamesrvOptions(listen_port=port, bind_address=HOST, kv_config_path=str(directory / "kvConfig.json"))
        )

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None:
        """Serve until cancelled."""
        await self._namesrv.run(task_status=task_status)

    async def stop(self) -> None:
        """Answer what is in flight."""
        await self._namesrv.stop()
