"""The files of Controller mode, as a check of all files restores them."""

import trio

from skylark.broker.identity import Identity
from skylark.broker.replication.autoswitch.enrolment import Enrolment, Identified, encode
from skylark.broker.replication.autoswitch.epochs import Epoch, Epochs, decode_file
from skylark.broker.replication.autoswitch.log_epochs import LogEpochs
from skylark.broker.replication.autoswitch.promised_end import PromisedEnd
from skylark.mqcommon.disk.small_file import SmallFile
from tests.broker.store.support import open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles


def new_epochs(fs: MemoryFiles) -> LogEpochs:
    store = open_store(fs)
    put(store, "t", 0, b"x")
    epochs = LogEpochs(fs, "/store/epochs", store.log)
    epochs.now = Epochs([Epoch(3, 0)])
    return epochs


async def check(fs: MemoryFiles, file: SmallFile) -> None:
    sound = fs.read(file.path)
    assert file.is_whole(sound)
    for at in range(0, len(sound), max(len(sound) // 40, 1)):
        if not sound[at]:
            continue
        fs.flip(file.path, at, 1)
        assert not file.is_whole(fs.read(file.path)), at
        await file.restore()
        assert file.is_whole(fs.read(file.path)) and fs.read(file.path) == sound


async def test_epochs() -> None:
    fs = MemoryFiles()
    epochs = new_epochs(fs)
    await epochs.save()
    await check(fs, epochs.as_small_file())


async def test_epochs_are_restored_with_the_epoch_that_begins_meanwhile() -> None:
    fs = MemoryFiles()
    epochs = new_epochs(fs)
    await epochs.save()
    file = epochs.as_small_file()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(epochs.begin, 4)
        nursery.start_soon(file.restore)
    assert [each.epoch for each in decode_file(fs.read(file.path))] == [3, 4] == [each.epoch for each in epochs.now]


async def test_the_promised_end() -> None:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    promised = PromisedEnd(fs, "/store/promised")
    promised.open(77)
    promised.promise(99)
    await check(fs, promised.as_small_file())
    await promised.close()


async def test_the_identity_and_one_that_was_given_up() -> None:
    fs = MemoryFiles()
    fs.mkdirs("/store")
    fs.overwrite("/store/id", encode(Identified("c", "a", 2)))
    enrolment = Enrolment(fs, "/store/id", Identity("c", "a", 0, "127.0.0.1:1", "127.0.0.1:2"), ManualClock())
    assert enrolment.as_small_files() == []
    await enrolment.enrol(None)  # type: ignore[arg-type]
    (file,) = enrolment.as_small_files()
    await check(fs, file)
    await enrolment.forget()
    await file.restore()
    assert not fs.exists("/store/id") and enrolment.as_small_files() == []
