"""An inner batch as records of its messages, for readers that cannot take it apart, and to filter them one by one."""

from collections.abc import Callable, Iterator

from broker.store.filter import Filter
from broker.store.queue.tags import TagCodes
from mqcommon.errors import ProtocolError
from mqcommon.message.flags import WRAPPED
from mqcommon.message.inner import inner_records
from mqcommon.message.record import decode_record, encode_record, topic_field


def expanded(raw: bytes, start: int, wanted: Filter) -> Iterator[tuple[int, bytes]]:
    """(queue offset, record) of the messages in the record ``raw``, from queue offset ``start`` on, that are wanted.

    Their place in the log is that of the batch. A batch that cannot be taken apart is returned as it is.
    """
    batch = decode_record(raw, check_crc=False)
    is_wanted = _test(wanted)
    if batch.sys_flag & WRAPPED != WRAPPED:
        if is_wanted(batch.properties):
            yield batch.queue_offset, raw
        return
    try:
        records = inner_records(batch)
    except ProtocolError:
        yield batch.queue_offset, raw
        return
    magic, topic = topic_field(batch.topic)
    for each in records[max(start - batch.queue_offset, 0) :]:
        if is_wanted(each.properties):
            yield (
                each.queue_offset,
                encode_record(
                    magic, topic, each.queue_id, each.queue_offset, each.physical_offset, each.body, each.properties,
                    each.flag, each.sys_flag, each.born_timestamp, each.born_host, each.store_timestamp,
                    each.store_host, each.reconsume_times, each.prepared_transaction_offset,
                ),
            )  # fmt: skip


def _test(wanted: Filter) -> Callable[[bytes], bool]:
    codes, matches = wanted.tag_codes, wanted.matches
    if codes is not None:
        code_of = TagCodes().of
        return lambda properties: code_of(properties) in codes
    if matches is not None:
        return lambda properties: matches(b"\x02%b\x02" % properties)
    return lambda properties: True
