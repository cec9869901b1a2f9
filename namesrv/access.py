"""Who may do what at a NameServer with access control. Pure.

Only administrators may ask a Controller, and change routes, KV config and options. They may register brokers, too, and
so may the users of ``registrationUsers``. Queries are open, or need the signature of any account. Every other request
needs an administrator. The options are declared here, too; RocketMQ's NameServers have no such options. Neighbours:
guard.py asks for each request; mqcommon/acl_accounts.py has the accounts.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

import orjson

from skylark.mqcommon.acl_accounts import Account
from skylark.mqcommon.errors import ConfigError, RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.options.fields import option
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command, ext_text
from skylark.remoting.protocol.plain_codes import PlainCodes, plain_codes, plain_refusal
from skylark.remoting.protocol.requests.controller import (
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_NEXT_BROKER_ID,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_GET_SYNC_STATE_DATA,
    CONTROLLER_REGISTER_BROKER,
)
from skylark.remoting.protocol.requests.registrations import (
    BROKER_HEARTBEAT,
    GET_BROKER_MEMBER_GROUP,
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
)
from skylark.remoting.protocol.requests.routes import (
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
from skylark.remoting.protocol.signature import ACCESS_KEY_FIELD, WholeSignatures, is_plain, is_signed_with

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

#: Requests that brokers send of their own accord: to NameServers, and to Controllers.
REGISTRATIONS: Final = frozenset(
    {
        REGISTER_BROKER.code,
        UNREGISTER_BROKER.code,
        QUERY_DATA_VERSION.code,
        BROKER_HEARTBEAT.code,
        CONTROLLER_ALTER_SYNC_STATE_SET.code,
        CONTROLLER_ELECT_MASTER.code,
        CONTROLLER_REGISTER_BROKER.code,
        CONTROLLER_GET_REPLICA_INFO.code,
        CONTROLLER_GET_METADATA_INFO.code,
        CONTROLLER_GET_SYNC_STATE_DATA.code,
        CONTROLLER_GET_NEXT_BROKER_ID.code,
        CONTROLLER_APPLY_BROKER_ID.code,
    }
)
_WHOSE: Final = "this NameServer's registrationUsers or aclFile"


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

    ``whole``: as `is_signed_with` takes it. ``plain``: who may use RocketMQ's signature for requests that are no
    queries.
    """
    is_query, is_registration = request.code in QUERIES, request.code in REGISTRATIONS
    if is_query and open_queries:
        return
    needed = "the signature of an account" if is_query else "the signature of an administrator"
    access_key = ext_text((request.ext or {}).get(ACCESS_KEY_FIELD, ""))
    if not access_key:
        raise _refused(f"request {request.code} needs {needed} of {_WHOSE}, and has no signature")
    account = accounts.get(access_key)
    if account is None:
        raise _refused(f"No acl config for {access_key[:100]} in {_WHOSE}")
    if not is_signed_with(request, account.secret_key, whole):
        raise _refused(f"Check signature failed for accessKey={access_key}")
    if not is_query and is_plain(request) and not (plain or plain_codes("")).allow(access_key, host, request.code):
        raise _refused(plain_refusal(access_key, host, request.code))
    if not (is_query or account.admin or (is_registration and account.registers)):
        raise _refused(f"request {request.code} needs {needed}, and account {access_key} has no admin: true")


def _refused(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.NO_PERMISSION, text)


_USERS_FORM: Final = '[{"accessKey":"...","secretKey":"..."}]'


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
    registration_users: str = option(
        "",
        f'users who may register brokers, {_USERS_FORM}; with "admin":true they may do everything, as'
        " administrators of aclFile; nobody else may; empty: anybody, unless aclEnable is set",
        env="ROCKETMQ_REGISTRATION_USERS",
        secret=True,
    )

    @property
    def is_guarded(self) -> bool:
        """Whether only named users may register brokers and make changes."""
        return self.acl_enable or bool(self.registration_users)

    @property
    def registering(self) -> dict[str, Account]:
        """The users of ``registrationUsers``, by name. ConfigError when the option is wrong."""
        if not self.registration_users:
            return {}
        # Errors must not show the value.
        try:
            rows = orjson.loads(self.registration_users)
        except orjson.JSONDecodeError:
            raise ConfigError(f"registrationUsers: it is not JSON; give {_USERS_FORM}") from None
        found: dict[str, Account] = {}
        for number, row in enumerate(rows if isinstance(rows, list) else [None], 1):
            account = _registering(row)
            if account is None:
                text = f"registrationUsers: user {number} has no accessKey and secretKey; give {_USERS_FORM}"
                raise ConfigError(text)
            if account.access_key in found:
                raise ConfigError(f"registrationUsers: {account.access_key} is there twice")
            found[account.access_key] = account
        return found

    def check_access_options(self) -> None:
        """ConfigError when access control is on and there are no accounts, or when ``registrationUsers`` is wrong."""
        _ = self.registering
        if self.acl_enable and not self.acl_file:
            raise ConfigError(
                "aclFile: aclEnable needs the file with the accounts; set it, as in aclFile=plain_acl.yml"
            )

    @property
    def acl_path(self) -> str:
        """``aclFile`` as a path; "" without ``aclEnable``."""
        return os.path.expanduser(self.acl_file) if self.acl_enable else ""


def _registering(row: Any) -> Account | None:
    if not isinstance(row, dict) or not row.keys() <= {"accessKey", "secretKey", "admin"}:
        return None
    name, secret, admin = row.get("accessKey"), row.get("secretKey"), row.get("admin", False)
    if not (isinstance(name, str) and isinstance(secret, str) and isinstance(admin, bool) and name and secret):
        return None
    return Account(name, secret, admin, registers=True)
