"""What users may do, as administrators see it: 3006 to 3010.

A change is answered when it is on disk. Neighbours: meta/auth.py, security/users; users.py.
"""

import logging
from itertools import islice

from broker.meta.auth import Acls, Users
from broker.part import Part
from broker.security.users.checks import (
    check_size,
    checked_acl,
    checked_policy_type,
    checked_resource,
    containing,
    merged,
    refuse,
    rows_of,
    subject_of,
    user_of_subject,
    without,
)
from broker.security.users.policies import entry_text
from broker.stored_changes import Durable, refused_when_not_stored
from remoting.net.answers import answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler, SlowHandler
from remoting.protocol.bounded_body import BodyLimits
from remoting.protocol.command import Command
from remoting.protocol.dialect import dialect_for, encode_body
from remoting.protocol.request import Request
from remoting.protocol.requests.auth import (
    AUTH_CREATE_ACL,
    AUTH_DELETE_ACL,
    AUTH_GET_ACL,
    AUTH_LIST_ACL,
    AUTH_UPDATE_ACL,
    AclInfo,
    AclInfos,
    AclRequestHeader,
)

logger = logging.getLogger(__name__)

# Entries in a line of the log.
_SHOWN = 20
# A body with MAX_ENTRIES entries.
_LIMITS = BodyLimits(max_bytes=512 * 1024, max_entries=20_000)

_Change = Request[AclRequestHeader, AclInfo, None, None]


class PolicyHandlers(Part):
    """See the module."""

    def __init__(self, users: Users, acls: Acls, durable: Durable) -> None:
        self._users = users
        self._acls = acls
        self._durable = durable

    def handlers(self) -> dict[int, Handler]:
        return {AUTH_GET_ACL.code: self.get, AUTH_LIST_ACL.code: self.list_acls}

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {
            AUTH_CREATE_ACL.code: self.create,
            AUTH_UPDATE_ACL.code: self.update,
            AUTH_DELETE_ACL.code: self.delete,
        }

    async def create(self, channel: Channel, request: Command) -> Command:
        """3006: as in RocketMQ the same as 3007."""
        return await self._put(channel, request, AUTH_CREATE_ACL)

    async def update(self, channel: Channel, request: Command) -> Command:
        """3007: entries replace those about the same resource, the others stay."""
        return await self._put(channel, request, AUTH_UPDATE_ACL)

    async def _put(self, channel: Channel, request: Command, what: _Change) -> Command:
        subject = self._subject(what.header(request).subject)
        acl = merged(self._acls.get(subject), checked_acl(what.body(request, _LIMITS), subject))
        others = [other for other in self._acls.all().values() if other.subject != subject]
        check_size(acl, sum(len(list(rows_of(other))) for other in others))
        with refused_when_not_stored():
            if acl != self._acls.get(subject):
                self._acls.put(acl)
            await self._durable()
        shown = "; ".join(f"{policy_type} {entry_text(entry)}" for policy_type, entry in islice(rows_of(acl), _SHOWN))
        logger.info("policies of %s set by %s, now %s", subject, channel.remote, shown)
        return request.respond()

    async def delete(self, channel: Channel, request: Command) -> Command:
        """3008."""
        header = AUTH_DELETE_ACL.header(request)
        subject = self._subject(header.subject)
        old = self._acls.get(subject)
        if old is None:
            raise refuse(f"The acl is not exist: {subject} has no policies")
        left = None
        if header.resource and header.resource.strip():
            left = without(old, checked_policy_type(header.policy_type), checked_resource(header.resource))
        with refused_when_not_stored():
            if left is None:
                self._acls.delete(subject)
            elif left != old:
                self._acls.put(left)
            await self._durable()
        logger.info("policies of %s about %s deleted by %s", subject, header.resource or "everything", channel.remote)
        return request.respond()

    def get(self, channel: Channel, request: Command) -> Command:
        """3009: no body when the user has no policies, as in RocketMQ."""
        acl = self._acls.get(self._subject(AUTH_GET_ACL.header(request).subject))
        return request.respond() if acl is None else answer_with(AUTH_GET_ACL, request, acl)

    def list_acls(self, channel: Channel, request: Command) -> Command:
        """3010."""
        header = AUTH_LIST_ACL.header(request)
        subjects, resources = header.subject_filter or "", header.resource_filter or ""
        acls = [containing(acl, resources) for subject, acl in sorted(self._acls.all().items()) if subjects in subject]
        found = [acl for acl in acls if acl is not None]
        if not found:
            return request.respond()
        return request.respond(body=encode_body(AclInfos(found), dialect_for(request)))

    def _subject(self, text: str) -> str:
        name = user_of_subject(text.strip())
        if self._users.get(name) is None:
            raise refuse(f"The subject of {text} is not exist: create the user with createUser")
        return subject_of(name)
