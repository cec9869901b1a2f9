"""The broker's own options and state: 25, 26, 28, 5001.

All parts share one BrokerOptions object. Only `ConfigHandlers.update` changes it, and only the options that are
``mutable``, which are read at each use.
Neighbours: options.py; mqcommon/options/conf_file.py edits the conf file that the broker was started with.
"""

import logging
import os
from collections.abc import Callable

import trio

from skylark.broker.meta.topics import Topics
from skylark.broker.options import BrokerOptions, check_file_size
from skylark.broker.part import Part
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import ConfigError, RequestRefused, StoreError
from skylark.mqcommon.logs.options import change_levels
from skylark.mqcommon.options.conf_file import changes_of, read_update, save_changes, to_properties, update
from skylark.mqcommon.options.fields import options_of
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.protocol.body import DataVersion, KVTable
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.requests.brokers import (
    FILE_TIME_WHEEL,
    GET_BROKER_CONFIG,
    GET_BROKER_RUNTIME_INFO,
    ROCKSDB_TIMELINE,
    SWITCH_TIMER_ENGINE,
    UPDATE_BROKER_CONFIG,
    GetBrokerConfigResponseHeader,
)

logger = logging.getLogger(__name__)

# RocketMQ's keys for which this broker has no option. RocketMQ's exportConfigs and exportMetrics read them; an older
# exportConfigs fails if one is missing, and exportMetrics takes the first for the number of processors.
_FOR_JAVA_TOOLS = {
    "clientCallbackExecutorThreads": str(len(os.sched_getaffinity(0))),
    "filterServerNums": "0",
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "useTLS": "false",
}


class ConfigHandlers(Part):
    """Shows and changes the options of the broker. ``runtime_info`` makes the table that brokerStatus shows."""

    reads_disk = (GET_BROKER_RUNTIME_INFO.code,)

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        fs: FileSystem,
        clock: Clock,
        runtime_info: Callable[[], dict[str, str]],
    ) -> None:
        self._options = options
        self._topics = topics
        self._fs = fs
        self._clock = clock
        self._runtime_info = runtime_info
        self._version = DataVersion(timestamp=clock.now_ms())
        self._changing = trio.Lock()

    def handlers(self) -> dict[int, Handler]:
        return {
            GET_BROKER_CONFIG.code: self.get,
            GET_BROKER_RUNTIME_INFO.code: self.runtime,
            SWITCH_TIMER_ENGINE.code: self.switch_timer_engine,
        }

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {UPDATE_BROKER_CONFIG.code: self.update}

    def get(self, channel: Channel, request: Command) -> Command:
        """26: all options of the broker, as a conf file has them."""
        version = encode_body(self._version).decode()
        known = {o.key for o in options_of(BrokerOptions)}
        others = [f"{key}={value}\n" for key, value in _FOR_JAVA_TOOLS.items() if key not in known]
        lines = sorted([*to_properties(self._options).splitlines(keepends=True), *others])
        return GET_BROKER_CONFIG.answer(request, GetBrokerConfigResponseHeader(version), body="".join(lines).encode())

    def runtime(self, channel: Channel, request: Command) -> Command:
        """28: figures of the running broker, each with its name."""
        return answer_with(GET_BROKER_RUNTIME_INFO, request, KVTable(self._runtime_info()))

    def switch_timer_engine(self, channel: Channel, request: Command) -> Command:
        """5001: keep timed messages in another engine. There is one, so a switch to it has nothing to do."""
        engine = SWITCH_TIMER_ENGINE.header(request).engine_type
        refusal = ""
        if not self._options.timer_wheel_enable:
            refusal = "timerWheelEnable=false: this broker takes no messages with a time of delivery"
        elif engine == ROCKSDB_TIMELINE:
            refusal = "this broker has no timers in RocksDB; its engine is F, files with a wheel"
        elif engine != FILE_TIME_WHEEL:
            refusal = f"the engine of timers (E_T) is {FILE_TIME_WHEEL} or {ROCKSDB_TIMELINE}, not {engine}"
        if refusal:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, refusal)
        return request.respond(remark="switch timer engine success")

    async def update(self, channel: Channel, request: Command) -> Command:
        """25: change mutable options, and write them to the conf file, if there is one."""
        pairs = self._checked_pairs(request)
        async with self._changing:
            try:
                wanted = update(self._options, pairs)
                if wanted.max_message_size > self._options.max_message_size:
                    check_file_size(wanted)
            except ConfigError as error:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
            changes = changes_of(self._options, wanted)
            # Write the file first: if it cannot be written, no option changes.
            path = self._options.broker_config_path
            if changes and path:
                await self._save(path, changes)
            if wanted.log_levels != self._options.log_levels:
                change_levels(self._options.log_levels, wanted.log_levels)
            # Change the object in place, though it is frozen for all other code: all parts share it, and read mutable
            # options at each use.
            for o in options_of(BrokerOptions):
                if o.key in changes:
                    object.__setattr__(self._options, o.name, getattr(wanted, o.name))
        if changes:
            self._version = self._version.next(self._clock.now_ms())
        if "brokerPermission" in changes:
            self._topics.changed()  # the registration with NameServers has the permissions of topics
        logger.info("options changed: %s kept=%s by=%s", changes, path or "until the stop", channel.remote)
        return request.respond()

    def _checked_pairs(self, request: Command) -> list[tuple[str, str]]:
        """The keys and values of the request, without keys that have no effect here."""
        try:
            pairs = read_update(request.body)
        except ConfigError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if self._options.forbidden_keys.intersection(key for key, _ in pairs):
            raise RequestRefused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        try:
            for key, value in pairs:
                if key in BrokerOptions.limited_keys:
                    BrokerOptions.limited_keys[key].check(key, value)
        except ConfigError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        ignored = [key for key, _ in pairs if key in BrokerOptions.ignored_keys]
        if ignored:
            logger.warning("options without effect here: %s", ", ".join(dict.fromkeys(ignored)))
        without_effect = BrokerOptions.ignored_keys | BrokerOptions.limited_keys.keys()
        return [(key, value) for key, value in pairs if key not in without_effect]

    async def _save(self, path: str, changes: dict[str, str]) -> None:
        try:
            await trio.to_thread.run_sync(save_changes, self._fs, path, changes)
        except (OSError, StoreError) as error:
            logger.error("options not changed, %s could not be written: %s", path, error)
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"not changed, the file could not be written: {error}"
            ) from error
