"""7104: a Skylark client waits for a change of its routes."""

from collections.abc import Collection
from secrets import token_hex

import trio

from skylark.namesrv.state import State
from skylark.namesrv.watches import Watch, Watches
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.routes import WATCH_ROUTES, WatchRoutesResponseHeader
from skylark.remoting.protocol.requests.topics import TopicList

# Shorter than the time after which most middleboxes forget a silent connection.
HOLD_S = 25.0
EXPIRY_S = 1.0


class RouteWatches:
    """Answers watches: `answer_changes` after each turn that may have changed routes, `run` at their deadlines."""

    def __init__(self, state: State) -> None:
        self._state = state
        # The name of this run: counts of another run mean nothing here.
        self._run = token_hex(8)
        self._watches: Watches[Channel] = Watches()
        self._requests: dict[Channel, Command] = {}
        self._seen = 0

    def __len__(self) -> int:
        return len(self._watches)

    def handle(self, channel: Channel, request: Command) -> Command | None:
        """The answer, or None when the request is held."""
        header = WATCH_ROUTES.header(request)
        topics = tuple(dict.fromkeys(WATCH_ROUTES.body(request).topic_list))
        self._answer_held(channel)
        changed = self._changed_since(header.version, topics)
        if changed is not None:
            return self._answer(channel, request, changed, is_whole=changed is topics)
        watch = Watch(channel, topics, trio.current_time() + HOLD_S)
        request.body, request.ext = b"", None
        if not self._watches.hold(watch):
            return self._answer(channel, request, (), is_held=False)
        self._requests[channel] = request
        return None

    def answer_changes(self) -> None:
        """Answer the watches whose topics have changed since the last call."""
        changes = self._state.routes.changes
        if changes.count == self._seen:
            return
        since, self._seen = changes.since(self._seen), changes.count
        if not len(self._watches):
            return
        if since is None:  # more changes in one turn than are remembered
            found = {watch: list(watch.topics) for watch in self._watches.all()}
        else:
            found = self._watches.concerned(since)
        for watch, topics in found.items():
            self._reply(watch.token, topics)

    def closed(self, channel: Channel) -> None:
        """Drop the watch of a connection that has ended."""
        self._watches.pop(channel)
        self._requests.pop(channel, None)

    def release(self) -> None:
        """Answer all: this NameServer stops."""
        for watch in self._watches.all():
            self._reply(watch.token, ())

    async def run(self) -> None:
        """Answer watches at their deadlines, until cancelled."""
        while True:
            await trio.sleep(EXPIRY_S)
            for watch in self._watches.expired(trio.current_time()):
                self._reply(watch.token, ())

    def _changed_since(self, version: str, topics: tuple[str, ...]) -> Collection[str] | None:
        """Which of ``topics`` have changed since ``version``; ``topics`` itself if that is not known; None for none."""
        if not version:
            return ()  # the client wants to know the present version
        run, _, count = version.partition(":")
        since = self._state.routes.changes.since(int(count)) if run == self._run and count.isdecimal() else None
        if since is None:
            return topics
        changed = [topic for topic in topics if any(topic in change for change in since)]
        return changed or None

    def _answer_held(self, channel: Channel) -> None:
        """Answer the watch that a new watch of the same connection replaces."""
        if channel in self._requests:
            self._reply(channel, ())

    def _reply(self, channel: Channel, topics: Collection[str]) -> None:
        self._watches.pop(channel)
        request = self._requests.pop(channel)
        # Sent here: waking ten thousand writer tasks would double the time until the last client knows.
        channel.reply(request, self._answer(channel, request, topics), wake=False)
        channel.flush_now()

    def _answer(
        self,
        channel: Channel,
        request: Command,
        topics: Collection[str],
        *,
        is_whole: bool = False,
        is_held: bool = True,
    ) -> Command:
        version = f"{self._run}:{self._state.routes.changes.count}"
        header = WatchRoutesResponseHeader(version, is_whole or None, None if is_held else False)
        answer = answer_with(
            WATCH_ROUTES, request, TopicList([] if is_whole else list(topics)), channel.max_frame_bytes
        )
        answer.ext = header.to_ext()
        return answer
