"""Checks of options whose values are texts with a form of their own: addresses, hours, delays.

The errors name the key and say what to give. Neighbours: options.py calls this, missing_features.py.
"""

from typing import TYPE_CHECKING

from broker.store.queue.delay_levels import DelayLevels
from broker.store.retention import delete_hours
from mqcommon.addresses import is_address
from mqcommon.errors import ConfigError, RequestRefused
from mqcommon.logs.options import parse_levels
from mqcommon.names import check_topic

if TYPE_CHECKING:
    from broker.options import BrokerOptions


def check_texts(options: "BrokerOptions") -> None:
    """ConfigError for the first value that cannot be read."""
    if options.ha_master_address and not is_address(options.ha_master_address):
        raise ConfigError(
            f"haMasterAddress: {options.ha_master_address!r} is not an address; give host:port of the master's HA port"
        )
    for addr in options.namesrv_addrs:
        if not is_address(addr):
            raise ConfigError(f"namesrvAddr: {addr!r} is not an address; give host:port, several separated by ;")
    parse_levels(options.log_levels)
    try:
        check_topic(options.msg_trace_topic_name)
    except RequestRefused as refused:
        raise ConfigError(f"msgTraceTopicName: {options.msg_trace_topic_name!r}: {refused.remark}") from None
    try:
        delete_hours(options.delete_when)
    except ValueError:
        raise ConfigError(
            f"deleteWhen: {options.delete_when!r} are not hours; give 00 to 23, several separated by ;"
        ) from None
    try:
        DelayLevels.parse(options.message_delay_level)
    except ValueError as error:
        raise ConfigError(f"messageDelayLevel: {error}") from None
