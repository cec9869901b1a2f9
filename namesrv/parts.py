"""Registrations in parts, as Skylark's brokers send them: a large set of topics, or the changes since a version. Pure.

RocketMQ's registration has all topics in one frame, which some 40,000 topics fill, and one changed topic sends all of
them again. A part has some topics, and its number. Invariant: until the last part has come, a NameServer holds no
version of the set, so that nobody takes a part of it for the whole.
Neighbours: routes.py keeps the broker; register.py reads the request; broker/registration/registration.py sends.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from remoting.protocol.bodies.data_version import DataVersion


@dataclass(frozen=True, slots=True)
class Part:
    """One part. With ``base`` they are what changed since that version, else the whole set."""

    number: int
    is_last: bool
    base: DataVersion | None = None
    #: Topics that the broker had in ``base``, and has no more.
    removed: tuple[str, ...] = ()


@dataclass(slots=True)
class Arrived:
    """The parts that have come, of a registration that is not complete."""

    version: DataVersion
    #: Whether the topics replace those that are known, or only fill in what is missing.
    is_changed: bool
    #: All names so far, of a whole set.
    names: set[str] | None
    next_number: int = 0

    def take(self, part: Part, topics: Iterable[str]) -> None:
        """Count ``part`` in."""
        self.next_number = part.number + 1
        if self.names is not None:
            self.names.update(topics)

    def is_followed_by(self, part: Part, version: DataVersion) -> bool:
        """Whether ``part`` of the set with ``version`` is the next one."""
        return self.version == version and self.next_number == part.number


def incomplete(version: DataVersion) -> DataVersion:
    """What stands for the version of a set that has not come whole: no broker has it."""
    return DataVersion(version.state_version, 0, 0)


def arrived_with(
    part: Part | None,
    version: DataVersion,
    topics: Iterable[str],
    known_version: DataVersion | None,
    known: Arrived | None,
) -> Arrived:
    """What has come of a registration with ``topics``; ``part`` None: all in one, as RocketMQ's."""
    if part is None or part.number == 0 or known is None:
        is_delta = part is not None and part.base is not None
        known = Arrived(version, is_delta or known_version != version, None if is_delta else set())
    known.take(part or Part(0, True), topics)
    return known
