"""Accounts in files of a broker: RocketMQ's ACL 1.0 (50 to 54), and why a request is refused, which is our own."""

from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import FLAG, TEXT, Body, body_of, list_of, member
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.rights import GET_CLUSTER, UPDATE_CLUSTER
from skylark.remoting.protocol.scalars import read_flag, read_int, read_text


@lazy_dataclass(slots=True)
class UpdateAclConfigRequestHeader(Header):
    """50: create or change an account. Absent fields stay as they are. Lists have commas. The secret is in no repr."""

    access_key: str = required(read_text)
    secret_key: str | None = field(default=None, repr=False, metadata={"read": read_text, "wire": None, "short": None})
    white_remote_address: str | None = optional(read_text)
    admin: bool | None = optional(read_flag)
    default_topic_perm: str | None = optional(read_text)
    default_group_perm: str | None = optional(read_text)
    topic_perms: str | None = optional(read_text)
    group_perms: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class DeleteAclConfigRequestHeader(Header):
    """51: delete an account."""

    access_key: str = required(read_text)


@lazy_dataclass(slots=True)
class UpdateGlobalWhiteAddrsRequestHeader(Header):
    """53: replace the global white list of a file, by default of plain_acl.yml."""

    global_white_addrs: str = required(read_text)
    acl_file_full_path: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class AclVersionResponseHeader(Header):
    """52: the DataVersion of plain_acl.yml, and the DataVersions of all files by their path, as JSON."""

    version: str = required(read_text)
    broker_addr: str = required(read_text)
    broker_name: str = required(read_text)
    cluster_name: str = required(read_text)
    all_acl_file_version: str | None = optional(read_text)


@lazy_dataclass(slots=True)
class ExplainAccessRequestHeader(Header):
    """7102: whether a client with this account at this address may send a request about this topic and group."""

    access_key: str = required(read_text)
    remote_address: str = required(read_text)
    request_code: int = required(read_int)
    topic: str = optional(read_text, "")
    group: str = optional(read_text, "")


@lazy_dataclass(slots=True)
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


@lazy_dataclass(slots=True)
class AclConfig(Body):
    """54: all accounts of a broker, and the addresses that need no account."""

    global_white_addrs: list[str] = member(list_of(TEXT))
    plain_access_configs: list[PlainAccessConfig] = member(list_of(body_of(PlainAccessConfig)))


@lazy_dataclass(slots=True)
class AccessStep(Body):
    """A question, its answer (yes or no), and the rule that gave it."""

    step: str = member(TEXT, "")
    outcome: str = member(TEXT, "")
    rule: str = member(TEXT, "")


@lazy_dataclass(slots=True)
class AccessExplanation(Body):
    """The answer to 7102. ``text``: why, or the refusal that a client would get. The last step decided."""

    allowed: bool = member(FLAG, False)
    text: str = member(TEXT, "")
    steps: list[AccessStep] = member(list_of(body_of(AccessStep)))


UPDATE_AND_CREATE_ACL_CONFIG = Request(
    50,
    UpdateAclConfigRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
)
DELETE_ACL_CONFIG = Request(
    51,
    DeleteAclConfigRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
)
GET_BROKER_CLUSTER_ACL_INFO = Request(
    52,
    NOTHING,
    NOTHING,
    AclVersionResponseHeader,
    NOTHING,
    right=GET_CLUSTER,
)
UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = Request(
    53,
    UpdateGlobalWhiteAddrsRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    right=UPDATE_CLUSTER,
)
GET_BROKER_CLUSTER_ACL_CONFIG = Request(
    54,
    NOTHING,
    NOTHING,
    NOTHING,
    AclConfig,
    right=GET_CLUSTER,
)
EXPLAIN_ACCESS = Request(
    7102,
    ExplainAccessRequestHeader,
    NOTHING,
    NOTHING,
    AccessExplanation,
    right=GET_CLUSTER,
)
