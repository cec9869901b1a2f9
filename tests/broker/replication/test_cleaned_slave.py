"""A slave that removes old files while its master's topics are deleted and made again."""

import threading
from typing import Any

import trio
import trio.testing

from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.brokers import DELETE_EXPIRED_COMMITLOG
from skylark.remoting.protocol.requests.topics import DELETE_TOPIC_IN_BROKER
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S, until

# Whatever is not in the last file of the log goes, at any hour.
CLEANING: dict[str, Any] = {
    "file_reserved_time": 0,
    "delete_when": ";".join(map(str, range(24))),
    "clean_resource_interval": 10,
    "delete_commit_log_files_interval": 1,
}


class Gate:
    """Holds the thread that reads the files of a queue of ``topic`` at its third read, as a slow disk does."""

    def __init__(self, topic: str) -> None:
        self._part = f"/consumequeue/{topic}/"
        self._reads = 0
        self._loop_thread = threading.current_thread()
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, operation: str, path: str) -> None:
        if operation == "read" and self._part in path and threading.current_thread() is not self._loop_thread:
            self._reads += 1
            if self._reads == 3:
                self.reached.set()
                self.opened.wait(DEADLINE_S)


async def ask(running: Running, code: int, **ext: str) -> None:
    answer = await running.client.invoke(running.addr, Command(code, dict(ext)))
    assert answer.code == ResponseCode.SUCCESS, answer


async def delete(master: Running, topic: str) -> None:
    await ask(master, DELETE_TOPIC_IN_BROKER.code, topic=topic)


async def test_a_topic_is_made_again_while_the_cleaner_searches_its_queue() -> None:
    body = bytes(2_000)
    async with namesrv() as addr:
        options: dict[str, Any] = {"namesrv_addr": addr, "mapped_file_size_consume_queue": 20 * 10}
        async with broker(**options) as master:
            fs = MemoryFiles()
            async with broker(fs, **options, **SLAVE, file_reserved_time=0) as slave:
                for n in range(40):
                    await master.send("T", b"%d" % n + body)
                await slave.has("T", 40)
                await until(lambda: bool(fs.listdir("/store/consumequeue/T/0")), "a checkpoint of the slave")
                gate = Gate("T")
                fs.before_call = gate
                await ask(slave, DELETE_EXPIRED_COMMITLOG.code)
                await until(gate.reached.is_set, "the search of the slave's cleaner")
                await delete(master, "T")
                for n in range(5):
                    await master.send("T", b"again %d" % n + body)
                await until(lambda: slave.log_end == master.log_end, "the end of the log")
                await trio.testing.wait_all_tasks_blocked(0.02)
                gate.opened.set()
                await master.send("T", b"the last")
                newest = (await master.bodies("T"))[-1]
                assert newest == b"the last"

                async def has_newest() -> bool:
                    found = await slave.bodies("T")
                    return bool(found) and found[-1] == newest

                await until(has_newest, "the last message at the slave")


async def test_cleaning_deletions_and_readers_at_once() -> None:
    """Real threads; each message is there, or so old that its file is gone."""
    async with namesrv() as addr:
        options: dict[str, Any] = {"namesrv_addr": addr, "mapped_file_size_consume_queue": 20 * 10}
        async with broker(**options, **CLEANING) as master, broker(**options, **SLAVE, **CLEANING) as slave:
            left: dict[str, int] = {}

            async def work(topic: str) -> None:
                for life in range(4):
                    for n in range(25):
                        await master.send(topic, b"%d-%d" % (life, n) + bytes(700))
                    left[topic] = life
                    if life < 3:
                        await delete(master, topic)

            async def read(running: Running) -> None:
                while len(left) < 3 or min(left.values()) < 3:
                    for topic in ("A", "B", "C"):
                        with trio.fail_after(DEADLINE_S):
                            await running.bodies(topic)
                    await trio.lowlevel.checkpoint()

            async with trio.open_nursery() as nursery:
                for topic in ("A", "B", "C"):
                    nursery.start_soon(work, topic)
                nursery.start_soon(read, master)
                nursery.start_soon(read, slave)
            # The last file of the log stays.
            for topic in ("A", "B", "C"):
                await master.send(topic, b"the last of " + topic.encode())

            async def all_there() -> bool:
                return all([(await slave.bodies(t))[-1:] == [b"the last of " + t.encode()] for t in ("A", "B", "C")])

            await until(all_there, "the last messages at the slave")
