"""Accounts in files (54), and why a request is allowed or refused (7102, Skylark's own)."""

from dataclasses import dataclass, field

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import FLAG, TEXT, body_of, list_of


@dataclass(slots=True)
class PlainAccessConfig(Body):
    """An account. Permissions are texts like ``topicA=PUB|SUB``. The secret is in no repr, and in no answer."""

    access_key: str = member(TEXT, "")
    secret_key: str | None = field(default=None, repr=False, metadata={"kind": TEXT, "wire": None})
    white_remote_address: str | None = member(TEXT, None)
    admin: bool | None = member(FLAG, None)
    default_topic_perm: str | None = member(TEXT, None)
    default_group_perm: str | None = member(TEXT, None)
    topic_perms: list[str] | None = member(list_of(TEXT), None)
    group_perms: list[str] | None = member(list_of(TEXT), None)


@dataclass(slots=True)
class AclConfig(Body):
    """54: all accounts of a broker, and the addresses that are not asked who they are."""

    global_white_addrs: list[str] = member(list_of(TEXT))
    plain_access_configs: list[PlainAccessConfig] = member(list_of(body_of(PlainAccessConfig)))


@dataclass(slots=True)
class AccessStep(Body):
    """A question, its answer (yes or no), and the rule that gave it."""

    step: str = member(TEXT, "")
    outcome: str = member(TEXT, "")
    rule: str = member(TEXT, "")


@dataclass(slots=True)
class AccessExplanation(Body):
    """7102. ``text``: why, or the refusal that a client would get. The last step decided."""

    allowed: bool = member(FLAG, False)
    text: str = member(TEXT, "")
    steps: list[AccessStep] = member(list_of(body_of(AccessStep)))
