"""The user of ``initAuthenticationUser``, and a warning when nobody could sign in."""

import logging

from broker.meta.auth import Users
from broker.options import BrokerOptions
from broker.security.users.checks import ENABLE, SUPER, checked_username
from mqcommon.errors import ConfigError, RequestRefused
from remoting.protocol.bodies.auth import UserInfo

logger = logging.getLogger(__name__)


def make_first_user(options: BrokerOptions, users: Users) -> None:
    """Create the user at the start of the broker; one that exists stays as it is. ConfigError for a wrong name."""
    first = options.first_user
    if first is not None:
        name, password = first
        try:
            name = checked_username(name)
        except RequestRefused as refused:
            raise ConfigError(f"initAuthenticationUser: {refused.remark}") from None
        if users.get(name) is None:
            users.put(UserInfo(name, password, SUPER, ENABLE))
            logger.info("super user %s created, as initAuthenticationUser says", name)
    if options.authentication_enabled and not any(
        user.user_type == SUPER and user.user_status == ENABLE for user in users.all().values()
    ):
        logger.warning(
            "authenticationEnabled is on, but there is no super user, so nobody can create users: set "
            "initAuthenticationUser and start again"
        )
