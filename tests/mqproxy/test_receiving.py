"""How long receives wait, and what clients see of messages and receipts."""

from types import SimpleNamespace
from typing import cast

import pytest

from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.receiving import RESERVE_MS, ReceiveQueries, ReceiveQuery, named_polling_ms, polling_ms
from skylark.mqproxy.sending import entry_of
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.stored import stored_message
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.sdk.producer.result import SendResult, SendStatus
from tests.mqproxy.test_times import TOPIC, stored

OPTIONS = ProxyOptions()


def wait_of(named_ms: int | None, left_s: float | None) -> int:
    """The wait of a client whose requests may take 3 s; ``left_s``: the time until its deadline."""
    request, settings = wire.ReceiveMessageRequest(), wire.Settings()
    settings.request_timeout.FromSeconds(3)
    if named_ms is not None:
        request.long_polling_timeout.FromMilliseconds(named_ms)
    return polling_ms(named_polling_ms(request), settings, left_s, OPTIONS)


@pytest.mark.parametrize(
    ("named_ms", "left_s", "wait_ms"),
    [
        # The official Python client names its time, and has a deadline 3 s later.
        (1_000, 4.0, 1_000),
        (2_000, 5.0, 2_000),
        (20_000, 23.0, 20_000),
        (0, 3.0, 0),
        (1_000, 1.0, 1_000 - RESERVE_MS),
        (1_000, 0.1, 0),
        (60_000, None, 20_000),
        # Others name none: their deadline says it.
        (None, 23.0, 20_000),
        (None, 12.0, 10_500),
        (None, 6.0, 5_000),
        (None, 5.1, 5_100 - RESERVE_MS),
        (None, None, 18_500),
    ],
)
def test_a_client_that_names_a_time_gets_that_time(named_ms: int | None, left_s: float | None, wait_ms: int) -> None:
    assert wait_of(named_ms, left_s) == wait_ms


def test_a_deadline_that_leaves_no_time_is_refused() -> None:
    with pytest.raises(Refused, match="deadline") as refused:
        wait_of(None, 4.0)
    assert refused.value.code == wire.ILLEGAL_POLLING_TIME


def test_a_request_that_comes_again_is_remembered_but_not_an_attempts() -> None:
    request = wire.ReceiveMessageRequest(group=wire.Resource(name="group"), batch_size=16)
    request.message_queue.topic.name = "topic"
    request.invisible_duration.FromSeconds(60)
    queries = ReceiveQueries(OPTIONS)

    def read() -> ReceiveQuery:
        return queries.read(request.SerializeToString())

    assert read() is read() and (read().topic, read().most, read().named_ms) == ("topic", 16, None)
    request.batch_size = 17
    request.long_polling_timeout.FromSeconds(1)
    assert (read().most, read().named_ms) == (17, 1_000)
    request.attempt_id = "one"
    assert read() == read() and read() is not read()
    request.group.name = "g" * 600
    for _ in range(2):
        with pytest.raises(Refused):
            read()


def test_consumers_see_the_group_and_the_transaction_of_a_message_among_its_properties() -> None:
    shown = {"__SHARDINGKEY": "ada", "__transactionId__": "id", "shop": "north"}
    hidden = {"UNIQ_KEY": "id", "TRAN_MSG": "true", "PGROUP": "t"}
    found = stored_message(stored(**shown, **hidden), TOPIC)
    assert dict(found.user_properties) == shown and found.system_properties.message_group == "ada"


def test_a_receipt_without_a_transaction_has_the_id_of_the_message() -> None:
    sent = SimpleNamespace(status=SendStatus.SEND_OK, msg_id="id", queue_offset=7, recall_handle="")
    result = cast(SendResult, sent)
    assert entry_of(result).transaction_id == "id"
    assert entry_of(result, "7 70 b").transaction_id == "7 70 b"
