"""Who else has a copy of this broker's log: the replicas that can be asked, and whether there are any at all."""

from collections.abc import Awaitable, Callable, Iterable, Sequence


class OtherMembers:
    """The other replicas of the set of the broker at ``own``, by their addresses for requests."""

    def __init__(
        self,
        own: str,
        linked: Callable[[], Iterable[str]],
        registered: Callable[[], Awaitable[Sequence[str] | None]],
        may_be_alone: Callable[[], bool],
    ) -> None:
        """``linked``: the master that this broker copies, and the slaves that copy this broker. ``registered``: the
        brokers of the set that NameServers know; None when no NameServer answers. ``may_be_alone``: whether neither
        the configuration nor the store speaks of another replica.
        """
        self._own = own
        self._linked = linked
        self._registered = registered
        self._may_be_alone = may_be_alone
        self._has_met = False
        self._is_known = False

    async def find(self) -> list[str]:
        """The replicas that can be asked now."""
        found = dict.fromkeys(self._linked())
        registered = await self._registered()
        found |= dict.fromkeys(registered or ())
        found.pop(self._own, None)
        self._is_known = registered is not None
        self._has_met |= bool(found)
        return list(found)

    @property
    def is_alone(self) -> bool:
        """Whether no other replica exists, as the last `find` has shown: not only that all others are away."""
        return self._is_known and not self._has_met and self._may_be_alone()
