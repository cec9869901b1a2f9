"""7100, which only Skylark's slaves send: it asks whether the master's metadata has changed, and is held until then.

So a slave has a new topic some milliseconds after its master, and sends few requests while nothing changes. A change of
topics, groups, delay offsets or modes of consumption is answered at once. Consumer offsets change all the time, so they
are answered once a second. A notice on the HA link instead would couple the two protocols, and the link may be down or
lagging.
Neighbours: slave_sync.py (asks), meta/ (the tables).
"""

from collections.abc import Callable

import trio

from skylark.broker.meta.metadata import Metadata
from skylark.broker.part import Part
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.replication import WATCH_METADATA, MetadataVersions

MAX_HOLD_MS = 60_000
# A master has a few slaves.
MAX_HELD = 256


@lazy_dataclass(slots=True, eq=False)
class _Held:
    channel: Channel
    request: Command
    known: MetadataVersions
    deadline: float


class MetadataWatch(Part):
    """Holds the questions of slaves for changes. Call `changed` when one of the tables changes."""

    tick_interval_ms = 1_000

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._held: list[_Held] = []

    def __len__(self) -> int:
        return len(self._held)

    def handlers(self) -> dict[int, Handler]:
        return {WATCH_METADATA.code: self.watch}

    def versions(self) -> MetadataVersions:
        """The present versions."""
        metadata = self._metadata
        return MetadataVersions(
            metadata.topics.data_version,
            metadata.groups.data_version,
            metadata.consumer_offsets.live_version,
            metadata.delay_offsets.table.data_version,
            metadata.request_modes.data_version,
            metadata.users.data_version,
            metadata.acls.data_version,
        )

    def watch(self, channel: Channel, request: Command) -> Command | None:
        """7100: the versions of the tables, once they differ from the slave's, or when the slave's time is over."""
        known = WATCH_METADATA.body(request)
        hold_ms = min(WATCH_METADATA.header(request).hold_millis, MAX_HOLD_MS)
        now = self.versions()
        # Offsets change all the time: a difference in them alone does not answer, unless the master was restarted
        # since.
        if known.consumer_offsets.timestamp == now.consumer_offsets.timestamp:
            now.consumer_offsets = known.consumer_offsets  # the next tick answers if they have changed
        if known != now or hold_ms <= 0:
            return answer_with(WATCH_METADATA, request, self.versions())
        if len(self._held) >= MAX_HELD:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "too many slaves watch the metadata of this broker")
        self._held.append(_Held(channel, request, known, trio.current_time() + hold_ms / 1000))
        return None

    def tick(self) -> None:
        """Answer held requests with older consumer offsets, and held requests whose time is over."""
        now, versions = trio.current_time(), self.versions()
        self._answer(lambda held: held.known != versions or held.deadline <= now)

    def channel_closed(self, channel: Channel) -> None:
        """Forget the held requests of the channel."""
        self._held = [held for held in self._held if held.channel is not channel]

    async def stop(self) -> None:
        """Answer all held requests."""
        self.changed()

    def changed(self) -> None:
        """Anything but consumer offsets has changed: answer all held requests."""
        self._answer(lambda held: True)

    def _answer(self, wanted: Callable[[_Held], bool]) -> None:
        if not self._held:
            return
        over = [held for held in self._held if wanted(held)]
        self._held = [held for held in self._held if held not in over]
        for held in over:
            held.channel.reply(held.request, answer_with(WATCH_METADATA, held.request, self.versions()))
