r"""The text of trace messages: records that end in ``\x02``, of fields between ``\x01``. Pure.

RocketMQ's clients of several versions and languages have fewer or more fields at the end of a record; a record that
cannot be read is left out, so that it does not hide the other records.

`timeline` makes the history of one message from the records of its trace. Records come in any order, and twice when the
send of a trace message was repeated. SubAfter records of older clients do not name their group: the SubBefore record of
the same request does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

FIELD_END, RECORD_END = "\x01", "\x02"
NO_VALUE = "null"

PUB = "Pub"
SUB_BEFORE = "SubBefore"
SUB_AFTER = "SubAfter"
END_TRANSACTION = "EndTransaction"
RECALL = "Recall"

NORMAL_MESSAGE, HALF_MESSAGE, COMMIT_MESSAGE, DELAYED_MESSAGE = 0, 1, 2, 3
_MESSAGE_TYPES = ("Normal_Msg", "Trans_Msg_Half", "Trans_msg_Commit", "Delay_Msg", "Order_Msg")

SUCCESS, TIME_OUT, EXCEPTION, FAILED = 0, 1, 2, 4
_CONTEXT_CODES = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED")


@lazy_dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One record. Fields that its kind, or the client that wrote it, does not have are None."""

    kind: str
    msg_id: str
    timestamp_ms: int | None = None
    region: str | None = None
    group: str | None = None
    topic: str | None = None
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    body_length: int | None = None
    cost_ms: int | None = None
    message_type: str | None = None
    offset_msg_id: str | None = None
    success: bool | None = None
    client_host: str | None = None
    #: Of SubBefore and SubAfter: the same in the records of one call of a handler.
    request_id: str | None = None
    retry_times: int | None = None
    #: Of SubAfter: how the handler ended.
    context_code: str | None = None
    transaction_id: str | None = None
    transaction_state: str | None = None
    from_check: bool | None = None


def decode_records(text: str) -> list[TraceRecord]:
    """The records of a trace message that can be read."""
    found = []
    for line in text.split(RECORD_END):
        fields = line.split(FIELD_END)
        decode = _DECODERS.get(fields[0])
        if decode is None:
            continue
        try:
            found.append(decode(fields))
        except (IndexError, ValueError):
            continue
    return found


def _pub(fields: Sequence[str]) -> TraceRecord:
    # Of 13 fields the last one is the success; later versions have the offset message id before it.
    has_offset = len(fields) > 13
    return TraceRecord(
        kind=PUB,
        timestamp_ms=int(fields[1]),
        region=_text(fields[2]),
        group=_text(fields[3]),
        topic=_text(fields[4]),
        msg_id=fields[5],
        tags=_text(fields[6]),
        keys=_text(fields[7]),
        store_host=_text(fields[8]),
        body_length=int(fields[9]),
        cost_ms=int(fields[10]),
        message_type=_named(_MESSAGE_TYPES, fields[11]),
        offset_msg_id=_text(fields[12]) if has_offset else None,
        success=_flag(fields[13 if has_offset else 12]),
        client_host=_text(fields[14]) if len(fields) > 14 else None,
    )


def _sub_before(fields: Sequence[str]) -> TraceRecord:
    return TraceRecord(
        kind=SUB_BEFORE,
        timestamp_ms=int(fields[1]),
        region=_text(fields[2]),
        group=_text(fields[3]),
        request_id=fields[4],
        msg_id=fields[5],
        retry_times=int(fields[6]),
        keys=_text(fields[7]) if len(fields) > 7 else None,
    )


def _sub_after(fields: Sequence[str]) -> TraceRecord:
    return TraceRecord(
        kind=SUB_AFTER,
        request_id=fields[1],
        msg_id=fields[2],
        cost_ms=int(fields[3]),
        success=_flag(fields[4]),
        keys=_text(fields[5]) if len(fields) > 5 else None,
        context_code=_named(_CONTEXT_CODES, fields[6]) if len(fields) > 6 else None,
        timestamp_ms=int(fields[7]) if len(fields) > 7 else None,
        group=_text(fields[8]) if len(fields) > 8 else None,
    )


def _end_transaction(fields: Sequence[str]) -> TraceRecord:
    return TraceRecord(
        kind=END_TRANSACTION,
        timestamp_ms=int(fields[1]),
        region=_text(fields[2]),
        group=_text(fields[3]),
        topic=_text(fields[4]),
        msg_id=fields[5],
        tags=_text(fields[6]),
        keys=_text(fields[7]),
        store_host=_text(fields[8]),
        message_type=_named(_MESSAGE_TYPES, fields[9]),
        transaction_id=_text(fields[10]),
        transaction_state=_text(fields[11]),
        from_check=_flag(fields[12]),
    )


def _recall(fields: Sequence[str]) -> TraceRecord:
    return TraceRecord(
        kind=RECALL,
        timestamp_ms=int(fields[1]),
        region=_text(fields[2]),
        group=_text(fields[3]),
        topic=_text(fields[4]),
        msg_id=fields[5],
        success=_flag(fields[6]),
    )


_DECODERS: Mapping[str, Callable[[Sequence[str]], TraceRecord]] = {
    PUB: _pub,
    SUB_BEFORE: _sub_before,
    SUB_AFTER: _sub_after,
    END_TRANSACTION: _end_transaction,
    RECALL: _recall,
}


def _text(field: str) -> str | None:
    return None if field in ("", NO_VALUE) else field


def _flag(field: str) -> bool:
    return field == "true"


def _named(names: Sequence[str], field: str) -> str:
    number = int(field)
    return names[number] if 0 <= number < len(names) else field


@lazy_dataclass(frozen=True, slots=True)
class Step:
    """One action on the message, by the client at ``client_host``."""

    #: Pub, Sub, EndTransaction or Recall.
    kind: str
    group: str
    client_host: str
    #: When the action began; for a handler whose beginning is not in the trace, when it ended.
    timestamp_ms: int
    #: None while a handler has not ended, or if the record lacks it.
    cost_ms: int | None
    status: str
    record: TraceRecord


def timeline(msg_id: str, found: Iterable[tuple[TraceRecord, str]]) -> list[Step]:
    """The steps in the order of time; ``found`` are records with the addresses of the clients that sent them."""
    steps: list[Step] = []
    before: dict[tuple[str | None, str], tuple[TraceRecord, str]] = {}
    after: dict[tuple[str | None, str], tuple[TraceRecord, str]] = {}
    for record, host in dict.fromkeys(found):
        if record.msg_id != msg_id:
            continue
        if record.kind == SUB_BEFORE:
            before[record.request_id, host] = record, host
        elif record.kind == SUB_AFTER:
            after[record.request_id, host] = record, host
        else:
            steps.append(_step(record, host))
    for request in dict.fromkeys([*before, *after]):
        steps.append(_handled(before.get(request), after.get(request)))
    return sorted(steps, key=lambda step: (step.kind != PUB, step.timestamp_ms))


def _step(record: TraceRecord, host: str) -> Step:
    if record.kind == END_TRANSACTION:
        status = record.transaction_state or "unknown"
    else:
        status = "success" if record.success else "failed"
    return Step(
        record.kind,
        record.group or "",
        record.client_host or host,
        record.timestamp_ms or 0,
        record.cost_ms,
        status,
        record,
    )


def _handled(before: tuple[TraceRecord, str] | None, after: tuple[TraceRecord, str] | None) -> Step:
    """A call of a handler; at least one of its two records is there."""
    known = before or after
    assert known is not None
    record, host = known
    group, cost_ms, status = record.group, None, "consuming"
    if after is not None:
        end = after[0]
        group, cost_ms = group or end.group, end.cost_ms
        is_plain = end.context_code in (None, "SUCCESS", "FAILED")
        status = "success" if end.success else "failed" if is_plain else f"failed ({end.context_code})"
        record = end if before is None else record
    return Step("Sub", group or "", host, record.timestamp_ms or 0, cost_ms, status, after[0] if after else record)
