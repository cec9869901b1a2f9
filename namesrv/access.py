"""Who may do what at a NameServer with access control. Pure.

Only administrators may register brokers, ask a Controller, and change routes, KV config and options. Queries are open,
or need the signature of any account. What is not known to be a query needs an administrator.
The options stand here, too; RocketMQ's NameServers have none.
Neighbours: guard.py asks for each request; mqcommon/acl_accounts.py has the accounts.
"""

import os
from collections.abc import Mapping
from typing import Final

from mqcommon.acl_accounts import Account
from mqcommon.errors import ConfigError, RequestRefused
from mqcommon.lazy_dataclass import lazy_dataclass
from mqcommon.options.fields import option
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command, ext_text
from remoting.protocol.plain_codes import PlainCodes, plain_codes, plain_refusal
from remoting.protocol.requests.registrations import GET_BROKER_MEMBER_GROUP
from remoting.protocol.requests.routes import (
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    GET_BROKER_CLUSTER_INFO,
    GET_HAS_UNIT_SUB_TOPIC_LIST,
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    GET_KV_CONFIG,
    GET_KVLIST_BY_NAMESPACE,
    GET_ROUTEINFO_BY_TOPIC,
    GET_SYSTEM_TOPIC_LIST_FROM_NS,
    GET_TOPICS_BY_CLUSTER,
    GET_UNIT_TOPIC_LIST,
    WATCH_ROUTES,
)
from remoting.protocol.signature import ACCESS_KEY_FIELD, WholeSignatures, is_plain, is_signed_with

QUERIES: Final = frozenset(
    {
        GET_ROUTEINFO_BY_TOPIC.code,
        GET_BROKER_CLUSTER_INFO.code,
        GET_KV_CONFIG.code,
        GET_KVLIST_BY_NAMESPACE.code,
        GET_ALL_TOPIC_LIST_FROM_NAMESERVER.code,
        GET_TOPICS_BY_CLUSTER.code,
        GET_SYSTEM_TOPIC_LIST_FROM_NS.code,
        GET_UNIT_TOPIC_LIST.code,
        GET_HAS_UNIT_SUB_TOPIC_LIST.code,
        GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST.code,
        GET_BROKER_MEMBER_GROUP.code,
        WATCH_ROUTES.code,
    }
)


def check_access(
    request: Command,
    accounts: Mapping[str, Account],
    whole: WholeSignatures | None = None,
    *,
    open_queries: bool,
    host: str = "",
    plain: PlainCodes | None = None,
) -> None:
    """Raise RequestRefused unless the signer of ``request``, at ``host``, may send it.

    ``whole``: as `is_signed_with` takes it. ``plain``: who may use RocketMQ's signature for what is no query.
    """
    is_query = request.code in QUERIES
    if is_query and open_queries:
        return
    needed = "the signature of an account" if is_query else "the signature of an administrator"
    access_key = ext_text((request.ext or {}).get(ACCESS_KEY_FIELD, ""))
    if not access_key:
        raise _refused(f"request {request.code} needs {needed} of this NameServer's aclFile, and has no signature")
    account = accounts.get(access_key)
    if account is None:
        raise _refused(f"No acl config for {access_key[:100]} in this NameServer's aclFile")
    if not is_signed_with(request, account.secret_key, whole):
        raise _refused(f"Check signature failed for accessKey={access_key}")
    if not is_query and is_plain(request) and not (plain or plain_codes("")).allow(access_key, host, request.code):
        raise _refused(plain_refusal(access_key, host, request.code))
    if not (is_query or account.admin):
        raise _refused(f"request {request.code} needs {needed}, and account {access_key} has no admin: true")


def _refused(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, text)


@lazy_dataclass(frozen=True)
class AccessOptions:
    """Part of the options of NameServers and Controllers."""

    acl_enable: bool = option(
        False, "only administrators of aclFile may register brokers, and change routes, KV config and options"
    )
    acl_file: str = option(
        "", "accounts, in the form of RocketMQ's plain_acl.yml; mode 0600; read again when it changes"
    )
    acl_query_enable: bool = option(
        False, "with aclEnable: queries for routes need the signature of an account, too", mutable=True
    )

    def check_access_options(self) -> None:
        """ConfigError when access control is on and there are no accounts."""
        if self.acl_enable and not self.acl_file:
            raise ConfigError(
                "aclFile: aclEnable needs the file with the accounts; set it, as in aclFile=plain_acl.yml"
            )

    @property
    def acl_path(self) -> str:
        """``aclFile`` as a path."""
        return os.path.expanduser(self.acl_file)
