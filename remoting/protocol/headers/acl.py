"""Accounts in files of a broker: 50 to 53; and Skylark's own 7102."""

from dataclasses import dataclass, field

from remoting.protocol.headers.header import Header, optional, required
from remoting.protocol.scalars import read_flag, read_int, read_text


@dataclass(slots=True)
class UpdateAclConfigRequestHeader(Header):
    """50: create or change an account. What is not there stays. Lists have commas. The secret is in no repr."""

    access_key: str = required(read_text)
    secret_key: str | None = field(default=None, repr=False, metadata={"read": read_text, "wire": None, "short": None})
    white_remote_address: str | None = optional(read_text)
    admin: bool | None = optional(read_flag)
    default_topic_perm: str | None = optional(read_text)
    default_group_perm: str | None = optional(read_text)
    topic_perms: str | None = optional(read_text)
    group_perms: str | None = optional(read_text)


@dataclass(slots=True)
class DeleteAclConfigRequestHeader(Header):
    """51: delete an account."""

    access_key: str = required(read_text)


@dataclass(slots=True)
class UpdateGlobalWhiteAddrsRequestHeader(Header):
    """53: replace the global white list of a file, by default that of plain_acl.yml."""

    global_white_addrs: str = required(read_text)
    acl_file_full_path: str | None = optional(read_text)


@dataclass(slots=True)
class AclVersionResponseHeader(Header):
    """52: the DataVersion of plain_acl.yml, and those of all files by their path, as JSON."""

    version: str = required(read_text)
    broker_addr: str = required(read_text)
    broker_name: str = required(read_text)
    cluster_name: str = required(read_text)
    all_acl_file_version: str | None = optional(read_text)


@dataclass(slots=True)
class ExplainAccessRequestHeader(Header):
    """7102: whether a client with this account at this address may send a request about this topic and group."""

    access_key: str = required(read_text)
    remote_address: str = required(read_text)
    request_code: int = required(read_int)
    topic: str = optional(read_text, "")
    group: str = optional(read_text, "")
