"""The requests about this broker's bucket: its state (7164), to remove deleted topics (7165), to own it (7166).

Neighbours: broker/tier/ (uploads and the manifest), mqadmin/commands/tier.py.
"""

from typing import Protocol

from skylark.broker.part import Part
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.tier import TIER_PURGE, TIER_STATUS, TIER_TAKE_OVER, TierStatus


class Bucketed(Protocol):
    """What owns the set in the bucket."""

    def status(self) -> TierStatus:
        """What is in the bucket, and what keeps this broker from writing there."""

    def begin_purge(self) -> None:
        """Rewrite all objects with bytes of deleted topics, from now on. RequestRefused when this broker cannot."""

    def take_over(self) -> None:
        """Own the set, whatever term its last owner had. RequestRefused when this broker is no master."""


class TierRequests(Part):
    """Answers 7164, 7165 and 7166; ``tier``: None without tierPath."""

    def __init__(self, tier: Bucketed | None) -> None:
        self._tier = tier

    def handlers(self) -> dict[int, Handler]:
        return {TIER_STATUS.code: self.status, TIER_PURGE.code: self.purge, TIER_TAKE_OVER.code: self.take_over}

    def status(self, channel: Channel, request: Command) -> Command:
        """7164: what is in the bucket."""
        found = TierStatus() if self._tier is None else self._tier.status()
        return answer_with(TIER_STATUS, request, found, channel.max_frame_bytes)

    def purge(self, channel: Channel, request: Command) -> Command:
        """7165: remove the bytes of deleted topics. Without a bucket there are none."""
        if self._tier is not None:
            self._tier.begin_purge()
        return self.status(channel, request)

    def take_over(self, channel: Channel, request: Command) -> Command:
        """7166: own the set."""
        if self._tier is not None:
            self._tier.take_over()
        return self.status(channel, request)
