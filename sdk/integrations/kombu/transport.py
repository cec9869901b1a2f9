"""The classes that kombu calls: `Transport` is a connection, `Channel` a channel, based on kombu's virtual transport.

An AMQP queue is a topic whose consumers pop. A message sent to an exchange is stored once, in the exchange's topic, and
the queues that are bound to the exchange read that topic: durable queues as groups, auto-deleted queues from the
binding on. When a direct exchange, its key and its queue have one name (Celery's default), they share the queue's own
topic; queues of other names that are bound with that key read it, too. A message sent to an auto-deleted queue by its
name is popped from a topic, as with durable queues. The first such message makes the topic: most of these queues listen
to an exchange, and need no topic. All methods run in threads of the program; long work runs in the session's loop.
"""

import itertools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import Empty
from typing import Any
from urllib.parse import quote

from kombu.transport.virtual import Channel as VirtualChannel
from kombu.transport.virtual import QoS as VirtualQoS
from kombu.transport.virtual import Transport as VirtualTransport
from kombu.utils.compat import detect_environment
from kombu.utils.json import dumps, loads

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.errors import (
    BrokerError,
    ConnectionLost,
    RemotingError,
    RouteNotFound,
    SendFailed,
    UserError,
)
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.version import VERSION
from skylark.sdk.integrations.kombu import names
from skylark.sdk.integrations.kombu.feed import Feed, Prefetch
from skylark.sdk.integrations.kombu.mailbox import Mailbox, Parcel, Unsettled
from skylark.sdk.integrations.kombu.names import EXPIRES, REPLIES, ROUTING_KEY, TransportSettings
from skylark.sdk.integrations.kombu.session import ClusterSession, Source
from skylark.sdk.integrations.kombu.sessions import SESSIONS, SharedSession
from skylark.sdk.integrations.kombu.stream import Stream
from skylark.sdk.nameservers import NAMESRV_ADDR

logger = logging.getLogger(__name__)

_LOCAL = "127.0.0.1:9876"
# A prefetch count of 0 means no limit in AMQP. Here every buffer has a bound.
NO_LIMIT = 1_000
_TRANSIENT = 1
_NOT_GREEN = (
    "the rocketmq transport does not work in {}: its client runs an event loop in a thread, which monkey patching"
    " stops. Use --pool=prefork, threads or solo"
)
_TIMED = (
    "queue %s is purged, but messages with an ETA or countdown wait at the brokers until they are due, %d of all"
    " queues: such messages of this queue are still delivered. Revoke such tasks, or purge again when they are due"
)


def _everything(message: MessageExt) -> bool:
    return True


class QoS(VirtualQoS):  # type: ignore[misc]
    """Settles messages at the broker."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.settle(delivery_tag, give_back=False)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self.channel.settle(delivery_tag, give_back=requeue)
        super().ack(delivery_tag)


class Channel(VirtualChannel):  # type: ignore[misc]
    """A channel: declares, publishes, consumes."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: "Transport", **options: Any) -> None:
        super().__init__(connection, **options)
        self._transport = connection
        self._prefetch = Prefetch(NO_LIMIT)
        # Queue → its feeds, and whether they pop.
        self._feeds: dict[str, list[tuple[Source, Feed]]] = {}
        self._pulling: set[str] = set()
        self._consumed_streams: dict[str, Stream] = {}
        # Delivery tag → a message that the program has and has not settled.
        self._deliveries: dict[str, Unsettled] = {}
        self._tags = itertools.count(1)

    # --- publishing

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        """Store a message. Returns when it is as safe as the brokers' options say."""
        self._inplace_augment_message(message, exchange, routing_key)
        priority = names.priority_of(message["properties"])
        prefix = self._transport.settings.queue_name_prefix
        kind = self.typeof(exchange).type if exchange else "direct"
        if not exchange:
            self._put(routing_key, message, priority=priority)
            return
        # Celery's default exchange has the name of its queue. Such messages need no topic besides the queue's topic.
        # Queues of other names that are bound to the exchange read that topic, too, and recognize the exchange's
        # messages by the key.
        if kind == "direct" and exchange == routing_key:
            self._put(routing_key, message, routing_key=routing_key, priority=priority)
            return
        topic = names.exchange_topic(exchange, prefix)
        sent = _message(topic, message, names.tag_of(routing_key), routing_key)
        if kind == "topic" and message["properties"].get("delivery_mode") == _TRANSIENT:
            # Celery's events. The worker's loop must not wait for a broker that is away because of them.
            self._transport.shared.send_soon(sent)
            return
        due_ms = names.eta_ms_of(message.get("headers"))
        queues = 1 if kind == "fanout" else None
        self._transport.shared.send(lambda session: session.send(sent, due_ms=due_ms, queues=queues, priority=priority))

    def _put(
        self, queue: str, message: dict[str, Any], *, routing_key: str = "", priority: int = 0, **options: Any
    ) -> None:
        """Store a message in a queue. ``routing_key``: of an exchange of the same name, to which it was sent."""
        if names.is_reply_queue(queue):
            reply = _message(REPLIES, message, names.tag_of(queue))
            self._transport.shared.send(lambda session: session.send(reply, queues=1))
            return
        task = _message(self._topic(queue), message, _task_tag(message), routing_key)
        due_ms, levels = names.eta_ms_of(message.get("headers")), self._transport.levels.get(queue, 0)
        self._transport.shared.send(lambda session: session.send(task, due_ms=due_ms, levels=levels, priority=priority))

    # --- declaring

    def prepare_queue_arguments(self, arguments: Mapping[str, Any] | None, **options: Any) -> Mapping[str, Any] | None:
        """The arguments of a queue. Limits of time and length are not known here, as in kombu's other transports."""
        highest = options.get("max_priority")
        return arguments if highest is None else {**(arguments or {}), names.MAX_PRIORITY: highest}

    def _new_queue(self, queue: str, **options: Any) -> None:
        levels = self._transport.levels[queue] = names.levels_of(options.get("arguments"))
        if names.is_reply_queue(queue):
            self._reply_stream(queue)
        elif options.get("auto_delete") or options.get("exclusive"):
            self._transport.stream_of(queue)
        else:
            topic = self._topic(queue)
            self._transport.shared.call(lambda session: session.ensure_topic(topic, levels=levels))

    def _has_queue(self, queue: str, **options: Any) -> bool:
        topic = self._topic(queue)
        return self._stream(queue) is not None or self._transport.shared.call(lambda session: session.has_topic(topic))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        kind = self.typeof(exchange).type
        prefix = self._transport.settings.queue_name_prefix
        if kind == "direct" and exchange == routing_key == queue:
            return
        if kind == "direct" and exchange == routing_key:
            # Such messages are in the topic of the queue of that name, whether the queue exists or not.
            topic, expression = self._topic(exchange), names.ANY_TAG
            group = names.namesake_group(exchange, queue, prefix)
        else:
            topic = names.exchange_topic(exchange, prefix)
            expression = names.tag_of(routing_key) if kind == "direct" else names.ANY_TAG
            group = names.exchange_group(exchange, queue, prefix)
        matches = _everything if kind == "fanout" else _matcher(kind, routing_key, pattern, self.typeof(exchange))
        stream = self._stream(queue)
        if stream is not None:
            # All connections of the process share the stream of a reply queue, and each of them may bind it.
            if (exchange, routing_key) not in stream.bindings:
                self._transport.shared.call(lambda session: session.bind(stream, topic, expression, matches))
                stream.bindings.add((exchange, routing_key))
            return
        levels = self._transport.levels.get(queue, 0)
        if levels:
            self._transport.shared.call(lambda session: session.ensure_topic(topic, levels=levels))
        # A durable queue outlives the process, so the brokers must remember how far it has read each exchange: a
        # consumer group for each exchange does that, or two if one of the keys is the name of the exchange.
        bound = self._transport.bindings.setdefault(queue, {})
        former = next((source for source in bound if source.group == group), None)
        if former is None:
            source = Source(group, topic, expression)
            self._transport.shared.call(lambda session: session.begin_now(source))
            bound[source] = matches
            return
        # Several keys: the group reads messages that match any key. Tags are sorted, so that all members subscribe
        # alike.
        tags = sorted({*former.expression.split("||"), expression})
        takes = bound.pop(former)
        bound[Source(group, topic, "||".join(tags))] = lambda message: takes(message) or matches(message)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        if if_empty and self._size(queue):
            return
        self._delete(queue)
        self.state.queue_bindings_delete(queue)

    def _delete(self, queue: str, *arguments: Any, **options: Any) -> None:
        """End a queue of this process. A durable queue's messages are skipped, and its topic stays."""
        if not names.is_reply_queue(queue):
            self._purge(queue)
        stream = self._transport.streams.pop(queue, None)
        if stream is not None:
            self._transport.shared.post(stream.close)

    def _size(self, queue: str) -> int:
        stream, sources = self._stream(queue), self._sources(queue)

        async def count(session: ClusterSession) -> int:
            listened = 0 if stream is None else stream.count()
            return listened + sum([await session.count(source) for source in sources])

        return self._transport.shared.call(count)

    def _purge(self, queue: str) -> int:
        stream, sources = self._stream(queue), self._sources(queue)

        async def purge(session: ClusterSession) -> tuple[int, int]:
            listened = 0 if stream is None else stream.purge()
            count = listened + sum([await session.purge(source) for source in sources])
            # Most auto-deleted queues have no topic, so that no task of theirs can be timed.
            can_be_timed = bool(sources) and await session.has_topic(sources[0].topic)
            return count, await session.timed() if can_be_timed else 0

        count, timed = self._transport.shared.call(purge)
        if timed:
            logger.warning(_TIMED, queue, timed)
        return count

    # --- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., Any], consumer_tag: str, **options: Any
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        if no_ack:
            self._transport.no_ack.add(queue)
        mailbox = self._transport.mailbox
        stream = self._stream(queue)
        if stream is not None:
            self._consumed_streams[queue] = stream
            self._transport.shared.post(lambda: stream.attach(mailbox, self))
        feeds = self._open_feeds(queue)
        if queue not in self._pulling:
            self._pulling.add(queue)
            self._transport.shared.post(*[feed.pull for _, feed in feeds])

    def basic_cancel(self, consumer_tag: str) -> None:
        """Take no more messages. Waiting messages go back at once; messages that the program has stay with it."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or not self._transport.is_open:
            return
        self._transport.no_ack.discard(queue)
        # The next consumer of the queue gets feeds of its own. The stopped feeds renew the leases of unsettled
        # messages, and end when all are settled.
        feeds, stopped = self._feeds.pop(queue, []), f"{queue} {next(self._tags)}"
        self._pulling.discard(queue)
        stream = self._consumed_streams.pop(queue, None)
        if stream is not None:
            self._transport.shared.post(lambda: stream.detach(self))
        if feeds:

            async def stop(session: ClusterSession) -> None:
                for _, feed in feeds:
                    feed.stop()
                # A pop in flight must not take messages that come after this call.
                async with self._prefetch.turn:
                    pass

            self._feeds[stopped] = feeds
            self._transport.shared.call(stop)
        for parcel in self._transport.mailbox.take_those_of(self, queue):
            parcel.delivery.settle(give_back=True)
        if feeds:
            session = self._transport.shared.opened.client
            self._transport.shared.post(
                lambda: session.close_when_settled(feeds, lambda: self._feeds.pop(stopped, None))
            )

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        prefetch, limit = self._prefetch, prefetch_count or NO_LIMIT
        self._transport.shared.post(lambda: prefetch.set_limit(limit))

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """One message, without waiting; Empty when there is none."""
        stream = self._stream(queue)
        feeds = self._open_feeds(queue)

        async def take(session: ClusterSession) -> Unsettled | None:
            if stream is not None and (received := stream.take()) is not None:
                return received
            for _, feed in feeds:
                if (held := await feed.get()) is not None:
                    return held
            for _, feed in feeds:
                if (held := await feed.get_given_back()) is not None:
                    return held
            return None

        delivery = self._transport.shared.call(take)
        payload = None if delivery is None else self._payload(queue, delivery)
        if payload is None:
            raise Empty
        return payload

    def receive(self, parcel: Parcel) -> None:
        """Give a parcel of the mailbox to its consumer."""
        callback = self._transport.callback_of(parcel.queue) if parcel.queue in self._active_queues else None
        if callback is None:
            parcel.delivery.settle(give_back=True)
            return
        payload = self._payload(parcel.queue, parcel.delivery)
        if payload is not None:
            if parcel.queue in self._transport.no_ack:
                self.settle(payload["properties"]["delivery_tag"], give_back=False)
            callback(payload)

    def settle(self, delivery_tag: str, *, give_back: bool) -> None:
        """Acknowledge or give back the message with this tag."""
        delivery = self._deliveries.pop(delivery_tag, None)
        if delivery is not None:
            delivery.settle(give_back=give_back)

    def _restore(self, message: Any) -> None:
        self.settle(message.delivery_tag, give_back=True)

    def _payload(self, queue: str, delivery: Unsettled) -> dict[str, Any] | None:
        message = delivery.message
        # The tag of the sender means nothing here: delivery tags count per channel.
        tag = str(next(self._tags))
        try:
            payload: dict[str, Any] = loads(message.body)
            properties = payload["properties"]
            properties["delivery_tag"] = tag
            properties.setdefault("delivery_info", {})["redelivered"] = delivery.is_again
            # kombu's Message does the same with them, and its errors would end the loop of the program.
            self.decode_body(payload.get("body"), properties.get("body_encoding"))
            (payload.get("headers") or {}).get("compression")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.critical(
                "message %s of queue %s is not kombu's, it is left out: %r; body: %.1000r",
                message.msg_id,
                queue,
                error,
                message.body,
            )
            # Acknowledge the message, or it would come again forever; the log has its body.
            delivery.settle(give_back=False)
            return None
        self._deliveries[tag] = delivery
        return payload

    def close(self) -> None:
        """Give back unsettled messages, within ``close_timeout_ms``."""
        transport = self._transport
        is_first = not self.closed
        super().close()
        if is_first and transport.is_open:
            for parcel in transport.mailbox.take_those_of(self):
                parcel.delivery.settle(give_back=True)
            # A copy: the session's loop removes stopped feeds from the dict, once they have ended.
            feeds = [pair for pairs in list(self._feeds.values()) for pair in pairs]
            self._feeds.clear()
            if feeds:
                transport.shared.call(lambda session: session.close_feeds(feeds))

    # --- queues of this channel

    def _topic(self, queue: str) -> str:
        return names.queue_topic(queue, self._transport.settings.queue_name_prefix)

    def _sources(self, queue: str) -> list[Source]:
        """The sources that the queue's groups read. Reply queues have no groups."""
        if names.is_reply_queue(queue):
            return []
        topic = self._topic(queue)
        return [Source(topic, topic), *self._transport.bindings.get(queue, ())]

    def _open_feeds(self, queue: str) -> list[tuple[Source, Feed]]:
        feeds = self._feeds.get(queue)
        if feeds is not None:
            return feeds
        bound = self._transport.bindings.get(queue, {})
        sources, mailbox = self._sources(queue), self._transport.mailbox

        async def open_all(session: ClusterSession) -> list[tuple[Source, Feed]]:
            return [
                (
                    source,
                    await session.open_feed(
                        source,
                        owner=self,
                        queue=queue,
                        prefetch=self._prefetch,
                        mailbox=mailbox,
                        matches=bound.get(source, _everything),
                        is_late=queue in self._transport.streams,
                    ),
                )
                for source in sources
            ]

        feeds = self._feeds[queue] = self._transport.shared.call(open_all)
        return feeds

    def _stream(self, queue: str) -> Stream | None:
        return self._reply_stream(queue) if names.is_reply_queue(queue) else self._transport.streams.get(queue)

    def _reply_stream(self, queue: str) -> Stream:
        return self._transport.shared.call(lambda session: session.reply_stream(queue))


class Transport(VirtualTransport):  # type: ignore[misc]
    """A connection of kombu to a cluster of RocketMQ's or Skylark's brokers."""

    Channel = Channel
    can_parse_url = True
    default_port = 9876
    driver_type = "rocketmq"
    driver_name = "skylark-mq"
    implements = VirtualTransport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    #: After these errors kombu connects again, and repeats the failed call.
    connection_errors = (*VirtualTransport.connection_errors, RemotingError, SendFailed)
    recoverable_connection_errors = connection_errors
    channel_errors = (*VirtualTransport.channel_errors, BrokerError, RouteNotFound)
    # A refusal is final. kombu would repeat the call forever, without a pause.
    recoverable_channel_errors = ()

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.settings = _settings(client)
        _join_urls(client, self.settings)
        self._connect_timeout_ms = int((client.connect_timeout or 5) * 1000)
        self._shared: SharedSession | None = None
        self._mailbox: Mailbox | None = None
        self._watching: Any = None
        #: Auto-deleted and exclusive queues, and the streams by which they read exchanges.
        self.streams: dict[str, Stream] = {}
        #: Durable queue → the sources that it reads besides its own topic.
        self.bindings: dict[str, dict[Source, Callable[[MessageExt], bool]]] = {}
        #: Queue → how many priorities it has.
        self.levels: dict[str, int] = {}
        #: Queues whose consumers acknowledge by receiving.
        self.no_ack: set[str] = set()

    def driver_version(self) -> str:
        return VERSION

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Show the addresses of all NameServers. kombu's own functions read one host and one port."""
        secret = quote(self.settings.secret_key, safe="") if include_password else mask
        return names.with_keys(uri, self.settings.access_key, secret)

    # --- life

    def establish_connection(self) -> "Transport":
        environment = detect_environment()
        if environment != "default":
            raise UserError(_NOT_GREEN.format(environment))
        if not self.is_open:
            self._open()
        return super().establish_connection()  # type: ignore[no-any-return]

    def verify_connection(self, connection: Any) -> bool:
        return self._shared is not None and self._shared.is_usable

    def close_connection(self, connection: Any) -> None:
        self._unwatch()
        super().close_connection(connection)
        shared, self._shared = self._shared, None
        mailbox, self._mailbox = self._mailbox, None
        if shared is not None:
            shared.post(*[stream.close for stream in self.streams.values()])
            if mailbox is not None:
                shared.opened.when_ended.remove(mailbox.wake)
            SESSIONS.release(shared)
        self._forget_streams()
        if mailbox is not None:
            mailbox.close()

    @property
    def is_open(self) -> bool:
        """Whether there is a session of this process."""
        return self._shared is not None and self._shared.is_usable

    @property
    def shared(self) -> SharedSession:
        """The session. In a child of a fork the first use opens a new session."""
        shared = self._shared
        if shared is None or not shared.opened.home.is_here:
            shared = self._open()
        return shared

    @property
    def mailbox(self) -> Mailbox:
        """The mailbox for this connection's messages."""
        mailbox = self._mailbox
        if mailbox is None:
            raise RemotingError("the connection is closed")
        return mailbox

    def _open(self) -> SharedSession:
        shared = self._shared = SESSIONS.acquire(self.settings, self._connect_timeout_ms)
        mailbox = self._mailbox = Mailbox()
        # Streams of a parent process, or of a session that has ended.
        self._forget_streams()
        shared.opened.when_ended.append(mailbox.wake)
        return shared

    def _forget_streams(self) -> None:
        for queue in self.streams:
            # kombu binds a queue once. The next stream of this name reads nothing before it is bound.
            self.state.queue_bindings_delete(queue)
        self.streams.clear()

    def stream_of(self, queue: str) -> Stream:
        """The stream of an auto-deleted queue."""
        stream = self.streams.get(queue)
        if stream is None:

            async def make(session: ClusterSession) -> Stream:
                return session.new_stream(queue)

            stream = self.streams[queue] = self.shared.call(make)
        return stream

    def callback_of(self, queue: str) -> Callable[[Mapping[str, Any]], Any] | None:
        """The function that takes the messages of a queue."""
        found: Callable[[Mapping[str, Any]], Any] | None = self._callbacks.get(queue)
        return found

    # --- events

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Wait for one message, and pass it to its consumer. TimeoutError when none comes in time."""
        parcel = self.mailbox.wait(timeout, lambda: self.is_open)
        self._check_session()
        if parcel is None:
            raise TimeoutError
        parcel.owner.receive(parcel)  # type: ignore[attr-defined]

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self._unwatch()
        self._watching = loop
        loop.add_reader(self.mailbox.descriptor, self._on_mail)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        self._unwatch()

    def _unwatch(self) -> None:
        loop, self._watching = self._watching, None
        if loop is not None and self._mailbox is not None:
            loop.remove_reader(self._mailbox.descriptor)

    def _check_session(self) -> None:
        """Raise ConnectionLost when the session has ended by an error: then kombu connects again."""
        if not self.is_open:
            raise ConnectionLost("the session with the cluster has ended")

    def _on_mail(self) -> None:
        """Pass all waiting messages to their consumers. The prefetch counts bound their number."""
        mailbox = self._mailbox
        if mailbox is None:
            return
        # Clear the descriptor first: messages that arrive meanwhile set it again. At the end `tell` sets it if an
        # exception of a callback has left messages.
        mailbox.clear()
        self._check_session()
        try:
            while (parcel := mailbox.take()) is not None:
                parcel.owner.receive(parcel)  # type: ignore[attr-defined]
        finally:
            mailbox.tell()


def _settings(client: Any) -> TransportSettings:
    options = dict(client.transport_options or {})
    settings = names.settings_of(_urls(client), options, tls=bool(client.ssl))
    # rocketmq://key:secret@host, unless transport_options say otherwise.
    if client.userid and client.password and not settings.access_key:
        settings = replace(settings, access_key=client.userid, secret_key=client.password)
    return settings if settings.nameservers else replace(settings, nameservers=(os.environ.get(NAMESRV_ADDR, _LOCAL),))


def _urls(client: Any) -> list[str]:
    """The parts of the URL: kombu has cut a URL at its semicolons, but not the URL that `_join_urls` has left."""
    return [str(url) for url in client.alt or (client.hostname or "").split(";")]


def _join_urls(client: Any, settings: TransportSettings) -> None:
    """Let kombu's connection have one URL without keys.

    The parts of a URL that kombu cuts at semicolons, and the URLs of a list, are NameServers of one cluster, which the
    session tries itself: kombu would take each for a broker, and read each as one host and port. The keys go where
    kombu has passwords, which ``celery inspect stats`` leaves out; it shows the URL.
    """
    client.hostname = ";".join(map(names.without_keys, _urls(client)))
    client.alt, client.cycle = [], None
    client.userid, client.password = settings.access_key or None, settings.secret_key or None


def _message(topic: str, payload: Mapping[str, Any], tag: str | None, routing_key: str = "") -> Message:
    headers = payload.get("headers") or {}
    task_id = headers.get("id") or payload["properties"].get("correlation_id")
    properties = {ROUTING_KEY: routing_key} if routing_key else {}
    expires_ms = names.expires_at_ms(payload["properties"], SystemClock().now_ms())
    # A task has the header ``expires`` as well. The worker reads the header, and reports the task as revoked.
    if expires_ms is not None and headers.get("expires") is None:
        properties[EXPIRES] = str(expires_ms)
    return Message(
        topic, dumps(payload).encode(), tags=tag, keys=[str(task_id)] if task_id else None, properties=properties
    )


def _task_tag(payload: Mapping[str, Any]) -> str | None:
    task = (payload.get("headers") or {}).get("task")
    return names.tag_of(str(task)) if task else None


def _matcher(kind: str, routing_key: str, pattern: str | None, exchange: Any) -> Callable[[MessageExt], bool]:
    """A function that tells whether a message of ``exchange`` is for a queue that is bound to it.

    ``kind``: the type of the exchange, topic or direct. ``pattern``: what kombu has made of ``routing_key``, for topic.
    """
    if kind == "topic":
        return lambda message: bool(exchange._match(pattern, message.properties.get(ROUTING_KEY, "")))
    return lambda message: message.properties.get(ROUTING_KEY, "") == routing_key
