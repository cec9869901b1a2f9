r"""The properties of a message: ``name \x01 value \x02`` repeated, in the order they were set.

The last ``\x02`` may be missing. Entries that are not a pair are skipped, as RocketMQ does.
"""

from collections.abc import Mapping

NAME_END = "\x01"
PAIR_END = "\x02"

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
WAIT = "WAIT"
DELAY = "DELAY"
CLUSTER = "CLUSTER"
SHARDING_KEY = "__SHARDINGKEY"
PRIORITY = "_SYS_MSG_PRIORITY_"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
MSG_TYPE = "MSG_TYPE"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
# In a message that a group pops again: when it was popped first (ms), and its handle.
FIRST_POP_TIME = "1ST_POP_TIME"
POP_HANDLE = "POP_CK"
# How many messages an inner batch has: see mqcommon/message/inner.py.
INNER_NUM = "INNER_NUM"
# The light queues of a message, and its offsets in them: see mqcommon/message/light.py.
LIGHT_QUEUES = "INNER_MULTI_DISPATCH"
LIGHT_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"
# Skylark's own, in a message that a consumer gave back: why its handler failed last, in which client, and when (ms).
# Brokers and clients of RocketMQ keep them as they keep properties of users.
FAIL_REASON = "CONSUME_FAIL_REASON"
FAIL_CLIENT = "CONSUME_FAIL_CLIENT"
FAIL_TIME = "CONSUME_FAIL_TIME"
# How many times the message was taken out of the dead letters.
RESENT_TIMES = "DLQ_RESENT_TIMES"
# How its sender has encoded the value that is its body.
CONTENT_TYPE = "content-type"

RESERVED = frozenset(
    [
        "KEYS",
        "TAGS",
        "WAIT",
        "BUYER_ID",
        "INSTANCE_ID",
        "__SHARDINGKEY",
        PRIORITY,
        "UNIQ_KEY",
        "EXTEND_UNIQ_INFO",
        "MSG_TYPE",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
        "TRACE_CONTEXT",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "DELAY",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "ORIGIN_MESSAGE_ID",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "TRAN_MSG",
        "PGROUP",
        "__transactionId__",
        "TRANSACTION_CHECK_TIMES",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "MIN_OFFSET",
        "MAX_OFFSET",
        POP_HANDLE,
        "POP_CK_OFFSET",
        FIRST_POP_TIME,
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "PROPERTY_FORWARD_QUEUE_ID",
        "REDIRECT",
        "DUP_INFO",
        "__CRC32#",
    ]
)


def encode_properties(properties: Mapping[str, str]) -> str:
    """The properties string; every pair ends in ``\\x02``."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def decode_properties(text: str) -> dict[str, str]:
    """Name → value; when a name occurs twice, the last value counts."""
    found: dict[str, str] = {}
    for pair in text.split(PAIR_END):
        if len(pair) < 3:
            continue
        name, end, value = pair.partition(NAME_END)
        if end and name:
            found[name] = value
    return found


def replace_properties(raw: bytes, values: Mapping[bytes, bytes | None]) -> bytes:
    """The encoded properties with these values, at their end; a property whose value is None is left out."""
    pairs = [pair for pair in raw.split(b"\x02") if pair and pair.partition(b"\x01")[0] not in values]
    pairs += [b"%s\x01%s" % (name, value) for name, value in values.items() if value is not None]
    return b"".join([b"%s\x02" % pair for pair in pairs])


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """The value of ``name`` in an encoded properties string, without decoding the others; of two, the last one."""
    # As `property_place`, without its call: each send does this.
    mark = name + b"\x01"
    at = raw.rfind(mark)
    if at > 0 and raw[at - 1] != 2:
        at = _pair_before(raw, mark, at)
    if at < 0:
        return None
    start = at + len(mark)
    end = raw.find(b"\x02", start)
    return raw[start:] if end < 0 else raw[start:end]


def property_place(raw: bytes, name: bytes) -> tuple[int, int, int]:
    """As `find_property`: where the pair begins, where its value begins and ends; without the pair all are the end."""
    mark = name + b"\x01"
    at = raw.rfind(mark)
    if at > 0 and raw[at - 1] != 2:
        at = _pair_before(raw, mark, at)
    if at < 0:
        return len(raw), len(raw), len(raw)
    start = at + len(mark)
    end = raw.find(b"\x02", start)
    return at, start, len(raw) if end < 0 else end


def _pair_before(raw: bytes, mark: bytes, at: int) -> int:
    """Where the last pair before ``at`` begins that starts with ``mark``, a name and its end; -1 if there is none.

    At ``at`` is the end of a longer name, or a part of a value.
    """
    # Copies nothing: any client writes properties, and may fill them with what looks like the mark.
    while at > 0 and raw[at - 1] != 2:
        at = raw.rfind(mark, 0, at)
    return at
