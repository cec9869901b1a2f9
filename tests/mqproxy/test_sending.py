"""Bodies that clients have compressed, and how large they may be, without a server."""

import gzip

import pytest

from mqproxy.clients import answered
from mqproxy.options import ProxyOptions
from mqproxy.sending import sdk_messages
from mqproxy.statuses import Refused
from mqproxy.wire import messaging_pb2 as wire

# No limit of messages: that of requests counts.
UNLIMITED = ProxyOptions(max_message_size=0, grpc_max_inbound_message_size=4096)
WHOLE = gzip.compress(b"tea")


def body_of(body: bytes, options: ProxyOptions = UNLIMITED) -> bytes:
    system = wire.SystemProperties(message_id="an-id", body_encoding=wire.GZIP)
    message = wire.Message(topic=wire.Resource(name="orders"), system_properties=system, body=body)
    (made,) = sdk_messages([message], options, "127.0.0.1", 0)
    return made.body


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
