"""`SimpleConsumer` for asyncio."""

from collections.abc import Mapping

from skylark.sdk.aio.facade import Client, Facade, call_of
from skylark.sdk.checked import GroupName, Milliseconds
from skylark.sdk.consumer.outcome import ConsumeFrom
from skylark.sdk.consumer.simple import INVISIBLE_MS, InvisibleMs
from skylark.sdk.consumer.simple import SimpleConsumer as TrioSimpleConsumer
from skylark.sdk.credentials import GivenCredentials, GivenTls
from skylark.sdk.endpoint import DEFAULT_TIMEOUT_MS
from skylark.sdk.nameservers import NameServerSource
from skylark.sdk.namespaces import Namespace
from skylark.sdk.starting import START_TIMEOUT_MS


class SimpleConsumer(Facade[TrioSimpleConsumer], of=TrioSimpleConsumer):
    """`sdk.SimpleConsumer` for asyncio."""

    def __init__(
        self,
        nameserver: NameServerSource | Client | None = None,
        *,
        group: GroupName,
        subscriptions: Mapping[str, str],
        invisible_ms: InvisibleMs = INVISIBLE_MS,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
        namespace: Namespace = "",
        credentials: GivenCredentials = None,
        tls: GivenTls = None,
        start_timeout_ms: Milliseconds | None = START_TIMEOUT_MS,
    ) -> None:
        super().__init__(nameserver, locals())
        self.group = group

    # --- messages

    receive = call_of(TrioSimpleConsumer.receive)
    wait = call_of(TrioSimpleConsumer.wait)
    ack = call_of(TrioSimpleConsumer.ack)
    change_invisible_time = call_of(TrioSimpleConsumer.change_invisible_time)
