"""A store whose metadata is gone: the start refuses it, and ``broker rebuildMetadata`` makes topics and groups anew."""

import pytest

from skylark.broker.broker import store_options
from skylark.broker.commands.json_metadata import export
from skylark.broker.commands.rebuild_metadata import LOST, rebuild
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.errors import StoreCorrupt, UserError
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.replication.sets import broker
from tests.broker.running import SMALL, send_request
from tests.broker.store.support import open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

CONFIG = "/store/config"
JOURNAL = f"{CONFIG}/metadata.journal.0"
OPTIONS = store_options(BrokerOptions(**{**SMALL, "mapped_file_size_commit_log": 16 * 1024}))


async def killed() -> MemoryFiles:
    """The disk of a broker that was killed after it had stored messages."""
    async with broker() as running:
        for number in range(3):
            await running.send("T", b"%d" % number, queue_id=number)
        await running.send("%RETRY%orders", b"again")
        return running.kill()


async def refused(fs: MemoryFiles) -> str:
    with pytest.raises(ExceptionGroup) as caught:
        async with broker(fs):
            pass
    matched, _ = caught.value.split(StoreCorrupt)
    assert matched is not None
    error: BaseException = matched
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return str(error)


@pytest.mark.parametrize("way", ["missing", "empty"])
async def test_a_start_is_refused_until_topics_are_made_anew(way: str) -> None:
    fs = await killed()
    if way == "missing":
        fs.remove(JOURNAL)
    else:
        fs.overwrite(JOURNAL, b"")
    for _ in range(2):  # the first refusal changes nothing
        reason = await refused(fs)
        assert f"the file is {way}, so all topics, groups, offsets, users and policies are gone" in reason
        assert "broker rebuildMetadata /store (a slave then gets the rest from its master)" in reason
    with pytest.raises(StoreCorrupt if way == "empty" else UserError):
        export(fs, ManualClock(), "/store")
    said: list[str] = []
    rebuild(fs, ManualClock(), OPTIONS, said.append)
    assert said == [
        "topic %RETRY%orders made with 1 queues", "topic T made with 3 queues", "group orders made",
        f"2 topics and 1 groups made. {LOST}",
    ]  # fmt: skip
    async with broker(fs) as running:
        assert [await running.bodies("T", queue_id=number) for number in range(3)] == [[b"0"], [b"1"], [b"2"]]
        answer = await running.client.invoke(running.addr, send_request("T", b"3", queue_id=2), 5_000)
        assert answer.code == ResponseCode.SUCCESS
    said.clear()
    rebuild(fs, ManualClock(), OPTIONS, said.append)
    assert said == ["nothing was missing"]


async def test_damaged_metadata_is_set_aside() -> None:
    fs = await killed()
    fs.flip(JOURNAL, 40)
    damaged = fs.read(JOURNAL)
    assert "broker rebuildMetadata /store" in await refused(fs)
    said: list[str] = []
    rebuild(fs, ManualClock(), OPTIONS, said.append)
    assert said[:2] == [f"{JOURNAL} is damaged at offset 24", f"kept as {JOURNAL}.damaged"]
    assert said[-1] == f"2 topics and 1 groups made. {LOST}" and fs.read(f"{JOURNAL}.damaged") == damaged
    async with broker(fs) as running:
        assert await running.bodies("T", queue_id=2) == [b"2"]


async def test_a_store_without_an_inventory_is_taken_as_it_is() -> None:
    """Such as a store of RocketMQ, or of an older version."""
    fs = await killed()
    fs.remove("/store/inventory")
    fs.remove(JOURNAL)
    async with broker(fs) as running:
        await running.send("T", b"more")
        assert fs.exists("/store/inventory")


@pytest.mark.parametrize("last_stop", ["clean", "killed"])
@pytest.mark.parametrize("count", [1, 2, 100])
def test_a_log_without_its_first_files_is_refused(count: int, last_stop: str) -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for number in range(100):
        put(store, "t", 0, b"%d" % number * 30)
    store.checkpoint()
    if last_stop == "clean":
        store.close()
    fs = fs.killed()
    names = fs.listdir("/store/commitlog")
    assert len(names) > 2
    for name in names[:count]:
        fs.remove(f"/store/commitlog/{name}")
    with pytest.raises(StoreCorrupt, match="the file is missing, and this broker has not cleaned it up"):
        open_store(fs)
