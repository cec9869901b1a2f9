"""The epochs of a log on disk: after each crash they fit the log that recovery finds."""

from random import Random

import pytest

from broker.replication.autoswitch.epoch_file import FILE_NAME, load_epochs, save_epochs
from broker.replication.autoswitch.epochs import Epoch, Epochs, encode_file
from mqcommon.errors import StoreCorrupt
from tests.support.memory_files import MemoryFiles

THREE = [Epoch(1, 0), Epoch(2, 500), Epoch(5, 900)]


def saved(entries: list[Epoch]) -> MemoryFiles:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    save_epochs(fs, "/store", encode_file(Epochs(entries)))
    return fs


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 1000, THREE),
        (0, 900, THREE[:2]),
        (0, 0, []),
        (500, 1000, THREE[1:]),
        (600, 1000, THREE[1:]),
    ],
)
def test_they_go_as_far_as_the_log(start: int, end: int, expected: list[Epoch]) -> None:
    assert list(load_epochs(saved(THREE), "/store", start, end)) == expected


def test_a_log_that_is_older_than_its_controller_begins_with_epoch_0_wherever_it_begins() -> None:
    assert list(load_epochs(MemoryFiles(), "/store", 4096, 9000)) == [Epoch(0, 0)]
    assert list(load_epochs(saved([Epoch(3, 5000)]), "/store", 4096, 9000)) == [Epoch(0, 0), Epoch(3, 5000)]
    assert list(load_epochs(MemoryFiles(), "/store", 0, 0)) == []


def test_a_power_loss_leaves_the_old_epochs_or_the_new_ones() -> None:
    fs = saved(THREE[:2])
    images: list[MemoryFiles] = []
    fs.before_call = lambda operation, path: images.extend(fs.crash(Random(seed)) for seed in range(10))
    save_epochs(fs, "/store", encode_file(Epochs(THREE)))
    found = [list(load_epochs(image, "/store", 0, 1000)) for image in images]
    assert all(each in (THREE[:2], THREE) for each in found) and len(found) > 20


def test_a_damaged_file_is_refused_with_a_remedy() -> None:
    fs = saved(THREE)
    fs.flip(f"/store/{FILE_NAME}", 14)
    with pytest.raises(StoreCorrupt, match="broker resyncSlave /store"):
        load_epochs(fs, "/store", 0, 1000)
