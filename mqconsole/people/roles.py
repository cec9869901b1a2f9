"""Roles, and which one brokers' answers make of a user.

A role is what pages offer and what the console passes on. The broker decides in the end, since every request is signed
by the person: a reader whose policies let it change one topic is still a reader here, and may use mqadmin for that.
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
    """Each role may do what those before it may."""

    NOBODY = 0
    READER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def title(self) -> str:
        return self.name.lower()


SUPER: Final = "Super"
_CHANGES: Final = frozenset({"All", "Pub", "Create", "Update", "Delete"})
#: A topic that nobody has: who may create it may create any.
_ANY_TOPIC: Final = "mqconsole-any-topic"
#: The broker has no accounts or users, is one of RocketMQ's, or is too old.
_CANNOT_SAY: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR)


async def role_of(asking: Admin, addr: str, name: str, client_host: str) -> Role:
    """The role of the user (or account) ``name`` at the broker at ``addr``.

    ``asking`` has the console's own credentials, which may look at the broker. A user who may change the broker is an
    admin, one who may change or send to any topic an operator. Raises BrokerError when ``asking`` may not look.
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
