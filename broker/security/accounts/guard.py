"""Asks of each request whether the account that signed it may send it: the first hook of all requests with aclEnable.

`LiveRules` are the rules in force: read again every few seconds, and changed by administrators. Files are read and
written in a worker thread, one after another. A file that cannot be used is logged once, and its previous accounts stay
in force. A change of the files counts from the next request on, also on open connections. Refusals are logged, see
audit.py. Neighbours: rules.py decides, files.py reads and writes.
"""

import logging
from collections.abc import Callable

import trio

from skylark.broker.part import Callers, Hook, Part
from skylark.broker.security.access import FROM_NAMESERVERS, host_of, needs_of, needs_to_consume, needs_to_send
from skylark.broker.security.accounts.edits import AccountDocument
from skylark.broker.security.accounts.files import AccountFiles
from skylark.broker.security.accounts.rules import AccountRules
from skylark.broker.security.audit import Audit
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import ConfigError, RequestRefused, UserError
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command, ext_text
from skylark.remoting.protocol.plain_codes import PlainCodes
from skylark.remoting.protocol.rights import Need
from skylark.remoting.protocol.signature import ACCESS_KEY_FIELD

logger = logging.getLogger(__name__)

# RocketMQ's brokers check their files as often.
RELOAD_INTERVAL_S = 5.0


class LiveRules:
    """The rules in force, as ``rules``. ConfigError when the files cannot be used at the start."""

    def __init__(self, files: AccountFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._lock = trio.Lock()
        self._problems: list[str] = []
        if problems := files.refresh():
            raise ConfigError(problems[0])
        self.rules: AccountRules = files.rules
        self._log()

    @property
    def path(self) -> str:
        """The file of new accounts."""
        return self._files.path

    async def run(self) -> None:
        """Read the files again every few seconds, until cancelled."""
        while True:
            await trio.sleep(RELOAD_INTERVAL_S)
            await self.reload()

    async def reload(self) -> None:
        """Read the files again, and put the usable ones in force."""
        async with self._lock:
            await self._refresh()

    async def change(self, path: str, edit: Callable[[AccountDocument], None]) -> None:
        """Have ``edit`` change the file at ``path``, and put it in force. UserError when that is not possible."""
        async with self._lock:
            now_ms = self._clock.now_ms()
            await trio.to_thread.run_sync(self._files.change, path, edit, now_ms)
            await self._refresh()

    async def _refresh(self) -> None:
        try:
            problems = await trio.to_thread.run_sync(self._files.refresh)
        except UserError as error:
            problems = [str(error)]
        for problem in problems:
            if problem not in self._problems:
                logger.error("the accounts that were read before stay in force: %s", problem)
        self._problems = problems
        if self._files.rules is not self.rules:
            self.rules = self._files.rules
            self._log()

    def _log(self) -> None:
        files = self.rules.files
        logger.info("%d accounts in force, of %s", len(self.rules.accounts), ", ".join(file.path for file in files))
        for file in files:
            if file.white.texts:
                logger.warning(
                    "clients at these addresses are not asked who they are (%s): %s",
                    file.path,
                    ", ".join(file.white.texts),
                )


class AccountCallers:
    """The `Callers` of a broker with accounts."""

    def __init__(self, live: LiveRules) -> None:
        self._live = live

    def user_of(self, channel: Channel, request: Command) -> str:
        return ext_text((request.ext or {}).get(ACCESS_KEY_FIELD) or "")

    def may_send(self, user: str, host: str, topic: str) -> bool:
        return self._live.rules.may(user, host, needs_to_send(topic))


class AccountGuard(Part):
    """The hook that asks the rules in force."""

    def __init__(self, live: LiveRules, audit: Audit, plain: PlainCodes) -> None:
        self._live = live
        self._audit = audit
        self._plain = plain

    @property
    def callers(self) -> Callers | None:
        """The accounts behind requests."""
        return AccountCallers(self._live)

    def hook(self, code: int) -> Hook | None:
        return None if code in FROM_NAMESERVERS else self._check

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read the files again when they change."""
        task_status.started()
        await self._live.run()

    def may_consume(self, channel: Channel, request: Command, topic: str) -> None:
        """RequestRefused unless the sender of ``request`` may consume ``topic``; a TopicCheck."""
        self._check(channel, request, lambda request: needs_to_consume(topic))

    def may_send(self, channel: Channel, request: Command, topic: str) -> None:
        """RequestRefused unless the sender of ``request`` may send to ``topic``; a TopicCheck."""
        self._check(channel, request, lambda request: needs_to_send(topic))

    def _check(self, channel: Channel, request: Command, needs: Callable[[Command], list[Need]] = needs_of) -> None:
        refusal = self._live.rules.refusal(request, host_of(channel.remote), needs, channel.signatures, self._plain)
        if refusal is not None:
            why = f"{refusal.text} ({refusal.rule})" if refusal.rule else refusal.text
            self._audit.refused(channel.remote, request, why)
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, refusal.remark)
