import pytest

from skylark import Client, PushConsumer
from skylark.remoting.protocol.requests.topics import TopicList
from skylark.sdk.topic_names import MOST_NAMES, near_names
from tests.sdk.fakes import FakeNamesrv, serving
from tests.support.waiting import until

NAMES = ["%RETRY%ordres", "TBW102", "orders", "payments", "a%ordres"]


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("ordres", ["orders"]),
        ("order", ["orders"]),
        ("Orders", ["orders"]),
        ("orders", []),  # the list of names is older than the loss of the topic
        ("x", []),
        ("sredro", []),
    ],
)
def test_topics_with_names_like_a_missing_one_are_named(topic: str, says: list[str]) -> None:
    assert near_names(topic, NAMES) == says


def test_long_names_and_many_names_cost_no_time() -> None:
    assert near_names("a" * 127, ["a" * 126, "a" * 128]) == ["a" * 126]
    assert near_names("orders", [*["banana"] * (MOST_NAMES - 1), "ordres"]) == ["ordres"]
    assert near_names("orders", [*["banana"] * MOST_NAMES, "ordres"]) == []


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_consumer_of_a_missing_topic_is_told_which_topics_are_like_it(
    is_listed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(FakeNamesrv()) as namesrv:
        if is_listed:
            namesrv.on(206, lambda _: TopicList(NAMES))
        wanted = {"ordres": "*", "paymnets": "*"}
        async with PushConsumer(namesrv.addr, group="g", subscriptions=wanted, handler=lambda _: None):
            await until(lambda: "waiting for topic paymnets" in caplog.text, "it waits")
        assert len(namesrv.asked(206)) == 1
    lines = [line for line in caplog.messages if line.startswith("waiting for topic")]
    found = [line.partition(". There is ")[2] for line in lines]
    assert found == (["'orders': is the name right?", "'payments': is the name right?"] if is_listed else ["", ""])


async def test_consumers_of_one_client_share_the_names_and_see_those_of_their_namespace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def consume(group: str, lines: int) -> None:
        async with PushConsumer(client, group=group, subscriptions={"ordres": "*"}, handler=lambda _: None):
            await until(lambda: caplog.text.count("waiting for topic a%ordres") == lines)

    async with serving(FakeNamesrv()) as namesrv, Client(namesrv.addr, namespace="a") as client:
        namesrv.on(206, lambda _: TopicList(["a%orders", "b%ordres", "ordres2", "rmq_sys_ordres"]))
        await consume("g", 1)
        await consume("h", 2)
        assert len(namesrv.asked(206)) == 1
    lines = [line for line in caplog.messages if line.startswith("waiting for topic")]
    assert [line.partition(". There is ")[2] for line in lines] == ["'orders': is the name right?"] * 2
