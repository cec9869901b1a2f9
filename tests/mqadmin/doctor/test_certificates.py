"""Certificates that end soon: reading one from a server, and the check."""

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqadmin.doctor.certificates import certificate_of, not_after_ms
from skylark.mqadmin.doctor.checks import DAY_MS, certificates_last
from skylark.mqadmin.doctor.facts import FAIL, INFO, OK, WARN, CertificateFacts, Facts
from skylark.mqadmin.doctor.gather import speaks_tls

openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


def der(tag: int, *parts: bytes) -> bytes:
    data = b"".join(parts)
    size = bytes([len(data)]) if len(data) < 128 else b"\x82" + len(data).to_bytes(2)
    return bytes([tag]) + size + data


def certificate(end: bytes, *, version: bool = True) -> bytes:
    """The beginning of one, as far as it is read."""
    validity = der(0x30, der(0x17, b"250101000000Z"), end)
    first = [der(0xA0, der(2, b"\x02"))] if version else []
    return der(0x30, der(0x30, *first, der(2, b"\x05"), der(0x30, b"x" * 200), der(0x30), validity, der(0x30)))


@pytest.mark.parametrize("version", [True, False])
@pytest.mark.parametrize(
    ("end", "ms"),
    [
        (der(0x17, b"700101000001Z"), 1_000),
        (der(0x17, b"490101000000Z"), 2_493_072_000_000),
        (der(0x18, b"20700101000000Z"), 3_155_760_000_000),
    ],
)
def test_the_end_is_read(end: bytes, ms: int, version: bool) -> None:
    assert not_after_ms(certificate(end, version=version)) == ms


@given(st.binary(max_size=64), st.integers(0, 300), st.binary(max_size=4))
def test_damaged_certificates_are_value_errors(junk: bytes, at: int, change: bytes) -> None:
    whole = certificate(der(0x17, b"490101000000Z"))
    for data in (junk, whole[:at], whole[:at] + change + whole[at + len(change) :]):
        try:
            not_after_ms(data)
        except ValueError:
            continue


def test_certificates_that_end_soon() -> None:
    days = {"a": -3, "b": 3, "c": 300}
    known = [CertificateFacts(where, day * DAY_MS) for where, day in days.items()]
    facts = Facts(certificates=(*known, CertificateFacts("d", None, "away")))
    states = [(one.where, one.state) for one in certificates_last(facts)]
    assert states == [
        ("a", FAIL),
        ("b", WARN),
        ("c", OK),
        ("d", INFO),
    ]


def test_only_brokers_with_tls_are_asked() -> None:
    assert speaks_tls({"tlsServerMode": "permissive"})
    assert speaks_tls({"useTLS": "true"})
    assert not speaks_tls({"tlsServerMode": "disabled", "useTLS": "false", "tlsTestModeEnable": "true"})


async def _accept_and(act: Any, task_status: trio.TaskStatus[int]) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        task_status.started(listener.socket.getsockname()[1])
        async with await listener.accept() as stream:
            await act(stream)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path, str]:
    """A certificate, its key, and its end as openssl shows it."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x"
    subprocess.run(["openssl", *make.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    show = ["openssl", "x509", "-in", cert, "-noout", "-enddate"]
    end = subprocess.run(show, check=True, capture_output=True, text=True).stdout.strip().partition("=")[2]
    return cert, key, end


@openssl
async def test_the_certificate_of_a_server_is_read_though_nobody_trusts_it(
    nursery: trio.Nursery, made: tuple[Path, Path, str]
) -> None:
    cert, key, end = made
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    async def shake_hands(stream: trio.SocketStream) -> None:
        await trio.SSLStream(stream, context, server_side=True).do_handshake()

    port = await nursery.start(_accept_and, shake_hands)
    found = await certificate_of("127.0.0.1", port, 60_000)
    assert found == ssl.PEM_cert_to_DER_cert(cert.read_text())
    assert not_after_ms(found) == ssl.cert_time_to_seconds(end) * 1000


async def test_a_server_without_tls_is_an_error(nursery: trio.Nursery) -> None:
    async def close(stream: trio.SocketStream) -> None:
        await stream.receive_some(1)

    port = await nursery.start(_accept_and, close)
    with pytest.raises(OSError):
        await certificate_of("127.0.0.1", port, 60_000)
