"""`UserAdmin`: the operations of `Admin` on the users of a broker, and on what these may do."""

from remoting.protocol.requests.auth import AclInfo, UserInfo
from sdk.admin import user_admin_api as api
from sdk.admin.asking import Asking
from sdk.checked import checked_methods


@checked_methods
class UserAdmin:
    """Part of `sdk.Admin`. Each broker set has its own users; slaves copy those of their master."""

    _ask: Asking

    async def create_user(self, addr: str, user: UserInfo) -> None:
        """Create a user of the broker; BrokerError 16 when there is one of that name.

        By default the user is Normal, and enabled. Only a Super user may create another.
        """
        await api.create_user(self._ask.at(addr), user)

    async def update_user(self, addr: str, user: UserInfo) -> None:
        """Change a user of the broker; what is None stays as it is."""
        await api.update_user(self._ask.at(addr), user)

    async def delete_user(self, addr: str, username: str) -> None:
        """Delete a user of the broker, with the policies."""
        await api.delete_user(self._ask.at(addr), username)

    async def get_user(self, addr: str, username: str) -> UserInfo | None:
        """A user of the broker; None when there is none. Brokers show passwords only to a Super user, or never."""
        return await api.get_user(self._ask.at(addr), username)

    async def list_users(self, addr: str, part: str | None = None) -> list[UserInfo]:
        """The users of the broker whose name contains ``part``, or all."""
        return await api.list_users(self._ask.at(addr), part)

    async def create_acl(self, addr: str, acl: AclInfo) -> None:
        """Add policies of a user, whom ``acl`` names as ``User:name``."""
        await api.create_acl(self._ask.at(addr), acl)

    async def update_acl(self, addr: str, acl: AclInfo) -> None:
        """Add policies of a user; they replace those about the same resources."""
        await api.update_acl(self._ask.at(addr), acl)

    async def delete_acl(
        self, addr: str, subject: str, resource: str | None = None, policy_type: str | None = None
    ) -> None:
        """Delete the policies of a user, or only those about a resource (of the type Custom, or of ``policy_type``)."""
        await api.delete_acl(self._ask.at(addr), subject, policy_type, resource)

    async def get_acl(self, addr: str, subject: str) -> AclInfo | None:
        """The policies of a user; None when there are none."""
        return await api.get_acl(self._ask.at(addr), subject)

    async def list_acls(
        self, addr: str, subject_part: str | None = None, resource_part: str | None = None
    ) -> list[AclInfo]:
        """The policies of all users whose name contains the one text, about resources that contain the other."""
        return await api.list_acls(self._ask.at(addr), subject_part, resource_part)
