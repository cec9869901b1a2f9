"""The epochs of a log and their file: after crashes, retention, damage."""

from dataclasses import dataclass
from typing import Any

import pytest

from skylark.broker.replication.autoswitch.log_epochs import LogEpochs
from skylark.mqcommon.errors import StoreCorrupt
from tests.support.memory_files import MemoryFiles

PATH = "/store/epochFileCheckpoint"


@dataclass
class Log:
    """The part of a log that `LogEpochs` reads."""

    start: int = 0
    end: int = 0

    @property
    def raw_end(self) -> int:
        return self.end


def loaded(files: MemoryFiles, log: Log) -> LogEpochs:
    as_log: Any = log
    epochs = LogEpochs(files, PATH, as_log)
    epochs.load()
    return epochs


def disk() -> MemoryFiles:
    files = MemoryFiles()
    files.mkdirs("/store")
    return files


async def test_what_is_older_than_the_controllers_has_epoch_0() -> None:
    files, log = disk(), Log(100, 500)
    epochs = loaded(files, log)
    await epochs.begin(7)
    assert [tuple(each) for each in epochs.now] == [(0, 0), (7, 500)]
    log.end = 900
    assert [tuple(each) for each in loaded(files, log).now] == [(0, 0), (7, 500)]


async def test_an_epoch_without_a_byte_is_forgotten_and_one_whose_files_are_gone_too() -> None:
    files, log = disk(), Log()
    epochs = loaded(files, log)
    for epoch, end in ((1, 400), (2, 700)):
        await epochs.begin(epoch)
        log.end = end
    await epochs.begin(3)
    assert epochs.last == 3
    again = loaded(files, log)
    assert again.last == 2
    log.start = 400
    await again.begin(4)
    assert [tuple(each) for each in loaded(files, Log(400, 800)).now] == [(2, 400), (4, 700)]


@pytest.mark.parametrize("operation", ["open", "rename"])
async def test_an_epoch_that_cannot_be_saved_has_not_begun(operation: str) -> None:
    files, log = disk(), Log(0, 500)
    epochs = loaded(files, log)
    await epochs.begin(1)
    log.end = 700
    files.faults.fail(operation, path_part=PATH)
    with pytest.raises(OSError, match="injected"):
        await epochs.begin(2)
    assert epochs.last == 1
    await epochs.begin(2)
    log.end = 900
    assert [tuple(each) for each in loaded(files.killed(), log).now] == [(0, 0), (1, 500), (2, 700)]


def test_a_damaged_file_is_refused_with_the_remedy() -> None:
    files = disk()
    files.open_append(PATH).write(b"1\n5\n7-0\n")
    with pytest.raises(StoreCorrupt, match="broker resyncSlave"):
        loaded(files, Log(0, 10))
