"""The epochs of this broker's log, and the file that keeps them.

The file is written before the first byte of a new epoch, so that no byte is ever in the log without its epoch. So after
a crash an epoch may have no byte yet: epochs without bytes are forgotten when the file is read.
"""

import trio

from skylark.broker.identity import Identity
from skylark.broker.part import Part
from skylark.broker.replication.autoswitch.epochs import OLDER_THAN_CONTROLLER, Epoch, Epochs, decode_file, encode_file
from skylark.broker.store.log.commitlog import CommitLog
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.disk.small_file import SmallFile
from skylark.mqcommon.errors import ProtocolError, StoreCorrupt
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.replication import GET_BROKER_EPOCH_CACHE, EpochEntry, EpochEntryCache

NO_EPOCH = -1


class LogEpochs:
    """``now`` are the epochs of the open ``log``; `save` them after each change, before the log gets other bytes."""

    def __init__(self, fs: FileSystem, path: str, log: CommitLog) -> None:
        self._fs = fs
        self._path = path
        self._log = log
        self._writing = trio.Lock()
        self.now = Epochs()

    @property
    def last(self) -> int:
        """The newest epoch; `NO_EPOCH` when the log has none."""
        return self.now.last.epoch if self.now.last else NO_EPOCH

    def load(self) -> None:
        """Read the file. Blocks. StoreCorrupt when it is damaged."""
        if self._fs.exists(self._path):
            try:
                self.now = decode_file(self._fs.read(self._path))
            except ProtocolError as error:
                text = f"{error}; to copy the log from the master again, remove this file and run: broker resyncSlave"
                raise StoreCorrupt(self._path, 0, text) from None
        self.now.cut_to(self._log.end)
        self.cover_log()

    def cover_log(self) -> None:
        """Give bytes older than the set's Controllers epoch 0, from the same place on in all logs of the set."""
        self.now = self._covered(self.now)

    def _covered(self, epochs: Epochs) -> Epochs:
        entries = list(epochs)
        if self._log.raw_end > self._log.start and (not entries or entries[0].start > self._log.start):
            return Epochs([Epoch(OLDER_THAN_CONTROLLER, 0), *(each for each in entries if each.epoch)])
        return epochs

    async def begin(self, epoch: int) -> None:
        """Add ``epoch``, in which this broker writes from the end of its log on, to the file.

        After an OSError or StoreError nothing has changed.
        """
        if self.last < epoch:
            # Remove epochs that a master announced but whose bytes did not come. Then add the new epoch. It must be on
            # disk before this broker accepts its first message, and before `last` returns it.
            begun = Epochs(self.now)
            begun.cut_to(self._log.end)
            begun = self._covered(begun)
            begun.begin(epoch, self._log.end)
            await self._write(begun)
            self.now = begun

    async def save(self) -> None:
        """Write the file, without epochs of files that were deleted."""
        await self._write(self.now)

    def as_small_file(self) -> SmallFile:
        """The file, for a check."""

        def is_whole(data: bytes) -> bool:
            try:
                decode_file(data)
            except ProtocolError:
                return False
            return True

        async def restore() -> None:
            # `begin` may be writing a new epoch: what to write is known under the lock only.
            async with self._writing:
                await trio.to_thread.run_sync(write_atomic, self._fs, self._path, encode_file(self.now))

        return SmallFile(self._path, is_whole, restore)

    async def _write(self, epochs: Epochs) -> None:
        async with self._writing:
            epochs.forget_before(self._log.start)
            await trio.to_thread.run_sync(write_atomic, self._fs, self._path, encode_file(epochs))


class EpochHandlers(Part):
    """Which master wrote which part of the log (1007), for administrators. For brokers in Controller mode."""

    def __init__(self, identity: Identity, epochs: LogEpochs, log: CommitLog) -> None:
        self._identity = identity
        self._epochs = epochs
        self._log = log

    def handlers(self) -> dict[int, Handler]:
        return {GET_BROKER_EPOCH_CACHE.code: self.epochs}

    def epochs(self, channel: Channel, request: Command) -> Command:
        """1007. As in RocketMQ the last epoch ends with the log."""
        who, end, epochs = self._identity, self._log.end, self._epochs.now
        rows = [EpochEntry(epoch, start, epochs.end_of(epoch, end)) for epoch, start in epochs]
        answer = EpochEntryCache(who.cluster_name, who.broker_name, who.broker_id, rows, end)
        return answer_with(GET_BROKER_EPOCH_CACHE, request, answer, channel.max_frame_bytes)
