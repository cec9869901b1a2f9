"""Requests of administrators about accounts in files, and about what clients may do; one function each."""

from collections.abc import Sequence

from remoting.net.call import call
from remoting.protocol.requests import acl
from remoting.protocol.requests.acl import (
    AccessExplanation,
    AclConfig,
    AclVersionResponseHeader,
    DeleteAclConfigRequestHeader,
    ExplainAccessRequestHeader,
    PlainAccessConfig,
    UpdateAclConfigRequestHeader,
    UpdateGlobalWhiteAddrsRequestHeader,
)
from sdk.endpoint import Endpoint


async def update_account(broker: Endpoint, account: PlainAccessConfig) -> None:
    """Create the account, or change what is not None."""
    header = UpdateAclConfigRequestHeader(
        account.access_key,
        account.secret_key,
        account.white_remote_address,
        account.admin,
        account.default_topic_perm,
        account.default_group_perm,
        None if account.topic_perms is None else ",".join(account.topic_perms),
        None if account.group_perms is None else ",".join(account.group_perms),
    )
    await call(broker, acl.UPDATE_AND_CREATE_ACL_CONFIG, header)


async def delete_account(broker: Endpoint, access_key: str) -> None:
    """Delete the account."""
    await call(broker, acl.DELETE_ACL_CONFIG, DeleteAclConfigRequestHeader(access_key))


async def update_white_list(broker: Endpoint, addresses: Sequence[str], file: str | None) -> None:
    """Replace the global white list."""
    header = UpdateGlobalWhiteAddrsRequestHeader(",".join(addresses), file)
    await call(broker, acl.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)


async def account_versions(broker: Endpoint) -> AclVersionResponseHeader:
    """The versions of the files."""
    return (await call(broker, acl.GET_BROKER_CLUSTER_ACL_INFO, None)).header()


async def accounts(broker: Endpoint) -> AclConfig:
    """All accounts, and the global white list."""
    return (await call(broker, acl.GET_BROKER_CLUSTER_ACL_CONFIG, None)).body()


async def explain_access(
    broker: Endpoint, access_key: str, address: str, code: int, topic: str, group: str
) -> AccessExplanation:
    """Why a request would be served or refused."""
    header = ExplainAccessRequestHeader(access_key, address, code, topic, group)
    return (await call(broker, acl.EXPLAIN_ACCESS, header)).body()
