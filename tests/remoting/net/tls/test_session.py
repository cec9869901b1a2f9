"""The encrypted transport is a stream of bytes, however the connection below cuts what it carries."""

import ssl
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.disk.files import MappedFile
from skylark.remoting.net.tls.contexts import client_context, server_context
from skylark.remoting.net.tls.session import TlsTransport
from skylark.remoting.net.tls.settings import PERMISSIVE, ServerTls, Tls
from skylark.remoting.net.transport import MAX_PIECES, Transport
from tests.support.certificates import Authority
from tests.support.memory_transport import MemoryTransport, memory_pair

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]

# A server sends about 1.5 KB of tickets after its handshake, before anybody reads.
LEAST_CAPACITY = 4_096
DEADLINE_S = 60


class Cutting(Transport):
    """A connection that takes and gives as many bytes a call as ``sizes`` say, in turn; 0: none, as when it is full."""

    def __init__(self, inner: MemoryTransport, sizes: list[int]) -> None:
        self.local, self.remote = inner.local, inner.remote
        self._inner = inner
        self._sizes = sizes
        self._turn = 0

    def _size(self) -> int:
        self._turn += 1
        return self._sizes[self._turn % len(self._sizes)]

    async def receive(self, max_bytes: int) -> bytes:
        return await self._inner.receive(min(max_bytes, self._size() or 1))

    async def receive_into(self, buffer: memoryview) -> int:
        return await self._inner.receive_into(buffer[: self._size() or 1])

    def try_send(self, pieces: list[bytes | memoryview]) -> int:
        return self._inner.try_send([memoryview(b"".join(pieces))[: self._size()]])

    async def send_all(self, data: bytes | memoryview) -> None:
        await self._inner.send_all(data)

    async def send_file(self, file: MappedFile, at: int, size: int) -> None:
        await self._inner.send_file(file, at, size)

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    directory: Path = tmp_path_factory.mktemp("certificates")
    authority = Authority(directory)
    server = server_context(ServerTls(PERMISSIVE, *authority.sign("server")))
    return client_context(Tls(authority.ca_file)), server


async def connected(contexts: Contexts, sizes: list[int], capacity: int) -> tuple[TlsTransport, TlsTransport]:
    ours, theirs = memory_pair(capacity=capacity)
    one = TlsTransport(Cutting(ours, sizes), contexts[0], is_server=False, server_name="127.0.0.1")
    two = TlsTransport(Cutting(theirs, sizes), contexts[1], is_server=True, server_name=None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.shake_hands)
        nursery.start_soon(two.shake_hands)
    return one, two


async def send(one: TlsTransport, text: bytes, cut: int, way: str) -> None:
    """``text`` in pieces of ``cut`` bytes; what `try_send` did not take is sent again, or left to `send_all`."""
    view = memoryview(text)
    while view and way != "all":
        pieces: list[bytes | memoryview] = [view[at : at + cut] for at in range(0, len(view), cut)]
        pieces = pieces[:MAX_PIECES]
        taken = one.try_send(pieces)
        assert 0 <= taken <= sum(map(len, pieces))
        view = view[taken:]
        # The same bytes may come again in other pieces.
        cut = max(cut // 2, 100)
        if way == "mixed":
            break
        await trio.lowlevel.checkpoint()
    await one.send_all(view)


async def receive(two: TlsTransport, most: int, *, into: bool) -> bytes:
    """All bytes until the end, at most ``most`` at once."""
    got = bytearray()
    while True:
        if into:
            buffer = bytearray(most)
            part = bytes(buffer[: await two.receive_into(memoryview(buffer))])
        else:
            part = await two.receive(most)
        assert len(part) <= most
        if not part:
            return bytes(got)
        got += part


@given(
    sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=8).filter(lambda sizes: max(sizes) > 500),
    sends=st.lists(
        st.tuples(st.integers(0, 200_000), st.integers(500, 70_000), st.sampled_from(["try", "all", "mixed"])),
        min_size=1,
        max_size=6,
    ),
    most=st.integers(300, 300_000),
    capacity=st.integers(LEAST_CAPACITY, 300_000),
    into=st.booleans(),
)
def test_all_bytes_arrive_in_order(
    contexts: Contexts,
    sizes: list[int],
    sends: list[tuple[int, int, str]],
    most: int,
    capacity: int,
    into: bool,
) -> None:
    texts = [
        (bytes(range(251)) * (size // 251 + 1))[number : number + size] for number, (size, _, _) in enumerate(sends)
    ]

    async def main() -> None:
        one, two = await connected(contexts, sizes, capacity)
        got: list[bytes] = []

        async def receive_all() -> None:
            got.append(await receive(two, most, into=into))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive_all)
            for text, (_, cut, way) in zip(texts, sends, strict=True):
                await send(one, text, cut, way)
            await one.aclose()
        assert got == [b"".join(texts)]

    async def bounded() -> None:
        with trio.fail_after(DEADLINE_S):
            await main()

    trio.run(bounded)
