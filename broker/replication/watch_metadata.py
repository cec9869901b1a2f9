"""Has your metadata changed? (7100, which only Skylark's slaves ask.) Held until it has, or its time is over.

So a slave has a new topic some milliseconds after its master, and asks nothing while nothing changes. A change of
topics, groups or delay offsets answers at once; consumer offsets, which change all the time, answer once a second.
The other way, a notice on the HA link, would tie two protocols together, and the link may be down or behind.
Neighbours: slave_sync.py (asks), meta/ (the tables).
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from broker.meta.metadata import Metadata
from broker.part import Part
from broker.request_bodies import answer_with, read_body
from mqcommon.errors import RequestRefused
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.bodies.metadata_versions import MetadataVersions
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.watch import WatchMetadataRequestHeader

MAX_HOLD_MS = 60_000
# A master has a few slaves.
MAX_HELD = 256


@dataclass(slots=True, eq=False)
class _Held:
    channel: Channel
    request: Command
    known: MetadataVersions
    deadline: float


class MetadataWatch(Part):
    """See the module. Call `changed` when one of the tables did."""

    tick_interval_ms = 1_000

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._held: list[_Held] = []

    def __len__(self) -> int:
        return len(self._held)

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.WATCH_METADATA: self.watch}

    def versions(self) -> MetadataVersions:
        """What there is now."""
        metadata = self._metadata
        return MetadataVersions(
            metadata.topics.data_version,
            metadata.groups.data_version,
            metadata.consumer_offsets.live_version,
            metadata.delay_offsets.table.data_version,
        )

    def watch(self, channel: Channel, request: Command) -> Command | None:
        """7100: answered with the versions."""
        known = read_body(MetadataVersions, request)
        hold_ms = min(WatchMetadataRequestHeader.from_ext(request.ext).hold_millis, MAX_HOLD_MS)
        now = self.versions()
        if known.consumer_offsets.timestamp == now.consumer_offsets.timestamp:
            now.consumer_offsets = known.consumer_offsets  # the next tick tells what is new
        if known != now or hold_ms <= 0:
            return answer_with(request, self.versions())
        if len(self._held) >= MAX_HELD:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "too many slaves watch the metadata of this broker")
        self._held.append(_Held(channel, request, known, trio.current_time() + hold_ms / 1000))
        return None

    def tick(self) -> None:
        """Answer those that know other consumer offsets, and those whose time is over."""
        now, versions = trio.current_time(), self.versions()
        self._answer(lambda held: held.known != versions or held.deadline <= now)

    def channel_closed(self, channel: Channel) -> None:
        """What it asked is forgotten."""
        self._held = [held for held in self._held if held.channel is not channel]

    async def stop(self) -> None:
        """All are answered."""
        self.changed()

    def changed(self) -> None:
        """All are answered: topics, groups or delay offsets have changed."""
        self._answer(lambda held: True)

    def _answer(self, wanted: Callable[[_Held], bool]) -> None:
        if not self._held:
            return
        over = [held for held in self._held if wanted(held)]
        self._held = [held for held in self._held if held not in over]
        for held in over:
            held.channel.reply(held.request, answer_with(held.request, self.versions()))
