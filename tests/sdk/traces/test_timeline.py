"""The way of one message, from records in any order."""

from itertools import permutations

from skylark.sdk.traces.records import TraceRecord, timeline

PUB = TraceRecord(kind="Pub", msg_id="M", timestamp_ms=100, group="p", cost_ms=3, success=True)
OTHER = TraceRecord(kind="Pub", msg_id="N", timestamp_ms=90, group="p", cost_ms=3, success=True)
END = TraceRecord(kind="EndTransaction", msg_id="M", timestamp_ms=104, group="p", transaction_state="COMMIT_MESSAGE")
BEFORE = TraceRecord(kind="SubBefore", msg_id="M", timestamp_ms=105, group="g", request_id="1")
# Of a client that does not name the group here.
AFTER = TraceRecord(kind="SubAfter", msg_id="M", cost_ms=7, success=False, request_id="1", context_code="TIME_OUT")
AGAIN = TraceRecord(kind="SubBefore", msg_id="M", timestamp_ms=200, group="g", request_id="2")
ALONE = TraceRecord(
    kind="SubAfter", msg_id="M", timestamp_ms=300, group="h", cost_ms=1, success=True, request_id="3",
    context_code="SUCCESS",
)  # fmt: skip


def test_in_whatever_order_the_records_come() -> None:
    for order in permutations([PUB, END, BEFORE, AFTER, AGAIN, ALONE]):
        steps = timeline("M", [(record, "10.0.0.1") for record in [*order, OTHER, *order]])
        assert [(step.kind, step.group, step.timestamp_ms, step.cost_ms, step.status) for step in steps] == [
            ("Pub", "p", 100, 3, "success"),
            ("EndTransaction", "p", 104, None, "COMMIT_MESSAGE"),
            ("Sub", "g", 105, 7, "failed (TIME_OUT)"),
            ("Sub", "g", 200, None, "consuming"),
            ("Sub", "h", 300, 1, "success"),
        ]


def test_requests_of_two_clients_with_the_same_number() -> None:
    steps = timeline("M", [(BEFORE, "10.0.0.1"), (BEFORE, "10.0.0.2"), (AFTER, "10.0.0.2")])
    assert [(step.client_host, step.status) for step in steps] == [
        ("10.0.0.1", "consuming"),
        ("10.0.0.2", "failed (TIME_OUT)"),
    ]
