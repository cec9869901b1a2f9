"""The process that uploads: what it is told, what it answers, and that it does not outlive its work."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from skylark.broker.tier import child as child_module
from skylark.broker.tier.child import ChildUploader
from skylark.broker.tier.tasks import DamagedFile, DamagedIndex, UploadTask, task_from_wire, task_to_wire
from skylark.broker.tier.worker import DAMAGED, segment_of
from skylark.mqcommon.tier.bucket import BucketAway, BucketError, BucketRefused
from skylark.mqcommon.tier.manifest import StoredObject
from skylark.mqcommon.tier.opening import open_bucket
from tests.support.tier_segments import Sent, record_of
from tests.support.waiting import until

BLOCK = 256 * 1024


def task(**changed: object) -> UploadTask:
    values: dict[str, object] = {
        "broker_set": "set-a", "start": 0, "size": 4096, "epoch": 1, "unique": "ab", "classes": {"t": 24},
        "before": None, "tombstones": {"gone": 5}, "block_bytes": BLOCK, "crcs": [-1],
    }  # fmt: skip
    return UploadTask(**{**values, **changed})  # type: ignore[arg-type]


def test_a_task_crosses_the_pipe_unchanged() -> None:
    for each in (task(), task(before=StoredObject("index", 5, 6))):
        assert task_from_wire(task_to_wire(each)) == each


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (["BucketAway", "503", ()], BucketAway),
        (["BucketRefused", "403", ()], BucketRefused),
        ([DAMAGED, "block", [5]], DamagedFile),
        (["", "Traceback", ()], BucketError),
    ],
)
def test_errors_of_the_process_are_errors_here(answer: list[object], error: type[Exception]) -> None:
    with pytest.raises(error, match=str(answer[1])):
        segment_of(answer)


@pytest.mark.process
async def test_a_process_uploads_one_file_after_the_other_and_ends_when_it_rests(tmp_path: Path) -> None:
    record = record_of(Sent("t", 0, 0, b"body", 7), 0)
    for name, content in (("sound", record), ("damaged", b"")):
        (tmp_path / name).write_bytes(content.ljust(4096, b"\0"))
    url = f"file://{tmp_path}/bucket"
    (tmp_path / "bucket").mkdir()
    bucket = open_bucket(url, timeout_s=5)
    uploader = ChildUploader(url, 5)
    segment = await uploader.upload(str(tmp_path / "sound"), task())
    assert segment.records == 1
    (stored,) = [stored for _, stored in segment.classes]
    assert bucket.get(stored.name) == record
    assert await uploader.repair(segment, str(tmp_path / "sound"), task(unique="cd")) is None
    bucket.delete([segment.index.name])
    repaired = await uploader.repair(segment, "", task(unique="cd"))
    assert repaired is not None and (repaired.crc, repaired.records) == (segment.crc, 1)
    assert bucket.get(repaired.classes[0][1].name) == record
    with pytest.raises(DamagedIndex, match="index is not there"):
        await uploader.upload(str(tmp_path / "sound"), task(before=segment.index))
    with pytest.raises(DamagedFile, match="1 blocks"):
        await uploader.upload(str(tmp_path / "damaged"), task(crcs=[1]))
    with pytest.raises(BucketError):
        await uploader.upload(str(tmp_path / "missing"), task())
    assert (child := uploader._child) is not None
    await uploader.rest()
    assert child.returncode is not None
    # A cancelled upload leaves no process.
    with trio.move_on_after(10) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(uploader.upload, str(tmp_path / "sound"), task())
            await until(lambda: uploader._child is not None)
            pid = uploader._child.pid  # type: ignore[union-attr]
            nursery.cancel_scope.cancel()
    assert not scope.cancelled_caught
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@asynccontextmanager
async def amid_upload(tmp_path: Path, error: type[Exception], match: str) -> AsyncIterator[trio.Process]:
    """A process amid an upload, which ends with ``error`` after the block."""
    # Whoever opens this waits for a writer.
    os.mkfifo(tmp_path / "endless")
    (tmp_path / "bucket").mkdir()
    uploader = ChildUploader(f"file://{tmp_path}/bucket", 5)
    async with trio.open_nursery() as nursery:

        async def fails() -> None:
            with pytest.raises(error, match=match):
                await uploader.upload(str(tmp_path / "endless"), task())

        nursery.start_soon(fails)
        await until(lambda: uploader._child is not None)
        assert uploader._child is not None
        yield uploader._child


def session_priority(pid: int) -> str:
    """What the kernel says of the session of ``pid`` where it shares out processors among sessions, else nothing."""
    group = Path(f"/proc/{pid}/autogroup")
    return group.read_text().rpartition(" ")[2].strip() if group.exists() else ""


async def lowest_that_the_kernel_grants() -> str:
    """What `session_priority` says of a session that asks for 10. A container may forbid the change."""
    # The kernel grants such a change once in 0.1 s.
    asks = "for _ in 1 2 3 4 5 6 7 8 9; do echo 10 > $0 && break; sleep 0.15; done; cat $0"
    asked = await trio.run_process(
        ["sh", "-c", asks, "/proc/self/autogroup"],
        capture_stdout=True,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )
    return asked.stdout.decode().rpartition(" ")[2].strip()


@pytest.mark.process
async def test_the_broker_comes_before_a_process_that_uploads(tmp_path: Path) -> None:
    lower = min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    granted = await lowest_that_the_kernel_grants()
    async with amid_upload(tmp_path, BucketAway, "memory is short") as child:
        await until(lambda: os.getpriority(os.PRIO_PROCESS, child.pid) == lower)
        await until(lambda: session_priority(child.pid) == granted)
        child.kill()


@pytest.mark.process
async def test_a_process_that_works_ends_at_once_when_the_broker_has_gone(tmp_path: Path) -> None:
    async with amid_upload(tmp_path, BucketAway, "the process that uploads has failed") as child:
        assert child.stdin is not None
        # What the broker's end does to the pipe.
        await child.stdin.aclose()
        await child.wait()


@pytest.mark.process
async def test_a_process_that_the_kernel_has_killed_is_told_of(tmp_path: Path) -> None:
    async with amid_upload(tmp_path, BucketAway, "memory is short") as child:
        child.kill()


@pytest.mark.process
async def test_a_process_whose_disk_cannot_read_the_file_says_so(tmp_path: Path) -> None:
    async with amid_upload(tmp_path, DamagedFile, "kernel's log") as child:
        child.send_signal(signal.SIGBUS)


@pytest.mark.process
async def test_a_process_that_does_not_answer_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "_ANSWER_S", 0.1)
    os.mkfifo(tmp_path / "endless")
    (tmp_path / "bucket").mkdir()
    uploader = ChildUploader(f"file://{tmp_path}/bucket", 5)
    with pytest.raises(BucketAway, match="has not answered"):
        await uploader.upload(str(tmp_path / "endless"), task())
    assert uploader._child is None
