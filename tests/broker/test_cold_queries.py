"""Queries of a whole broker for what is on disk only."""

import threading

from remoting.protocol.command import Command
from remoting.protocol.requests.offsets import SEARCH_OFFSET_BY_TIMESTAMP
from remoting.protocol.requests.query import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID
from tests.broker.running import running, send_request
from tests.broker.test_cold_reads import LOG, SMALL_FILES, fill
from tests.broker.test_send_pull import messages
from tests.support.memory_files import MemoryFiles


def mark_all(fs: MemoryFiles) -> None:
    """All of the store is on disk only, from now on."""
    for path in fs.paths():
        fs.cold.mark(path)
    fs.cold.reads.clear()


def read_from(fs: MemoryFiles) -> set[str]:
    """The directories of the files that were read from disk since `mark_all`."""
    return {path.split("/")[2] for path, _, _ in fs.cold.reads}


async def test_queries_wait_for_the_disk_in_a_thread_and_find_the_same() -> None:
    fs = MemoryFiles()
    fill(fs, [b"%d" % n for n in range(12)])
    loop = threading.get_ident()
    readers: set[int] = set()
    fs.cold.before_read = lambda path: readers.add(threading.get_ident())
    async with running(fs, **SMALL_FILES) as (client, addr):
        await client.invoke(addr, send_request("t", b"makes the topic"))
        mark_all(fs)
        query = {"topic": "t", "key": "k", "maxNum": 4, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        found = messages(await client.invoke(addr, Command(QUERY_MESSAGE.code, query)))
        assert [message.body for message in found] == [b"11", b"10", b"9", b"8"]
        assert read_from(fs) >= {"index", "commitlog"}
        mark_all(fs)
        search = {"topic": "t", "queueId": 0, "timestamp": 0}
        answer = await client.invoke(addr, Command(SEARCH_OFFSET_BY_TIMESTAMP.code, search))
        assert answer.ext is not None and int(answer.ext["offset"]) == 0
        assert read_from(fs) >= {"commitlog", "consumequeue"}
        fs.cold.mark(LOG)
        view = await client.invoke(addr, Command(VIEW_MESSAGE_BY_ID.code, {"offset": 0}))
        assert messages(view)[0].body == b"0"
    assert readers and loop not in readers
