"""Certificates of a proxy: which one counts, new files without a restart, keys with passwords, and TLS to brokers."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio

from skylark import Admin, Tls
from skylark.mqcommon.errors import ConfigError, UserError
from skylark.mqproxy.certificates import ProxyTls, proxy_tls
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.tls.settings import ServerTls
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.testing import Cluster
from tests.broker.replication.sets import broker, namesrv
from tests.mqproxy.test_ports import answers, certificate_at
from tests.support.certificates import Authority
from tests.support.proxies import Proxy, call, message, official, proxy
from tests.support.waiting import until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def secure(running: Proxy, ca_file: str, own: tuple[str, str] | None = None) -> grpc.Channel:
    """A connection with TLS; ``own`` is the client's certificate and key."""
    certificate, key = (None, None) if own is None else (Path(file).read_bytes() for file in own)
    return grpc.secure_channel(
        running.address, grpc.ssl_channel_credentials(Path(ca_file).read_bytes(), key, certificate)
    )


def enforcing(cert: str, key: str, **options: Any) -> dict[str, Any]:
    return {"tls_server_mode": "enforcing", "tls_cert_path": cert, "tls_key_path": key, **options}


@pytest.mark.process
def test_the_official_client_speaks_tls(cluster: Cluster, authority: Authority, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    with proxy(cluster.nameserver, **enforcing(*authority.sign("proxy"))) as running:
        given: dict[str, Any] = {"topic": topic, "messages": [{"body": "a cup of tea"}]}
        (sent,) = official("produce", running.address, ca_file=authority.ca_file, **given)
        assert sent["id"]
        (refused,) = official("produce", running.address, **given)
        assert refused["error"]


@pytest.mark.parametrize("mode", ["enforcing", "permissive"])
def test_a_new_certificate_counts_without_a_restart(
    cluster: Cluster, authority: Authority, tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = authority.sign("proxy")
    first = Path(cert).read_bytes()
    options = enforcing(cert, key, tls_cert_watch_interval_ms=20)
    with (
        proxy(cluster.nameserver, **{**options, "tls_server_mode": mode}) as running,
        secure(running, authority.ca_file) as opened,
    ):
        assert answers(opened)
        Path(key).write_text("no key")
        trio.run(until, lambda: "the old TLS certificate stays in use" in caplog.text, "the log says so")
        assert certificate_at(running.address) == first
        new_cert, new_key = authority.sign("new")
        shutil.copy(new_key, key)
        shutil.copy(new_cert, cert)
        trio.run(until, lambda: certificate_at(running.address) == Path(cert).read_bytes(), "the new one is shown")
        # Open connections go on.
        assert answers(opened)


def test_an_encrypted_key_is_used(cluster: Cluster, authority: Authority) -> None:
    cert, key = authority.sign("proxy", password="a secret")
    given = enforcing(cert, key, tls_key_password="a secret")
    with proxy(cluster.nameserver, **given) as running, secure(running, authority.ca_file) as channel:
        assert answers(channel)
    for wrong in ("", "another"):
        with (
            pytest.raises(UserError, match="cannot be used"),
            proxy(cluster.nameserver, **enforcing(cert, key, tls_key_password=wrong)),
        ):
            pass


def test_a_key_of_another_certificate_ends_the_start(cluster: Cluster, authority: Authority) -> None:
    with (
        pytest.raises(UserError, match="belong together"),
        proxy(cluster.nameserver, **enforcing(authority.sign("proxy")[0], authority.sign("other")[1])),
    ):
        pass


def test_the_proxy_takes_tls_properties_and_asks_clients_for_certificates(
    cluster: Cluster, authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.sign("proxy")
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={cert}\ntls.server.keyPath={key}\n"
        f"tls.server.need.client.auth=require\ntls.server.trustCertPath={authority.ca_file}\n"
    )
    with proxy(cluster.nameserver, tls_config_file=str(file)) as running:
        with secure(running, authority.ca_file, authority.sign("client")) as known:
            assert answers(known)
        with secure(running, authority.ca_file) as unknown, pytest.raises(grpc.RpcError):
            answers(unknown)
        with running.channel() as plain, pytest.raises(grpc.RpcError):
            answers(plain)


def test_options_of_the_proxy_count_before_tls_properties(authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.mode=disabled\ntls.enable=true\n")
    found = proxy_tls(ProxyOptions(tls_config_file=str(file)))
    assert found.server is None
    assert found.client is not None
    cert, key = authority.sign("proxy")
    own = ServerTls("enforcing", cert, key)
    assert proxy_tls(ProxyOptions(tls_config_file=str(file), **enforcing(cert, key))) == ProxyTls(own, found.client)
    # The mode of the file's certificate is the option's, too.
    file.write_text(f"tls.server.certPath={cert}\ntls.server.keyPath={key}\n")
    assert proxy_tls(ProxyOptions(tls_config_file=str(file), tls_server_mode="enforcing")).server == own
    with pytest.raises(ConfigError, match="there is no certificate"):
        proxy_tls(ProxyOptions(tls_test_mode_enable=False))


async def test_a_proxy_speaks_tls_to_servers_that_serve_nobody_else(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.sign("node")
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.enable=true\ntls.client.trustCertPath={authority.ca_file}\ntls.server.mode=enforcing\n"
        f"tls.server.certPath={cert}\ntls.server.keyPath={key}\n"
    )

    def sent(addr: str) -> wire.Status:
        with proxy(addr, tls_config_file=str(file)) as running, secure(running, authority.ca_file) as channel:
            asked = wire.SendMessageRequest(messages=[message("orders")])
            return call(channel, "SendMessage", asked, wire.SendMessageResponse).status

    async with (
        namesrv(tls_config_file=str(file)) as addr,
        broker(namesrv_addr=addr, tls_config_file=str(file)) as one,
        Admin(addr, tls=Tls(authority.ca_file)) as admin,
    ):

        async def is_known() -> bool:
            return "orders" in await admin.topic_list()

        await admin.create_topic(one.addr, TopicConfig("orders", 4, 4))
        await until(is_known, "the NameServer knows the topic")
        assert (await trio.to_thread.run_sync(sent, addr)).code == wire.OK
