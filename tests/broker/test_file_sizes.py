"""A message of the largest size must fit into a file of the commit log."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.cli import main
from broker.file_sizes import OVERHEAD_BYTES, check_file_size
from broker.options import BrokerOptions
from mqcommon.errors import ConfigError
from mqcommon.message.layout import BLANK_BYTES, MAX_PROPERTIES
from mqcommon.message.record import encode_record, topic_field
from mqcommon.names import RETRY_TOPIC_MAX_LENGTH
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.brokers import UPDATE_BROKER_CONFIG
from tests.broker.running import running


def test_the_overhead_is_that_of_the_largest_record() -> None:
    body = b"x" * 1000
    topic = topic_field("t" * RETRY_TOPIC_MAX_LENGTH)
    record = encode_record(
        *topic, body=body, properties=b"p" * MAX_PROPERTIES, queue_id=0, queue_offset=0,
        physical_offset=0, flag=0, sys_flag=0x30, born_timestamp=0, born_host=bytes(20), store_timestamp=0,
        store_host=bytes(20), reconsume_times=0, prepared_transaction_offset=0,
    )  # fmt: skip
    assert len(record) + BLANK_BYTES == len(body) + OVERHEAD_BYTES


def test_the_smallest_file_that_has_room() -> None:
    needed = 4 * 1024 * 1024 + OVERHEAD_BYTES
    check_file_size(BrokerOptions(mapped_file_size_commit_log=needed))
    with pytest.raises(ConfigError, match=rf"set maxMessageSize=4194303 or less, or set .*CommitLog={needed} or more"):
        check_file_size(BrokerOptions(mapped_file_size_commit_log=needed - 1))
    check_file_size(BrokerOptions(mapped_file_size_commit_log=needed - 1, max_message_size=4194303))


def test_the_command_refuses_it_with_one_line(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=1048576\n")
    result = CliRunner().invoke(main, ["-c", str(conf), "-p"])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "a message of maxMessageSize=4194304 bytes does not fit into a file of 1048576 bytes" in line


async def test_it_cannot_be_set_to_what_does_not_fit() -> None:
    async with running() as (client, addr):
        answer = await client.invoke(addr, Command(UPDATE_BROKER_CONFIG.code, {}, b"maxMessageSize=8388608\n"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "a message of maxMessageSize=8388608 bytes does not fit into" in (answer.remark or "")
        smaller = Command(UPDATE_BROKER_CONFIG.code, {}, b"maxMessageSize=1000\n")
        assert (await client.invoke(addr, smaller)).code == ResponseCode.SUCCESS
