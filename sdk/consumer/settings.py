"""`PushSettings`: the checked arguments of a `PushConsumer`, for its parts."""

from collections.abc import Sequence
from pathlib import Path

from skylark.mqcommon.errors import InvalidArgument
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import retry_topic
from skylark.sdk.consumer.allocate import STRATEGIES, Strategy, fixed
from skylark.sdk.consumer.outcome import BatchHandler, ConsumeFrom, Handler, check_handler, check_timestamp
from skylark.sdk.consumer.retry_policy import RetryPolicy
from skylark.sdk.namespaces import Names
from skylark.sdk.traces.sink import TraceSink

DEFAULT_OFFSETS_DIR = "~/.rocketmq_offsets"


@lazy_dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    """The arguments of `PushConsumer`."""

    group: str
    handler: Handler | None
    batch_handler: BatchHandler | None
    batch_size: int
    concurrency: int
    orderly: bool
    broadcast: bool
    consume_from: ConsumeFrom
    consume_timestamp_ms: int | None
    strategy: str | Sequence[MessageQueue] | Strategy
    consume_timeout_ms: float
    suspend_ms: float
    max_queue_messages: int
    max_queue_bytes: int
    max_cached_messages: int
    max_cached_bytes: int
    pull_count: int
    pull_bytes: int
    wait_ms: int
    commit_interval_ms: float
    stop_timeout_ms: float
    instance_name: str
    local_offsets_dir: str | None
    trace: bool | TraceSink
    trace_topic: str | None
    retry: RetryPolicy = RetryPolicy()

    def __post_init__(self) -> None:
        if self.handler is not None and self.batch_handler is not None:
            raise InvalidArgument("give a handler, or a batch_handler or arrow_handler, not both")
        for name in ("handler", "batch_handler"):
            if (handler := getattr(self, name)) is not None:
                check_handler(name, handler)
        if self.orderly and self.is_stream:
            raise InvalidArgument("orderly consumption needs a handler: a stream hands out messages side by side")
        if self.orderly and self.broadcast:
            raise InvalidArgument("orderly and broadcast exclude each other: broadcasting takes no locks")
        check_timestamp(self.consume_from, self.consume_timestamp_ms)
        if isinstance(self.strategy, str) and self.strategy not in STRATEGIES:
            known = ", ".join(map(repr, STRATEGIES))
            raise InvalidArgument(f"strategy must be one of {known}, queues or a function, not {self.strategy!r}")
        if not self.instance_name or "/" in self.instance_name:
            raise InvalidArgument(f"instance_name names a folder, {self.instance_name!r} cannot")

    @property
    def max_reconsume_times(self) -> int:
        """How many times a message is delivered again before it is a dead letter."""
        return self.retry.attempts - 1

    @property
    def is_stream(self) -> bool:
        """Whether messages are iterated over instead of handled."""
        return self.handler is None and self.batch_handler is None

    @property
    def retry_topic(self) -> str:
        """The topic of messages that were sent back."""
        return retry_topic(self.group)

    @property
    def allocate(self) -> Strategy:
        """The function of ``strategy``."""
        if isinstance(self.strategy, str):
            return STRATEGIES[self.strategy]
        return self.strategy if callable(self.strategy) else fixed(list(self.strategy))

    @property
    def offsets_dir(self) -> Path:
        """Where broadcasting keeps its offsets."""
        return Path(self.local_offsets_dir or DEFAULT_OFFSETS_DIR).expanduser()


def in_namespace(
    strategy: str | Sequence[MessageQueue] | Strategy, names: Names
) -> str | Sequence[MessageQueue] | Strategy:
    """Wrap ``strategy``, which works on plain names, for queues with the names of servers."""
    if not names.namespace or isinstance(strategy, str):
        return strategy
    if not callable(strategy):
        return [names.queue(mq) for mq in strategy]

    def share(queues: Sequence[MessageQueue], clients: Sequence[str], client: str) -> list[MessageQueue]:
        return [names.queue(mq) for mq in strategy([names.plain_queue(mq) for mq in queues], clients, client)]

    return share
