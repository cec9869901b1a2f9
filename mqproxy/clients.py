"""The clients of this proxy: their settings, as they sent them and as the proxy answers them, and their streams."""

from collections import Counter
from collections.abc import Iterator

import trio

from skylark.mqcommon.addresses import split_address
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.routes import endpoints_of
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.telemetry import Stream
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.groups import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    SubscriptionGroupConfig,
)

# RocketMQ's pauses before further deliveries, for a group without pauses of its own: 1 s to 2 h.
_PAUSES_MS = [seconds * 1000 for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)]

#: A client that sends a heartbeat and has not sent settings of these types is unknown.
CONSUMERS = (wire.PUSH_CONSUMER, wire.SIMPLE_CONSUMER, wire.PULL_CONSUMER)
LITE_CONSUMERS = (wire.LITE_PUSH_CONSUMER, wire.LITE_SIMPLE_CONSUMER)

# A hostile peer could make up client ids. Each takes the memory of its settings, some hundred bytes; settings of a
# consumer of a thousand topics are 100 KB. Beyond the limits for all clients together, the clients that were silent for
# the longest time are forgotten; they send their settings again when the answer to a heartbeat says that they are
# unknown.
MAX_CLIENTS = 100_000
MAX_SETTINGS_BYTES = 256 * 1024
MAX_ALL_SETTINGS_BYTES = 128 * 1024 * 1024


def check_size(settings: wire.Settings) -> None:
    """Refused when the settings of a client are too large to be kept."""
    if settings.ByteSize() > MAX_SETTINGS_BYTES:
        raise Refused(wire.BAD_REQUEST, f"the settings of a client may have {MAX_SETTINGS_BYTES} bytes at most")


class ProxyClient:
    """One client. ``settings`` are its latest; it sent them on ``stream``, which is None after the stream's end."""

    __slots__ = ("address", "seen_at", "settings", "size", "stream")

    def __init__(self, settings: wire.Settings, stream: Stream, now_s: float) -> None:
        self.settings = settings
        self.size = settings.ByteSize()
        self.stream: Stream | None = stream
        self.address = stream.address
        self.seen_at = now_s


class Clients:
    """The clients that sent settings and a heartbeat in time."""

    def __init__(self, options: ProxyOptions) -> None:
        self._options = options
        # The client that was silent for the longest time comes first.
        self._clients: dict[str, ProxyClient] = {}
        self._bytes = 0
        # When each client was heard of that has sent its settings to another proxy only; the oldest time comes first.
        self._strangers: dict[str, float] = {}
        # When each client said that it ends; the oldest time comes first.
        self._ended: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[tuple[str, ProxyClient]]:
        """The living clients with their ids."""
        self._expire()
        return iter(list(self._clients.items()))

    def counts(self) -> Counter[wire.ClientType]:
        """How many clients of each kind there are."""
        return Counter(client.settings.client_type for client in self._clients.values())

    def put(self, client_id: str, settings: wire.Settings, stream: Stream) -> None:
        """Keep a client's settings, whose size was checked (`check_size`)."""
        self._expire()
        # Removed first, so that it comes last in the order.
        self.remove(client_id)
        self._ended.pop(client_id, None)
        client = self._clients[client_id] = ProxyClient(settings, stream, trio.current_time())
        self._bytes += client.size
        while len(self._clients) > MAX_CLIENTS or self._bytes > MAX_ALL_SETTINGS_BYTES:
            self.remove(next(iter(self._clients)))

    def seen(self, client_id: str) -> wire.Settings | None:
        """Count a client as alive, and return its settings; None when it is not known."""
        self._expire()
        client = self._clients.pop(client_id, None)
        if client is None:
            self.heard(client_id)
            return None
        client.seen_at = trio.current_time()
        self._clients[client_id] = client
        return client.settings

    def heard(self, client_id: str) -> None:
        """Count a client as alive.

        It may be unknown: after its proxy has stopped, it sends its settings to the next one late.
        """
        # Calls that were under way when a client ended are no sign of life: its messages would stay hidden.
        if client_id not in self._clients and client_id not in self._ended:
            self._strangers.pop(client_id, None)
            self._strangers[client_id] = trio.current_time()
            while len(self._strangers) > MAX_CLIENTS:
                del self._strangers[next(iter(self._strangers))]

    def settings(self, client_id: str) -> wire.Settings | None:
        """The settings of a client; None when it is not known."""
        client = self._clients.get(client_id)
        return None if client is None else client.settings

    def get(self, client_id: str) -> ProxyClient | None:
        """A living client; None when it is not known."""
        self._expire()
        return self._clients.get(client_id)

    def stream(self, client_id: str) -> Stream | None:
        """Where a living client reads commands; None when it is not known, or reads none now."""
        client = self.get(client_id)
        return None if client is None else client.stream

    def stream_ended(self, client_id: str, stream: Stream) -> None:
        """Record that the client does not read ``stream`` any more; it may have another stream already."""
        client = self._clients.get(client_id)
        if client is not None and client.stream is stream:
            client.stream = None

    def is_alive(self, client_id: str) -> bool:
        """Whether the client was heard of in time."""
        # Messages of an unknown client are renewed, too: its settings are on their way.
        self._expire()
        heard_at = self._strangers.get(client_id)
        return client_id in self._clients or (heard_at is not None and heard_at >= self._oldest_s())

    def count_alive(self) -> int:
        """How many clients sent a heartbeat in time."""
        self._expire()
        return len(self._clients)

    def end(self, client_id: str) -> wire.Settings | None:
        """Remove a client that ends; returns its settings, None when it was not known. `put` adds it again."""
        self._ended.pop(client_id, None)
        self._ended[client_id] = trio.current_time()
        while len(self._ended) > MAX_CLIENTS or self._ended[next(iter(self._ended))] < self._oldest_s():
            del self._ended[next(iter(self._ended))]
        return self.remove(client_id)

    def remove(self, client_id: str) -> wire.Settings | None:
        """Forget a client; returns its settings, None when it was not known."""
        self._strangers.pop(client_id, None)
        client = self._clients.pop(client_id, None)
        if client is None:
            return None
        self._bytes -= client.size
        return client.settings

    def _oldest_s(self) -> float:
        return trio.current_time() - self._options.channel_expired_timeout / 1000

    def _expire(self) -> None:
        # The clients stand in the order in which they were heard of last, so the first living one ends the search.
        oldest = self._oldest_s()
        while self._clients:
            first = next(iter(self._clients))
            if self._clients[first].seen_at >= oldest:
                return
            self.remove(first)


def answered(settings: wire.Settings, options: ProxyOptions, group: SubscriptionGroupConfig | None) -> wire.Settings:
    """The settings that a client must use: its own, with the settings that the proxy and the group decide. Pure."""
    found = wire.Settings()
    found.CopyFrom(settings)
    if settings.HasField("publishing"):
        policy = found.backoff_policy
        policy.Clear()
        policy.max_attempts = options.grpc_client_producer_max_attempts
        policy.exponential_backoff.initial.FromMilliseconds(options.grpc_client_producer_backoff_initial_millis)
        policy.exponential_backoff.max.FromMilliseconds(options.grpc_client_producer_backoff_max_millis)
        policy.exponential_backoff.multiplier = options.grpc_client_producer_backoff_multiplier
        found.publishing.validate_message_type = options.enable_topic_message_type_check
        found.publishing.max_body_size = options.most_body_bytes
    elif settings.HasField("subscription"):
        config = group or SubscriptionGroupConfig()
        subscription = found.subscription
        subscription.receive_batch_size = options.grpc_client_consumer_long_polling_batch_size
        subscription.long_polling_timeout.FromMilliseconds(options.grpc_client_consumer_max_long_polling_timeout_millis)
        subscription.fifo = config.consume_message_orderly
        _set_retries(found.backoff_policy, config)
    found.metric.Clear()
    found.metric.on = options.metric_collector_mode == "on"
    if found.metric.on:
        found.metric.endpoints.CopyFrom(endpoints_of(*split_address(options.metric_collector_address)))
    return found


def _set_retries(policy: wire.RetryPolicy, config: SubscriptionGroupConfig) -> None:
    policy.Clear()
    policy.max_attempts = config.retry_max_times + 1
    given = config.group_retry_policy
    if given.type == "EXPONENTIAL":
        growing = given.exponential_retry_policy or ExponentialRetryPolicy()
        policy.exponential_backoff.initial.FromMilliseconds(growing.initial)
        policy.exponential_backoff.max.FromMilliseconds(growing.max)
        policy.exponential_backoff.multiplier = growing.multiplier
        return
    for pause_ms in (given.customized_retry_policy or CustomizedRetryPolicy()).next or _PAUSES_MS:
        policy.customized_backoff.next.add().FromMilliseconds(pause_ms)
