"""The limit: a bare trio server that splits its input into frames and answers the same bytes.

It decodes no headers and no messages, so it shows the most that a broker in plain trio can reach. Run alone it serves
until killed (``python -m bench.echo``); the other benches start it and measure it in the same run.
"""

import contextlib
import struct
import sys
from functools import partial

import trio

RECEIVE_BYTES = 65_536
RECEIVE_BYTES_BULK = 1_048_576


async def answer(stream: trio.SocketStream) -> None:
    """Send every whole frame back; all frames of one read go with one send."""
    with contextlib.suppress(trio.BrokenResourceError):
        await _answer(stream)


async def _answer(stream: trio.SocketStream) -> None:
    pending = b""
    unpack = struct.Struct(">I").unpack_from
    while data := await stream.receive_some(RECEIVE_BYTES_BULK if len(pending) > RECEIVE_BYTES else RECEIVE_BYTES):
        data = pending + data if pending else data
        at, end = 0, len(data)
        frames = []
        while end - at >= 4:
            size = unpack(data, at)[0] + 4
            if at + size > end:
                break
            frames.append(data[at : at + size])
            at += size
        pending = data[at:]
        if frames:
            await stream.send_all(b"".join(frames))


async def main(port: int) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, answer, port, host="127.0.0.1"))
        sys.stdout.write(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 0)
