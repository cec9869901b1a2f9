"""Clients that choose queues and offsets themselves."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from skylark import Message, blocking
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.sdk.testing import Cluster
from tests.support.proxies import Proxy, call, proxy


@pytest.fixture(scope="module")
def channel(cluster: Cluster) -> Iterator[grpc.Channel]:
    with (
        proxy(cluster.nameserver, grpc_client_consumer_min_long_polling_timeout_millis=0) as running,
        running.channel() as opened,
    ):
        yield opened


def queue(topic: str, number: int = 0, broker: str = "broker-a") -> wire.MessageQueue:
    return wire.MessageQueue(topic=wire.Resource(name=topic), id=number, broker=wire.Broker(name=broker))


def send(cluster: Cluster, topic: str, *tags: str) -> list[str]:
    with blocking.Producer(cluster.nameserver) as producer:
        return [producer.send(Message(topic, tag.encode(), tags=tag)).msg_id for tag in tags]


def pull(channel: grpc.Channel, topic: str, offset: int, **others: Any) -> tuple[wire.Code, list[str], int | None]:
    """(status, bodies, next offset) of a pull of queue 0."""
    wait_ms = others.pop("wait_ms", 0)
    request = wire.PullMessageRequest(
        group=wire.Resource(name="pullers"), message_queue=others.pop("queue", None) or queue(topic), offset=offset,
        batch_size=32, **others,
    )  # fmt: skip
    request.long_polling_timeout.FromMilliseconds(wait_ms)
    made = channel.unary_stream(
        f"/{SERVICE}/PullMessage", type(request).SerializeToString, wire.PullMessageResponse.FromString
    )
    answers = list(made(request, metadata=[("x-mq-client-id", "puller")], timeout=30))
    code, bodies, next_offset = wire.CODE_UNSPECIFIED, [], None
    for answer in answers:
        match answer.WhichOneof("content"):
            case "status":
                code = answer.status.code
            case "message":
                bodies.append(answer.message.body.decode())
            case "next_offset":
                next_offset = answer.next_offset
    return code, bodies, next_offset


def test_a_pull_reads_from_its_offset_and_says_where_to_go_on(
    cluster: Cluster, channel: grpc.Channel, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(queues=1)
    send(cluster, topic, "tea", "coffee", "milk")
    assert pull(channel, topic, 1) == (wire.OK, ["coffee", "milk"], 3)
    assert pull(channel, topic, 3) == (wire.MESSAGE_NOT_FOUND, [], 3)
    assert pull(channel, topic, 9) == (wire.ILLEGAL_OFFSET, [], 3)
    milk = wire.FilterExpression(type=wire.TAG, expression="milk")
    assert pull(channel, topic, 0, filter_expression=milk) == (wire.OK, ["milk"], 3)
    sql = wire.FilterExpression(type=wire.SQL, expression="TAGS = 'coffee'")
    assert pull(channel, topic, 0, filter_expression=sql)[:2] == (wire.OK, ["coffee"])


def test_a_pull_waits_for_a_message(cluster: Cluster, channel: grpc.Channel, make_topic: Callable[..., str]) -> None:
    topic = make_topic(queues=1)
    request = wire.PullMessageRequest(group=wire.Resource(name="pullers"), message_queue=queue(topic), batch_size=1)
    request.long_polling_timeout.FromMilliseconds(20_000)
    made = channel.unary_stream(
        f"/{SERVICE}/PullMessage", type(request).SerializeToString, wire.PullMessageResponse.FromString
    )
    waiting = made(request, metadata=[("x-mq-client-id", "puller")], timeout=60)
    send(cluster, topic, "tea")
    status, message, _ = list(waiting)
    assert (status.status.code, message.message.body) == (wire.OK, b"tea")


@pytest.mark.parametrize(
    ("offset", "others", "code"),
    [
        (-1, {}, wire.ILLEGAL_OFFSET),
        (0, {"queue": queue("orders", broker="")}, wire.BAD_REQUEST),
        (0, {"queue": queue("nowhere")}, wire.TOPIC_NOT_FOUND),
        (0, {"filter_expression": wire.FilterExpression(type=wire.SQL, expression="a >")},
         wire.ILLEGAL_FILTER_EXPRESSION),
    ],
)  # fmt: skip
def test_a_pull_that_cannot_be_answered_is_refused(
    channel: grpc.Channel, make_topic: Callable[..., str], offset: int, others: dict[str, Any], code: wire.Code
) -> None:
    assert pull(channel, make_topic(), offset, **others) == (code, [], None)


def test_a_group_goes_on_from_the_offset_that_it_has_committed(
    cluster: Cluster, channel: grpc.Channel, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(queues=1)
    send(cluster, topic, "tea", "coffee", "milk")
    names = {"group": wire.Resource(name=f"group-{topic}"[-60:]), "message_queue": queue(topic)}

    def committed() -> tuple[wire.Code, int]:
        answer = call(channel, "GetOffset", wire.GetOffsetRequest(**names), wire.GetOffsetResponse)
        return answer.status.code, answer.offset

    def commit(offset: int) -> wire.Code:
        asked = wire.UpdateOffsetRequest(offset=offset, **names)
        return call(channel, "UpdateOffset", asked, wire.UpdateOffsetResponse).status.code

    assert committed() == (wire.OFFSET_NOT_FOUND, 0)
    assert commit(2) == wire.OK
    assert committed() == (wire.OK, 2)
    assert commit(-1) == wire.ILLEGAL_OFFSET
    with blocking.PullConsumer(cluster.nameserver, group=names["group"].name) as consumer:
        consumer.assign(consumer.message_queues(topic))
        assert [message.body for message in consumer.poll()] == [b"milk"]


def test_the_offsets_of_a_queue_are_its_ends_and_that_of_a_time(
    cluster: Cluster, channel: grpc.Channel, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(queues=1)
    send(cluster, topic, "tea", "coffee")

    def offset(policy: wire.QueryOffsetPolicy, timestamp_ms: int | None = None) -> tuple[wire.Code, int]:
        request = wire.QueryOffsetRequest(message_queue=queue(topic), query_offset_policy=policy)
        if timestamp_ms is not None:
            request.timestamp.FromMilliseconds(timestamp_ms)
        answer = call(channel, "QueryOffset", request, wire.QueryOffsetResponse)
        return answer.status.code, answer.offset

    assert offset(wire.BEGINNING) == (wire.OK, 0)
    assert offset(wire.END) == (wire.OK, 2)
    assert offset(wire.TIMESTAMP, 1_000) == (wire.OK, 0)
    assert offset(wire.TIMESTAMP) == (wire.BAD_REQUEST, 0)


def test_lite_topics_are_refused_as_for_a_group_that_has_none(served: Proxy) -> None:
    names = {"topic": wire.Resource(name="orders"), "group": wire.Resource(name="billing")}
    with served.channel() as channel:
        asked = wire.SyncLiteSubscriptionRequest(lite_topic_set=["north"], **names)
        answer = call(channel, "SyncLiteSubscription", asked, wire.SyncLiteSubscriptionResponse)
        assert (answer.status.code, "billing" in answer.status.message) == (wire.ILLEGAL_TOPIC, True)
        settings = wire.Settings(
            client_type=wire.LITE_PUSH_CONSUMER, subscription=wire.Subscription(group=names["group"])
        )
        stream = channel.stream_stream(
            f"/{SERVICE}/Telemetry", wire.TelemetryCommand.SerializeToString, wire.TelemetryCommand.FromString
        )
        answers = stream(
            iter([wire.TelemetryCommand(settings=settings)]), metadata=[("x-mq-client-id", "lite")], timeout=30
        )
        with pytest.raises(grpc.RpcError, match="regular group cannot use LITE mode: billing"):
            next(answers)
