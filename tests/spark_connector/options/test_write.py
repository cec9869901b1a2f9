import pickle

import pytest

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.options.write import WriteOptions

GOOD = {"nameserver": "127.0.0.1:9876", "topic": "flights"}


def test_names_and_aliases_are_those_of_reading() -> None:
    options = WriteOptions.parse({"namesrvAddr": "h:1", "TOPIC": "flights", "Dedup": "false", "sendtimeoutms": "7"})
    assert (options.nameserver, options.topic, options.dedup, options.send_timeout_ms) == ("h:1", "flights", False, 7)


def test_what_spark_passes_itself_is_taken() -> None:
    WriteOptions.parse({**GOOD, "checkpointlocation": "/tmp/x", "queryname": "q"})


def test_credentials_are_shared_and_hidden() -> None:
    options = WriteOptions.parse({**GOOD, "accessKey": "me", "secretKey": "hush"})
    assert options.credentials is not None
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hush" not in repr(options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": "a"}, "option topics is unknown; did you mean topic?"),
        ({"startingOffsets": "earliest"}, "option startingOffsets is unknown; options are accessKey, "),
        ({"path": "flights"}, r"\.save\(\) or \.start\(\) without a path"),
        ({"topic": "a,b"}, "leave it out, and let a column topic name the topic of each row"),
        ({"topic": "a b"}, "options topic and producerGroup: "),
        ({"producerGroup": "a b"}, "options topic and producerGroup: "),
        ({"numRetries": "-1"}, "numRetries: -1 is too small"),
        ({"secretKey": "x"}, "must both be set"),
        ({"valueFormat": "json", "valueSchema": "id bigint"}, "json is written with the types of the column value"),
        ({"valueFormat": "avro"}, "option valueFormat: avro needs valueSchema"),
    ],
)
def test_mistakes_say_what_to_do(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        WriteOptions.parse({**GOOD, **given})
