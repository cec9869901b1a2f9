"""The SDK: send and read messages, and administer clusters. Programs import its classes from `skylark`.

endpoint.py     one request to one server, or to several; broker_api.py, namesrv_api.py: one function each
nameservers.py  where the NameServers' addresses come from, and which one to ask
routes.py       what routes mean (pure); namespaces.py: topics and groups of several tenants (pure)
retry.py        which failures are worth a retry; suspects.py: brokers that did not answer, and probes of them
client.py       ClientInstance: connections, route cache, heartbeats; Client: a shared ClientInstance
membership.py   heartbeats of groups; broker_requests.py: what brokers ask of this client; starting.py: checks
checked.py, credentials.py: checks of arguments; runtime.py: trio, forks; last_resort.py: warnings on stderr
producer/  consumer/  admin/  testing/   Producer, the consumers, Admin; a cluster inside of a test process
traces/  sends and deliveries, for a trace topic, a file or Elasticsearch; values/  dataclasses and other values
blocking/  aio/  the same classes for threads and for asyncio; loop_thread.py: the threads in which their clients run
topic_names.py, loop_blocks.py: warnings about a misspelt topic, and about an event loop that something blocks
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """What `from sdk import Producer` finds in the root of a clone."""
    import skylark

    if name in skylark.__all__:
        return getattr(skylark, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "sdk":
    from skylark.old_names import lend

    lend(__name__)
