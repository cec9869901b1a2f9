"""The SyncStateSet of a leading broker: requests changes of the set (1001), and moves the confirm offset.

sync_set.py has the rules. This module applies them: when a slave reports, at the end of each turn in which the log
grew, and every `CHECK_S` for members that fell back.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable

import trio

from skylark.broker.replication.autoswitch.sync_set import DECIDED, GONE_S, SyncSet
from skylark.broker.writing.elected import Elected
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.mqcommon.signal import Signal
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.controller import SyncStateSet

logger = logging.getLogger(__name__)

CHECK_S = 1.0
# Pause after a change that the Controllers refused or did not answer.
PAUSE_S = 0.2


class Leading:
    """The SyncStateSet of this broker while it leads.

    ``ask`` sends 1001 in the epoch in which this broker leads; ``poll`` has the present set fetched.
    ``forget`` closes the connections of slaves that the Controllers do not know.
    ``log_end``: up to where this broker's log counts, with SYNC_FLUSH up to where it is on disk.
    """

    def __init__(
        self,
        elected: Elected,
        log_end: Callable[[], int],
        patience_s: float,
        ask: Callable[[SyncStateSet], Awaitable[SyncStateSet]],
        poll: Callable[[], None],
        forget: Callable[[], Awaitable[None]],
    ) -> None:
        self._elected = elected
        self._log_end = log_end
        self._patience_s = patience_s
        self._ask = ask
        self._poll = poll
        self._forget = forget
        # The set of the last epoch in which this broker led, and that epoch.
        self._set: SyncSet | None = None
        self._epoch = -1
        self._leads = False
        self._wake = Signal()
        # The last reports of connected slaves, also from before this broker leads: (end of the log, is a learner).
        self._reported: dict[int, tuple[int, bool]] = {}

    def begin(self, me: int, epoch: int, members: Iterable[int], set_epoch: int) -> None:
        """Begin to lead in ``epoch``, as the broker ``me``; ``members`` and ``set_epoch``: the SyncStateSet.

        If re-elected in the same epoch, keep the old state: an AlterSyncStateSet may be in flight.
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
        """Stop leading."""
        self._leads = False

    def update(self, members: Iterable[int], epoch: int) -> None:
        """Apply the Controllers' view of the set, at any time."""
        # Answers and notices overtake each other. An older set may lack a member that the Controllers may elect: with
        # it, messages could be confirmed that the next master does not have.
        if self._leads and self._set is not None and epoch > self._set.epoch:
            self._set.update(members, epoch, self._log_end(), trio.current_time())
            self._changed(self._set)

    def registered(self, replicas: int) -> None:
        """Set how many brokers of this set the Controllers know.

        A learner among ``replicas`` does not count: no message is safe on it.
        """
        learners = sum(is_learner for _, is_learner in self._reported.values())
        self._elected.replicas = max(replicas - learners, 1)

    def acked(self, broker_id: int, end: int, is_learner: bool) -> None:
        """Record that the slave has the log up to ``end``."""
        self._reported[broker_id] = end, is_learner
        # Reports count also before this broker leads: `begin` applies them to the new set.
        known = self._set
        if known is None or not self._leads:
            return
        known.acked(broker_id, end, self._log_end(), trio.current_time(), is_learner=is_learner)
        self._elected.confirmed(known.confirm_offset)
        if broker_id not in known.members and known.proposed is None and not is_learner:
            self._wake.set()

    def disconnected(self, broker_id: int) -> None:
        """Forget the reports of a slave whose connection is closed."""
        self._reported.pop(broker_id, None)
        if self._set is not None:
            self._set.disconnected(broker_id, trio.current_time())
            self._wake.set()

    def grown(self) -> None:
        """Confirm what the log has grown by, as far as the members have it: without other members, all of it."""
        if self._leads and self._set is not None:
            self._set.advance(self._log_end())
            self._elected.confirmed(self._set.confirm_offset)

    async def run(self) -> None:
        """Keep the set as it should be, until cancelled."""
        while True:
            # Sends wait for a member that is gone: it leaves as soon as it may, not at the next check.
            with trio.move_on_after(GONE_S if self._set is not None and self._set.waits_for_gone else CHECK_S):
                await self._wake.wait()
            self.grown()
            known = self._set
            wanted = known.wanted(trio.current_time()) if known is not None and self._leads else None
            if known is not None and wanted is not None and not await self._change(known, wanted):
                await trio.sleep(PAUSE_S)

    async def _change(self, known: SyncSet, wanted: frozenset[int]) -> bool:
        """Ask for ``wanted``; returns whether it is the set now."""
        # Propose before sending the request: the Controllers may apply the new set long before the answer is here, and
        # from then on both sets must have a message before it counts as confirmed.
        known.propose(wanted)
        try:
            answer = await self._ask(SyncStateSet(sorted(wanted), known.epoch))
        except (BrokerError, RemotingError, ProtocolError) as error:
            if isinstance(error, BrokerError) and error.code in DECIDED:
                logger.info("the Controllers refuse the SyncStateSet %s: %s", _ids(wanted), error.remark)
                known.refused(trio.current_time())
                self._poll()
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
