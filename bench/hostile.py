"""Hostile peers of one port, in a process of their own: idle connections, slow ones, and a flood of bad frames.

    python -m bench.hostile HOST:PORT IDLE SLOW FLOOD

FLOOD: connections with a bad frame that are made in a second. Prints "ready" once the idle and slow ones are there,
and at the end of its input how many bad frames it sent, and how many of the others were closed. Neighbour:
guard_limits.py, which runs it.
"""

import gc
import sys

import trio

from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.frame import encode

CONNECTING_AT_ONCE = 100
BAD_FRAME = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Hostile:
    """All connections to ``addr``."""

    def __init__(self, addr: str) -> None:
        host, _, port = addr.rpartition(":")
        self._host, self._port = host, int(port)
        self._connecting = trio.Semaphore(CONNECTING_AT_ONCE)
        self.bad_frames = 0
        self.closed = 0

    async def idle(self, *, task_status: trio.TaskStatus[None]) -> None:
        stream = await self._connect()
        task_status.started()
        await stream.receive_some(1)
        self.closed += 1

    async def slow(self, *, task_status: trio.TaskStatus[None]) -> None:
        """One byte of a frame in each second."""
        stream = await self._connect()
        task_status.started()
        frame = encode(Command(10, body=bytes(100_000)))
        try:
            for at in range(len(frame)):
                await stream.send_all(frame[at : at + 1])
                await trio.sleep(1)
        except trio.BrokenResourceError:
            self.closed += 1

    async def flood(self, a_second: int) -> None:
        async with trio.open_nursery() as nursery:
            started, made = trio.current_time(), 0
            while True:
                due = int((trio.current_time() - started) * a_second)
                for _ in range(due - made):
                    nursery.start_soon(self._bad)
                made = due
                await trio.sleep(0.01)

    async def _bad(self) -> None:
        try:
            async with await self._connect() as stream:
                await stream.send_all(BAD_FRAME)
                await stream.receive_some(1)
        except (OSError, trio.BrokenResourceError):
            pass  # refused, or closed before it was read
        self.bad_frames += 1

    async def _connect(self) -> trio.SocketStream:
        async with self._connecting:
            return await trio.open_tcp_stream(self._host, self._port)


async def main(addr: str, idle: int, slow: int, flood: int) -> None:
    hostile = Hostile(addr)
    async with trio.open_nursery() as nursery:
        for _ in range(idle):
            await nursery.start(hostile.idle)
        for _ in range(slow):
            await nursery.start(hostile.slow)
        if flood:
            nursery.start_soon(hostile.flood, flood)
        # Otherwise this process would scan all these connections again and again, on a core that other processes need.
        gc.collect()
        gc.freeze()
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()
    print(hostile.bad_frames, hostile.closed, flush=True)


if __name__ == "__main__":
    address, idle, slow, flood = sys.argv[1:]
    trio.run(main, address, int(idle), int(slow), int(flood))
