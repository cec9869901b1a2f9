"""Official clients and the SDK's PushConsumer, which pops over the other protocol, share the messages of one group."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import trio

from sdk import Message, blocking
from sdk.testing import Cluster
from tests.conftest import CLIENTS_GOT
from tests.support.official_programs import Program
from tests.support.proxies import NODE, PYTHON, Proxy, missing
from tests.support.waiting import until

# Each member gets so many at least.
FEW = 20


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
    languages = [language for language in (PYTHON, NODE) if missing(language) is None]
    programs = {
        language: Program(tmp_path, "drain", language, served.address, topic=topic, group=group, push=True)
        for language in languages
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
    for language in languages:
        result = f"{len(got[language])} of {len(sent)}, each once; the SDK got {len(got['sdk'])}"
        record_property(CLIENTS_GOT, ("Group shared with Python, Node and the SDK (pop)", language, result))
