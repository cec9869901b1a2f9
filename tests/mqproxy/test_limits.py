"""What slow and hostile peers can do to a proxy: each meets a limit, and the proxy serves the others."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import trio

from skylark import Message, blocking
from skylark.mqproxy import server
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.sdk.testing import Cluster
from tests.mqproxy.test_ports import answers
from tests.support.proxies import Proxy, call, proxy
from tests.support.waiting import DEADLINE_S, until

# gRPC reads ahead no more than a window, which does not grow with these.
NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535)]


def receiving(channel: grpc.Channel, asked: wire.ReceiveMessageRequest) -> Any:
    """A call whose answer is read with `next`."""
    made = channel.unary_stream(
        f"/{SERVICE}/ReceiveMessage", type(asked).SerializeToString, wire.ReceiveMessageResponse.FromString
    )
    return made(asked, metadata=[("x-mq-client-id", "test")], timeout=60)


def connected(running: Proxy) -> socket.socket:
    """A connection that a proxy has taken: it has sent its first bytes."""
    host, _, port = running.address.rpartition(":")
    opened = socket.create_connection((host, int(port)), timeout=30)
    opened.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    return opened


def is_refused(opened: socket.socket) -> bool:
    """Whether the proxy has closed a new connection; otherwise it sends its settings."""
    try:
        return opened.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("key", ["max_connections", "max_connections_per_address"])
def test_more_connections_than_the_limit_are_closed(
    cluster: Cluster, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    limit: dict[str, Any] = {key: 2}
    with proxy(cluster.nameserver, **limit) as running:
        taken = [connected(running) for _ in range(2)]
        assert not any(map(is_refused, taken))
        with connected(running) as third:
            assert is_refused(third)
        for one in taken:
            one.close()

        def is_served() -> bool:
            with connected(running) as fourth:
                return not is_refused(fourth)

        trio.run(until, is_served, "closed connections make room")
    assert "2 are open (see maxConnections" in caplog.text


def test_more_new_connections_a_second_than_the_limit_are_closed(cluster: Cluster) -> None:
    with proxy(cluster.nameserver, max_new_connections_per_second=1) as running:
        opened = [connected(running) for _ in range(50)]
        assert any(map(is_refused, opened))
        for one in opened:
            one.close()


def test_a_silent_connection_is_closed_and_counts_no_more(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_BYTES_TIMEOUT_MS", 50)
    with proxy(cluster.nameserver, max_connections=1) as running:
        host, _, port = running.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as silent:
            assert silent.recv(1) == b""

            def is_served() -> bool:
                with connected(running) as next_one:
                    return not is_refused(next_one)

            trio.run(until, is_served, "there is room again")


def test_an_idle_connection_is_closed(cluster: Cluster) -> None:
    with proxy(cluster.nameserver, grpc_client_idle_time_mills=100) as running, connected(running) as idle:
        while idle.recv(1_000):
            pass  # settings, pings and the goodbye of HTTP/2


def test_more_calls_a_second_than_the_limit_are_refused(cluster: Cluster) -> None:
    with proxy(cluster.nameserver, max_requests_per_second=2) as running, running.channel() as channel:
        statuses = [
            call(channel, "Heartbeat", wire.HeartbeatRequest(), wire.HeartbeatResponse).status for _ in range(50)
        ]
    assert statuses[0].code == wire.UNRECOGNIZED_CLIENT_TYPE
    assert wire.Status(code=wire.TOO_MANY_REQUESTS, message="flow limit") in statuses


def sending(channel: grpc.Channel, requests: Iterator[bytes]) -> wire.SendMessageResponse:
    """The answer to a SendMessage whose request comes from an iterator, as bytes."""
    made = channel.stream_unary(f"/{SERVICE}/SendMessage", None, wire.SendMessageResponse.FromString)
    answer: wire.SendMessageResponse = made(requests, metadata=[("x-mq-client-id", "test")], timeout=60)
    return answer


def test_a_stranger_is_refused_before_the_request_is_read(cluster: Cluster) -> None:
    inner = json.dumps({"accessKey": "inner", "secretKey": "a secret"})
    is_over = threading.Event()

    def never() -> Iterator[bytes]:
        is_over.wait(DEADLINE_S)
        yield from ()

    with (
        proxy(cluster.nameserver, inner_client_authentication_credentials=inner) as running,
        running.channel() as channel,
    ):
        assert sending(channel, never()).status.code == wire.UNAUTHORIZED
        is_over.set()


def test_a_request_that_does_not_become_whole_is_refused(cluster: Cluster) -> None:
    is_over = threading.Event()

    def never() -> Iterator[bytes]:
        is_over.wait(DEADLINE_S)
        yield from ()

    with proxy(cluster.nameserver, slow_frame_timeout=100) as running, running.channel() as channel:
        assert sending(channel, never()).status.code == wire.REQUEST_TIMEOUT
        is_over.set()


@pytest.mark.parametrize("requests", [[], [b"\xff" * 10]], ids=["none", "nonsense"])
def test_a_call_without_a_readable_request_is_refused(
    served: Proxy, requests: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with served.channel() as channel:
        assert sending(channel, iter(requests)).status.code == wire.BAD_REQUEST
    assert not [record for record in caplog.records if record.name.startswith("skylark.mqproxy")]


def test_a_client_that_does_not_read_its_messages_loses_the_call(
    cluster: Cluster, make_topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "skylark.mqproxy.service")
    topic = make_topic()
    group = "slow"
    with blocking.SimpleConsumer(cluster.nameserver, group=group, subscriptions={topic: "*"}) as consumer:
        consumer.receive(wait_ms=0)
    with blocking.Producer(cluster.nameserver) as producer:
        for _ in range(8):
            producer.send(Message(topic, bytes(2_000_000)))
    asked = wire.ReceiveMessageRequest(
        group=wire.Resource(name=group),
        message_queue=wire.MessageQueue(topic=wire.Resource(name=topic)),
        filter_expression=wire.FilterExpression(type=wire.TAG, expression="*"),
        batch_size=32,
    )
    asked.invisible_duration.FromSeconds(20)
    with (
        proxy(cluster.nameserver, slow_reader_timeout=200) as running,
        grpc.insecure_channel(running.address, NARROW) as channel,
    ):
        received = receiving(channel, asked)
        assert next(received).status.code == wire.OK
        trio.run(until, lambda: "does not read its messages" in caplog.text, "the proxy ends the call")
        with pytest.raises(grpc.RpcError) as lost:
            list(received)
        assert lost.value.code() == grpc.StatusCode.ABORTED
        assert answers(channel)


def test_a_client_that_does_not_read_its_settings_loses_the_stream(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "skylark.mqproxy.service")
    user_agent = wire.UA(version="x" * 100_000)
    settings = wire.Settings(client_type=wire.PRODUCER, publishing=wire.Publishing(), user_agent=user_agent)
    with (
        proxy(cluster.nameserver, slow_reader_timeout=200) as running,
        grpc.insecure_channel(running.address, NARROW) as channel,
    ):
        stream = channel.stream_stream(
            f"/{SERVICE}/Telemetry", wire.TelemetryCommand.SerializeToString, wire.TelemetryCommand.FromString
        )(iter([wire.TelemetryCommand(settings=settings)] * 5), metadata=[("x-mq-client-id", "test")], timeout=60)
        trio.run(until, lambda: "does not read its messages" in caplog.text, "the proxy ends the stream")
        with pytest.raises(grpc.RpcError) as lost:
            list(stream)
        assert lost.value.code() == grpc.StatusCode.ABORTED


def test_messages_come_to_others_when_a_client_ends_its_call(
    cluster: Cluster, make_topic: Callable[..., str], make_group: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.mqproxy.polls.BACK_AFTER_MS", 0)
    topic, group = make_topic(queues=1), make_group()
    asked = wire.ReceiveMessageRequest(
        group=wire.Resource(name=group),
        message_queue=wire.MessageQueue(topic=wire.Resource(name=topic)),
        filter_expression=wire.FilterExpression(type=wire.TAG, expression="*"),
        batch_size=32,
        auto_renew=True,
    )
    with (
        proxy(cluster.nameserver) as running,
        grpc.insecure_channel(running.address, NARROW) as channel,
        blocking.Producer(cluster.nameserver) as producer,
        blocking.SimpleConsumer(cluster.nameserver, group=group, subscriptions={topic: "*"}) as other,
    ):
        waiting = receiving(channel, asked)
        # The connection keeps the order of calls: once this one is answered, the proxy has the one before it.
        assert answers(channel)
        waiting.cancel()
        assert answers(channel)
        producer.send(Message(topic, b"a cup of tea"))
        (message,) = other.receive(wait_ms=20_000)
        other.ack(message)
        for _ in range(4):
            producer.send(Message(topic, bytes(500_000)))
        unread = receiving(channel, asked)
        assert next(unread).status.code == wire.OK
        unread.cancel()
        assert other.receive(wait_ms=20_000)
