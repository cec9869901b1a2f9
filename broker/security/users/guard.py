"""Asks of each request who sent it, and whether the user may: `Guard` is the first hook of all requests.

With authenticationEnabled every request must be signed by an enabled user. With authorizationEnabled the policies of
the user must allow all that the request needs; a super user may do everything. Both white lists name request codes.
A code in authenticationWhitelist whose request needs a right is still checked, unless authorizationWhitelist names it,
too: otherwise anyone could claim a user's name.
Without these options no request is looked at. Refusals are logged, see audit.py.
"""

from collections.abc import Callable

from broker.options import BrokerOptions
from broker.part import Hook, Part
from broker.security.audit import Audit
from broker.security.needs import FROM_NAMESERVERS, needs_of, needs_to_consume, needs_to_send
from broker.security.peers import host_of
from broker.security.users.checks import MAX_NAME, refuse, subject_of
from broker.security.users.login import Logins
from mqcommon.errors import RequestRefused
from remoting.net.channel import Channel
from remoting.protocol.command import Command
from remoting.protocol.requests.auth import UserInfo
from remoting.protocol.rights import CLUSTER, Need


class Guard(Part):
    """See the module."""

    def __init__(self, logins: Logins, options: BrokerOptions, audit: Audit) -> None:
        self.logins = logins
        self._cluster = options.broker_cluster_name
        self._audit = audit
        self._authenticates = options.authentication_enabled
        self._authorizes = options.authorization_enabled
        self._unsigned = options.unsigned_codes | frozenset(FROM_NAMESERVERS)
        self._open = options.open_codes | frozenset(FROM_NAMESERVERS)

    def hook(self, code: int) -> Hook | None:
        needs_right = self._authorizes and code not in self._open
        if not self._authenticates or (code in self._unsigned and not needs_right):
            return None
        return self._check if needs_right else self._check_signature

    def _check_signature(self, channel: Channel, request: Command) -> None:
        try:
            self.logins.user_of(channel, request)
        except RequestRefused as refused:
            self._audit.refused(channel.remote, request, refused.remark)
            raise

    def may_consume(self, channel: Channel, request: Command, topic: str) -> None:
        """A TopicCheck."""
        self._check_topic(channel, request, lambda request: needs_to_consume(topic))

    def may_send(self, channel: Channel, request: Command, topic: str) -> None:
        """A TopicCheck."""
        self._check_topic(channel, request, lambda request: needs_to_send(topic))

    def _check_topic(self, channel: Channel, request: Command, needs: Callable[[Command], list[Need]]) -> None:
        if self._authorizes and request.code not in self._open:
            self._check(channel, request, needs)

    def _check(self, channel: Channel, request: Command, needs: Callable[[Command], list[Need]] = needs_of) -> None:
        try:
            user = self.logins.user_of(channel, request)
            host = host_of(channel.remote)
            for need in needs(request):
                self._check_need(user, need, host)
        except RequestRefused as refused:
            self._audit.refused(channel.remote, request, refused.remark)
            raise

    def _check_need(self, user: UserInfo, need: Need, host: str) -> None:
        kind, name, actions = need
        if kind == CLUSTER:
            name = self._cluster
        decision = self.logins.decide(user, kind, name, actions, host)
        if decision.is_allowed:
            return
        why = f"the decision is deny: {decision.entry}" if decision.entry else "no matched policies"
        raise refuse(
            f"{subject_of(user.username)} has no permission to access {kind}:{name[:MAX_NAME]} from {host}, {why}."
            f" It needs {' or '.join(actions)}."
        )
