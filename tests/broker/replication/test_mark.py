"""The file that says how much a log had: what a start takes of two copies that differ, or of which one is damaged."""

import pytest

from skylark.broker.replication.mark import Mark, Marked, boot_of
from tests.support.memory_files import MemoryFiles

PATH = "/store/mark"
# The larger number of each kind claims more: entries only go once both copies have been lowered.
LESS, MORE = Marked(3, 30, 5, 50), Marked(7, 70, 9, 90)


def written(fs: MemoryFiles, marked: Marked) -> bytes:
    fs.mkdirs("/store")
    mark = Mark(fs, PATH)
    mark.begin(marked._replace(boot=boot_of(fs)))
    mark.close()
    return fs.read(PATH)


@pytest.mark.parametrize(("first", "second"), [(LESS, MORE), (MORE, LESS)], ids=["raised", "lowered"])
def test_of_two_copies_the_one_counts_that_claims_more(first: Marked, second: Marked) -> None:
    fs = MemoryFiles()
    boot = boot_of(fs)
    begin, end = written(fs, first), written(fs, second)
    fs.overwrite(PATH, begin[:4096] + end[4096:])
    marked, damage = Mark(fs, PATH).read(boot)
    assert (marked, damage) == (MORE._replace(boot=boot), "")
    # What was promised by memory only does not outlive the machine's boot.
    marked, _ = Mark(fs, PATH).read(boot + 1)
    assert marked == Marked(MORE.flushed, MORE.flushed_chain, 0, 0, boot + 1)


@pytest.mark.parametrize("at", [0, 4096])
def test_one_damaged_copy_costs_nothing_and_is_told(at: int) -> None:
    fs = MemoryFiles()
    data = bytearray(written(fs, MORE))
    data[at] ^= 1
    fs.overwrite(PATH, bytes(data))
    marked, damage = Mark(fs, PATH).read(boot_of(fs))
    assert marked == MORE._replace(boot=boot_of(fs))
    assert damage == "the CRC of one copy is wrong"
