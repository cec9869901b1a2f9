"""The daemons of a cluster in this process, with access control, and all ports that they open.

A message with `MARK` is stored in a topic of others before an intruder comes: no answer to one may hold it.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scripts.daemons import free_port
from skylark.broker.registration import registrar as registrar_module
from skylark.broker.replication import slave as slave_module
from skylark.broker.replication.master import HaServer
from skylark.remoting.metrics.http_pages import PageServer
from skylark.remoting.net import sockets
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.net.server import Server
from skylark.remoting.net.tls.client import tls_connect
from skylark.remoting.net.tls.settings import Tls
from skylark.remoting.net.transport import Connect, Listener
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.auth import (
    AUTH_CREATE_ACL,
    AUTH_CREATE_USER,
    AclInfo,
    AclRequestHeader,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
    UserRequestHeader,
)
from skylark.remoting.protocol.signature import Credentials
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.broker.running import send_request
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, account, write
from tests.broker.test_tls import conf
from tests.intruder.wire import Signer
from tests.support.certificates import Authority
from tests.support.waiting import until

MARK = b"what strangers must not read"
#: The name of a topic and a group of others; the name of the topic and group of the client of little rights.
THEIRS, OWN = "theirs", "own"
WHO = Credentials("admin-account", SECRET)
LITTLE = Signer("little-account", SECRET)
#: A name that no daemon knows, and the administrator's with a secret that is not his.
FOREIGN = (Signer("nobody-known", SECRET), Signer(WHO.access_key, "another secret"))
INNER = json.dumps({"accessKey": WHO.access_key, "secretKey": WHO.secret_key})
TLS, ACL_1, ACL_2 = "certificates of clients", "accounts", "users and policies"
MASTER_SLAVE, CONTROLLER, DLEDGER = "Master/Slave", "Controller", "DLedger"
TIMEOUT_MS = 10_000


@dataclass
class Ports:
    """The ports that the daemons of this process open."""

    listening: set[str] = field(default_factory=set)
    #: Of ports for requests: the codes.
    codes: dict[str, list[int]] = field(default_factory=dict)
    #: For slaves.
    logs: set[str] = field(default_factory=set)
    #: The paths of ports for HTTP.
    pages: dict[str, set[str]] = field(default_factory=dict)

    @property
    def unknown(self) -> set[str]:
        """Ports that are served in a way that is not known here."""
        return self.listening - {*self.codes, *self.logs, *self.pages}


def note_ports(monkeypatch: pytest.MonkeyPatch) -> Ports:
    """Note all ports that daemons open from now on, until the end of the test."""
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
    """How one kind of access control is set up, and how an administrator connects."""

    of_namesrv: dict[str, Any]
    of_brokers: dict[str, Any]
    connect: Connect = sockets.connect
    credentials: Credentials | None = None


def access(kind: str, tmp_path: Path) -> Access:
    """With `ACL_2`, where brokers have users, the NameServer leaves queries open, which is its default."""
    if kind == TLS:
        authority = Authority(tmp_path)
        connect = tls_connect(Tls(authority.ca_file, *authority.sign("client")))
        options = {"tls_config_file": conf(tmp_path, authority)}
        return Access(options, options, connect)
    rights = (f"topicPerms: [{OWN}=PUB|SUB]", f"groupPerms: [{OWN}=PUB|SUB]")
    path = write(tmp_path / "plain_acl.yml", ADMIN + account(LITTLE.name, *rights))
    inner = {"inner_client_authentication_credentials": INNER}
    of_namesrv = {"acl_enable": True, "acl_file": path, "acl_query_enable": kind == ACL_1, **inner}
    of_brokers = {"acl_enable": True, "acl_file": path, **inner}
    if kind == ACL_2:
        of_brokers = {"authentication_enabled": True, "authorization_enabled": True, **inner}
    return Access(of_namesrv, of_brokers, credentials=WHO)


@asynccontextmanager
async def _daemons(mode: str, at: Access) -> AsyncIterator[list[Running]]:
    """A NameServer, in Controller mode with a Controller in it, and two brokers with all that they open."""
    pages = {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0}
    of_namesrv: dict[str, Any] = {**pages, **at.of_namesrv}
    of_brokers: dict[str, Any] = {**pages, "ha_listen_port": 0, **at.of_brokers}
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


@dataclass
class Targets:
    """A cluster that holds a message with `MARK`; ``admin`` may do everything."""

    master: Running
    brokers: list[Running]
    admin: RemotingClient


@asynccontextmanager
async def open_targets(kind: str, mode: str, tmp_path: Path) -> AsyncIterator[Targets]:
    """The cluster, as soon as both brokers have the message, and know the client of little rights."""
    at = access(kind, tmp_path)
    async with (
        _daemons(mode, at) as brokers,
        open_client(connect=at.connect, credentials=at.credentials) as admin,
    ):
        await until(lambda: any(each.broker.role.now.is_master for each in brokers), "a master")
        (master,) = (each for each in brokers if each.broker.role.now.is_master)

        async def stored(topic: str = THEIRS) -> bool:
            answer = await admin.invoke(master.addr, send_request(topic, MARK), TIMEOUT_MS)
            return answer.code == ResponseCode.SUCCESS

        # In Controller mode a set takes messages when the slave has joined it.
        await until(stored, "a message is stored")
        if kind == ACL_2:
            await _add_little(Remote(admin, master.addr, TIMEOUT_MS))
        await until(lambda: all(MARK in each.log() for each in brokers), "both brokers have it")
        yield Targets(master, brokers, admin)


async def _add_little(master: Remote) -> None:
    user = UserInfo(LITTLE.name, LITTLE.secret, "Normal")
    await call(master, AUTH_CREATE_USER, UserRequestHeader(LITTLE.name), user)
    entries = [PolicyEntryInfo(f"{kind}:{OWN}", ["Pub", "Sub"], None, "Allow") for kind in ("Topic", "Group")]
    rights = AclInfo(f"User:{LITTLE.name}", [PolicyInfo("Custom", entries)])
    await call(master, AUTH_CREATE_ACL, AclRequestHeader(rights.subject), rights)
