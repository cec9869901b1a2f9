"""Bodies that clients have compressed, and how large they may be, without a server."""

import gzip
import random
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from skylark.mqproxy import service
from skylark.mqproxy.clients import answered
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.sending import MAX_MESSAGES, expanded, sdk_messages
from skylark.mqproxy.service import Calls
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire

# No limit of messages: the limit of requests counts.
UNLIMITED = ProxyOptions(max_message_size=0, grpc_max_inbound_message_size=4096)
WHOLE = gzip.compress(b"tea")


def body_of(body: bytes, options: ProxyOptions = UNLIMITED) -> bytes:
    system = wire.SystemProperties(message_id="an-id", body_encoding=wire.GZIP)
    message = wire.Message(topic=wire.Resource(name="orders"), system_properties=system, body=body)
    (made,) = sdk_messages([message], options, "127.0.0.1", 0)
    assert made.body == body, "a call expands its messages one after another"
    return expanded(made.body, options.most_body_bytes)


def test_a_compressed_body_is_its_content() -> None:
    assert body_of(WHOLE) == b"tea"


@pytest.mark.parametrize("body", [WHOLE[:-9], WHOLE + b"more", WHOLE + WHOLE], ids=["cut off", "more", "two"])
@pytest.mark.parametrize("options", [UNLIMITED, ProxyOptions()], ids=["unlimited", "limited"])
def test_a_compressed_body_must_be_whole_and_nothing_else(body: bytes, options: ProxyOptions) -> None:
    with pytest.raises(Refused, match="cut off, or has something behind") as caught:
        body_of(body, options)
    assert caught.value.code == wire.MESSAGE_CORRUPTED


def test_what_a_compressed_body_becomes_is_bounded_without_a_limit_of_messages() -> None:
    assert body_of(gzip.compress(bytes(4096))) == bytes(4096)
    with pytest.raises(Refused, match="cannot exceed the max 4096") as caught:
        body_of(gzip.compress(bytes(4097)))
    assert caught.value.code == wire.MESSAGE_BODY_TOO_LARGE


def test_clients_are_told_a_limit_in_any_case() -> None:
    settings = wire.Settings(publishing=wire.Publishing())
    assert answered(settings, UNLIMITED, None).publishing.max_body_size == 4096


@pytest.mark.parametrize("name", ["UNIQ_KEY", "TIMER_DEL_UNIQKEY", "__STARTDELIVERTIME", ""])
def test_a_property_that_brokers_act_on_is_refused(name: str) -> None:
    system = wire.SystemProperties(message_id="an-id", body_encoding=wire.IDENTITY)
    message = wire.Message(topic=wire.Resource(name="orders"), system_properties=system, body=b"tea")
    message.user_properties[name] = "1"
    with pytest.raises(Refused) as caught:
        sdk_messages([message], UNLIMITED, "127.0.0.1", 0)
    assert caught.value.code == wire.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_a_received_message_can_be_sent_again_with_its_properties() -> None:
    system = wire.SystemProperties(message_id="an-id", body_encoding=wire.IDENTITY)
    message = wire.Message(topic=wire.Resource(name="orders"), system_properties=system, body=b"tea")
    message.user_properties.update({"__SHARDINGKEY": "ada", "__transactionId__": "old", "shop": "north"})
    (made,) = sdk_messages([message], UNLIMITED, "127.0.0.1", 0)
    assert {"__SHARDINGKEY", "__transactionId__"}.isdisjoint(made.properties) and made.properties["shop"] == "north"


def test_too_many_messages_of_a_call_are_refused_before_the_first_is_read() -> None:
    with pytest.raises(Refused, match="a call may have 1024 messages at most, this one has 1025") as caught:
        sdk_messages([wire.Message()] * (MAX_MESSAGES + 1), UNLIMITED, "127.0.0.1", 0)
    assert caught.value.code == wire.BAD_REQUEST
    system = wire.SystemProperties(message_id="an-id")
    most = [wire.Message(topic=wire.Resource(name="orders"), system_properties=system)] * MAX_MESSAGES
    assert len(sdk_messages(most, ProxyOptions(enable_message_body_empty_check=False), "127.0.0.1", 0)) == MAX_MESSAGES


class Sent:
    """Calls with a session in memory. ``parts`` has the sizes of bodies that were expanded when messages were sent."""

    def __init__(self, code: wire.Code = wire.OK) -> None:
        self.parts: list[list[int]] = []
        self.code = code
        options = ProxyOptions()
        self.calls = Calls(options, cast(Any, None), cast(Any, None), 0)
        self.calls._send_all = self._send_all  # type: ignore[method-assign]

    async def _send_all(self, caller: Any, messages: Sequence[Any]) -> list[wire.SendResultEntry]:
        self.parts.append([len(message.body) for message in self.messages if len(message.body) > 10_000])
        return [wire.SendResultEntry(status=wire.Status(code=self.code)) for _ in messages]

    def send(self, *bodies: bytes) -> list[wire.Code]:
        wires = []
        for body in bodies:
            system = wire.SystemProperties(message_id="an-id", body_encoding=wire.GZIP)
            wires.append(wire.Message(topic=wire.Resource(name="orders"), system_properties=system, body=body))
        self.messages = sdk_messages(wires, ProxyOptions(), "127.0.0.1", 0)

        async def main() -> list[wire.SendResultEntry]:
            caller: Any = SimpleNamespace(session=SimpleNamespace(expanding=trio.Semaphore(1)))
            return await self.calls._send_expanded(caller, self.messages, [True] * len(bodies))

        return [entry.status.code for entry in trio.run(main)]


MIB = 1 << 20
LARGE = gzip.compress(bytes(2 * MIB))


def test_few_messages_of_a_call_are_expanded_at_a_time() -> None:
    sent = Sent()
    assert sent.send(*[LARGE] * 6) == [wire.OK] * 6
    assert sent.parts == [[2 * MIB], [2 * MIB] * 2, [2 * MIB] * 2, [2 * MIB]]


def test_only_large_bodies_are_expanded_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def note(body: bytes, most: int) -> bytes:
        threads.append("main" if threading.current_thread() is threading.main_thread() else "another")
        return expanded(body, most)

    monkeypatch.setattr(service, "expanded", note)
    noise = gzip.compress(random.Random(1).randbytes(MIB))
    assert Sent().send(noise, LARGE) == [wire.OK] * 2
    assert threads == ["another", "main"]
    with pytest.raises(Refused, match="cut off"):
        Sent().send(noise[:-9])


def test_nothing_more_is_expanded_for_who_may_not_send() -> None:
    sent = Sent(wire.FORBIDDEN)
    assert sent.send(*[LARGE] * 6) == [wire.FORBIDDEN] * 6
    assert sent.parts == [[2 * MIB]]


def test_a_broken_body_refuses_its_call_or_once_others_were_sent_itself() -> None:
    sent = Sent()
    with pytest.raises(Refused):
        sent.send(b"broken", LARGE)
    assert sent.parts == []
    assert sent.send(LARGE, b"broken", LARGE) == [wire.OK, wire.MESSAGE_CORRUPTED, wire.OK]
