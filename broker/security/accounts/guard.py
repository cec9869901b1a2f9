"""Asks of each request whether the account that signed it may send it: the first hook of all requests with aclEnable.

A change of the files counts from the next request on, also on open connections. Refusals are logged, see audit.py.
Neighbours: rules.py decides; live.py has the rules in force.
"""

from collections.abc import Callable

import trio

from broker.part import Hook, Part
from broker.security.accounts.live import LiveRules
from broker.security.audit import Audit
from broker.security.needs import FROM_NAMESERVERS, needs_of, needs_to_consume, needs_to_send
from broker.security.peers import host_of
from mqcommon.errors import RequestRefused
from remoting.net.channel import Channel
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.rights import Need


class AccountGuard(Part):
    """See the module."""

    def __init__(self, live: LiveRules, audit: Audit) -> None:
        self._live = live
        self._audit = audit

    def hook(self, code: int) -> Hook | None:
        return None if code in FROM_NAMESERVERS else self._check

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read the files again when they change."""
        task_status.started()
        await self._live.run()

    def may_consume(self, channel: Channel, request: Command, topic: str) -> None:
        """A TopicCheck."""
        self._check(channel, request, lambda request: needs_to_consume(topic))

    def may_send(self, channel: Channel, request: Command, topic: str) -> None:
        """A TopicCheck."""
        self._check(channel, request, lambda request: needs_to_send(topic))

    def _check(self, channel: Channel, request: Command, needs: Callable[[Command], list[Need]] = needs_of) -> None:
        refusal = self._live.rules.refusal(request, host_of(channel.remote), needs, channel.signatures)
        if refusal is not None:
            why = f"{refusal.text} ({refusal.rule})" if refusal.rule else refusal.text
            self._audit.refused(channel.remote, request, why)
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, refusal.remark)
