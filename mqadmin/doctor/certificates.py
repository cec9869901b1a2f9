"""The certificates of servers: reads a certificate in a TLS handshake, and finds its end date.

The end date is read from the DER bytes: `ssl` shows fields of trusted certificates only, and the doctor must read
untrusted certificates, too.
"""

import ssl
from datetime import UTC, datetime

import trio

from skylark.remoting.net.sockets import connect
from skylark.remoting.net.transport import Transport

_READ_BYTES = 16 * 1024
# Tags of DER: a sequence, the optional version at the beginning of a certificate, the two ways to write a time.
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def not_after_ms(certificate: bytes) -> int:
    """The end date of a certificate (X.509, DER). Raises ValueError when the certificate cannot be read."""
    try:
        whole, _ = _value(certificate, 0, _SEQUENCE)
        body, _ = _value(whole, 0, _SEQUENCE)
        at = _after(body, 0) if body[0] == _VERSION else 0
        for _ in range(3):  # serial number, signature algorithm, issuer
            at = _after(body, at)
        validity, _ = _value(body, at, _SEQUENCE)
        return _time_ms(validity, _after(validity, 0))
    except IndexError:
        raise ValueError("the certificate is cut off") from None


def _header(data: bytes, at: int) -> tuple[int, int]:
    """Where the value at ``at`` begins and ends."""
    length, start = data[at + 1], at + 2
    if length >= 0x80:
        count = length & 0x7F
        if not 1 <= count <= 4:
            raise ValueError("the certificate has a length that DER does not allow")
        start += count
        length = int.from_bytes(data[at + 2 : start])
    if start + length > len(data):
        raise ValueError("the certificate is cut off")
    return start, start + length


def _value(data: bytes, at: int, tag: int) -> tuple[bytes, int]:
    """The value with this tag, and where it ends."""
    if data[at] != tag:
        raise ValueError(f"the certificate has tag {data[at]:#x} where {tag:#x} belongs")
    start, end = _header(data, at)
    return data[start:end], end


def _after(data: bytes, at: int) -> int:
    return _header(data, at)[1]


def _time_ms(data: bytes, at: int) -> int:
    if data[at] not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"the certificate has tag {data[at]:#x} where a time belongs")
    start, end = _header(data, at)
    text = data[start:end].decode("ascii")
    if data[at] == _UTC_TIME:  # a year of two digits: 50 to 99 are in the 20th century
        text = ("19" if text[:2] >= "50" else "20") + text
    return round(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)


async def certificate_of(host: str, port: int, timeout_ms: int) -> bytes:
    """The certificate of the server, in DER. Raises OSError, of which ssl.SSLError is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Expired and self-signed certificates must be read, too.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with trio.move_on_after(timeout_ms / 1000):
        transport = await connect(host, port)
        try:
            return await _shake_hands(context, transport)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise OSError(str(error)) from None
        finally:
            await trio.aclose_forcefully(transport)
    raise OSError(f"no TLS handshake within {timeout_ms} ms")


async def _shake_hands(context: ssl.SSLContext, transport: Transport) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            await transport.send_all(outgoing.read())
            if not (data := await transport.receive(_READ_BYTES)):
                raise OSError("the server closed the connection") from None
            incoming.write(data)
    certificate = tls.getpeercert(binary_form=True)
    if certificate is None:
        raise OSError("the server has no certificate")
    return certificate
