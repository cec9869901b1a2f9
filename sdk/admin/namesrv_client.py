"""`NamesrvAdmin`: the operations of `Admin` on the configuration and the key-value pairs of NameServers."""

from collections.abc import Mapping, Sequence

from sdk import namesrv_api
from sdk.admin.asking import Asking
from sdk.checked import checked_methods


@checked_methods
class NamesrvAdmin:
    """Part of `sdk.Admin`."""

    _ask: Asking

    # --- NameServers

    async def namesrv_config(self, addrs: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
        """NameServer address → its options; of all NameServers when ``addrs`` is None."""
        answers = await self._ask.each_namesrv(namesrv_api.namesrv_config, addrs)
        answers.all()
        return answers.values

    async def update_namesrv_config(self, values: Mapping[str, str], addrs: Sequence[str] | None = None) -> None:
        """Change options of the NameServers at ``addrs``, or of all."""
        (await self._ask.each_namesrv(lambda at: namesrv_api.update_namesrv_config(at, values), addrs)).all()

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value in every NameServer's key-value store."""
        (await self._ask.each_namesrv(lambda at: namesrv_api.put_kv(at, namespace, key, value))).all()

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Remove a value from every NameServer's key-value store."""
        (await self._ask.each_namesrv(lambda at: namesrv_api.delete_kv(at, namespace, key))).all()

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """A value of the key-value store; None when there is none."""
        return await self._ask.namesrv(lambda at: namesrv_api.get_kv(at, namespace, key))

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""
        return await self._ask.namesrv(lambda at: namesrv_api.kv_list(at, namespace))
