"""``broker rebuildMetadata``: makes the topics and groups anew that the messages of a stopped broker's store name.

For a store whose metadata is lost or damaged: its broker refuses to start, since it would look like a new broker.
Topics and groups that exist stay as they are.
Neighbours: meta/metadata.py, offline.py, cli.py.
"""

from collections.abc import Callable, Iterable

import click

from skylark.broker.broker import store_options
from skylark.broker.commands.offline import absolute, errors_on_one_line
from skylark.broker.commands.verify_store import with_sizes_found
from skylark.broker.meta.journal import set_aside
from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.topics import BATCH_QUEUES
from skylark.broker.options import BrokerOptions
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.clock import Clock, SystemClock
from skylark.mqcommon.disk.files import FileSystem, OsFiles
from skylark.mqcommon.errors import NewerVersion, StoreCorrupt, UserError
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.names import DLQ_PREFIX, RETRY_PREFIX, is_light, is_system_topic
from skylark.mqcommon.options.conf_file import load_conf
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig

LOST = (
    "not in the messages, and lost: how far each group had consumed (a group without offsets begins where its "
    "consumers say), permissions and other settings of topics and groups, users and policies"
)


@click.command("rebuildMetadata")
@click.argument("store_dir")
@click.option("-c", "--config-file", "conf", metavar="FILE", help="the broker's conf file; for the size of index files")
def rebuild_metadata(store_dir: str, conf: str | None) -> None:
    """Make the topics and groups anew that the stored messages name, when config/metadata.* is lost or damaged.

    STORE_DIR is the broker's storePathRootDir; the broker must be stopped. Topics and groups that exist stay. Damaged
    files get names that end in .damaged.
    """
    with errors_on_one_line(store_dir):
        options = load_conf(BrokerOptions, conf, {"store_path_root_dir": absolute(store_dir)})
        rebuild(OsFiles(), SystemClock(), store_options(options), click.echo)


def rebuild(fs: FileSystem, clock: Clock, options: StoreOptions, say: Callable[[str], None]) -> None:
    """Add the missing topics and groups; makes the metadata if there is none. ``say`` gets lines for the user."""
    root = options.directory
    if not fs.is_dir(f"{root}/commitlog"):
        raise UserError(f"{root} holds no commit log: give the directory that storePathRootDir names")
    store = MessageStore(fs, with_sizes_found(fs, options), clock, encode_host("127.0.0.1", 0))
    store.open(say)
    try:
        metadata = _recovered(fs, f"{root}/config", clock, say)
        topics = [config for config in _topics(store.queues) if metadata.topics.get(config.topic_name) is None]
        for config in topics:
            metadata.topics.put(config)
        names = {config.topic_name for config in topics}
        groups = [group for group in _groups(names) if metadata.groups.get(group) is None]
        for group in groups:
            metadata.groups.put(SubscriptionGroupConfig(group))
        # The journal is on disk before the inventory says that there is one.
        metadata.journal.close()
        store.inventory.note_metadata()
    finally:
        store.close()
    for config in topics:
        say(f"topic {config.topic_name} made with {config.write_queue_nums} queues")
    for group in groups:
        say(f"group {group} made")
    say(f"{len(topics)} topics and {len(groups)} groups made. {LOST}" if topics or groups else "nothing was missing")


def _recovered(fs: FileSystem, directory: str, clock: Clock, say: Callable[[str], None]) -> Metadata:
    """The metadata that is there; none, if it is damaged: then its files get other names."""
    metadata = Metadata(fs, directory, clock, BrokerOptions())
    try:
        metadata.recover()
    except NewerVersion:
        raise
    except StoreCorrupt as damage:
        say(f"{damage.file} is damaged at offset {damage.offset}")
        for path in set_aside(fs, directory):
            say(f"kept as {path}")
        metadata = Metadata(fs, directory, clock, BrokerOptions())
        metadata.recover()
    return metadata


def _topics(queues: Iterable[ConsumeQueue]) -> list[TopicConfig]:
    """The users' topics that have messages; each has enough queues for all queues with messages."""
    found: dict[str, TopicConfig] = {}
    for queue in queues:
        name = queue.topic
        if not queue.next_offset or is_light(name) or is_system_topic(name):
            continue
        config = found.setdefault(name, TopicConfig(name, 0, 0))
        config.read_queue_nums = config.write_queue_nums = max(config.write_queue_nums, queue.queue_id + 1)
        if queue.is_batch:
            config.attributes["queue.type"] = BATCH_QUEUES
    return sorted(found.values(), key=lambda config: config.topic_name)


def _groups(topics: set[str]) -> list[str]:
    """The groups whose retry topics, dead letters or hidden messages are among ``topics``."""
    groups: set[str] = set()
    for name in topics:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if name.startswith(prefix):
                rest = name.removeprefix(prefix).partition("+")[0]
                # The retry topics of pops have the topic at the end.
                topic = next((each for each in topics if rest.endswith(f"_{each}")), None)
                groups.add(rest if topic is None else rest.removesuffix(f"_{topic}"))
    return sorted(groups)
