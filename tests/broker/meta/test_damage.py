"""Journal and snapshot cut at every byte, zeroed from every byte on, and with a bit flipped in every byte.

After a flipped bit all that was acknowledged is there, or StoreCorrupt names file and offset. Only the last change, of
which no later record says that it was on disk, may be cut off, and then that is told. A journal that ends too early is
a journal of an earlier moment: it is taken as that, and told unless it ends between two records.
"""

from typing import Any

import pytest

from skylark.broker.meta.journal import JournalReport
from skylark.broker.meta.journal_format import HEADER_BYTES, scan
from skylark.mqcommon.errors import StoreCorrupt
from tests.broker.meta.support import DIRECTORY
from tests.broker.meta.test_journal import compact, fresh, numbers, reopen
from tests.support.memory_files import MemoryFiles
from tests.support.rot import Ways, cut_anywhere, flipped_anywhere, zeroed_anywhere, zeros_after

IN_SNAPSHOT, IN_ALL = 3, 8


def stored(*, clean: bool) -> MemoryFiles:
    """A snapshot and a journal after it; every change was acknowledged by itself."""
    fs = MemoryFiles()
    journal = fresh(fs, IN_SNAPSHOT)
    compact(journal, numbers(IN_SNAPSHOT))
    for record in numbers(IN_ALL)[IN_SNAPSHOT:]:
        journal.append(*record)
        journal.sync()
    if clean:
        journal.close()
    return fs.killed()


def open_or_refuse(fs: MemoryFiles, path: str, data: bytes) -> tuple[list[Any], JournalReport] | None:
    """The metadata read with another content of one file; None when it was refused, with file, offset and reason."""
    after = fs.killed()
    after.overwrite(path, data)
    try:
        return reopen(after)[1:]
    except StoreCorrupt as error:
        assert error.file.startswith(DIRECTORY) and 0 <= error.offset <= fs.size(path) and error.reason
        return None


CLEAN = pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
NAMES = pytest.mark.parametrize("name", ["metadata.snapshot.1", "metadata.journal.1"])


@CLEAN
@NAMES
def test_a_flipped_bit_is_told_and_costs_the_last_change_at_the_most(name: str, clean: bool) -> None:
    fs = stored(clean=clean)
    assert fs.listdir(DIRECTORY) == ["metadata.journal.1", "metadata.snapshot.1"]
    path = f"{DIRECTORY}/{name}"
    for at, data in flipped_anywhere(fs.read(path)):
        found = open_or_refuse(fs, path, data)
        if found is not None and found[0] != numbers(IN_ALL):
            assert found[1].cuts, f"{name} damaged at {at}: nobody tells"
            assert not clean and found[0] == numbers(IN_ALL - 1)


@CLEAN
@NAMES
def test_zeros_after_the_end_lose_nothing(name: str, clean: bool) -> None:
    fs = stored(clean=clean)
    path = f"{DIRECTORY}/{name}"
    for _, data in zeros_after(fs.read(path)):
        found = open_or_refuse(fs, path, data)
        assert found is not None and found[0] == numbers(IN_ALL)


@CLEAN
@NAMES
@pytest.mark.parametrize("ways", [cut_anywhere, zeroed_anywhere], ids=["cut", "zeros"])
def test_a_file_that_ends_early_is_one_of_an_earlier_moment(ways: Ways, name: str, clean: bool) -> None:
    fs = stored(clean=clean)
    path = f"{DIRECTORY}/{name}"
    whole = fs.read(path)
    ends = {0, HEADER_BYTES, *(record.offset for record in scan(whole, 1).records)}
    for at, data in ways(whole):
        found = open_or_refuse(fs, path, data)
        if found is not None and found[0] != numbers(IN_ALL):
            records, report = found
            assert name == "metadata.journal.1" and records == numbers(max(len(records), IN_SNAPSHOT))
            assert report.cuts or at in ends, f"{name} damaged at {at}: nobody tells"
