"""Requests that the broker does not answer yet: refused, and said once in the log."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from skylark.broker.meta.clients import Clients
from skylark.broker.unsupported_requests import MAX_CLIENTS, MAX_LINES_OF_A_CLIENT, OTHER_CODES, RefusedHandlers
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import ConsumerData, HeartbeatData
from skylark.remoting.protocol.requests.table import BY_CODE
from tests.broker.running import running
from tests.support.caller import Caller

RECALL = 370


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, "skylark.broker.unsupported_requests"):
        yield


class Refused:
    def __init__(self) -> None:
        self.clients = Clients()
        self.family = RefusedHandlers(self.clients, ())
        self.handlers = self.family.handlers()

    def ask(self, channel: Channel, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> None:
        answer = self.handlers[code](channel, Command(code, ext, body))
        assert answer is not None
        text = f" request type {code} not supported"
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert (answer.remark or "").startswith(text)


async def test_the_log_names_the_request_and_the_group(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (client, addr):
        answer = await client.invoke(addr, Command(353, {"group": "asker"}))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    (line,) = [record.getMessage() for record in caplog.records if record.name == "skylark.broker.unsupported_requests"]
    assert "UPDATE_AND_GET_GROUP_FORBIDDEN (353) of client '127.0.0.1' of group 'asker' refused" in line


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (2001, "UPDATE_COLD_DATA_FLOW_CTR_CONFIG"),
        (2002, "REMOVE_COLD_DATA_FLOW_CTR_CONFIG"),
        (2003, "GET_COLD_DATA_FLOW_CTR_INFO"),
        (2004, "SET_COMMITLOG_READ_MODE"),
    ],
)
async def test_tools_show_the_name_of_what_is_not_supported(code: int, name: str) -> None:
    answer = Refused().handlers[code](Caller().channel, Command(code))
    assert answer is not None
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported: {name}")


async def test_a_refusal_is_logged_once_for_each_client_group_and_code(caplog: pytest.LogCaptureFixture) -> None:
    refused, one, other = Refused(), Caller("10.0.0.1:1").channel, Caller("10.0.0.1:2").channel
    for channel, client in ((one, "one"), (other, "other")):
        heartbeat = HeartbeatData(client, consumer_data_set=[])
        refused.clients.join_consumer_group(channel, heartbeat, ConsumerData("a"), "JAVA", 400, 0)
    for _ in range(3):
        for channel in (one, other):
            for group in ("a", "b"):
                refused.ask(channel, RECALL, {"group": group})
                refused.ask(channel, 400, body=b'{"consumerGroup":"%s"}' % group.encode())
    assert len(caplog.records) == 8
    refused.ask(Caller("10.0.0.1:3").channel, 353)
    assert "UPDATE_AND_GET_GROUP_FORBIDDEN (353) of client '10.0.0.1' refused" in caplog.text


async def test_lines_and_remembered_clients_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    refused, channel = Refused(), Caller().channel
    for number in range(MAX_LINES_OF_A_CLIENT + 5):
        refused.ask(channel, RECALL, {"group": f"{number}" + "x" * 10_000})
    assert len(caplog.records) == MAX_LINES_OF_A_CLIENT
    assert max(len(record.getMessage()) for record in caplog.records) < 1_000
    caplog.clear()
    for number in range(MAX_CLIENTS):
        refused.ask(Caller(f"10.0.{number // 256}.{number % 256}:1").channel, RECALL)
    assert len(caplog.records) == MAX_CLIENTS
    refused.ask(channel, RECALL, {"group": "0"})
    assert len(caplog.records) == MAX_CLIENTS + 1, "the client that was refused first is forgotten"


async def test_a_line_stays_one_line(caplog: pytest.LogCaptureFixture) -> None:
    refused = Refused()
    refused.ask(Caller().channel, RECALL, {"group": "a\nWARNING forged"})
    refused.ask(Caller().channel, 400, body=b'{"consumerGroup":"\xff\n"}')
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_codes_that_a_daemon_handles_are_not_listed_as_unknown() -> None:
    assert not OTHER_CODES.keys() & BY_CODE.keys()
