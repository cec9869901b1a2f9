"""Journal and snapshot cut at every byte, zeroed from every byte on, and with a bit flipped in every byte.

After a flipped bit all that was acknowledged is there, or StoreCorrupt names file and offset. Only the last change, of
which no later record says that it was on disk, may be cut off, and then that is told. A journal that ends too early is
a journal of an earlier moment: it is taken as that, and told unless it ends between two records.
"""

from copy import deepcopy
from dataclasses import dataclass

import pytest

from broker.meta.journal_format import HEADER_BYTES, scan
from mqcommon.errors import StoreCorrupt
from remoting.protocol.requests.groups import SubscriptionGroupConfig
from remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import DIRECTORY, MetadataDir
from tests.support.memory_files import MemoryFiles
from tests.support.rot import Ways, cut_anywhere, flipped_anywhere, zeroed_anywhere

LAST = "t9"


@dataclass(frozen=True)
class State:
    """What the tables hold."""

    topics: frozenset[str]
    groups: frozenset[str]
    offsets: dict[str, dict[int, int]]


def state_of(meta: MetadataDir) -> State:
    return State(frozenset(meta.topics.names()), frozenset(meta.groups.names()), deepcopy(meta.offsets.table()))


def stored(*, clean: bool) -> tuple[MemoryFiles, list[State]]:
    """A snapshot and a journal behind it; every change was acknowledged by itself. The states since the snapshot."""
    meta = MetadataDir()
    states: list[State] = []
    for number in range(4):
        _change(meta, number, states)
    compaction = meta.journal.begin_compaction()
    state = list(meta.metadata.state())
    meta.journal.sync()
    compaction.write(state)
    meta.journal.end_compaction(compaction)
    states = states[-1:]
    for number in range(4, 9):
        _change(meta, number, states)
    meta.topics.put(TopicConfig(LAST))
    meta.journal.sync()
    states.append(state_of(meta))
    if clean:
        meta.journal.close()
    return meta.fs.killed(), states


def _change(meta: MetadataDir, number: int, states: list[State]) -> None:
    meta.topics.put(TopicConfig(f"t{number}"))
    meta.journal.sync()
    states.append(state_of(meta))
    meta.groups.put(SubscriptionGroupConfig(f"g{number}"))
    meta.journal.sync()
    states.append(state_of(meta))
    meta.offsets.commit("g", "t", number, number)
    meta.offsets.append_changed(meta.offsets.take_changed())
    meta.journal.sync()
    states.append(state_of(meta))


def open_or_refuse(fs: MemoryFiles, path: str, data: bytes) -> MetadataDir | None:
    """The metadata with another content of one file; None when that was refused, with file, offset and reason."""
    after = fs.killed()
    after.overwrite(path, data)
    try:
        return MetadataDir(fs=after)
    except StoreCorrupt as error:
        assert error.file.startswith(DIRECTORY) and 0 <= error.offset <= fs.size(path) and error.reason
        return None


CLEAN = pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
NAMES = pytest.mark.parametrize("name", ["metadata.snapshot.1", "metadata.journal.1"])


@CLEAN
@NAMES
def test_a_flipped_bit_is_told_and_costs_the_last_change_at_the_most(name: str, clean: bool) -> None:
    fs, states = stored(clean=clean)
    assert fs.listdir(DIRECTORY) == ["metadata.journal.1", "metadata.snapshot.1"]
    path = f"{DIRECTORY}/{name}"
    for at, data in flipped_anywhere(fs.read(path)):
        meta = open_or_refuse(fs, path, data)
        if meta is not None and state_of(meta) != states[-1]:
            assert meta.report.journal.cuts, f"{name} damaged at {at}: nobody tells"
            assert not clean and state_of(meta) == states[-2]


@CLEAN
@NAMES
@pytest.mark.parametrize("ways", [cut_anywhere, zeroed_anywhere], ids=["cut", "zeros"])
def test_a_file_that_ends_early_is_one_of_an_earlier_moment(ways: Ways, name: str, clean: bool) -> None:
    fs, states = stored(clean=clean)
    path = f"{DIRECTORY}/{name}"
    whole = fs.read(path)
    ends = {0, HEADER_BYTES, *(record.offset for record in scan(whole, 1).records)}
    for at, data in ways(whole):
        meta = open_or_refuse(fs, path, data)
        if meta is not None and state_of(meta) != states[-1]:
            assert name == "metadata.journal.1" and state_of(meta) in states
            assert meta.report.journal.cuts or at in ends, f"{name} damaged at {at}: nobody tells"
