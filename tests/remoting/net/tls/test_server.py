"""Certificates are loaded again when their files change, and no client notices a bad one."""

import datetime
import logging
import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from skylark.mqcommon.errors import RemotingError, TlsFailed, UserError
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import open_client
from skylark.remoting.net.server import Server
from skylark.remoting.net.tls.client import tls_connect
from skylark.remoting.net.tls.contexts import client_context
from skylark.remoting.net.tls.options import DaemonTls
from skylark.remoting.net.tls.server import HANDSHAKE_TIMEOUT_S, INTERVAL_S, LOG_S, TlsListener, TlsServer
from skylark.remoting.net.tls.settings import ENFORCING, OPTIONAL, PERMISSIVE, REQUIRE, ServerTls, Tls
from skylark.remoting.net.transport import Transport
from skylark.remoting.protocol.command import Command
from tests.support.certificates import FROM, Authority
from tests.support.memory_transport import MemoryNetwork
from tests.support.waiting import until


def make(directory: Path, authority: Authority, interval_s: float = INTERVAL_S) -> TlsServer:
    for made, file in zip(authority.sign("server"), ("cert.pem", "key.pem"), strict=True):
        shutil.copy(made, directory / file)
    settings = ServerTls(PERMISSIVE, str(directory / "cert.pem"), str(directory / "key.pem"))
    return TlsServer(settings, interval_s=interval_s)


async def test_a_new_certificate_is_taken_and_a_bad_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "first")
    server = make(tmp_path, authority)
    first = server.context
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.watch)
        cert, key = authority.sign("next")
        shutil.copy(cert, tmp_path / "cert.pem")
        # It does not belong to the key: the old pair stays.
        await until(lambda: "the old TLS certificate stays" in caplog.text, "the mistake is logged")
        assert server.context is first
        shutil.copy(key, tmp_path / "key.pem")
        await until(lambda: server.context is not first, "both are new")
        second = server.context
        (tmp_path / "key.pem").unlink()
        (tmp_path / "cert.pem").write_text("no certificate")
        await until(lambda: caplog.text.count("the old TLS certificate stays") == 2, "the mistake is logged")
        assert server.context is second
        nursery.cancel_scope.cancel()


async def test_files_that_do_not_change_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr("skylark.remoting.net.tls.server.stamps", lambda files: looked.append(1) or [(1, 1)])
    server = make(tmp_path, Authority(tmp_path), interval_s=0.005)
    context = server.context
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.watch)
        await until(lambda: len(looked) > 5, "it looked often")
        nursery.cancel_scope.cancel()
    assert server.context is context


@pytest.mark.parametrize(
    ("cert", "key", "text"),
    [
        ("absent", "server.key", "No such file"),
        ("server.crt", "ca.pem", "cannot be used"),
        ("server.crt", "other.key", "key values mismatch"),
        ("server.crt", "locked.key", "cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, cert: str, key: str, text: str) -> None:
    authority = Authority(tmp_path)
    for name, password in (("server", None), ("other", None), ("locked", "a secret")):
        authority.sign(name, password=password)
    settings = partial(ServerTls, PERMISSIVE, str(tmp_path / cert), str(tmp_path / key))
    with pytest.raises(UserError, match=text) as caught:
        TlsServer(settings())
    assert str(tmp_path / cert) in str(caught.value)


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).sign("server", password="a secret")
    TlsServer(ServerTls(PERMISSIVE, cert, key, "a secret"))
    with pytest.raises(UserError, match="cannot be used") as caught:
        TlsServer(ServerTls(PERMISSIVE, cert, key, "wrong"))
    assert "wrong" not in str(caught.value) and "wrong" not in repr(ServerTls(PERMISSIVE, cert, key, "wrong"))


def test_the_certificate_of_test_mode_needs_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    TlsServer(ServerTls(PERMISSIVE, "", "", is_test=True))


ECHO = 1


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def echo(channel: Channel, request: Command) -> Command:
    return request.respond(body=request.body)


@asynccontextmanager
async def serving(tls: TlsServer) -> AsyncIterator[tuple[MemoryNetwork, str]]:
    """The network, and the address of a server that answers ECHO."""
    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:
        addr = await nursery.start(Server({ECHO: echo}).serve_on, [TlsListener(network.listen(), tls)])
        yield network, addr
        nursery.cancel_scope.cancel()


async def ask(network: MemoryNetwork, addr: str, tls: Tls | None) -> bytes:
    connect = network.connect if tls is None else tls_connect(tls, network.connect)
    async with open_client(connect=connect) as client:
        try:
            return (await client.invoke(addr, Command(ECHO, body=b"hello"))).body
        except RemotingError as error:
            failure = error
    # Not raised above, where the client's nursery would put it into a group.
    raise failure


def of_server(authority: Authority, mode: str = PERMISSIVE, clients: str = "none") -> TlsServer:
    cert, key = authority.sign("server")
    return TlsServer(ServerTls(mode, cert, key, None, authority.ca_file, clients))


async def test_permissive_serves_both_kinds_on_one_port(authority: Authority) -> None:
    tls = of_server(authority)
    async with serving(tls) as (network, addr):
        assert await ask(network, addr, None) == b"hello"
        assert await ask(network, addr, Tls(authority.ca_file)) == b"hello"
    assert (tls.handshakes, tls.failures) == (1, 0)
    assert DaemonTls(server=tls).handshakes() == [(("ok",), 1), (("failed",), 0)]


async def test_enforcing_refuses_clients_without_tls(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(of_server(authority, ENFORCING)) as (network, addr):
        assert await ask(network, addr, Tls(authority.ca_file)) == b"hello"
        with pytest.raises(RemotingError):
            await ask(network, addr, None)
    assert "tls.server.mode=enforcing" in caplog.text


async def test_large_bodies_come_whole(authority: Authority) -> None:
    body = bytes(range(256)) * 8192
    async with (
        serving(of_server(authority)) as (network, addr),
        open_client(connect=tls_connect(Tls(authority.ca_file), network.connect)) as client,
    ):

        async def once() -> None:
            assert (await client.invoke(addr, Command(ECHO, body=body), 60_000)).body == body

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(once)


async def test_a_server_of_another_ca_is_not_trusted(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(of_server(authority)) as (network, addr):
        with pytest.raises(TlsFailed, match=r"the certificate is not trusted: .*: trust its CA, .*Tls\(ca_file\)"):
            await ask(network, addr, Tls(Authority(tmp_path, "other").ca_file))
        assert await ask(network, addr, Tls(verify=False)) == b"hello"
    assert "does not trust this certificate" in caplog.text


async def test_the_name_in_the_certificate_counts(authority: Authority) -> None:
    tls = TlsServer(ServerTls(PERMISSIVE, *authority.sign("elsewhere", host="10.1.2.3")))
    async with serving(tls) as (network, addr):
        with pytest.raises(TlsFailed, match=r"IP address mismatch.*: connect to a name .*Tls\(server_name\)"):
            await ask(network, addr, Tls(authority.ca_file))
        assert await ask(network, addr, Tls(authority.ca_file, check_name=False)) == b"hello"
        assert await ask(network, addr, Tls(authority.ca_file, server_name="10.1.2.3")) == b"hello"


async def test_an_expired_certificate_is_told(authority: Authority) -> None:
    tls = TlsServer(ServerTls(PERMISSIVE, *authority.sign("old", ends=FROM + datetime.timedelta(days=1))))
    async with serving(tls) as (network, addr):
        with pytest.raises(TlsFailed, match="certificate has expired: renew it"):
            await ask(network, addr, Tls(authority.ca_file))


async def test_mutual_tls(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.sign("client", password="a secret")
    known = Tls(authority.ca_file, cert, key, "a secret")
    stranger = Tls(authority.ca_file, *Authority(tmp_path, "other").sign("stranger"))
    unknown = Tls(authority.ca_file)
    async with serving(of_server(authority, clients=REQUIRE)) as (network, addr):
        assert await ask(network, addr, known) == b"hello"
        for client in (stranger, unknown):
            with pytest.raises(RemotingError):
                await ask(network, addr, client)
        # Without TLS there is no certificate to ask for: enforcing refuses these.
        assert await ask(network, addr, None) == b"hello"
    async with serving(of_server(authority, clients=OPTIONAL)) as (network, addr):
        assert await ask(network, addr, unknown) == b"hello"
        with pytest.raises(RemotingError):
            await ask(network, addr, stranger)


async def test_a_server_without_tls_is_told(authority: Authority) -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:
        addr = await nursery.start(Server({ECHO: echo}).serve_on, [network.listen()])
        with pytest.raises(TlsFailed, match="does this port speak TLS"):
            await ask(network, addr, Tls(authority.ca_file))
        nursery.cancel_scope.cancel()


async def test_a_client_that_says_nothing_or_half_holds_up_nobody(
    authority: Authority, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    tls = of_server(authority)
    async with serving(tls) as (network, addr):
        host, _, port = addr.rpartition(":")
        silent = await network.connect(host, int(port))
        half = await network.connect(host, int(port))
        await half.send_all(b"\x16\x03\x01")
        assert await ask(network, addr, Tls(authority.ca_file)) == b"hello"
        assert await half.receive(100) == b""
        assert trio.current_time() >= HANDSHAKE_TIMEOUT_S
        await silent.aclose()
    assert tls.failures == 1 and "no TLS handshake in 10 s" in caplog.text


async def test_clients_that_do_not_get_through_are_logged_seldom(
    authority: Authority, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    tls = of_server(authority, ENFORCING)
    async with serving(tls) as (network, addr):
        for _ in range(2):
            for _ in range(5):
                with pytest.raises(RemotingError):
                    await ask(network, addr, None)
            await trio.sleep(LOG_S)
    assert tls.failures == 10
    assert len([row for row in caplog.records if "has no connection" in row.message]) == 2


@asynccontextmanager
async def accepted(authority: Authority) -> AsyncIterator[tuple[Transport, Transport]]:
    """A client that speaks no TLS yet, and the server's end of its connection."""
    network = MemoryNetwork()
    listener = TlsListener(network.listen(), of_server(authority))
    client = await network.connect("127.0.0.1", 10911)
    async with client, await listener.accept() as server:
        yield client, server


async def test_what_a_client_without_tls_sent_first_is_read_into_buffers_of_any_size(authority: Authority) -> None:
    async with accepted(authority) as (client, server):
        await client.send_all(b"first bytes")
        found = b""
        while len(found) < len(b"first bytes, and more"):
            buffer = bytearray(6)
            size = await server.receive_into(memoryview(buffer))
            found += buffer[:size]
            if found == b"first bytes":
                await client.send_all(b", and more")
        assert found == b"first bytes, and more"


async def test_an_answer_to_a_client_that_never_spoke_is_a_broken_connection(authority: Authority) -> None:
    async with accepted(authority) as (_, server), trio.open_nursery() as nursery:
        nursery.start_soon(server.aclose)
        with pytest.raises(trio.BrokenResourceError, match="did not get through"):
            await server.send_all(b"hello")


def test_a_client_verifies_servers_by_the_cas_of_its_system_or_of_a_file(tmp_path: Path) -> None:
    for settings in (Tls(), Tls(Authority(tmp_path).ca_file)):
        context = client_context(settings)
        assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
    (tmp_path / "empty.pem").write_text("")
    for file, why in (("empty.pem", "no CA certificates"), ("absent.pem", "No such file")):
        with pytest.raises(UserError, match=why) as caught:
            client_context(Tls(str(tmp_path / file)))
        assert str(tmp_path / file) in str(caught.value)
