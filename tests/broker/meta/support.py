"""Metadata on a disk in memory."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

DIRECTORY = "/store/config"


def options(**changes: Any) -> BrokerOptions:
    return BrokerOptions(**{"broker_name": "broker-a", "broker_ip1": "127.0.0.1", **changes})


@dataclass
class MetadataDir:
    """A metadata folder in memory, opened; it can be opened again, after a crash or without."""

    options: BrokerOptions = field(default_factory=options)
    fs: MemoryFiles = field(default_factory=MemoryFiles)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.metadata = Metadata(self.fs, DIRECTORY, self.clock, self.options)
        self.report = self.metadata.open()
        self.topics = self.metadata.topics
        self.groups = self.metadata.groups
        self.offsets = self.metadata.consumer_offsets
        self.journal = self.metadata.journal

    def kill(self) -> None:
        self.fs = self.fs.killed()
        self.open()

    def power_loss(self, seed: int = 0) -> None:
        self.fs = self.fs.crash(Random(seed))
        self.open()
