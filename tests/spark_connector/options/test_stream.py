import pytest

from mqcommon.errors import UserError
from spark_connector.offsets import COMMITTED, LATEST
from spark_connector.options.read import ReadOptions, only_of_streams

GOOD = {"nameserver": "h:1", "topic": "t"}


def test_a_stream_starts_at_the_end_and_waits_for_brokers() -> None:
    options = ReadOptions.of_stream(GOOD)
    assert (options.wanted_start, options.max_trigger_delay_ms, options.has_limits) == (LATEST, 900_000, False)
    assert options.broker_wait_ms == 600_000
    assert ReadOptions.parse(GOOD).broker_wait_ms == 0


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90", 90), ("90ms", 90), ("90 s", 90_000), ("2min", 120_000), ("1H", 3_600_000), ("1d", 86_400_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert ReadOptions.of_stream({**GOOD, "maxTriggerDelay": text}).max_trigger_delay_ms == ms


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay: 'soon' is no duration; give a number with ms, s"),
        ({"maxTriggerDelay": "5 weeks"}, "is no duration"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "5 is more than maxOffsetsPerTrigger, 4"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"endingTimestamp": "5"}, "option endingTimestamp: a stream has no end; use spark.read"),
        ({"endingOffsets": '{"t":{"a":{"0":5}}}'}, "option endingOffsets: a stream has no end"),
        ({"endingOffsetsByTimestamp": '{"t":{"a":{"0":5}}}'}, "option endingOffsetsByTimestamp: a stream has no end"),
        ({"pushdown": "true"}, "option pushdown: streams have none"),
        ({"commitOffsets": "true"}, "option consumerGroup: commitOffsets=true needs it; name the group"),
        ({"startingOffsets": "committed"}, "option consumerGroup: startingOffsets=committed needs it"),
        ({"onDataLoss": "report"}, "option onDataLoss: report needs lostRangesPath"),
    ],
)
def test_mistakes_say_what_to_do(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        ReadOptions.of_stream({**GOOD, **given})
    assert said in str(caught.value)


def test_what_is_allowed() -> None:
    options = ReadOptions.of_stream(
        {
            **GOOD,
            "endingOffsets": "latest",
            "startingOffsets": "committed",
            "kafka.group.id": "g",
            "commitOffsets": "true",
        }
    )
    assert (options.wanted_start, options.consumer_group) == (COMMITTED, "g")


def test_which_options_only_streams_have() -> None:
    assert only_of_streams(["MaxOffsetsPerTrigger", "topic", "startingOffsets", "brokerWaitMs", "commitOffsets"]) == [
        "MaxOffsetsPerTrigger",
        "commitOffsets",
    ]
