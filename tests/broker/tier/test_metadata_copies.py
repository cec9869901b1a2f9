"""Copies of the metadata bring back topics and offsets; one is made only when tables or empty queues have changed."""

from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore
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


def copies_of(fs: MemoryFiles, store: MessageStore, metadata: Metadata, clock: ManualClock) -> MetadataCopies:
    options = BrokerOptions(store_path_root_dir="/store", broker_name="b")
    return MetadataCopies(fs, options, store, metadata.journal, Persister(metadata, options), clock)


async def test_a_copy_restores_the_tables_as_they_were() -> None:
    fs, clock = MemoryFiles(), ManualClock()
    store, metadata = open_store(fs, clock), opened(fs, clock)
    put(store, "t", 0, b"body")
    put(store, "expired", 2, b"body")
    store.queues.get("expired", 2).start_at(1)
    copies = copies_of(fs, store, metadata, clock)
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


async def test_a_copy_is_made_when_a_queue_has_become_empty() -> None:
    fs, clock = MemoryFiles(), ManualClock()
    store = open_store(fs, clock)
    put(store, "t", 0, b"body")
    copies = copies_of(fs, store, opened(fs, clock), clock)
    assert await copies.make() is not None
    copies.stored()
    put(store, "t", 0, b"body")
    assert await copies.make() is None
    # The log has no message of the queue any more: only a copy of metadata knows where the queue goes on.
    store.queues.get("t", 0).start_at(2)
    copy = await copies.make()
    assert copy is not None and decode_metadata(copy).empty_queues == {"t": {0: 2}}
    copies.stored()
    assert await copies.make() is None


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
