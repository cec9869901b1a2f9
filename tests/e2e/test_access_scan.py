"""No port of any daemon serves anybody without credentials, in each mode and with each kind of access control.

The ports are those that the daemons open while they start, the codes those of their handler tables. A port that is
served in a way that is not known here fails the test: say there how strangers are kept out. Everything runs in this
process, with memory for disks.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.registration import registrar as registrar_module
from broker.replication import slave as slave_module
from broker.replication.autoswitch.frames import SlaveHello, encode_ack, encode_slave_hello
from broker.replication.hello import VERSION, Hello, LogClaim, encode
from broker.replication.master import HaServer
from mqcommon.addresses import split_address
from mqcommon.errors import RemotingError
from remoting.metrics.http_pages import PageServer
from remoting.net import sockets
from remoting.net.client import open_client
from remoting.net.server import Server
from remoting.net.tls.client import tls_connect
from remoting.net.tls.settings import Tls
from remoting.net.transport import Connect, Listener, Transport
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.connection import Connection
from remoting.protocol.frame import encode as encode_frame
from remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from remoting.protocol.requests.clients import CHALLENGE
from remoting.protocol.requests.controller import CONTROLLER_GET_METADATA_INFO
from remoting.protocol.requests.raft import DLEDGER_ENTRY, RAFT_JOIN, RAFT_MESSAGES, RAFT_STATUS
from remoting.protocol.requests.registrations import NOTIFY_MIN_BROKER_ID_CHANGE
from remoting.protocol.requests.routes import GET_BROKER_CLUSTER_INFO
from remoting.protocol.requests.table import BY_CODE
from remoting.protocol.signature import Credentials, sign
from scripts.daemons import free_port
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.broker.running import send_request
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, write
from tests.broker.test_tls import conf
from tests.support.certificates import Authority
from tests.support.waiting import DEADLINE_S, until

WHO = Credentials("admin-account", SECRET)
INNER = json.dumps({"accessKey": WHO.access_key, "secretKey": WHO.secret_key})
STRANGERS = (None, Credentials("nobody", SECRET), Credentials(WHO.access_key, "another secret"))
#: What everybody may send. A challenge is asked for before anything can be signed. NameServers have no account at a
#: broker, which only asks them again when one says that the members of its set have changed.
OPEN = {CHALLENGE.code, NOTIFY_MIN_BROKER_ID_CHANGE.code}
#: In one message that is stored before strangers come: no stranger may read it.
MARK = b"what strangers must not read"
TLS, ACL_1, ACL_2 = "certificates of clients", "accounts", "users and policies"
MASTER_SLAVE, CONTROLLER, DLEDGER = "Master/Slave", "Controller", "DLedger"
# What only members of a DLedger group ask, at a port of their own.
OF_MEMBERS = {CHALLENGE.code, DLEDGER_ENTRY.code, RAFT_MESSAGES.code, RAFT_STATUS.code, RAFT_JOIN.code}
# What administrators ask; each daemon serves one of them.
CONTROLS = (
    GET_BROKER_RUNTIME_INFO.code, GET_BROKER_CLUSTER_INFO.code, CONTROLLER_GET_METADATA_INFO.code,
)  # fmt: skip


@dataclass
class Ports:
    """What the daemons of this process open."""

    listening: set[str] = field(default_factory=set)
    #: Of ports for requests: the codes.
    codes: dict[str, list[int]] = field(default_factory=dict)
    #: For slaves.
    logs: set[str] = field(default_factory=set)
    #: The paths of ports for HTTP.
    pages: dict[str, set[str]] = field(default_factory=dict)


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Ports:
    found = Ports()
    opened, requests = sockets.SocketListener.__init__, Server.serve_on
    logs, pages = HaServer.serve_on, PageServer.serve

    def listens(self: sockets.SocketListener, *args: Any) -> None:
        opened(self, *args)
        found.listening.add(self.address)

    def serves_requests(self: Server, listeners: list[Listener], **more: Any) -> Any:
        found.codes.update((each.address, self.codes) for each in listeners)
        return requests(self, listeners, **more)

    def serves_slaves(self: HaServer, listeners: list[Listener], **more: Any) -> Any:
        found.logs.update(each.address for each in listeners)
        return logs(self, listeners, **more)

    def serves_pages(self: PageServer, listener: Listener) -> Any:
        found.pages[listener.address] = set(self._pages)
        return pages(self, listener)

    monkeypatch.setattr(sockets.SocketListener, "__init__", listens)
    monkeypatch.setattr(Server, "serve_on", serves_requests)
    monkeypatch.setattr(HaServer, "serve_on", serves_slaves)
    monkeypatch.setattr(PageServer, "serve", serves_pages)
    # Brokers look for their master, and slaves try it again, at once.
    monkeypatch.setattr(registrar_module, "MASTERLESS_S", 0.02)
    monkeypatch.setattr(slave_module, "FIRST_PAUSE_S", 0.01)
    return found


@dataclass
class Access:
    """How one kind of access control is set up, and how who may do everything connects."""

    options: dict[str, Any]
    of_brokers: dict[str, Any]
    connect: Connect = sockets.connect
    credentials: Credentials | None = None


def access(kind: str, tmp_path: Path) -> Access:
    if kind == TLS:
        authority = Authority(tmp_path)
        connect = tls_connect(Tls(authority.ca_file, *authority.sign("client")))
        return Access({"tls_config_file": conf(tmp_path, authority)}, {}, connect)
    path = write(tmp_path / "plain_acl.yml", ADMIN)
    inner = {"inner_client_authentication_credentials": INNER}
    of_namesrv = {"acl_enable": True, "acl_file": path, "acl_query_enable": True, **inner}
    of_brokers = {"acl_enable": True, "acl_file": path, **inner}
    if kind == ACL_2:
        of_brokers = {"authentication_enabled": True, "authorization_enabled": True, **inner}
    return Access(of_namesrv, of_brokers, credentials=WHO)


@asynccontextmanager
async def daemons(mode: str, at: Access) -> AsyncIterator[list[Running]]:
    """A NameServer, in Controller mode with a Controller in it, and two brokers with all that they open."""
    pages = {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0}
    of_namesrv: dict[str, Any] = {**pages, **at.options}
    of_brokers: dict[str, Any] = {**pages, "ha_listen_port": 0, **(at.of_brokers or at.options)}
    first: dict[str, Any] = {}
    second: dict[str, Any] = SLAVE
    if mode == DLEDGER:
        peers = ";".join(f"n{number}-127.0.0.1:{free_port()}" for number in range(2))
        of_brokers |= {"enable_dleger_commit_log": True, "d_leger_peers": peers}
        first, second = {"d_leger_self_id": "n0"}, {"d_leger_self_id": "n1"}
    if mode == CONTROLLER:
        peer = f"127.0.0.1:{free_port()}"
        of_namesrv |= {
            "enable_controller_in_namesrv": True, "controller_d_leger_peers": f"n0-{peer}",
            "controller_d_leger_self_id": "n0", "controller_store_path": "/controller",
            "controller_election_timeout": 300,
        }  # fmt: skip
        of_brokers |= {"enable_controller_mode": True, "controller_addr": peer, "broker_heartbeat_interval": 100}
        second = {}
    async with AsyncExitStack() as stack:
        addr = await stack.enter_async_context(namesrv(**of_namesrv))
        running = []
        for role in (first, second):
            options = {**of_brokers, "namesrv_addr": addr, "fast_listen_port": free_port(), **role}
            running.append(await stack.enter_async_context(broker(**options)))
        yield running


@pytest.mark.parametrize("mode", [MASTER_SLAVE, CONTROLLER, DLEDGER])
@pytest.mark.parametrize("kind", [ACL_1, ACL_2, TLS])
async def test_nobody_gets_in_without_credentials(kind: str, mode: str, tmp_path: Path, ports: Ports) -> None:
    at = access(kind, tmp_path)
    async with (
        daemons(mode, at) as brokers,
        open_client(connect=at.connect, credentials=at.credentials) as client,
    ):
        await until(lambda: any(each.broker.role.now.is_master for each in brokers), "a master")
        (master,) = (each for each in brokers if each.broker.role.now.is_master)

        async def stored() -> bool:
            answer = await client.invoke(master.addr, send_request("T", MARK), 10_000)
            return answer.code == ResponseCode.SUCCESS

        # In Controller mode a set takes messages when the slave has joined it.
        await until(stored, "a message is stored")
        await until(lambda: all(MARK in each.log() for each in brokers), "both brokers have it")
        assert ports.listening == {*ports.codes, *ports.logs, *ports.pages}, "a port that is not known here"
        # The NameServer's, two of each broker, and the Controller's, or those of the members of a group.
        assert (len(ports.codes), len(ports.pages)) == (5 + {CONTROLLER: 1, DLEDGER: 2}.get(mode, 0), 3)
        # With Controllers another broker may have become the master meanwhile, and opened its port for slaves.
        assert len(ports.logs) == (mode == MASTER_SLAVE) or mode == CONTROLLER
        of_members = [addr for addr, codes in ports.codes.items() if {*codes} == OF_MEMBERS]
        assert len(of_members) == 2 * (mode == DLEDGER)
        for addr in ports.codes.keys() - of_members:
            control = next(code for code in CONTROLS if code in ports.codes[addr])
            assert (await client.invoke(addr, Command(control), 10_000)).code == ResponseCode.SUCCESS, addr
        # A peer that stops in the middle of a hello to the port for slaves is closed after some seconds.
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                if kind == TLS:
                    nursery.start_soon(no_certificate, ports, tmp_path)
                else:
                    for addr in ports.logs:
                        nursery.start_soon(no_secret, addr, master)
                    for addr, codes in ports.codes.items():
                        nursery.start_soon(no_signature, addr, codes)
        for addr, paths in ports.pages.items():
            # By HTTP, to whoever is on this machine (docs/operations.md, "Ports").
            assert split_address(addr)[0] == "127.0.0.1" and paths == {"/metrics", "/healthz", "/readyz"}


async def no_signature(addr: str, codes: list[int]) -> None:
    """All codes that this port serves, and all that have a name, from those who cannot sign."""
    assert CHALLENGE.code in codes
    asked = sorted({*codes, *BY_CODE} - OPEN)
    requests = [(code, who) for code in asked for who in STRANGERS]
    answers: dict[int, Command] = {}
    frames: list[bytes] = []
    for number, (code, who) in enumerate(requests):
        request = Command(code, {"topic": "T", "b": "T", "e": "0", "queueId": "0"}, b"{}", opaque=number)
        if who is not None:
            sign(request, who)
        frames.append(encode_frame(request))
    async with await sockets.connect(*split_address(addr)) as transport:
        await transport.send_all(b"".join(frames))
        connection = Connection()
        while len(answers) < len(requests):
            data = await transport.receive(1 << 16)
            assert data, "closed"
            answers.update((answer.opaque, answer) for answer in connection.receive_data(data))
    for number, (code, who) in enumerate(requests):
        answer = answers[number]
        assert MARK not in answer.body
        if code in codes:
            refused = answer.code == ResponseCode.NO_PERMISSION or "AclException" in (answer.remark or "")
        else:
            refused = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert refused, f"request {code} at {addr} of {who}: {answer}"


async def no_secret(addr: str, master: Running) -> None:
    """Every hello that there is, from those who do not know the secret of the set."""
    options = master.broker.options
    acks = b"".join(encode_ack(offset) for offset in (0, 1 << 10, 1 << 20))
    ours = Hello(VERSION, options.broker_cluster_name, options.broker_name, 1, "127.0.0.1:1", bytes(16))
    claims = [LogClaim(proof, 0, 0, 1 << 14, False, ()) for proof in (b"", bytes(32))]
    hellos = [[(0).to_bytes(8, "big")], *([encode(ours), encode(claim)] for claim in claims)]
    hellos += [[encode_slave_hello(SlaveHello(False, False, broker_id)) + acks] for broker_id in (0, 1, 2, 99)]

    async def is_refused(hello: list[bytes]) -> None:
        async with await sockets.connect(*split_address(addr)) as transport:
            assert MARK not in await told(transport, *hello), hello

    async with trio.open_nursery() as nursery:
        for hello in hellos:
            nursery.start_soon(is_refused, hello)


async def no_certificate(ports: Ports, tmp_path: Path) -> None:
    """Without TLS, with TLS but no certificate, and with one of another authority."""
    ca_file = str(tmp_path / "ca.pem")
    stranger = Authority(tmp_path, "other").sign("stranger")
    for connect in (sockets.connect, tls_connect(Tls(ca_file)), tls_connect(Tls(ca_file, *stranger))):
        for addr, codes in ports.codes.items():
            frames = b"".join(encode_frame(Command(code, opaque=number)) for number, code in enumerate(codes))
            assert await asked(connect, addr, frames) == b"", addr
        for addr in ports.logs:
            for hello in ((0).to_bytes(8, "big"), encode_slave_hello(SlaveHello(False, False, 1)) + encode_ack(0)):
                assert await asked(connect, addr, hello) == b"", addr


async def asked(connect: Connect, addr: str, data: bytes) -> bytes:
    """What comes back; nothing if there is no connection."""
    try:
        transport = await connect(*split_address(addr))
    except (OSError, RemotingError):
        return b""
    async with transport:
        return await told(transport, data)


async def told(transport: Transport, *pieces: bytes) -> bytes:
    """All that the peer says until it closes: after each of ``pieces`` something, or the end."""
    found = b""
    try:
        for piece in pieces:
            await transport.send_all(piece)
            data = await transport.receive(1 << 16)
            found += data
        while data:
            data = await transport.receive(1 << 16)
            found += data
    except trio.BrokenResourceError:
        pass
    return found
