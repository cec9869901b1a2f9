"""Access control of a NameServer or a Controller: it refuses requests before their handlers see them.

The file of accounts is read every few seconds. When it cannot be used, the old accounts stay, and the log says so.
Neighbours: access.py decides; namesrv.py wraps the handlers if aclEnable or registrationUsers is set.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import trio

from skylark.mqcommon.acl_accounts import Account, read_accounts
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import RequestRefused, UserError
from skylark.namesrv.access import check_access
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.plain_codes import PlainCodes

logger = logging.getLogger(__name__)

# As often as RocketMQ's brokers check their files of accounts.
RELOAD_INTERVAL_S = 5.0
# At most one log line in this time about requests that were refused: anybody can send these.
REFUSALS_LOG_S = 10.0


class GuardOptions(Protocol):
    """The options of NameServers and Controllers about access."""

    @property
    def acl_path(self) -> str: ...

    @property
    def acl_query_enable(self) -> bool: ...

    @property
    def registering(self) -> dict[str, Account]: ...

    @property
    def plain_codes(self) -> PlainCodes: ...


class Guard:
    """Checks requests with the accounts of ``registrationUsers`` and of ``aclFile``, which `run` reads again.

    For a name in both, the file counts. UserError when the file cannot be used at the start.
    """

    def __init__(self, options: Callable[[], GuardOptions]) -> None:
        first = options()
        self._path = first.acl_path
        self._options = options
        self._registering = first.registering
        self._accounts: Mapping[str, Account] = self._with(read_accounts(self._path) if self._path else {})
        self._error = ""
        #: Requests refused since the start.
        self.refusals = 0
        self._logged_at = -math.inf

    def _with(self, accounts: Mapping[str, Account]) -> Mapping[str, Account]:
        return {**self._registering, **accounts}

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """``handlers`` behind the check of the signature and the rights."""
        return {code: self._guarded(handler) for code, handler in handlers.items()}

    def guarded_slow(self, handlers: Mapping[int, SlowHandler]) -> dict[int, SlowHandler]:
        """The same for slow handlers."""
        return {code: self._guarded_slow(handler) for code, handler in handlers.items()}

    async def run(self) -> None:
        """Read the accounts again every few seconds, until cancelled."""
        while self._path:
            await trio.sleep(RELOAD_INTERVAL_S)
            await self.reload()

    async def reload(self) -> None:
        """Read the accounts again. When that fails the old ones stay."""
        # The old accounts stay in force until the new ones have been read as a whole: a file that is being written must
        # not lock everybody out.
        try:
            accounts = self._with(await trio.to_thread.run_sync(read_accounts, self._path))
        except UserError as error:
            if str(error) != self._error:
                logger.error("accounts cannot be read, the old ones stay in force: %s", error)
            self._error = str(error)
            return
        if accounts != self._accounts or self._error:
            logger.info("accounts read from %s: %s", self._path, " ".join(sorted(accounts)))
        self._accounts, self._error = accounts, ""

    def _check(self, channel: Channel, request: Command) -> None:
        try:
            options = self._options()
            check_access(
                request,
                self._accounts,
                channel.signatures,
                open_queries=not options.acl_query_enable,
                host=split_address(channel.remote)[0],
                plain=options.plain_codes,
            )
        except RequestRefused as refused:
            self._log(channel, refused)
            raise

    def _log(self, channel: Channel, refused: RequestRefused) -> None:
        self.refusals += 1
        now = trio.current_time()
        if now >= self._logged_at + REFUSALS_LOG_S:
            self._logged_at = now
            logger.warning(
                "request of %s refused: %s; refusals since the start: %d", channel.remote, refused.remark, self.refusals
            )

    def _guarded(self, handler: Handler) -> Handler:
        def checked(channel: Channel, request: Command) -> Command | None:
            self._check(channel, request)
            return handler(channel, request)

        return checked

    def _guarded_slow(self, handler: SlowHandler) -> SlowHandler:
        async def checked(channel: Channel, request: Command) -> Command | None:
            self._check(channel, request)
            return await handler(channel, request)

        return checked
