"""The way of one message, from the records of its trace. Pure.

Records come in any order, and twice when the send of a trace message was repeated. SubAfter records of older clients
do not name their group: the SubBefore record of the same request does.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sdk.traces.records import END_TRANSACTION, PUB, SUB_AFTER, SUB_BEFORE, TraceRecord


@dataclass(frozen=True, slots=True)
class Step:
    """Something that was done with the message, by the client at ``client_host``."""

    #: Pub, Sub, EndTransaction or Recall.
    kind: str
    group: str
    client_host: str
    #: When it began; of a handler whose beginning is not in the trace, when it ended.
    timestamp_ms: int
    #: None while a handler has not ended, and where the record does not say.
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
        record.kind, record.group or "", record.client_host or host, record.timestamp_ms or 0, record.cost_ms, status,
        record,
    )  # fmt: skip


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
