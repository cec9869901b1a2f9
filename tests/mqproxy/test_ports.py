"""How a proxy listens: with and without TLS, and how it starts and stops."""

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
import trio
from click.testing import CliRunner
from trio.testing import wait_all_tasks_blocked

from skylark import blocking
from skylark.mqcommon.errors import ConfigError, UserError
from skylark.mqproxy.cli import main
from skylark.mqproxy.ending import Ending
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.polls import Polls
from skylark.mqproxy.service import SERVICE, Calls
from skylark.mqproxy.sessions import Session
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.tls.contexts import self_signed
from skylark.sdk.testing import Cluster
from tests.support.proxies import Proxy, call, message, proxy
from tests.support.waiting import DEADLINE_S, until_true


def answers(channel: grpc.Channel) -> bool:
    """Whether the proxy answers a call, whatever the answer."""
    return bool(call(channel, "Heartbeat", wire.HeartbeatRequest(), wire.HeartbeatResponse).status.code)


def certificate_at(address: str) -> bytes:
    """The certificate that the server shows, as PEM."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port))).encode()


def secure(running: Proxy, certificate: bytes) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(certificate)
    return grpc.secure_channel(running.address, credentials, [("grpc.ssl_target_name_override", "skylark test")])


def test_one_port_serves_clients_with_and_without_tls(served: Proxy) -> None:
    with served.channel() as plain, secure(served, certificate_at(served.address)) as encrypted:
        assert answers(plain)
        assert answers(encrypted)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[str, str]]:
    certificate, key = self_signed()
    (tmp_path / "proxy.crt").write_bytes(certificate)
    (tmp_path / "proxy.key").write_bytes(key)
    yield str(tmp_path / "proxy.crt"), str(tmp_path / "proxy.key")


def test_with_enforcing_a_given_certificate_is_shown_and_plain_clients_are_refused(
    cluster: Cluster, files: tuple[str, str]
) -> None:
    given = {"tls_cert_path": files[0], "tls_key_path": files[1]}
    with proxy(cluster.nameserver, tls_server_mode="enforcing", **given) as running:
        assert certificate_at(running.address) == Path(files[0]).read_bytes()
        with secure(running, Path(files[0]).read_bytes()) as encrypted:
            assert answers(encrypted)
        with running.channel() as plain, pytest.raises(grpc.RpcError):
            answers(plain)


def test_with_disabled_there_is_no_tls(cluster: Cluster) -> None:
    with proxy(cluster.nameserver, tls_server_mode="disabled") as running, running.channel() as plain:
        assert answers(plain)
        with pytest.raises(OSError):
            certificate_at(running.address)


def test_a_stopped_proxy_accepts_nobody(cluster: Cluster) -> None:
    with proxy(cluster.nameserver) as running:
        host, _, port = running.address.rpartition(":")
        socket.create_connection((host, int(port))).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_a_stop_answers_those_who_wait(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # The stop must not wait for the pop of the call that waited.
    monkeypatch.setattr("skylark.mqproxy.polls.CLOSE_TIMEOUT_S", 3600)
    has_popped, popping = threading.Event(), Polls.popping

    def note(*arguments: Any) -> Any:
        has_popped.set()
        return popping(*arguments)

    monkeypatch.setattr(Polls, "popping", note)
    cluster.create_topic("quiet")
    metadata = [("x-mq-client-id", "waits")]
    long = {"grpc_shutdown_time_seconds": 3600, "grpc_client_consumer_max_long_polling_timeout_millis": 3_600_000}
    asked = wire.ReceiveMessageRequest(
        group=wire.Resource(name="waits"), message_queue=wire.MessageQueue(topic=wire.Resource(name="quiet"))
    )
    asked.invisible_duration.FromSeconds(20)
    asked.long_polling_timeout.FromSeconds(3600)
    settings = wire.Settings(client_type=wire.PRODUCER, publishing=wire.Publishing())
    is_over = threading.Event()

    def commands() -> Iterator[wire.TelemetryCommand]:
        yield wire.TelemetryCommand(settings=settings)
        is_over.wait(DEADLINE_S)

    with proxy(cluster.nameserver, **long) as running, running.channel() as channel:
        stream = channel.stream_stream(
            f"/{SERVICE}/Telemetry", wire.TelemetryCommand.SerializeToString, wire.TelemetryCommand.FromString
        )(commands(), metadata=metadata)
        assert next(stream).status.code == wire.OK
        answers_of_receive = channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            wire.ReceiveMessageRequest.SerializeToString,
            wire.ReceiveMessageResponse.FromString,
        )(asked, metadata=metadata)
        assert has_popped.wait(DEADLINE_S)
        running.stop()
        assert list(stream) == []
        is_over.set()
        assert stream.code() == grpc.StatusCode.OK
        assert next(answers_of_receive).status.code == wire.MESSAGE_NOT_FOUND


async def test_a_call_for_messages_that_comes_while_the_proxy_stops_takes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skylark.mqproxy.service.LATE_CALL_S", 0)
    begun: list[str] = []

    async def work(what: str) -> None:
        begun.append(what)
        await trio.sleep_forever()

    calls = Calls(ProxyOptions(), cast(Any, None), cast(Any, None), 0)
    session = cast(Session, SimpleNamespace(username="ada", ending=Ending()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls._unless_over, session, work, "an early pop")
        await wait_all_tasks_blocked()
        calls.stop_waiting()
    assert await calls._unless_over(session, work, "a late pop") is None
    session.ending.begin()
    with pytest.raises(Refused, match="ada"):
        await calls._unless_over(session, work, "a pop without rights")
    assert begun == ["an early pop"]


def test_a_port_in_use_is_named(cluster: Cluster, served: Proxy) -> None:
    port = int(served.address.rpartition(":")[2])
    for mode in ("permissive", "disabled"):
        with (
            pytest.raises(UserError, match=f"{port} is in use; .* choose another grpcServerPort"),
            proxy(cluster.nameserver, grpc_server_port=port, tls_server_mode=mode),
        ):
            pass


def test_a_certificate_without_a_key_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="tlsCertPath and tlsKeyPath belong together"):
        ProxyOptions(tls_cert_path="proxy.crt")


def test_the_command_explains_its_options_and_prints_them() -> None:
    explained = CliRunner().invoke(main, ["--help"])
    assert explained.exit_code == 0 and "--grpc-server-port" in explained.output
    printed = CliRunner().invoke(main, ["-p", "--tls-server-mode", "disabled"])
    assert "grpcServerPort=8081" in printed.output and "tls.server.mode=disabled" in printed.output


# What RocketMQ's documents tell its users to write, and what they add.
RMQ_PROXY = """{
  "rocketMQClusterName": "DefaultCluster",
  "namesrvAddr": "127.0.0.1:9876",
  "grpcServerPort": 8085,
  "remotingListenPort": 8084,
  "enableProxyAutoRenew": false,
  "innerClientAuthenticationCredentials": "{\\"accessKey\\":\\"inner\\", \\"secretKey\\":\\"a secret\\"}",
  "authenticationEnabled": true
}"""


def test_the_command_takes_rocketmqs_conf_file_and_flags(tmp_path: Path) -> None:
    conf = tmp_path / "rmq-proxy.json"
    conf.write_text(RMQ_PROXY)
    conf.chmod(0o600)
    printed = CliRunner().invoke(main, ["-p", "-pc", str(conf), "-n", "10.0.0.5:9876", "-pm", "cluster"])
    assert printed.exit_code == 0, printed.output
    lines = printed.output.splitlines()
    for line in ("namesrvAddr=10.0.0.5:9876", "grpcServerPort=8085", "proxyMode=cluster", "authenticationEnabled=true"):
        assert line in lines
    assert "remotingListenPort: a RocketMQ option that Skylark does not use" in printed.output
    assert "a secret" not in printed.output
    again = CliRunner().invoke(main, ["-c", str(conf), "--proxyConfigPath", str(conf)])
    assert "are one option" in again.output
    conf.chmod(0o644)
    assert "chmod 600" in CliRunner().invoke(main, ["-p", "-pc", str(conf)]).output


def test_a_local_proxy_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["-pm", "local", "-n", "127.0.0.1:9876"])
    assert (refused.exit_code, "this proxy has the mode CLUSTER only" in refused.output) == (1, True)


def test_the_command_serves_until_sigterm(cluster: Cluster) -> None:
    command = [
        sys.executable,
        "-m",
        "skylark.mqproxy",
        "--namesrv-addr",
        cluster.nameserver,
        "--bind-address",
        "127.0.0.1",
    ]
    with subprocess.Popen([*command, "--grpc-server-port", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # A process that cannot serve ends, and so does its output.
        found = next((line for line in process.stderr if "serves at" in line), "")
        try:
            with grpc.insecure_channel(found.split()[-1]) as channel:
                assert answers(channel)
        finally:
            process.terminate()
        rest = process.stderr.read()
    assert (process.returncode, "the proxy stopped" in rest) == (0, True), rest


@contextmanager
def setting(event: threading.Event) -> Iterator[None]:
    """Set the event when the block ends, also by an error."""
    try:
        yield
    finally:
        event.set()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_no_call_is_lost_while_a_proxy_stops(
    cluster: Cluster, make_topic: Callable[..., str], files: tuple[str, str], is_tls: bool
) -> None:
    """Clients with the addresses of two proxies send one message after the other, while theirs stops.

    No call fails, although these clients try nothing again.
    """
    topic = make_topic()
    given = {"use_endpoint_port_from_request": True, "tls_cert_path": files[0], "tls_key_path": files[1]}
    # Without retries, as the official clients have it.
    options = [
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.ssl_target_name_override", "skylark test"),
    ]
    credentials = grpc.ssl_channel_credentials(Path(files[0]).read_bytes())
    answered = [threading.Event() for _ in range(8)]
    acknowledged: list[list[bytes]] = [[] for _ in answered]
    is_over = threading.Event()

    def send(target: str, client: int) -> None:
        with (
            grpc.secure_channel(target, credentials, options) if is_tls else grpc.insecure_channel(target, options)
        ) as channel:
            for number in count():
                if is_over.is_set():
                    return
                body = b"%d of %d" % (number, client)
                request = wire.SendMessageRequest(messages=[message(topic, body)])
                # Raises when the call fails.
                answer = call(channel, "SendMessage", request, wire.SendMessageResponse)
                assert answer.status.code == wire.OK
                acknowledged[client].append(body)
                answered[client].set()

    def all_go_on(clients: Sequence[Future[None]]) -> None:
        for event, client in zip(answered, clients, strict=True):
            event.clear()
            until_true(lambda: event.is_set() or client.done(), "a client goes on")  # noqa: B023

    with proxy(cluster.nameserver, **given) as second, ThreadPoolExecutor(len(answered)) as pool, setting(is_over):
        with proxy(cluster.nameserver, **given) as first:
            target = f"ipv4:{first.address},{second.address}"
            clients = [pool.submit(send, target, client) for client in range(len(answered))]
            all_go_on(clients)
        all_go_on(clients)
        is_over.set()
        for client in clients:
            client.result()
    with blocking.PullConsumer(cluster.nameserver) as consumer:
        stored = [
            stored.body
            for queue in consumer.message_queues(topic)
            for batch in consumer.stream(queue, 0, consumer.max_offset(queue))
            for stored in batch
        ]
    assert sorted(chain(*acknowledged)) == sorted(stored)
