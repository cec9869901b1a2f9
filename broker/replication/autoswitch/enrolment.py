"""How a broker gets its id from the Controllers, and keeps it. The steps and files are those of identity_file.py."""

import logging
import os

import trio

from broker.identity import Identity
from broker.replication.autoswitch.controllers import Controllers
from broker.replication.autoswitch.identity_file import Identified, Step, check_code, decode, encode, next_step
from mqcommon.clock import Clock
from mqcommon.disk.atomic import write_atomic
from mqcommon.disk.files import FileSystem
from mqcommon.errors import BrokerError
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests.controller import (
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_GET_NEXT_BROKER_ID,
    ApplyBrokerIdRequestHeader,
    GetNextBrokerIdRequestHeader,
)

logger = logging.getLogger(__name__)

TEMPORARY = "-temp"


class Enrolment:
    """The id of the broker ``identity`` is kept in the file ``path``."""

    def __init__(self, fs: FileSystem, path: str, identity: Identity, clock: Clock) -> None:
        self._fs = fs
        self.path = path
        self._identity = identity
        self._clock = clock

    def check(self) -> None:
        """ConfigError when the store has the identity of another broker. Blocks."""
        self._read_both()

    async def enrol(self, controllers: Controllers) -> int:
        """The id of this broker, a new one if it has none. Errors are those of `Controllers.ask`; then try again."""
        kept, temporary = await trio.to_thread.run_sync(self._read_both)
        step = next_step(kept, temporary)
        if kept is not None:
            return kept.broker_id
        if step is Step.ASK_NEXT_ID or temporary is None:
            temporary = await self._ask_next(controllers)
        who = self._identity
        header = ApplyBrokerIdRequestHeader(
            who.cluster_name, who.broker_name, temporary.broker_id, temporary.check_code
        )
        try:
            await controllers.ask(CONTROLLER_APPLY_BROKER_ID, header)
        except BrokerError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                await trio.to_thread.run_sync(self._remove_temporary)
            raise
        await trio.to_thread.run_sync(self._keep, temporary)
        logger.info("the Controllers gave this broker the id %d, kept in %s", temporary.broker_id, self.path)
        return temporary.broker_id

    async def forget(self) -> None:
        """The Controllers do not know the id any more: the next `enrol` asks for a new one."""
        await trio.to_thread.run_sync(self._remove)

    async def _ask_next(self, controllers: Controllers) -> Identified:
        who = self._identity
        header = GetNextBrokerIdRequestHeader(who.cluster_name, who.broker_name)
        answer = await controllers.ask(CONTROLLER_GET_NEXT_BROKER_ID, header)
        found = Identified(
            who.cluster_name, who.broker_name, answer.header().next_broker_id,
            check_code(who.addr, self._clock.now_ms()),
        )  # fmt: skip
        await trio.to_thread.run_sync(write_atomic, self._fs, self.path + TEMPORARY, encode(found))
        return found

    def _read_both(self) -> tuple[Identified | None, Identified | None]:
        return self._read(self.path), self._read(self.path + TEMPORARY)

    def _read(self, path: str) -> Identified | None:
        if not self._fs.exists(path):
            return None
        return decode(self._fs.read(path), path, self._identity.cluster_name, self._identity.broker_name)

    def _keep(self, given: Identified) -> None:
        write_atomic(self._fs, self.path, encode(given._replace(check_code="")))
        self._remove_temporary()

    def _remove(self) -> None:
        for path in (self.path, self.path + TEMPORARY):
            if self._fs.exists(path):
                self._fs.remove(path)
        self._fs.fsync_dir(os.path.dirname(self.path))

    def _remove_temporary(self) -> None:
        self._fs.remove(self.path + TEMPORARY)
        self._fs.fsync_dir(os.path.dirname(self.path))
