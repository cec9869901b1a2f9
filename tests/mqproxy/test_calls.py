"""Single calls: which status and which text a client gets."""

import zlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc
import pytest

from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.sessions import Sessions
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.sdk.testing import Cluster
from tests.mqproxy.test_producer import read
from tests.support.proxies import Proxy, call, message, proxy


@pytest.fixture(scope="module")
def channel(served: Proxy) -> Iterator[grpc.Channel]:
    with served.channel() as opened:
        yield opened


def send(channel: grpc.Channel, *messages: wire.Message) -> wire.SendMessageResponse:
    return call(channel, "SendMessage", wire.SendMessageRequest(messages=messages), wire.SendMessageResponse)


def telemetry(channel: grpc.Channel, settings: wire.Settings, client_id: str) -> wire.TelemetryCommand:
    stream = channel.stream_stream(
        f"/{SERVICE}/Telemetry", wire.TelemetryCommand.SerializeToString, wire.TelemetryCommand.FromString
    )
    answers = stream(
        iter([wire.TelemetryCommand(settings=settings)]), metadata=[("x-mq-client-id", client_id)], timeout=30
    )
    return next(answers)


def test_a_route_has_the_address_that_the_client_used_and_the_type_of_the_topic(
    channel: grpc.Channel, served: Proxy, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("FIFO", queues=3)
    asked = wire.QueryRouteRequest(
        topic=wire.Resource(name=topic),
        endpoints=wire.Endpoints(scheme=wire.DOMAIN_NAME, addresses=[wire.Address(host="proxy.example", port=1)]),
    )
    answer = call(channel, "QueryRoute", asked, wire.QueryRouteResponse)
    assert (answer.status.code, [queue.id for queue in answer.message_queues]) == (wire.OK, [0, 1, 2])
    queue = answer.message_queues[0]
    assert (queue.permission, list(queue.accept_message_types)) == (wire.READ_WRITE, [wire.FIFO])
    assert queue.broker.name == "broker-a"
    (address,) = queue.broker.endpoints.addresses
    assert f"{address.host}:{address.port}" == f"proxy.example:{served.address.rpartition(':')[2]}"


@pytest.mark.parametrize(
    ("system", "body", "code", "text"),
    [
        ({"message_id": " "}, b"x", wire.ILLEGAL_MESSAGE_ID, "message id cannot be empty"),
        ({}, b"", wire.MESSAGE_BODY_EMPTY, "message body cannot be empty"),
        ({}, bytes(4 * 1024 * 1024 + 1), wire.MESSAGE_BODY_TOO_LARGE, "message body cannot exceed the max 4194304"),
        ({"tag": "a|b"}, b"x", wire.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'"),
        ({"keys": ["a\x01"]}, b"x", wire.ILLEGAL_MESSAGE_KEY, "key cannot contain control character"),
        ({"message_group": "g" * 64}, b"x", wire.ILLEGAL_MESSAGE_GROUP, "message group exceed the max size 64"),
        ({"priority": -3}, b"x", wire.BAD_REQUEST, "the priority of a message is 0 or more, not -3"),
        ({"lite_topic": "north"}, b"x", wire.NOT_IMPLEMENTED, "no messages of type LITE"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_with_rocketmqs_code(
    channel: grpc.Channel, system: dict[str, Any], body: bytes, code: wire.Code, text: str
) -> None:
    answer = send(channel, message("orders", body, **system))
    assert (answer.status.code, text in answer.status.message) == (code, True), answer.status


def test_a_property_of_rocketmq_is_refused(channel: grpc.Channel) -> None:
    wrong = message("orders")
    wrong.user_properties["UNIQ_KEY"] = "mine"
    assert send(channel, wrong).status == wire.Status(
        code=wire.ILLEGAL_MESSAGE_PROPERTY_KEY, message="property is used by system: UNIQ_KEY"
    )


def test_a_call_without_a_client_id_is_refused(channel: grpc.Channel) -> None:
    answer = call(channel, "Heartbeat", wire.HeartbeatRequest(), wire.HeartbeatResponse, client_id=None)
    assert answer.status == wire.Status(code=wire.CLIENT_ID_REQUIRED, message="client id cannot be empty")


def test_an_error_that_was_not_expected_is_a_status_also_while_the_caller_is_looked_for(
    channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def known(*arguments: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(Sessions, "known", known)
    answer = call(channel, "Heartbeat", wire.HeartbeatRequest(), wire.HeartbeatResponse)
    assert answer.status == wire.Status(code=wire.INTERNAL_SERVER_ERROR, message="internal error: LookupError")
    assert "LookupError: a bug" in caplog.text


def test_a_compressed_body_is_stored_as_its_content(
    channel: grpc.Channel, cluster: Cluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    squeezed = zlib.compressobj(wbits=31)
    body = squeezed.compress(b"tea " * 1000) + squeezed.flush()
    assert send(channel, message(topic, body, body_encoding=wire.GZIP)).status.code == wire.OK
    assert [found.body for found in read(cluster, topic, 1)] == [b"tea " * 1000]
    answer = send(channel, message(topic, b"plain", body_encoding=wire.GZIP))
    assert answer.status.code == wire.MESSAGE_CORRUPTED
    assert "the body is not compressed with gzip" in answer.status.message
    answer = send(channel, *[message(topic, each, body_encoding=wire.GZIP) for each in (body, b"plain", body)])
    assert [entry.status.code for entry in answer.entries] == [wire.OK, wire.MESSAGE_CORRUPTED, wire.OK]
    assert [found.body for found in read(cluster, topic, 3)] == [b"tea " * 1000] * 3
    answer = send(channel, message("no-such-topic", b"plain", body_encoding=wire.GZIP))
    assert answer.status.code == wire.TOPIC_NOT_FOUND, "nothing is expanded for an unknown topic"


def test_a_request_that_grpc_would_expand_is_refused(channel: grpc.Channel) -> None:
    method = channel.unary_unary(f"/{SERVICE}/Heartbeat", bytes, bytes)
    with pytest.raises(grpc.RpcError) as caught:
        method(bytes(1 << 20), metadata=[("x-mq-client-id", "x")], compression=grpc.Compression.Gzip)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_each_message_of_a_call_has_its_own_result(
    channel: grpc.Channel, cluster: Cluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    ids = [f"0102FC00000001751700000000000000{number:02X}" for number in range(20)]
    answer = send(channel, *[message(topic, id.encode(), message_id=id) for id in ids])
    assert (answer.status.code, [entry.message_id for entry in answer.entries]) == (wire.OK, ids)
    assert sorted(found.body.decode() for found in read(cluster, topic, 20)) == ids


def test_the_proxy_answers_settings_and_then_knows_the_client_until_it_ends(channel: grpc.Channel) -> None:
    settings = wire.Settings(client_type=wire.PRODUCER, publishing=wire.Publishing(validate_message_type=True))
    known = "producer-1"
    beat = wire.HeartbeatRequest(client_type=wire.PRODUCER)
    assert call(channel, "Heartbeat", beat, wire.HeartbeatResponse, known).status.code == wire.UNRECOGNIZED_CLIENT_TYPE
    answer = telemetry(channel, settings, known)
    assert (answer.status.code, answer.settings.publishing.max_body_size) == (wire.OK, 4 * 1024 * 1024)
    assert answer.settings.backoff_policy.max_attempts == 3
    assert call(channel, "Heartbeat", beat, wire.HeartbeatResponse, known).status.code == wire.OK
    ending = wire.NotifyClientTerminationRequest()
    assert call(
        channel, "NotifyClientTermination", ending, wire.NotifyClientTerminationResponse, known
    ).status.code == (wire.OK)
    assert call(channel, "Heartbeat", beat, wire.HeartbeatResponse, known).status.code == wire.UNRECOGNIZED_CLIENT_TYPE


def test_settings_of_a_type_of_client_that_nobody_knows_end_the_stream_with_a_reason(channel: grpc.Channel) -> None:
    settings = wire.Settings(client_type=cast(Any, 4711), publishing=wire.Publishing())
    with pytest.raises(grpc.RpcError, match="4711 is no type of a client"):
        telemetry(channel, settings, "odd")
    beat = wire.HeartbeatRequest(client_type=cast(Any, 4711))
    assert call(channel, "Heartbeat", beat, wire.HeartbeatResponse, "odd").status.code == wire.UNRECOGNIZED_CLIENT_TYPE


def test_settings_of_no_kind_of_client_end_the_stream_with_a_reason(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError, match="there is no publishing or subscription data"):
        telemetry(channel, wire.Settings(), "neither")


def test_a_request_above_the_limit_is_refused_and_the_proxy_serves_on(cluster: Cluster) -> None:
    with proxy(cluster.nameserver, grpc_max_inbound_message_size=10_000) as small, small.channel() as channel:
        with pytest.raises(grpc.RpcError, match="larger than max"):
            send(channel, message("orders", bytes(20_000)))
        assert send(channel, message("orders", b"")).status.code == wire.MESSAGE_BODY_EMPTY


@pytest.mark.parametrize(
    ("handle", "text"),
    [
        ("nonsense", "the receipt handle cannot be read"),
        ("0 1000 1000 0 0 broker-a 0 0 0", "receipt handle is expired"),
        (f"0 {2**62} 1000 0 0 broker-a 0 0 x", "the receipt handle has no offset"),
    ],
)
def test_a_receipt_handle_that_cannot_be_used_is_refused(channel: grpc.Channel, handle: str, text: str) -> None:
    entry = wire.AckMessageEntry(message_id="m", receipt_handle=handle)
    names = {"topic": wire.Resource(name="orders"), "group": wire.Resource(name="billing")}
    answer = call(channel, "AckMessage", wire.AckMessageRequest(entries=[entry], **names), wire.AckMessageResponse)
    (result,) = answer.entries
    assert (answer.status.code, result.status.code) == (wire.INVALID_RECEIPT_HANDLE, wire.INVALID_RECEIPT_HANDLE)
    assert text in result.status.message


def test_a_call_that_acknowledges_too_many_messages_is_refused(channel: grpc.Channel) -> None:
    names = {"topic": wire.Resource(name="orders"), "group": wire.Resource(name="billing")}
    entries = [wire.AckMessageEntry(message_id="m", receipt_handle="nonsense")] * 1_025
    answer = call(channel, "AckMessage", wire.AckMessageRequest(entries=entries, **names), wire.AckMessageResponse)
    text = "a call may have 1024 messages at most, this one has 1025"
    assert answer == wire.AckMessageResponse(status=wire.Status(code=wire.BAD_REQUEST, message=text))


def receive(channel: grpc.Channel, request: wire.ReceiveMessageRequest) -> wire.Status:
    """The status of a receive."""
    made = channel.unary_stream(
        f"/{SERVICE}/ReceiveMessage", type(request).SerializeToString, wire.ReceiveMessageResponse.FromString
    )
    return next(iter(made(request, metadata=[("x-mq-client-id", "test")], timeout=30))).status


def test_a_receive_that_cannot_be_answered_is_refused(channel: grpc.Channel) -> None:
    asked = wire.ReceiveMessageRequest(
        group=wire.Resource(name="billing"),
        message_queue=wire.MessageQueue(topic=wire.Resource(name="orders")),
        filter_expression=wire.FilterExpression(type=wire.TAG, expression=" || "),
    )
    asked.invisible_duration.FromSeconds(20)
    assert receive(channel, asked).code == wire.ILLEGAL_FILTER_EXPRESSION
    asked.filter_expression.expression = "*"
    assert receive(channel, asked).code == wire.TOPIC_NOT_FOUND
    asked.invisible_duration.FromSeconds(1)
    asked.message_queue.broker.name = "broker-a"
    assert receive(channel, asked).code == wire.ILLEGAL_INVISIBLE_TIME
    asked.group.name = "CID_RMQ_SYS_TRANS"
    assert receive(channel, asked).code == wire.ILLEGAL_CONSUMER_GROUP
