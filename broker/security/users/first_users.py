"""The users that a start of the broker makes: the options name them, or the accounts of an ACL 1.0 file.

`migrate` makes users and policies of accounts, for migrateAuthFromV1Enabled. An administrator becomes a Super user, any
other account a Normal one. Permissions on topics and groups become Custom policies, default permissions Default ones.
White lists of addresses cannot become policies, since those clients do not sign: a warning names them. An account that
is a user already is left alone, so the option may stay switched on.
Neighbour: mqcommon/acl_accounts.py (reads the file).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from skylark.broker.meta.auth import Acls, Users
from skylark.broker.options import BrokerOptions
from skylark.broker.security.users.checks import ENABLE, NORMAL, SUPER, checked_acl, checked_username, subject_of
from skylark.broker.security.users.policies import ALL, ALLOW, CUSTOM, DEFAULT, DENY
from skylark.mqcommon.acl_accounts import parse_accounts, read_document
from skylark.mqcommon.errors import ConfigError, RequestRefused
from skylark.remoting.net.inner_credentials import KEY as INNER_KEY
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

logger = logging.getLogger(__name__)


def make_first_users(options: BrokerOptions, users: Users) -> None:
    """Create the first users at the start of the broker, as RocketMQ does; users that exist stay as they are.

    The first users are the administrators' user, and the user as whom the brokers of a set sign their requests to each
    other. ConfigError for a wrong name.
    """
    if options.first_user is not None:
        _make("initAuthenticationUser", users, *options.first_user)
    if (credentials := options.inner_credentials) is not None:
        _make(INNER_KEY, users, credentials.access_key, credentials.secret_key)
    if options.authentication_enabled and not any(
        user.user_type == SUPER and user.user_status == ENABLE for user in users.all().values()
    ):
        logger.warning(
            "authenticationEnabled is on, but there is no super user, so nobody can create users: set "
            "initAuthenticationUser and start again"
        )


def _make(key: str, users: Users, name: str, password: str) -> None:
    try:
        name = checked_username(name)
    except RequestRefused as refused:
        raise ConfigError(f"{key}: {refused.remark}") from None
    if users.get(name) is None:
        users.put(UserInfo(name, password, SUPER, ENABLE))
        logger.info("super user %s created, as %s says", name, key)


_DENY: Final = "DENY"
_ACTIONS: Final = {"PUB": "Pub", "SUB": "Sub"}


def migrate(options: BrokerOptions, users: Users, acls: Acls) -> None:
    """Add the missing users and policies. Blocks; ConfigError when the file cannot be used.

    Not needed on slaves, which copy their master's users.
    """
    if not options.migrate_auth_from_v1_enabled or options.is_slave:
        return
    path = options.acl_path
    found = 0
    for user, acl in migrated(read_document(path), path):
        if users.get(user.username) is None:
            users.put(user)
            if acl is not None:
                acls.put(acl)
            found += 1
    logger.info("%d users made of the accounts in %s", found, path)


def migrated(document: Any, source: str) -> Iterator[tuple[UserInfo, AclInfo | None]]:
    """Each account as a user, and the policies, if any. ConfigError, which names ``source``, for a mistake."""
    accounts = parse_accounts(document, source)
    if document.get("globalWhiteRemoteAddresses"):
        logger.warning("%s: globalWhiteRemoteAddresses are not migrated: all clients must sign", source)
    for row in document["accounts"]:
        account = accounts[row["accessKey"]]
        where = f"{source}: account {account.access_key}"
        if row.get("whiteRemoteAddress"):
            logger.warning("%s: whiteRemoteAddress is not migrated: all clients must sign", where)
        try:
            name = checked_username(account.access_key)
            acl = checked_acl(found, subject_of(name)) if (found := _acl(row, name, where)).policies else None
        except RequestRefused as refused:
            raise ConfigError(f"{where}: {refused.remark}") from None
        yield UserInfo(name, account.secret_key, SUPER if account.admin else NORMAL, ENABLE), acl


def _acl(row: Mapping[str, Any], name: str, where: str) -> AclInfo:
    custom = [
        _entry(f"{kind}:{resource}", perm, where)
        for kind, key in (("Topic", "topicPerms"), ("Group", "groupPerms"))
        for resource, perm in _perms(row.get(key), f"{where}: {key}")
    ]
    default = [
        _entry(f"{kind}:*", perm, where)
        for kind, key in (("Topic", "defaultTopicPerm"), ("Group", "defaultGroupPerm"))
        if (perm := row.get(key))
    ]
    policies = [PolicyInfo(CUSTOM, custom), PolicyInfo(DEFAULT, default)]
    return AclInfo(subject_of(name), [policy for policy in policies if policy.entries])


def _perms(rows: Any, where: str) -> Iterator[tuple[str, str]]:
    """The names and permissions of a list of texts like ``topicA=PUB|SUB``."""
    if not rows:
        return
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise ConfigError(f"{where}: it is no list; write - name=PUB|SUB")
    for row in rows:
        name, equals, perm = str(row).partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{where}: {row!r} is no permission; write name=PUB|SUB")
        yield name.strip(), perm


def _entry(resource: str, perm: Any, where: str) -> PolicyEntryInfo:
    words = [word.strip() for word in str(perm).split("|")]
    if words == [_DENY]:
        return PolicyEntryInfo(resource, [ALL], None, DENY)
    if not all(word in _ACTIONS for word in words):
        raise ConfigError(f"{where}: {resource}: {perm!r} is no permission; give DENY, PUB, SUB or PUB|SUB")
    return PolicyEntryInfo(resource, [_ACTIONS[word] for word in words], None, ALLOW)
