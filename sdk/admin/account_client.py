"""`AccountAdmin`: the operations of `Admin` on accounts in files of a broker, and on why requests are refused."""

from collections.abc import Sequence

from remoting.protocol.requests.acl import AccessExplanation, AclConfig, AclVersionResponseHeader, PlainAccessConfig
from sdk.admin import account_admin_api as api
from sdk.admin.asking import Asking
from sdk.checked import checked_methods


@checked_methods
class AccountAdmin:
    """Part of `sdk.Admin`. Each broker has its own files, slaves as well."""

    _ask: Asking

    async def update_account(self, addr: str, account: PlainAccessConfig) -> None:
        """Create an account in the broker's plain_acl.yml, or change it in its file; what is None stays as it is."""
        await api.update_account(self._ask.at(addr), account)

    async def delete_account(self, addr: str, access_key: str) -> None:
        """Delete an account from its file; BrokerError 210 when there is none."""
        await api.delete_account(self._ask.at(addr), access_key)

    async def update_white_list(self, addr: str, addresses: Sequence[str], file: str | None = None) -> None:
        """Replace globalWhiteRemoteAddresses of a file, by default of the broker's plain_acl.yml."""
        await api.update_white_list(self._ask.at(addr), addresses, file)

    async def account_versions(self, addr: str) -> AclVersionResponseHeader:
        """The broker's names, and the version of each file as JSON."""
        return await api.account_versions(self._ask.at(addr))

    async def accounts(self, addr: str) -> AclConfig:
        """All accounts of the broker, and the global white list. Skylark's brokers do not show secrets."""
        return await api.accounts(self._ask.at(addr))

    async def explain_access(
        self, addr: str, access_key: str, address: str, code: int, *, topic: str = "", group: str = ""
    ) -> AccessExplanation:
        """Why the broker would serve or refuse a request ``code`` about the topic or group, and which rule decides.

        The request is one of the account (or user) ``access_key``, signed as it should be, from a client at
        ``address``. For Skylark's brokers only, with accounts or users.
        """
        return await api.explain_access(self._ask.at(addr), access_key, address, code, topic, group)
