"""The process that makes and uploads segments: ``python -m skylark.broker.tier.worker``; child.py starts it.

Sorting a gigabyte takes seconds, and obstore has threads of its own: neither belongs in the broker's process. Requests
come on stdin and answers go to stdout, as CBOR after its length. The process ends when stdin does.
"""

import mmap
import os
import select
import struct
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import cbor2

from skylark.broker.tier.tasks import ChangedFile, DamagedFile, DamagedIndex, UploadTask, task_from_wire
from skylark.mqcommon.daemons.malloc import keep_freed_memory
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.tier.bucket import (
    Bucket,
    BucketAway,
    BucketError,
    BucketRefused,
    DamagedObject,
    NewerFormat,
    NoSuchObject,
)
from skylark.mqcommon.tier.manifest import Segment, decode_span, encode_span
from skylark.mqcommon.tier.opening import open_bucket

LENGTH: Final = struct.Struct(">I")
DONE: Final = "done"
DAMAGED: Final = "damaged"
NOTHING: Final = "nothing"
UPLOAD: Final = "upload"
PURGE: Final = "purge"
REPAIR: Final = "repair"
# The broker's own work comes first.
_NICE = 10
_KERNEL_TRIES, _KERNEL_PAUSE_S = 10, 0.15


def main() -> None:
    """Answer requests until there are no more."""
    os.nice(_NICE)
    keep_freed_memory()
    # Linux shares out the processors among sessions first, and this process has a session of its own: see sched(7).
    _tell_kernel("autogroup", str(_NICE))
    # When memory is short the kernel ends this process, and not the broker.
    _tell_kernel("oom_score_adj", "1000")
    threading.Thread(target=_end_with_broker, daemon=True).start()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that a library prints may get between the answers
    buckets: dict[str, Bucket] = {}
    while (request := _read(requests)) is not None:
        answer = cbor2.dumps(_answer(request, buckets))
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


def _tell_kernel(name: str, value: str) -> None:
    """Write a file of this process in /proc, where the kernel has the file. EAGAIN is tried again."""
    for _ in range(_KERNEL_TRIES):
        try:
            Path("/proc/self", name).write_text(value)
        except BlockingIOError:  # an autogroup was changed in the last 0.1 s, and this process is without CAP_SYS_ADMIN
            time.sleep(_KERNEL_PAUSE_S)
        except OSError:
            return
        else:
            return


def _end_with_broker() -> None:
    """End this process at once when the broker has gone: nobody would list what it uploads."""
    stdin = select.poll()
    stdin.register(0, 0)  # the end of the pipe is reported, and nothing else
    stdin.poll()
    os._exit(0)


def _read(stream: BinaryIO) -> list[Any] | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    value: list[Any] = cbor2.loads(stream.read(LENGTH.unpack(head)[0]))
    return value


def _answer(request: Sequence[Any], buckets: dict[str, Bucket]) -> list[Any]:
    kind, url, timeout_s, given, rows = request
    try:
        bucket = buckets.get(url)
        if bucket is None:
            bucket = buckets[url] = open_bucket(url, timeout_s=timeout_s)
        made = run(kind, bucket, given, task_from_wire(rows))
        return [DONE, encode_span([made]), ()] if made is not None else [NOTHING, "", ()]
    except DamagedFile as error:
        return [DAMAGED, str(error), list(error.blocks)]
    except (SkylarkError, OSError) as error:
        return [type(error).__name__, str(error), ()]
    except Exception:
        return ["", traceback.format_exc(), ()]


def run(kind: str, bucket: Bucket, given: Any, task: UploadTask) -> Segment | None:
    """Do one task: UPLOAD the file at the path ``given``, PURGE or REPAIR the segment that is encoded in it.

    For REPAIR ``given`` is the segment, and the path of its file or "".

    Raises DamagedFile and BucketError.
    """
    if kind == PURGE:
        from skylark.broker.tier.purge import purge

        return purge(bucket, decode_span(given)[0], task)
    if kind == REPAIR:
        from skylark.broker.tier.repair import repair

        segment, path = given
        return repair(bucket, decode_span(segment)[0], _mapped(path, task.size) if path else None, task)
    assert kind == UPLOAD
    from skylark.broker.tier.upload import upload

    return upload(bucket, _mapped(given, task.size), task)


def _mapped(path: str, size: int) -> mmap.mmap:
    """The file. The map is not closed: arrays are on it as long as they live."""
    file = os.open(path, os.O_RDONLY)
    try:
        return mmap.mmap(file, size, access=mmap.ACCESS_READ)
    finally:
        os.close(file)


def segment_of(answer: Sequence[Any]) -> Segment | None:
    """The result in an answer of this process. Raises the error in it."""
    kind, value, blocks = answer
    if kind == NOTHING:
        return None
    if kind == DONE:
        return decode_span(value)[0]
    if kind == DAMAGED:
        raise DamagedFile(value, blocks)
    errors: tuple[type[BucketError], ...] = (
        BucketAway,
        BucketRefused,
        ChangedFile,
        DamagedIndex,
        DamagedObject,
        NewerFormat,
        NoSuchObject,
    )
    raise next((each for each in errors if each.__name__ == kind), BucketError)(value)


if __name__ == "__main__":
    main()
