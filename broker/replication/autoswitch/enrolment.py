"""How a broker gets its id from the Controllers, and keeps it in files of RocketMQ's format.

An id is taken in steps, so that no two brokers ever get the same one, and a crash between any two loses none:
1. the Controller is asked for the next id (request 1012), and it goes into the temporary file with a check code;
2. the Controller is asked to give the id to the broker with that code (1013). It refuses when another broker has the
   id: then the temporary file is removed, and the steps begin again. The same code may ask again after a crash;
3. the file is written, and the temporary one removed. From now on the broker has its id for good.
The texts: cluster#broker#id, and cluster#broker#id#code.
"""

import logging
import os
from enum import Enum
from typing import NamedTuple

import trio

from skylark.broker.identity import Identity
from skylark.broker.replication.autoswitch.controllers import Controllers
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.atomic import write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.disk.small_file import SmallFile
from skylark.mqcommon.errors import BrokerError, ConfigError
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.controller import (
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_GET_NEXT_BROKER_ID,
    ApplyBrokerIdRequestHeader,
    GetNextBrokerIdRequestHeader,
)

logger = logging.getLogger(__name__)


# Ids that Controllers give begin here; 0 is the master's in routes.
FIRST_ID = 1


class Identified(NamedTuple):
    """Who this broker is, as a file has it.

    ``check_code`` is "" in the file of a registered id. In the temporary file it names the broker that asks for the id.
    """

    cluster: str
    broker: str
    broker_id: int
    check_code: str = ""


class EnrolmentStep(Enum):
    """The next step of a broker without a registered id."""

    ASK_NEXT_ID = "ask for the next id"
    APPLY = "apply for the id"
    REGISTER = "register"


def check_code(addr: str, now_ms: int) -> str:
    """A code that no other broker has."""
    return f"{addr};{now_ms}"


def encode(identified: Identified) -> bytes:
    cluster, broker, broker_id, code = identified
    return "#".join([cluster, broker, str(broker_id), *([code] if code else [])]).encode()


def decode(data: bytes, path: str, cluster: str, broker: str) -> Identified:
    """Read the file at ``path``. ConfigError when it is damaged, or belongs to another broker."""
    try:
        parts = data.decode().strip().split("#")
        found = Identified(parts[0], parts[1], int(parts[2]), *parts[3:])
    except (ValueError, IndexError, TypeError):
        found = None
    if found is None or found.broker_id < FIRST_ID or not (found.cluster and found.broker):
        raise ConfigError(
            f"{path}: {data[:100]!r} is not a broker's identity, cluster#broker#id; restore it from a backup, or remove"
            " it and the broker takes a new id"
        )
    if (found.cluster, found.broker) != (cluster, broker):
        raise ConfigError(
            f"{path}: this store belongs to broker {found.broker} of cluster {found.cluster}, but brokerName and"
            f" brokerClusterName are {broker} and {cluster}; set them to the former, or use another storePathRootDir"
        )
    return found


def next_step(kept: Identified | None, temporary: Identified | None) -> EnrolmentStep:
    """What a broker with these two files does next."""
    if kept is not None:
        return EnrolmentStep.REGISTER
    return EnrolmentStep.ASK_NEXT_ID if temporary is None else EnrolmentStep.APPLY


TEMPORARY = "-temp"


class Enrolment:
    """The id of the broker ``identity`` is kept in the file ``path``."""

    def __init__(self, fs: FileSystem, path: str, identity: Identity, clock: Clock) -> None:
        self._fs = fs
        self.path = path
        self._identity = identity
        self._clock = clock
        # What the file has; None before this broker has its id.
        self._kept: Identified | None = None
        # Held while the file is written or removed: an id that was given up must not come back.
        self._writing = trio.Lock()

    def as_small_files(self) -> list[SmallFile]:
        """The file, for a check; none before this broker has its id."""
        kept = self._kept
        if kept is None:
            return []

        async def restore() -> None:
            async with self._writing:
                if self._kept == kept:
                    await trio.to_thread.run_sync(write_atomic, self._fs, self.path, encode(kept))

        return [SmallFile(self.path, lambda data: data.strip() == encode(kept), restore)]

    def check(self) -> None:
        """ConfigError when the store has the identity of another broker. Blocks."""
        self._read_both()

    async def enrol(self, controllers: Controllers) -> int:
        """The id of this broker, a new one if it has none. Raises the errors of `Controllers.ask`; then try again."""
        kept, temporary = await trio.to_thread.run_sync(self._read_both)
        step = next_step(kept, temporary)
        if kept is not None:
            self._kept = kept
            return kept.broker_id
        if step is EnrolmentStep.ASK_NEXT_ID or temporary is None:
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
        # The id is granted for good, even if this broker dies before the next line: the temporary file lets it ask
        # again with the same code, and the Controllers give it the same id.
        await trio.to_thread.run_sync(self._keep, temporary)
        logger.info("the Controllers gave this broker the id %d, kept in %s", temporary.broker_id, self.path)
        return temporary.broker_id

    async def forget(self) -> None:
        """Have the next `enrol` ask for a new id: the Controllers do not know this one any more."""
        async with self._writing:
            await trio.to_thread.run_sync(self.remove)

    async def _ask_next(self, controllers: Controllers) -> Identified:
        who = self._identity
        header = GetNextBrokerIdRequestHeader(who.cluster_name, who.broker_name)
        answer = await controllers.ask(CONTROLLER_GET_NEXT_BROKER_ID, header)
        found = Identified(
            who.cluster_name,
            who.broker_name,
            answer.header().next_broker_id,
            check_code(who.addr, self._clock.now_ms()),
        )
        await trio.to_thread.run_sync(write_atomic, self._fs, self.path + TEMPORARY, encode(found))
        return found

    def _read_both(self) -> tuple[Identified | None, Identified | None]:
        return self._read(self.path), self._read(self.path + TEMPORARY)

    def _read(self, path: str) -> Identified | None:
        if not self._fs.exists(path):
            return None
        return decode(self._fs.read(path), path, self._identity.cluster_name, self._identity.broker_name)

    def _keep(self, given: Identified) -> None:
        self._kept = given._replace(check_code="")
        write_atomic(self._fs, self.path, encode(self._kept))
        self._remove_temporary()

    def remove(self) -> None:
        """As `forget`. Blocks."""
        self._kept = None
        for path in (self.path, self.path + TEMPORARY):
            if self._fs.exists(path):
                self._fs.remove(path)
        self._fs.fsync_dir(os.path.dirname(self.path))

    def _remove_temporary(self) -> None:
        self._fs.remove(self.path + TEMPORARY)
        self._fs.fsync_dir(os.path.dirname(self.path))
