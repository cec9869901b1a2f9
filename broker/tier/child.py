"""The broker's end of worker.py: one child process, which runs while there is something to upload."""

import os
import signal
import subprocess
import sys
from typing import Any

import cbor2
import trio

from skylark.broker.tier.tasks import DamagedFile, UploadTask, task_to_wire
from skylark.broker.tier.worker import LENGTH, PURGE, REPAIR, UPLOAD, segment_of
from skylark.mqcommon.tier.bucket import BucketAway
from skylark.mqcommon.tier.manifest import Segment, encode_span

_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_END_S = 5.0
# An answer may take ``_ANSWER_S``, and the file's bytes at ``_LEAST_BYTES_S`` a second. At a lower rate no part of an
# object gets through within tierTimeoutMs. A child that takes longer, as on a dead NFS, would hang for ever.
_ANSWER_S, _LEAST_BYTES_S = 600.0, 256 * 1024


class ChildUploader:
    """Uploads to the bucket at ``url`` by a child process. One call at a time."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._child: trio.Process | None = None

    async def upload(self, path: str, task: UploadTask) -> Segment:
        """See `Uploader`. Cancelled, or when the child fails, the child is killed: its objects are never listed."""
        made = await self._made(UPLOAD, path, task)
        assert made is not None
        return made

    async def purge(self, segment: Segment, task: UploadTask) -> Segment | None:
        """See `Uploader`. Cancelled, or when the child fails, the child is killed, as in `upload`."""
        return await self._made(PURGE, encode_span([segment]), task)

    async def repair(self, segment: Segment, path: str, task: UploadTask) -> Segment | None:
        """See `Uploader`. Cancelled, or when the child fails, the child is killed, as in `upload`."""
        return await self._made(REPAIR, [encode_span([segment]), path], task)

    async def _made(self, kind: str, given: Any, task: UploadTask) -> Segment | None:
        seconds = _ANSWER_S + task.size / _LEAST_BYTES_S
        try:
            with trio.fail_after(seconds):
                answer = await self._ask([kind, self._url, self._timeout_s, given, task_to_wire(task)])
            return segment_of(answer)
        except trio.TooSlowError:
            raise BucketAway(f"the process that uploads has not answered for {seconds:.0f} s, and was killed") from None
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, EOFError) as error:
            raise BucketAway(f"the process that uploads has failed: {error}") from error

    async def rest(self) -> None:
        """End the child: it needs hundreds of MB."""
        await self._end()

    async def _ask(self, request: list[Any]) -> list[Any]:
        is_done = False
        child = self._child
        try:
            if child is None:
                child = self._child = await trio.lowlevel.open_process(
                    [sys.executable, "-P", "-m", "skylark.broker.tier.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=dict(os.environ),
                    start_new_session=True,
                )
            assert child.stdin is not None and child.stdout is not None
            data = cbor2.dumps(request)
            await child.stdin.send_all(LENGTH.pack(len(data)) + data)
            size = LENGTH.unpack(await _exactly(child.stdout, LENGTH.size))[0]
            if size > _MAX_ANSWER_BYTES:
                raise EOFError(f"it has sent {size} bytes")
            answer: list[Any] = cbor2.loads(await _exactly(child.stdout, size))
            is_done = True
            return answer
        except (EOFError, trio.BrokenResourceError) as error:
            assert child is not None
            with trio.move_on_after(_END_S):
                await child.wait()
            if child.returncode == -signal.SIGKILL:
                raise EOFError("it was killed, as the kernel does when memory is short") from error
            if child.returncode == -signal.SIGBUS:
                raise DamagedFile("the disk cannot read a file of the log (SIGBUS): see the kernel's log") from error
            raise
        finally:
            if not is_done:
                await self._end()

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        # A process that waits for a dead file system cannot be killed.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_S):
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    await stream.aclose()
            await child.wait()


async def _exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = await stream.receive_some(size - len(data))
        if not part:
            raise EOFError("it has ended; its last lines are in the broker's stderr")
        data += part
    return bytes(data)
