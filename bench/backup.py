"""A backup of a large store under load, what sends meet meanwhile, and the way back.

    python -m bench.backup [--json] [--gib 10] [--seconds 10] [--rate 2000] [--flush ASYNC_FLUSH] [--dir DIRECTORY]

The store holds messages of 1,000 bytes. Sends come at a fixed rate; what they take is measured from when each is due.
"Before" is without a backup, for as many seconds as given; then backups are made, one after another, for as long. The
last backup is restored and checked by broker restore, and its log compared with the broker's, byte by byte.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import trio

from bench.harness import BROKER, cluster_at
from bench.recovery import GIB, HOST, open_store
from skylark import Admin, Message, Producer
from skylark.broker.store.queue.batch_records import RowBatch
from skylark.mqcommon.message.ids import UniqueKeys
from skylark.remoting.protocol.requests.backups import DONE, RUNNING, BackupStatus

BODY = bytes(range(250)) * 4
BATCH = 200
QUEUES = 8
POLL_S = 0.05
PIECE = 16 << 20


def fill(directory: str, end: int) -> None:
    """Messages with a unique key each."""
    store = open_store(directory)
    keys = UniqueKeys("127.0.0.1", os.getpid(), 1)
    for number in count():
        if store.log.end >= end:
            break
        rows = [
            (0, BODY, b"UNIQ_KEY\x01%s\x02" % keys.next(time.time_ns() // 1_000_000).encode()) for _ in range(BATCH)
        ]
        store.put_batch("bench", number % QUEUES, RowBatch(rows), born_timestamp=1, born_host=HOST)
        store.build_index(BATCH)
        if number % 5_000 == 0:
            store.checkpoint()
    store.close()


class Sends:
    """Sends at a fixed rate; `taken_ms` has what each took."""

    def __init__(self, producer: Producer, rate: int) -> None:
        self._producer = producer
        self._rate = rate
        self.taken_ms: list[float] = []

    async def run(self) -> None:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in count():
                due = began + number / self._rate
                await trio.sleep_until(due)
                nursery.start_soon(self._send, due)

    async def _send(self, due: float) -> None:
        await self._producer.send(Message("bench", BODY))
        self.taken_ms.append((trio.current_time() - due) * 1_000)

    def take(self) -> list[float]:
        taken, self.taken_ms = sorted(self.taken_ms), []
        return taken


async def back_up(admin: Admin, addr: str, name: str) -> BackupStatus:
    await admin.begin_backup(addr, name)
    while (status := await admin.backup_status(addr)).state == RUNNING:  # noqa: ASYNC110 - the broker is elsewhere
        await trio.sleep(POLL_S)
    assert status.state == DONE, status.error
    return status


async def measure(
    namesrv: str, addr: str, seconds: float, rate: int
) -> tuple[list[BackupStatus], dict[str, list[float]]]:
    found: dict[str, list[float]] = {}
    made: list[BackupStatus] = []
    async with Admin(namesrv) as admin, Producer(namesrv, group="bench") as producer, trio.open_nursery() as nursery:
        sends = Sends(producer, rate)
        nursery.start_soon(sends.run)
        await trio.sleep(seconds / 2)
        sends.take()
        await trio.sleep(seconds)
        found["before"] = sends.take()
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            made.append(await back_up(admin, addr, f"b{len(made)}"))
        found["during backups"] = sends.take()
        nursery.cancel_scope.cancel()
    return made, found


def same_log(one: Path, other: Path, end: int) -> bool:
    """Whether both logs have the same bytes before ``end``."""
    for file in sorted(other.iterdir()):
        left = end - int(file.name)
        with open(file, "rb") as mine, open(one / file.name, "rb") as theirs:
            while left > 0:
                size = min(PIECE, left)
                if mine.read(size) != theirs.read(size):
                    return False
                left -= size
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gib", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--flush", default="ASYNC_FLUSH")
    parser.add_argument("--dir")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as home:
        store = Path(home, BROKER)
        fill(str(store), int(given.gib * GIB))
        with cluster_at(home, ("--flush-disk-type", given.flush)) as servers:
            made, taken = trio.run(measure, servers.nameserver, servers.broker, given.seconds, given.rate)
        rows = Rows(given.json)
        for when, figures in taken.items():
            rows.show(f"sends {when}, number", len(figures))
            for share in (50, 99, 99.9):
                rows.show(f"sends {when}, {share:g} %, ms", figures[math.ceil(len(figures) * share / 100) - 1])
            rows.show(f"sends {when}, longest, ms", figures[-1])
        last = made[-1]
        rows.show("backups", len(made))
        rows.show("a backup, median, s", sorted(each.took_ms for each in made)[len(made) // 2] / 1_000)
        rows.show("a backup, longest, s", max(each.took_ms for each in made) / 1_000)
        rows.show("linked, MiB", last.linked >> 20)
        rows.show("copied, MiB", last.to_copy >> 20)
        rows.show("files", last.files)
        for each in made[:-1]:
            shutil.rmtree(each.directory)
        for what, more in (("restored, no check", ["--no-check"]), ("restored and checked", [])):
            new = Path(home, "new")
            began = time.perf_counter()
            command = [sys.executable, "-m", "broker", "restore", last.directory, str(new), *more]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            rows.show(f"{what}, s", time.perf_counter() - began)
            rows.show("log as it was (1: yes)", same_log(store / "commitlog", new / "commitlog", last.log_end))
            shutil.rmtree(new)


class Rows:
    """Prints each figure as soon as it is measured."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, name: str, value: float) -> None:
        print(
            json.dumps({"name": name, "value": value}) if self._as_json else f"{name:<40} {value:>14,.3f}", flush=True
        )


if __name__ == "__main__":
    main()
