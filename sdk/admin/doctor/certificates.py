"""The check of certificates that end soon, and the reading of their end. Pure.

Only the end is read: `ssl` shows the fields of certificates that it trusts only, and this check must also see others.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from sdk.admin.doctor.facts import Facts
from sdk.admin.doctor.findings import FAIL, INFO, OK, WARN, Finding

DAY_MS = 24 * 3600 * 1000
SOON_DAYS = 30

# Tags of DER: a sequence, the optional version at the beginning of a certificate, the two ways to write a time.
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def ends(facts: Facts) -> Iterator[Finding]:
    """No certificate ends soon, and none has ended."""
    remedy = "make a new one and put it where the old one is; the broker reads it while it runs"
    for one in facts.certificates:
        if one.not_after_ms is None:
            yield Finding(INFO, one.where, f"its certificate cannot be read from here: {one.error}")
            continue
        days = (one.not_after_ms - facts.now_ms) // DAY_MS
        if days < 0:
            yield Finding(FAIL, one.where, f"its certificate ended {-days} days ago", remedy)
        else:
            yield Finding(
                WARN if days < SOON_DAYS else OK, one.where, f"its certificate ends in {days} days",
                remedy if days < SOON_DAYS else "",
            )  # fmt: skip


def not_after_ms(certificate: bytes) -> int:
    """The end of a certificate (X.509, DER). Raises ValueError when it cannot be read."""
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
    if data[at] == _UTC_TIME:  # two digits of the year: 50 to 99 are of the 20th century
        text = ("19" if text[:2] >= "50" else "20") + text
    return round(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)
