"""Asks of each request who sent it, and whether the user may: the guard is the first hook of all requests.

`Logins` finds the user and decides, by the tables of users and policies (meta/auth.py); `UserExplainer` explains a
decision to administrators.
With authenticationEnabled every request must be signed by an enabled user. With authorizationEnabled the policies of
the user must allow all that the request needs; a super user may do everything. Both white lists name request codes.
A code in authenticationWhitelist whose request needs a right is still checked, unless authorizationWhitelist names it,
too: otherwise anyone could claim a user's name.
Administrators' requests with RocketMQ's signature are served only for the users that plainSignatureCodes names.
Without these options no request is checked. Refusals are logged, see audit.py. They have RocketMQ's code NO_PERMISSION
and RocketMQ's texts. Neighbour: policies.py (decides).
"""

from collections.abc import Callable, Sequence

from skylark.broker.meta.auth import Acls, Users
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Callers, Hook, Part
from skylark.broker.security.access import (
    FROM_NAMESERVERS,
    NO,
    YES,
    Explanation,
    ExplanationStep,
    host_of,
    needs_of,
    needs_to_consume,
    needs_to_send,
    plain_fault,
)
from skylark.broker.security.audit import Audit
from skylark.broker.security.users.checks import DISABLE, MAX_NAME, SUPER, refuse, subject_of
from skylark.broker.security.users.policies import Policies, PolicyDecision
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.command import Command, ext_text
from skylark.remoting.protocol.plain_codes import PlainCodes
from skylark.remoting.protocol.requests.auth import AclInfo, UserInfo
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE_V2
from skylark.remoting.protocol.rights import CLUSTER, Need
from skylark.remoting.protocol.signature import ACCESS_KEY_FIELD, is_plain, is_signed_with

_NO_POLICY = PolicyDecision(False)
_SUPER = PolicyDecision(True, "a super user may do everything")


class Logins:
    """Who sent a request, and whether the user may do what it asks for.

    A change of the tables counts from the next request on. ``plain``: who may use RocketMQ's signature for requests of
    administrators.
    """

    def __init__(self, users: Users, acls: Acls, plain: PlainCodes) -> None:
        self._users = users
        self._acls = acls
        self.plain = plain
        # By subject: the row, and the parsed policies. Rows are replaced, never changed in place.
        self._made: dict[str, tuple[AclInfo, Policies]] = {}
        acls.on_change.append(self._made.clear)

    def user_of(self, channel: Channel, request: Command) -> UserInfo:
        """The enabled user whose secret signed ``request`` of ``channel``. RequestRefused when there is none."""
        name = ext_text((request.ext or {}).get(ACCESS_KEY_FIELD) or "")
        if not name:
            raise refuse("username cannot be null: this broker wants signed requests, give the client credentials")
        user = self._users.get(name)
        if user is None:
            raise refuse(f"User:{name[:MAX_NAME]} is not found.")
        if user.user_status == DISABLE:
            raise refuse(f"User:{name} is disabled.")
        if not user.password or not is_signed_with(request, user.password, channel.signatures):
            raise refuse("check signature failed.")
        return user

    def enabled(self, name: str) -> UserInfo | None:
        """The enabled user of this name; None when there is no such user, or the user is disabled."""
        user = self._users.get(name)
        return None if user is None or user.user_status == DISABLE else user

    def is_by_super(self, channel: Channel, request: Command) -> bool:
        """Whether a super user's secret signed ``request`` of ``channel``, and for this code."""
        return self.super_of(channel, request) is not None

    def super_of(self, channel: Channel, request: Command) -> UserInfo | None:
        """The super user whose secret signed ``request`` of ``channel``, and for this code; None when there is none."""
        user = self._users.get(ext_text((request.ext or {}).get(ACCESS_KEY_FIELD) or ""))
        if user is None or user.user_type != SUPER or user.user_status == DISABLE or not user.password:
            return None
        if is_plain(request) and not self.plain.allow(user.username, host_of(channel.remote), request.code):
            return None
        return user if is_signed_with(request, user.password, channel.signatures) else None

    def decide(self, user: UserInfo, kind: str, name: str, actions: tuple[str, ...], host: str) -> PolicyDecision:
        """Whether ``user`` may do one of ``actions`` on the resource, from ``host``."""
        if user.user_type == SUPER:
            return _SUPER
        subject = subject_of(user.username)
        row = self._acls.get(subject)
        if row is None:
            return _NO_POLICY
        # Policies are parsed once for each version of their row, as each request of the user asks them.
        made = self._made.get(subject)
        if made is None or made[0] is not row:
            made = self._made[subject] = (row, Policies(row))
        return made[1].decide(kind, name, actions, host)


class UserCallers:
    """The `Callers` of a broker with users; ``guard`` says which requests are looked at."""

    def __init__(self, guard: "UserGuard") -> None:
        self._guard = guard
        self._logins = guard.logins

    def user_of(self, channel: Channel, request: Command) -> str:
        if self._guard.hook(request.code) is None:
            # The signature was not checked, so anybody may have claimed this name.
            try:
                return self._logins.user_of(channel, request).username
            except RequestRefused:
                return ""
        return ext_text((request.ext or {}).get(ACCESS_KEY_FIELD) or "")

    def may_send(self, user: str, host: str, topic: str) -> bool:
        if self._guard.hook(SEND_MESSAGE_V2.code) is None:
            return True
        known = self._logins.enabled(user)
        return known is not None and self._guard.may(known, host, SEND_MESSAGE_V2.code, needs_to_send(topic))


class UserGuard(Part):
    """The hook that asks `Logins`."""

    def __init__(self, logins: Logins, options: BrokerOptions, audit: Audit) -> None:
        self.logins = logins
        self._cluster = options.broker_cluster_name
        self._audit = audit
        self._authenticates = options.authentication_enabled
        self._authorizes = options.authorization_enabled
        self._unsigned = options.unsigned_codes | frozenset(FROM_NAMESERVERS)
        self._open = options.open_codes | frozenset(FROM_NAMESERVERS)

    @property
    def callers(self) -> Callers | None:
        """The users behind requests; None when no request has to be signed."""
        return UserCallers(self) if self._authenticates else None

    def hook(self, code: int) -> Hook | None:
        needs_right = self._authorizes and code not in self._open
        # None: requests of this code pass without a check, so an open code costs nothing.
        if not self._authenticates or (code in self._unsigned and not needs_right):
            return None
        return self._check if needs_right else self._check_signature

    def _check_signature(self, channel: Channel, request: Command) -> None:
        try:
            user = self.logins.user_of(channel, request)
            if is_plain(request):
                self._check_plain(user, host_of(channel.remote), request.code, needs_of(request))
        except RequestRefused as refused:
            self._audit.refused(channel.remote, request, refused.remark)
            raise

    def may_consume(self, channel: Channel, request: Command, topic: str) -> None:
        """RequestRefused unless the sender of ``request`` may consume ``topic``; a TopicCheck."""
        self._check_topic(channel, request, lambda request: needs_to_consume(topic))

    def may_send(self, channel: Channel, request: Command, topic: str) -> None:
        """RequestRefused unless the sender of ``request`` may send to ``topic``; a TopicCheck."""
        self._check_topic(channel, request, lambda request: needs_to_send(topic))

    def _check_topic(self, channel: Channel, request: Command, needs: Callable[[Command], list[Need]]) -> None:
        if self._authorizes and request.code not in self._open:
            self._check(channel, request, needs)

    def _check(self, channel: Channel, request: Command, needs: Callable[[Command], list[Need]] = needs_of) -> None:
        try:
            user = self.logins.user_of(channel, request)
            host = host_of(channel.remote)
            found = needs(request)
            if is_plain(request):
                self._check_plain(user, host, request.code, found)
            for need in found:
                self._check_need(user, need, host)
        except RequestRefused as refused:
            self._audit.refused(channel.remote, request, refused.remark)
            raise

    def _check_plain(self, user: UserInfo, host: str, code: int, needs: Sequence[Need]) -> None:
        if (fault := plain_fault(code, user.username, host, needs, self.logins.plain)) is not None:
            raise refuse(fault)

    def may(self, user: UserInfo, host: str, code: int, needs: Sequence[Need]) -> bool:
        """Whether ``user`` may do all of ``needs`` by a request ``code``."""
        if not self._authorizes or code in self._open:
            return True
        return all(self._decision(user, need, host).is_allowed for need in needs)

    def _decision(self, user: UserInfo, need: Need, host: str) -> PolicyDecision:
        kind, name, actions = need
        return self.logins.decide(user, kind, self._cluster if kind == CLUSTER else name, actions, host)

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


class UserExplainer:
    """Which policies decide about a request of a user.

    Call it with the user's name, the client's address, what the request needs, and its code.
    """

    def __init__(self, users: Users, logins: Logins, options: BrokerOptions) -> None:
        self._users = users
        self._logins = logins
        self._options = options

    def __call__(self, name: str, host: str, needs: Sequence[Need], code: int) -> Explanation:
        steps: list[ExplanationStep] = []
        authorizes = self._options.authorization_enabled and code not in self._options.open_codes
        if not authorizes and code in self._options.unsigned_codes:
            return Explanation(
                True, "authenticationWhitelist", [ExplanationStep("authenticationWhitelist", YES, str(code))]
            )
        user = self._users.get(name)
        if user is None:
            return Explanation(False, f"User:{name} is not found.", [ExplanationStep("user", NO, name)])
        steps.append(ExplanationStep("user", YES, f"{name}, {user.user_type}, {user.user_status}"))
        if user.user_status == DISABLE:
            return Explanation(False, f"User:{name} is disabled.", [*steps, ExplanationStep("status", NO, DISABLE)])
        if not authorizes:
            rule = "authorizationWhitelist" if self._options.authorization_enabled else "authorizationEnabled=false"
            return Explanation(True, "any user may send it", [*steps, ExplanationStep("any user", YES, rule)])
        if user.user_type == SUPER:
            return Explanation(
                True, "a super user may do everything", [*steps, ExplanationStep("super user", YES, SUPER)]
            )
        for kind, named, actions in needs:
            resource = self._options.broker_cluster_name if kind == CLUSTER else named
            decision = self._logins.decide(user, kind, resource, actions, host)
            outcome = YES if decision.is_allowed else NO
            rule = f"{decision.policy_type} {decision.entry}" if decision.entry else "no policy matches"
            steps.append(ExplanationStep(f"{' or '.join(actions)} on {kind}:{resource}", outcome, rule))
            if not decision.is_allowed:
                text = f"User:{name} has no permission to access {kind}:{resource} from {host}"
                return Explanation(False, text, steps)
        return Explanation(True, "all that the request needs is allowed", steps)
