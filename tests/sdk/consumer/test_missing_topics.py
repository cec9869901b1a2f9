import pytest

from skylark import PushConsumer
from skylark.remoting.protocol.requests.topics import TopicList
from skylark.sdk.consumer.rebalance import near_names
from tests.sdk.fakes import FakeNamesrv, serving
from tests.support.waiting import until

NAMES = ["%RETRY%ordres", "TBW102", "orders", "payments"]


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("ordres", ". There is 'orders': is the name right?"),
        ("order", ". There is 'orders': is the name right?"),
        ("x", ""),
    ],
)
def test_topics_with_names_like_a_missing_one_are_named(topic: str, says: str) -> None:
    assert near_names(topic, NAMES) == says


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
