"""What a broker with acting masters does each second at each NameServer: live (904), and ask who else does (901).

A NameServer forgets it after brokerNotActiveTimeoutMillis of silence, where one without acting masters has 120 s; so
a slave acts soon after its master froze or lost its network. When the master's connection closes, NameServers know at
once, and tell (905): then `ask_soon`. The notice itself is not believed, since anybody can send one.
Neighbours: registrar.py runs it, on the connection that it registers on; replication/members.py takes what NameServers
say.
"""

import logging
from collections.abc import Callable

import trio

from broker.options import BrokerOptions
from broker.registration.outer import Namesrv
from broker.replication.members import Members
from mqcommon.errors import BrokerError, ProtocolError, RemotingError
from mqcommon.signal import Signal
from remoting.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)

# A NameServer that takes longer is asked anew the next time; one that hangs does not decide who acts.
TIMEOUT_MS = 1_000
# Between two questions, however many notices come.
PAUSE_S = 0.02


class Heartbeats:
    """To all NameServers. A master need not know who else lives, and does not ask: ``follows`` tells."""

    def __init__(self, options: BrokerOptions, members: Members, follows: Callable[[], bool]) -> None:
        self._options = options
        self._members = members
        self._follows = follows
        # By NameServer: each has a task that asks it.
        self._asked: dict[str, Signal] = {}

    def ask_soon(self) -> None:
        """Ask all NameServers who lives, now."""
        for asked in self._asked.values():
            asked.set()

    async def keep(self, namesrv: Namesrv, is_registered: Callable[[], bool], forgotten: Callable[[], None]) -> None:
        """Until cancelled, while the broker is registered. ``forgotten``: the NameServer does not know it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat, namesrv, is_registered, forgotten)
            nursery.start_soon(self._ask, namesrv, is_registered)

    async def _beat(self, namesrv: Namesrv, is_registered: Callable[[], bool], forgotten: Callable[[], None]) -> None:
        while True:
            await trio.sleep(self._options.broker_heartbeat_interval / 1000)
            if not is_registered():
                continue
            try:
                await namesrv.heartbeat(TIMEOUT_MS)
            except BrokerError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    logger.warning("NameServer %s knows no acting masters, use one of version 5", namesrv.addr)
                    return
                forgotten()
            except (RemotingError, ProtocolError):
                pass  # a lost connection is told by the registrar, and a late answer counted there all the same
            except Exception:
                logger.exception("heartbeat to NameServer %s failed", namesrv.addr)

    async def _ask(self, namesrv: Namesrv, is_registered: Callable[[], bool]) -> None:
        asked = self._asked[namesrv.addr] = Signal()
        while True:
            with trio.move_on_after(self._options.sync_broker_member_group_period / 1000):
                await asked.wait()
            if not self._follows():
                continue
            addrs = None
            if is_registered():
                try:
                    addrs = await namesrv.members(TIMEOUT_MS)
                except (RemotingError, BrokerError, ProtocolError):
                    addrs = None  # whoever does not answer has no say
                except Exception:
                    logger.exception("NameServer %s was asked in vain who lives", namesrv.addr)
            self._members.reported(namesrv.addr, addrs)
            await trio.sleep(PAUSE_S)
