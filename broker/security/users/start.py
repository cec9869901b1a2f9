"""The users that options name, and a warning when nobody could sign in."""

import logging

from broker.meta.auth import Users
from broker.options import BrokerOptions
from broker.security.users.checks import ENABLE, SUPER, checked_username
from mqcommon.errors import ConfigError, RequestRefused
from remoting.net.inner_credentials import KEY as INNER_KEY
from remoting.protocol.requests.auth import UserInfo

logger = logging.getLogger(__name__)


def make_first_users(options: BrokerOptions, users: Users) -> None:
    """Create them at the start of the broker, as RocketMQ does; those that exist stay as they are.

    These are the one for administrators, and the one as whom the brokers of a set sign what they ask each other.
    ConfigError for a wrong name.
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
