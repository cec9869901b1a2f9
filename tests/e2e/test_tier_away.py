"""A bucket that is silent, throttles, refuses writes, or lets nobody in, under a broker with a small disk.

Sends go on as long as there is room, then they are refused with the reason. No file leaves the disk that is not in the
bucket, and none of the other objects in the bucket is touched.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from skylark import Admin, Message, Producer
from skylark.mqcommon.tier.opening import open_bucket
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import check_acknowledged, stored
from tests.e2e.test_disk_full import BODY_BYTES, QUEUES, SENDERS, TOPIC, Filling
from tests.support.buckets import S3Server
from tests.support.daemons import SMALL, Cluster, make_topic, running, start, until_route
from tests.support.small_disk import small_disk
from tests.support.waiting import until

DISK_MIB = 40
SEGMENT_BYTES = 1 << 20
LOCAL_FILES = 2
# Several files of the log.
SOME = 5 * SEGMENT_BYTES // BODY_BYTES
OPTIONS = (
    *SMALL,
    *("--mapped-file-size-commit-log", str(SEGMENT_BYTES), "--tier-local-bytes", str(LOCAL_FILES * SEGMENT_BYTES)),
    *("--clean-resource-interval", "100", "--delete-commit-log-files-interval", "1"),
    *("--tier-timeout-ms", "1000", "--tier-tail-interval-ms", "1000"),
    *("--disk-max-used-space-ratio", "60", "--disk-space-warning-level-ratio", "70"),
)
# Of somebody else, or what an administrator put there.
OTHERS = {"prod/README": b"do not touch", "prod/another-set/manifest/00000000000000000000": b"?", "mine": b"x" * 1000}

Fault = Callable[[S3Server], AbstractContextManager[None]]
FAULTS: dict[str, Fault] = {
    "read-only": lambda server: server.answering(403, "AccessDenied", ("PUT", "POST", "DELETE")),
    "credentials that have ended": lambda server: server.answering(400, "ExpiredToken"),
    "silent": S3Server.silent,
    "throttled": lambda server: server.answering(503, "SlowDown"),
}


class Watched:
    """A broker, its files, and what it says of its bucket."""

    def __init__(self, cluster: Cluster, admin: Admin, home: Path) -> None:
        self._admin = admin
        self.broker = cluster.brokers[0]
        self._log = home / self.broker.name / "commitlog"

    def files(self) -> list[int]:
        return sorted(int(path.name) for path in self._log.iterdir())

    async def until_uploaded(self) -> None:
        """All full files are in the bucket, and have left the disk but for some."""

        async def is_reached() -> bool:
            status = await self._admin.tier_status(self.broker.addr)
            return not status.problem and not status.behind_bytes and len(self.files()) <= LOCAL_FILES + 2

        await until(is_reached, "all is in the bucket")

    async def until_said(self) -> None:
        """The broker says that the bucket fails, and for how long."""

        async def is_said() -> bool:
            return bool((await self._admin.tier_status(self.broker.addr)).problem)

        await until(is_said, "the broker says that its bucket fails")

    async def check_kept(self) -> None:
        """All files since the last one that was uploaded are there."""
        uploaded_to = (await self._admin.tier_status(self.broker.addr)).uploaded_to
        files = self.files()
        assert files[0] <= uploaded_to
        assert files == list(range(files[0], files[-1] + 1, SEGMENT_BYTES))


@pytest.mark.nightly
async def test_sends_go_on_while_the_bucket_fails_until_the_disk_is_full(
    tmp_path: Path, s3_url: str, s3_server: S3Server
) -> None:
    others = open_bucket(s3_url, timeout_s=30)
    for name, data in OTHERS.items():
        others.put(name, [data])
    with small_disk(tmp_path, DISK_MIB) as home:
        options = (*OPTIONS, "--tier-path", f"{s3_url}/prod")
        async with (
            running(home, options=options) as cluster,
            Admin(cluster.nameserver) as admin,
            Producer(cluster.nameserver) as producer,
        ):
            await make_topic(cluster, TopicConfig(TOPIC, QUEUES, QUEUES))
            watched = Watched(cluster, admin, home)
            acked = []

            async def send(name: str) -> None:
                for number in range(SOME):
                    body = f"{name}/{number}".encode().ljust(BODY_BYTES)
                    result = await producer.send(Message(TOPIC, body))
                    acked.append((result.queue, result.queue_offset, body))

            await send("before")
            await watched.until_uploaded()
            assert watched.files()[0] > 0
            for name, fault in FAULTS.items():
                with fault(s3_server):
                    await send(name)
                    await watched.until_said()
                    await watched.check_kept()
                    assert len(watched.files()) > LOCAL_FILES + 2, f"{name}: files have left the disk"
                # What an administrator has to mend is not tried again soon; a start does.
                watched.broker.kill()
                await start(watched.broker)
                await until_route(cluster, TOPIC, [watched.broker.name])
                await watched.until_uploaded()
            with s3_server.answering(503, "SlowDown"):
                filling = Filling(producer, "full")
                await filling.run()
                acked += filling.acked
                assert len(filling.refusals) == SENDERS
                assert s3_url in str(filling.refusals[0]), filling.refusals[0]
                await watched.check_kept()
            await watched.until_uploaded()
            await send("after")
            check_acknowledged(acked, await stored(cluster.nameserver, TOPIC))
            assert {name: others.get(name) for name in OTHERS} == OTHERS
    others.close()
