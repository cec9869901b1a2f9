"""How a slave begins a connection: plain_dialogue.py without a Controller, autoswitch/session.py with one."""

from typing import Protocol

from broker.replication.find_master import Target
from broker.replication.sides import SlaveSide


class Dialogue(Protocol):
    """How a slave begins a connection."""

    async def begin(self, target: Target) -> SlaveSide:
        """The session of a new connection to ``target``."""
