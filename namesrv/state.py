"""The state of a NameServer: owned by namesrv.py, passed to the handlers."""

from dataclasses import field

import trio

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.namesrv.kvconfig import KvConfig
from skylark.namesrv.options import NamesrvOptions
from skylark.namesrv.routes import RouteTable
from skylark.remoting.net.channel import Channel


@lazy_dataclass(slots=True)
class State:
    """Routes, KV config and the present options.

    Ages are measured with the monotonic clock, so a step of the wall clock does not make brokers look silent.
    """

    options: NamesrvOptions
    kv_config: KvConfig
    clock: Clock
    fs: FileSystem
    started_ms: int
    #: How often a broker took the place of another one: the same name and id, another address.
    displacements: int = 0
    routes: RouteTable[Channel] = field(default_factory=RouteTable)
    changing_options: trio.Lock = field(default_factory=trio.Lock)

    @property
    def is_waiting_for_brokers(self) -> bool:
        """Whether route queries are refused because brokers may not have registered yet."""
        age_ms = self.clock.monotonic_ms() - self.started_ms
        return self.options.need_wait_for_service and age_ms < self.options.wait_seconds_for_service * 1000
