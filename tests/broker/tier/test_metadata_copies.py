"""Copies of the metadata bring back topics and offsets; one is made only when something has changed."""

from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.tasks.persist import Persister
from skylark.broker.tier.metadata_copies import MetadataCopies
from skylark.mqcommon.tier.metadata import MetadataCopy, decode_metadata
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.store.support import open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles


def opened(fs: MemoryFiles, clock: ManualClock) -> Metadata:
    metadata = Metadata(fs, "/store/config", clock, BrokerOptions())
    metadata.open()
    return metadata


async def test_a_copy_restores_the_tables_as_they_were() -> None:
    fs, clock = MemoryFiles(), ManualClock()
    store, metadata = open_store(fs, clock), opened(fs, clock)
    put(store, "t", 0, b"body")
    put(store, "expired", 2, b"body")
    store.queues.get("expired", 2).start_at(1)
    options = BrokerOptions(store_path_root_dir="/store", broker_name="b")
    persister = Persister(metadata, options)
    copies = MetadataCopies(fs, options, store, metadata.journal, persister, clock)
    metadata.topics.put(TopicConfig("orders", 3, 3))
    metadata.consumer_offsets.commit("g", "orders", 1, 7)
    write(fs, "/store/config/topics.json", b"{}")
    first = await copies.make()
    assert first is not None
    # It is not in the bucket yet.
    assert await copies.make() is not None
    copies.stored()
    assert await copies.make() is None
    metadata.topics.put(TopicConfig("later", 1, 1))
    assert await copies.make() is not None
    copy = decode_metadata(first)
    assert copy.files["config/topics.json"] == b"{}"
    assert copy.empty_queues == {"expired": {2: 1}}
    assert (copy.broker_name, copy.mode, copy.log_end) == ("b", "plain", store.log.end)
    there = restored(copy, clock)
    assert there.topics.get("orders") is not None and there.topics.get("later") is None
    assert there.consumer_offsets.query("g", "orders", 1) == 7


def write(fs: MemoryFiles, path: str, content: bytes) -> None:
    file = fs.open_append(path)
    file.write(content)
    file.close()


def restored(copy: MetadataCopy, clock: ManualClock) -> Metadata:
    fs = MemoryFiles()
    fs.mkdirs("/store/config")
    for path, content in copy.files.items():
        write(fs, f"/store/{path}", content)
    return opened(fs, clock)
