"""Certificates are replaced, file by file, while clients connect all the time: no request fails."""

import os
import shutil
from pathlib import Path

import trio

from skylark.mqcommon.errors import RemotingError
from skylark.remoting.net.client import open_client
from skylark.remoting.net.server import Server
from skylark.remoting.net.sockets import listen
from skylark.remoting.net.tls.client import tls_connect
from skylark.remoting.net.tls.server import TlsListener, TlsServer
from skylark.remoting.net.tls.settings import ENFORCING, ServerTls, Tls
from skylark.remoting.protocol.command import Command
from tests.remoting.net.tls.test_server import ECHO, echo
from tests.support.certificates import Authority
from tests.support.waiting import until

CLIENTS, TIMES = 4, 3


def replace(directory: Path, authority: Authority, name: str) -> None:
    """Replace both files by the files of a new certificate, the second file some time after the first."""
    for made, file in zip(authority.sign(name), ("cert.pem", "key.pem"), strict=True):
        shutil.copy(made, directory / "new")
        os.replace(directory / "new", directory / file)


async def test_no_request_fails_while_certificates_change(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    replace(tmp_path, authority, "first")
    tls = TlsServer(ServerTls(ENFORCING, str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")), interval_s=0.01)
    connect = tls_connect(Tls(authority.ca_file))
    asked, failures = 0, list[RemotingError]()

    async def ask(addr: str) -> None:
        nonlocal asked
        while True:
            async with open_client(connect=connect) as client:
                try:
                    assert (await client.invoke(addr, Command(ECHO, body=b"x"), 60_000)).body == b"x"
                except RemotingError as error:
                    failures.append(error)
                asked += 1

    async with trio.open_nursery() as nursery:
        addr = await nursery.start(Server({ECHO: echo}).serve_on, [TlsListener((await listen("127.0.0.1", 0))[0], tls)])
        nursery.start_soon(tls.watch)
        for _ in range(CLIENTS):
            nursery.start_soon(ask, addr)
        for number in range(TIMES):
            before, context = asked, tls.context
            await until(lambda before=before: asked > before + CLIENTS, "clients connect")
            replace(tmp_path, authority, f"next-{number}")
            await until(lambda context=context: tls.context is not context, "the new certificate is in use")
        before = asked
        await until(lambda: asked > before + CLIENTS, "clients connect")
        refused = tls.failures
        nursery.cancel_scope.cancel()
    assert (failures, refused) == ([], 0)
