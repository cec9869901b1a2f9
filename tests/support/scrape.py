"""GET of a daemon's pages, and Prometheus' own parser for them."""

import trio
from prometheus_client.parser import text_string_to_metric_families

from skylark.mqcommon.addresses import split_address
from tests.support.waiting import DEADLINE_S


async def get(address: str, path: str, accept: str = "*/*") -> tuple[int, str]:
    """Status and text of a page."""
    stream = await trio.open_tcp_stream(*split_address(address))
    async with stream:
        with trio.fail_after(DEADLINE_S):
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n".encode())
            found = b"".join([piece async for piece in stream])
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str, *without: str) -> Samples:
    """All samples of a page by name and labels, those labels left out."""
    return {
        (sample.name, frozenset((name, value) for name, value in sample.labels.items() if name not in without)):
            sample.value
        for family in text_string_to_metric_families(text) for sample in family.samples
    }  # fmt: skip


def names_and_labels(text: str) -> dict[str, set[str]]:
    """The families of a page, with the names of their labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name if family.type != "histogram" else family.name
            found.setdefault(name, set()).update(label for label in sample.labels if label != "le")
    return found
