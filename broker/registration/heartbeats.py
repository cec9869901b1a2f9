"""What a broker with acting masters sends to each NameServer every second: a heartbeat (904), a question (901).

A NameServer forgets such a broker after brokerNotActiveTimeoutMillis of silence, and any other broker after 120 s. So a
slave acts soon after its master froze or lost its network. When the master's connection closes, NameServers know it at
once and send a notice (905), which calls `ask_soon`. The notice itself is not trusted, since anybody can send it.
Neighbours: registrar.py runs this, on the connection that it registers on; replication/members.py takes the answers.
"""

import logging
from collections.abc import Callable

import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.registration.outer_api import OuterApi
from skylark.broker.replication.members import Members
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.mqcommon.signal import Signal

logger = logging.getLogger(__name__)

# A NameServer that takes longer is ignored until the next question: a hung one must not decide which slave acts.
TIMEOUT_MS = 1_000
# Pause between two questions, however many notices come.
PAUSE_S = 0.02


class Heartbeats:
    """Heartbeats to all NameServers. Only a slave (``follows``) asks who is alive; a master need not know."""

    def __init__(self, options: BrokerOptions, members: Members, follows: Callable[[], bool]) -> None:
        self._options = options
        self._members = members
        self._follows = follows
        # By NameServer: wakes the task that asks it.
        self._questions: dict[str, Signal] = {}

    def ask_soon(self) -> None:
        """Ask all NameServers now which members are alive."""
        for question in self._questions.values():
            question.set()

    def forget(self, addr: str) -> None:
        """Forget what the NameServer at ``addr``, which is no longer in the list, has reported."""
        self._questions.pop(addr, None)
        self._members.reported(addr, None)

    async def keep(self, namesrv: OuterApi, is_registered: Callable[[], bool], forgotten: Callable[[], None]) -> None:
        """Run until cancelled; active while the broker is registered.

        ``forgotten`` is called when the NameServer does not know the broker.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat, namesrv, is_registered, forgotten)
            nursery.start_soon(self._ask, namesrv, is_registered)

    async def _beat(self, namesrv: OuterApi, is_registered: Callable[[], bool], forgotten: Callable[[], None]) -> None:
        while True:
            await trio.sleep(self._options.broker_heartbeat_interval / 1000)
            if not is_registered():
                continue
            try:
                await namesrv.heartbeat(TIMEOUT_MS)
            except BrokerError as error:
                if error.is_unknown_request:
                    logger.warning(
                        "NameServer %s does not support acting masters, use one of version 5 or Skylark's", namesrv.addr
                    )
                    return
                forgotten()
            except (RemotingError, ProtocolError):
                pass  # the registrar logs a lost connection, and a heartbeat that is answered late counts as well
            except Exception:
                logger.exception("heartbeat to NameServer %s failed", namesrv.addr)

    async def _ask(self, namesrv: OuterApi, is_registered: Callable[[], bool]) -> None:
        question = self._questions[namesrv.addr] = Signal()
        while True:
            with trio.move_on_after(self._options.sync_broker_member_group_period / 1000):
                await question.wait()
            if not self._follows():
                continue
            addrs = None
            if is_registered():
                try:
                    addrs = await namesrv.members(TIMEOUT_MS)
                except (RemotingError, BrokerError, ProtocolError):
                    addrs = None  # NameServers that do not answer are ignored
                except Exception:
                    logger.exception("asking NameServer %s which members are alive failed", namesrv.addr)
            # None from a NameServer that does not answer, or does not list this broker: its view does not count.
            self._members.reported(namesrv.addr, addrs)
            # Notices that come during the question or the pause set the signal: together they cause one more question.
            await trio.sleep(PAUSE_S)
