"""The parts of a wired broker, as tests look at them."""

from typing import TypeVar

from skylark.broker.assembly import ClientPort
from skylark.broker.part import Part
from skylark.broker.wiring.wiring import Wiring
from skylark.remoting.net.server import Server

P = TypeVar("P", bound=Part)


def part_of(wiring: Wiring, kind: type[P]) -> P:
    """The part of this class."""
    return next(part for part in wiring.parts if isinstance(part, kind))


def server_of(wiring: Wiring) -> Server:
    return part_of(wiring, ClientPort)._server
