"""KV config and the NameServer's own options: 100, 101, 102, 219, 318, 319.

A change is answered once it is on disk, so its handler is a slow one: the fsync runs in a thread.
Neighbours: kvconfig.py; mqcommon/options/conf_file.py edits the conf file that the NameServer was started with.
"""

import logging
from functools import partial
from typing import Any, Protocol

import trio

from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import ConfigError, RequestRefused, StoreError
from skylark.mqcommon.logs.options import change_levels
from skylark.mqcommon.options.conf_file import changes_of, read_update, save_changes, to_properties, update
from skylark.namesrv.state import State
from skylark.remoting.net.answers import answer_steps
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import SlowHandler
from skylark.remoting.net.steps import Steps
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.routes import (
    DELETE_KV_CONFIG,
    GET_KV_CONFIG,
    GET_KVLIST_BY_NAMESPACE,
    PUT_KV_CONFIG,
    UPDATE_NAMESRV_CONFIG,
    GetKVConfigResponseHeader,
)

logger = logging.getLogger(__name__)


def build_slow_handlers(state: State) -> dict[int, SlowHandler]:
    """Code to handler, for the requests that write a file."""
    return {
        PUT_KV_CONFIG.code: partial(put_kv, state),
        DELETE_KV_CONFIG.code: partial(delete_kv, state),
        UPDATE_NAMESRV_CONFIG.code: partial(update_config, state),
    }


async def put_kv(state: State, channel: Channel, request: Command) -> Command:
    """100: set a key of a namespace."""
    header = PUT_KV_CONFIG.header(request)
    try:
        await state.kv_config.put(header.namespace, header.key, header.value)
    except (OSError, StoreError) as error:
        raise _not_written(error) from error
    return request.respond()


async def delete_kv(state: State, channel: Channel, request: Command) -> Command:
    """102: delete a key of a namespace."""
    header = DELETE_KV_CONFIG.header(request)
    try:
        await state.kv_config.delete(header.namespace, header.key)
    except (OSError, StoreError) as error:
        raise _not_written(error) from error
    return request.respond()


def get_kv(state: State, channel: Channel, request: Command) -> Command:
    """101: the value of a key."""
    header = GET_KV_CONFIG.header(request)
    value = state.kv_config.get(header.namespace, header.key)
    if value is None:
        text = f"No config item, Namespace: {header.namespace} Key: {header.key}"
        raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, text)
    return GET_KV_CONFIG.answer(request, GetKVConfigResponseHeader(value))


def get_kv_namespace(state: State, channel: Channel, request: Command) -> Steps[Command]:
    """219: all keys of a namespace with their values."""
    namespace = GET_KVLIST_BY_NAMESPACE.header(request).namespace
    values = state.kv_config.namespace(namespace)
    if values is None:
        raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
    return (yield from answer_steps(GET_KVLIST_BY_NAMESPACE, request, KVTable(dict(values)), channel.max_frame_bytes))


def get_config(state: State, channel: Channel, request: Command) -> Command:
    """319: the options of this NameServer, as a conf file has them."""
    return request.respond(body=to_properties(state.options).encode())


async def update_config(state: State, channel: Channel, request: Command) -> Command:
    """318: change options of this NameServer, and write them to its conf file."""
    return await update_options(state, channel, request)


class OptionsHolder(Protocol):
    """A daemon whose options change while it runs: a NameServer or a Controller."""

    options: Any

    @property
    def fs(self) -> FileSystem: ...

    @property
    def changing_options(self) -> trio.Lock: ...


async def update_options(state: OptionsHolder, channel: Channel, request: Command) -> Command:
    """Change options while running. The changes are saved in the conf file, if there is one."""
    try:
        pairs = read_update(request.body)
    except ConfigError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
    if state.options.forbidden_keys.intersection(key for key, _ in pairs):
        raise RequestRefused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    # Held from reading the present options to replacing them: of two changes at a time neither may be lost.
    async with state.changing_options:
        try:
            options = update(state.options, pairs)
        except ConfigError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        changes = changes_of(state.options, options)
        # The file first: when it cannot be written, nothing changes.
        path = options.config_store_path
        if changes and path:
            try:
                await trio.to_thread.run_sync(save_changes, state.fs, path, changes)
            except (OSError, StoreError) as error:
                raise _not_written(error) from error
        if options.log_levels != state.options.log_levels:
            change_levels(state.options.log_levels, options.log_levels)
        state.options = options
    logger.info("options changed: %s kept=%s by=%s", changes, path or "until the stop", channel.remote)
    return request.respond()


def _not_written(error: Exception) -> RequestRefused:
    logger.error("change refused, it could not be written: %s", error)
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"not changed, the file could not be written: {error}")
