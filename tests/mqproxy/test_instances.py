"""Several proxies at one port: they share the connections, one dies and comes back, their pages are one."""

import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio

from scripts.daemons import Daemon, namesrv_daemon
from skylark.mqcommon.errors import UserError
from skylark.mqproxy.instances import Instances
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.sockets import HeldPort, listen
from tests.support.daemons import started
from tests.support.proxies import call, proxy_daemon
from tests.support.scrape import scrape
from tests.support.waiting import until

PROCESS = re.compile(rb"proxy mqproxy-(\d) has process (\d+)")


def beat(address: str) -> bool:
    """Whether a new connection is answered."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = wire.HeartbeatRequest(client_type=wire.PRODUCER)
        return call(channel, "Heartbeat", request, wire.HeartbeatResponse).HasField("status")
