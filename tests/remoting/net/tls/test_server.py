"""Certificates are loaded again when their files change, and no client notices a bad one."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from mqcommon.errors import UserError
from remoting.net.tls.server import INTERVAL_S, TlsServer
from remoting.net.tls.settings import PERMISSIVE, ServerTls
from tests.support.certificates import Authority
from tests.support.waiting import until


def make(directory: Path, authority: Authority) -> TlsServer:
    for made, file in zip(authority.sign("server"), ("cert.pem", "key.pem"), strict=True):
        shutil.copy(made, directory / file)
    return TlsServer(ServerTls(PERMISSIVE, str(directory / "cert.pem"), str(directory / "key.pem")))


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
    monkeypatch.setattr("remoting.net.tls.server.stamps", lambda files: looked.append(1) or [(1, 1)])
    monkeypatch.setattr("remoting.net.tls.server.INTERVAL_S", INTERVAL_S / 100)
    server = make(tmp_path, Authority(tmp_path))
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


def test_the_certificate_of_test_mode() -> None:
    TlsServer(ServerTls(PERMISSIVE, "", "", is_test=True))
