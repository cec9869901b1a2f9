"""Official clients and the SDK's PushConsumer, which pops over the other protocol, share the messages of one group."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path

import pytest
import trio

from skylark import Message, blocking
from skylark.sdk.testing import Cluster
from tests.conftest import CLIENTS_GOT
from tests.support.official_programs import Program
from tests.support.proxies import PYTHON, Proxy, languages, proxy
from tests.support.waiting import until

# Each member gets at least this many messages.
FEW = 20


@pytest.mark.process
def test_members_of_both_protocols_share_a_group(
    cluster: Cluster,
    served: Proxy,
    make_topic: Callable[..., str],
    make_group: Callable[..., str],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    topic = make_topic()
    group = make_group()
    with blocking.Admin(cluster.nameserver) as admin:
        admin.set_consume_mode(cluster.brokers[0].address, topic, group, "POP")
    programs = {
        language: Program(tmp_path, "drain", language, served.address, topic=topic, group=group, push=True)
        for language in languages()
    }
    got: dict[str, list[str]] = {"sdk": []}

    def look() -> dict[str, list[str]]:
        for language, program in programs.items():
            assert program.runs, program.log_end()
            got[language] = [line["body"] for line in program.lines() if line["kind"] == "got"]
        return got

    def handle(message: Message) -> None:
        got["sdk"].append(message.body.decode())

    sent: list[str] = []
    with (
        blocking.Producer(cluster.nameserver) as producer,
        blocking.PushConsumer(cluster.nameserver, group=group, subscriptions={topic: "*"}, handler=handle),
    ):
        try:
            for program in programs.values():
                program.start()

            async def all_have_some() -> bool:
                sent.extend(f"m{len(sent) + number}" for number in range(FEW))
                await trio.to_thread.run_sync(
                    lambda: [producer.send(Message(topic, body.encode())) for body in sent[-FEW:]]
                )
                return all(len(bodies) >= FEW for bodies in look().values())

            trio.run(until, all_have_some, "each member gets messages")
            trio.run(until, lambda: sum(map(len, look().values())) >= len(sent), "all are consumed")
        finally:
            for program in programs.values():
                program.kill()
    assert Counter(body for bodies in got.values() for body in bodies) == Counter(sent)
    for language in programs:
        result = f"{len(got[language])} of {len(sent)}, each once; the SDK got {len(got['sdk'])}"
        record_property(CLIENTS_GOT, ("Group shared with Python, Node and the SDK (pop)", language, result))


@pytest.mark.process
def test_a_client_that_moved_to_another_proxy_keeps_its_messages_while_it_consumes_them(
    cluster: Cluster, make_topic: Callable[..., str], make_group: Callable[..., str], tmp_path: Path
) -> None:
    """The Python client tells the other proxy its settings minutes later only."""
    topic = make_topic()
    group = make_group()
    short = {
        "default_invisible_time_mills": 1_000,
        "renew_ahead_time_millis": 800,
        "renew_schedule_period_millis": 50,
        "grpc_client_consumer_min_long_polling_timeout_millis": 100,
        "grpc_client_consumer_max_long_polling_timeout_millis": 1_000,
        "use_endpoint_port_from_request": True,
    }

    def bodies() -> list[str]:
        return [line["body"] for line in program.lines()]

    with ExitStack() as second, ExitStack() as first, blocking.Producer(cluster.nameserver) as producer:
        found = sorted(
            ((stack.enter_context(proxy(cluster.nameserver, **short)).address, stack) for stack in (second, first)),
            key=itemgetter(0),
        )
        # The client begins with the address that comes first in the alphabet.
        addresses = ";".join(address for address, _ in found)
        program = Program(tmp_path, "drain", PYTHON, addresses, topic=topic, group=group, push=True, handler_s=2)
        try:
            program.start()
            producer.send(Message(topic, b"first"))
            trio.run(until, lambda: bodies() == ["first"], "the first message is consumed")
            found[0][1].close()
            producer.send(Message(topic, b"second"))
            # Without renewals it would come again while its handler runs.
            trio.run(until, lambda: "second" in bodies(), "the second message is consumed")
            program.stop()
        finally:
            program.kill()
    assert bodies() == ["first", "second"]
