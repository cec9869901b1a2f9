"""Options of messages that are popped, delivered later, or put into light queues, too."""

from dataclasses import dataclass

from broker.store.queue.delay_levels import DEFAULT_LEVELS, DelayLevels
from mqcommon.options.fields import option


@dataclass(frozen=True)
class DeliveryOptions:
    """Part of `BrokerOptions`."""

    # --- pops
    pop_polling_size: int = option(1_024, "most pops held for one group and topic", minimum=1)
    max_pop_polling_size: int = option(100_000, "most pops held in all", minimum=1)
    enable_retry_topic_v2: bool = option(False, "retry topics of pops are %RETRY%group+topic; else group_topic")

    # --- delayed messages
    message_delay_level: str = option(
        DEFAULT_LEVELS, "how long messages of each delay level wait, level 1 first; units: s, m, h, d"
    )
    timer_wheel_enable: bool = option(True, "take messages with a time of delivery; false: refuse them")
    timer_precision_ms: int = option(
        1_000, "how much later than its time a message may come", unit="ms", minimum=100, maximum=60_000
    )
    timer_max_delay_sec: int = option(
        259_200, "a message may ask to be delivered at most this much later", unit="s", minimum=1, mutable=True
    )
    recall_message_enable: bool = option(
        True, "producers may recall messages that wait for their time (off in RocketMQ)", mutable=True
    )

    enable_lmq: bool = option(False, "light queues: any topic and group %LMQ%... may be read")
    enable_multi_dispatch: bool = option(False, "put messages into the light queues that they name, too")
    max_lmq_consume_queue_num: int = option(20_000, "most light queues that are made", minimum=1)

    @property
    def delay_levels(self) -> DelayLevels:
        """``messageDelayLevel``, parsed."""
        return DelayLevels.parse(self.message_delay_level)
