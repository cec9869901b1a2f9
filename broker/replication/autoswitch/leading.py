"""The SyncStateSet of a broker that leads: it asks for each change of it (1001), and moves the confirm offset.

sync_set.py has the rules. Here are the times at which they are looked at: when a slave reports, at the end of each turn
in which the log grew, and every `LOOK_S` for members that fell back.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable

import trio

from skylark.broker.replication.autoswitch.sync_set import DECIDED, SyncSet
from skylark.broker.writing.elected import Elected
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.mqcommon.signal import Signal
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.controller import SyncStateSet

logger = logging.getLogger(__name__)

LOOK_S = 1.0
# Pause after a change that the Controllers refused or did not answer.
PAUSE_S = 0.2


class Leading:
    """See the module. ``ask`` sends 1001 in the epoch in which this broker leads; ``look`` asks what the set is now.

    ``forget`` closes the connections of slaves that the Controllers do not know.
    ``log_end``: up to where the log counts here, with SYNC_FLUSH up to where it is on disk.
    """

    def __init__(
        self,
        elected: Elected,
        log_end: Callable[[], int],
        patience_s: float,
        ask: Callable[[SyncStateSet], Awaitable[SyncStateSet]],
        look: Callable[[], None],
        forget: Callable[[], Awaitable[None]],
    ) -> None:
        self._elected = elected
        self._log_end = log_end
        self._patience_s = patience_s
        self._ask = ask
        self._look = look
        self._forget = forget
        # The set of the last epoch in which this broker led, and that epoch.
        self._set: SyncSet | None = None
        self._epoch = -1
        self._leads = False
        self._wake = Signal()
        # What connected slaves reported last, also before this broker leads: (end of the log, is a learner).
        self._reported: dict[int, tuple[int, bool]] = {}

    def begin(self, me: int, epoch: int, members: Iterable[int], set_epoch: int) -> None:
        """This broker, ``me``, leads in ``epoch`` from now on; ``members`` and ``set_epoch``: its SyncStateSet.

        If re-elected in the same epoch, it keeps the old state: an AlterSyncStateSet may be in flight.
        """
        now = trio.current_time()
        if self._set is None or epoch != self._epoch:
            self._set = SyncSet(me, members, set_epoch, self._patience_s, now, self._elected.confirm_offset)
        self._epoch, self._leads = epoch, True
        # Slaves may have connected before this broker knew that it leads.
        for slave, (end, is_learner) in self._reported.items():
            self._set.acked(slave, end, self._log_end(), now, is_learner=is_learner)
        self._changed(self._set)
        self._wake.set()

    def end(self) -> None:
        """This broker does not lead any more."""
        self._leads = False

    def update(self, members: Iterable[int], epoch: int) -> None:
        """The Controllers say what the set is, at any time."""
        # Answers and notices overtake each other. By an older set, which may lack a member that the Controllers elect
        # from, a message would be confirmed that the next master does not have.
        if self._leads and self._set is not None and epoch > self._set.epoch:
            self._set.update(members, epoch, self._log_end(), trio.current_time())
            self._changed(self._set)

    def registered(self, replicas: int) -> None:
        """The Controllers know ``replicas`` brokers of this set. A learner does not count: no message is safe on it."""
        learners = sum(is_learner for _, is_learner in self._reported.values())
        self._elected.replicas = max(replicas - learners, 1)

    def acked(self, broker_id: int, end: int, is_learner: bool) -> None:
        """The slave has the log up to ``end``."""
        self._reported[broker_id] = end, is_learner
        # Noted also before this broker leads: `begin` takes it into the new set.
        known = self._set
        if known is None or not self._leads:
            return
        known.acked(broker_id, end, self._log_end(), trio.current_time(), is_learner=is_learner)
        self._elected.confirmed(known.confirm_offset)
        if broker_id not in known.members and known.proposed is None and not is_learner:
            self._wake.set()

    def gone(self, broker_id: int) -> None:
        """The connection of the slave is closed."""
        self._reported.pop(broker_id, None)
        if self._set is not None:
            self._set.gone(broker_id, trio.current_time())

    def grown(self) -> None:
        """The log may have grown: without other members all of it is confirmed."""
        if self._leads and self._set is not None:
            self._set.advance(self._log_end())
            self._elected.confirmed(self._set.confirm_offset)

    async def run(self) -> None:
        """Keep the set as it should be, until cancelled."""
        while True:
            with trio.move_on_after(LOOK_S):
                await self._wake.wait()
            self.grown()
            known = self._set
            wanted = known.wanted(trio.current_time()) if known is not None and self._leads else None
            if known is not None and wanted is not None and not await self._change(known, wanted):
                await trio.sleep(PAUSE_S)

    async def _change(self, known: SyncSet, wanted: frozenset[int]) -> bool:
        """Ask for ``wanted``; whether it is the set now."""
        # Before the request leaves: the Controllers may take the new set long before the answer is here, and from then
        # on both sets must have a message before it counts as confirmed.
        known.propose(wanted)
        try:
            answer = await self._ask(SyncStateSet(sorted(wanted), known.epoch))
        except (BrokerError, RemotingError, ProtocolError) as error:
            if isinstance(error, BrokerError) and error.code in DECIDED:
                logger.info("the Controllers refuse the SyncStateSet %s: %s", _ids(wanted), error.remark)
                known.refused(trio.current_time())
                self._look()
                if error.code == ResponseCode.CONTROLLER_INVALID_REPLICAS:
                    await self._forget()
            else:
                logger.warning("no decision on the SyncStateSet %s, asked again: %s", _ids(wanted), error)
                known.unanswered()
            return False
        # Another epoch may have begun while the answer was awaited.
        if known is self._set:
            self.update(answer.sync_state_set, answer.sync_state_set_epoch)
        return True

    def _changed(self, known: SyncSet) -> None:
        self._elected.set_size = len(known.members)
        known.advance(self._log_end())
        self._elected.confirmed(known.confirm_offset)
        logger.info("SyncStateSet of epoch %d: %s", known.epoch, _ids(known.members))


def _ids(members: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(members)))
