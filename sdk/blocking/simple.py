"""`SimpleConsumer` whose methods block."""

from collections.abc import Mapping

from sdk.blocking.client import Client
from sdk.blocking.facade import Facade, call_of, loop_of
from sdk.checked import GroupName, Milliseconds
from sdk.consumer.outcome import ConsumeFrom
from sdk.consumer.simple import INVISIBLE_MS, InvisibleMs
from sdk.consumer.simple import SimpleConsumer as AsyncSimpleConsumer
from sdk.credentials import GivenCredentials, GivenTls
from sdk.endpoint import DEFAULT_TIMEOUT_MS
from sdk.nameservers import NameServerSource
from sdk.namespaces import Namespace
from sdk.starting import START_TIMEOUT_MS


class SimpleConsumer(Facade[AsyncSimpleConsumer]):
    """``with SimpleConsumer("127.0.0.1:9876", group="g", subscriptions={"orders": "*"}) as consumer: ...``

    ``subscriptions``: topic → ``"*"``, or tags separated by ``||``. A received message is hidden from the group's other
    consumers for ``invisible_ms``: acknowledge it before that, or prolong the time. Otherwise it is delivered again,
    and after as many deliveries as the group allows it becomes a dead letter. ``consume_from`` is where a new group
    begins. ``timeout_ms`` is the timeout of each request. Names are those in ``namespace``, by default that of the
    `Client` given as ``nameserver``.

    Opening it raises NoNameServer when no NameServer answers within ``start_timeout_ms``, and BrokerError when a broker
    refuses its credentials its group or its topics; with None nothing is asked at the start.
    """

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
        super().__init__(
            loop_of(
                nameserver,
                lambda client: AsyncSimpleConsumer(
                    client,
                    group=group,
                    subscriptions=subscriptions,
                    invisible_ms=invisible_ms,
                    consume_from=consume_from,
                    timeout_ms=timeout_ms,
                    namespace=namespace,
                    credentials=credentials,
                    tls=tls,
                    start_timeout_ms=start_timeout_ms,
                ),
            )
        )
        self.group = group

    # --- messages

    receive = call_of(AsyncSimpleConsumer.receive)
    ack = call_of(AsyncSimpleConsumer.ack)
    change_invisible_time = call_of(AsyncSimpleConsumer.change_invisible_time)
