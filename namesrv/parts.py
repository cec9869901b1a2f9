"""Registrations in parts, as Skylark's brokers send them: a large set of topics, or the changes since a version. Pure.

RocketMQ's registration has all topics in one frame: some 40,000 topics fill it, and a change of one topic sends all of
them again. A part has a number and some of the topics. Invariant: until the last part has arrived, a NameServer holds
no version of the broker's topics. So a broker that asks (322) never learns that a half-sent set is up to date.
Neighbours: routes.py keeps the broker; register.py reads the request; broker/registration/registration.py sends.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from remoting.protocol.body import DataVersion


@dataclass(frozen=True, slots=True)
class Part:
    """One part. With ``base``, the parts have the changes since that version; without, they make up the whole set."""

    number: int
    is_last: bool
    base: DataVersion | None = None
    #: Topics that were in ``base`` and have been deleted since.
    removed: tuple[str, ...] = ()


@dataclass(slots=True)
class Arrived:
    """The parts that have arrived of a registration."""

    version: DataVersion
    #: Whether the topics replace the known ones; else only missing ones are added.
    is_changed: bool
    #: All topic names so far; None when only changes are sent.
    names: set[str] | None
    next_number: int = 0

    def take(self, part: Part, topics: Iterable[str]) -> None:
        """Record that ``part`` has arrived."""
        self.next_number = part.number + 1
        if self.names is not None:
            self.names.update(topics)

    def is_followed_by(self, part: Part, version: DataVersion) -> bool:
        """Whether ``part``, of the set with ``version``, is the next one."""
        return self.version == version and self.next_number == part.number


def incomplete(version: DataVersion) -> DataVersion:
    """A version that no broker has, for a set that has not arrived in full."""
    return DataVersion(version.state_version, 0, 0)


def arrived_with(
    part: Part | None,
    version: DataVersion,
    topics: Iterable[str],
    known_version: DataVersion | None,
    known: Arrived | None,
) -> Arrived:
    """The parts that have arrived, with this one and its ``topics``; ``part`` None: RocketMQ's all in one."""
    if part is None or part.number == 0 or known is None:
        is_delta = part is not None and part.base is not None
        known = Arrived(version, is_delta or known_version != version, None if is_delta else set())
    known.take(part or Part(0, True), topics)
    return known
