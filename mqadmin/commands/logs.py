"""The command that changes what running servers log."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import broker_addr, cluster_name, option
from skylark.mqadmin.scope import Scope, at_each, at_servers, chosen_addrs
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

if TYPE_CHECKING:
    from skylark.sdk.admin.reports.changes import BrokerChange, NameServerChange

_KEY = "logLevels"
_DEFAULT = "DEFAULT"

Config = dict[str, str]


@lazy_dataclass(frozen=True, slots=True)
class LogLevelChange:
    """A logger, its new level, and the result of the change at each server."""

    logger: str
    level: str
    results: "Sequence[BrokerChange] | Sequence[NameServerChange]"


@command(
    "setLogLevel",
    broker_addr("set which broker"),
    cluster_name("set all brokers of which cluster, slaves too"),
    option("s", "nameServers", "set the NameServers of -n", is_flag=True, default=None, type=bool),
    option("l", "logger", "name of the logger: broker, remoting.net.server, root, ...", required=True),
    option(
        "v",
        "level",
        "its level; DEFAULT: the level of its parent logger, and INFO for root",
        type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", _DEFAULT], case_sensitive=False),
        required=True,
    ),
    either=("broker_addr", "cluster_name", "name_servers"),
)
async def set_log_level(
    session: Session,
    broker_addr: str | None,
    cluster_name: str | None,
    name_servers: bool | None,
    logger: str,
    level: str,
) -> LogLevelChange:
    """Change the level of a logger in running brokers or NameServers, and in their conf files if they have any."""
    doing = f"set the level of {logger}"

    def done(addr: str) -> str:
        return f"set log level success, {addr}, {logger} : {level}"

    if name_servers:
        from skylark.sdk.admin.reports.changes import NameServerChange

        async def at_namesrv(addr: str) -> None:
            async with session.admin_at(addr) as admin:

                async def read(addr: str) -> Config:
                    return (await admin.namesrv_config([addr]))[addr]

                async def write(addr: str, values: Config) -> None:
                    await admin.update_namesrv_config(values)

                await _change(addr, logger, level, read, write)

        changed = await at_servers(session, session.namesrv_addrs, doing, at_namesrv, done, NameServerChange)
        return LogLevelChange(logger, level, changed)
    addrs = await chosen_addrs(session, Scope(broker_addr, cluster_name), slaves=True)

    async def at_broker(addr: str) -> None:
        await _change(addr, logger, level, session.admin.broker_config, session.admin.update_broker_config)

    return LogLevelChange(logger, level, await at_each(session, addrs, doing, at_broker, done))


async def _change(
    addr: str,
    logger: str,
    level: str,
    read: Callable[[str], Awaitable[Config]],
    write: Callable[[str, Config], Awaitable[None]],
) -> None:
    from skylark.mqcommon.logs.options import levels_text, parse_levels

    config = await read(addr)
    if _KEY not in config:
        raise UserError(f"{addr} has no option {_KEY}: only Skylark's servers can change their levels while they run")
    levels = parse_levels(config[_KEY])
    levels.pop(logger, None)
    if level != _DEFAULT:
        levels |= parse_levels(f"{logger}={level}")
    await write(addr, {_KEY: levels_text(levels)})


FAMILIES = {
    "Logs": (set_log_level,),
}
