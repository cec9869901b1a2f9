"""Which master wrote which part of the log (1007), for administrators."""

from broker.identity import Identity
from broker.part import Part
from broker.replication.autoswitch.log_epochs import LogEpochs
from broker.store.log.commitlog import CommitLog
from remoting.net.answers import answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.command import Command
from remoting.protocol.requests.replication import GET_BROKER_EPOCH_CACHE, EpochEntry, EpochEntryCache


class EpochHandlers(Part):
    """The handler of a broker in Controller mode."""

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
