"""Roles, and a user's role by the brokers' answers.

A role decides which changes pages offer and the console passes on. The broker decides in the end, since every request
is signed by the person: a reader whose policies permit changes of one topic is still a reader here, and may use mqadmin
for such a change.
"""

from enum import IntEnum
from typing import Final

from skylark import Admin
from skylark.mqcommon.errors import BrokerError
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.auth import AclInfo
from skylark.remoting.protocol.requests.brokers import UPDATE_BROKER_CONFIG
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC


class Role(IntEnum):
    """A person's role; each role includes the roles before it."""

    NOBODY = 0
    READER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def title(self) -> str:
        return self.name.lower()


SUPER: Final = "Super"
_CHANGES: Final = frozenset({"All", "Pub", "Create", "Update", "Delete"})
#: A topic that does not exist: a user who may create it may create any topic.
_ANY_TOPIC: Final = "mqconsole-any-topic"
#: Codes of a broker without accounts or users, of RocketMQ's brokers, and of brokers that are too old.
_CANNOT_SAY: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR)


async def role_of(asking: Admin, addr: str, name: str, client_host: str) -> Role:
    """The role of the user (or account) ``name`` at the broker at ``addr``.

    ``asking`` has the console's own credentials, which need the right to read. A user who may change the broker is an
    admin; a user who may change or send to any topic is an operator. Raises BrokerError if ``asking`` may not read.
    """
    if (user := await _user_type(asking, addr, name)) == SUPER:
        return Role.ADMIN
    for code, topic, role in (
        (UPDATE_BROKER_CONFIG.code, "", Role.ADMIN),
        (UPDATE_AND_CREATE_TOPIC.code, _ANY_TOPIC, Role.OPERATOR),
    ):
        try:
            found = await asking.explain_access(addr, name, client_host, code, topic=topic)
        except BrokerError as error:
            if error.code not in _CANNOT_SAY:
                raise
            break
        if found.allowed:
            return role
    if user is None:
        return Role.READER
    acl = await asking.get_acl(addr, f"User:{name}")
    return Role.OPERATOR if acl is not None and may_change(acl) else Role.READER


async def _user_type(asking: Admin, addr: str, name: str) -> str | None:
    """Super or Normal; None when the broker has no such user, or accounts in files."""
    try:
        user = await asking.get_user(addr, name)
    except BrokerError as error:
        if error.code not in _CANNOT_SAY:
            raise
        return None
    return None if user is None else user.user_type or ""


def may_change(acl: AclInfo) -> bool:
    """Whether a policy lets the user change something, or send."""
    return any(
        entry.decision == "Allow" and not _CHANGES.isdisjoint(entry.actions)
        for policy in acl.policies
        for entry in policy.entries
    )
