import pytest

from mqcommon.errors import UserError
from spark_connector.options.write import WriteOptions
from spark_connector.writing.task import APPLICATION_ID, EPOCH, EXECUTION_ID, QUERY_ID, Task, task_of

STREAM = {QUERY_ID: "q", EPOCH: "7", APPLICATION_ID: "app", EXECUTION_ID: "3"}
PLAIN = WriteOptions(topic="t")
NAMED = WriteOptions(topic="t", query_id="mine")


def test_a_stream_is_known_by_its_query_and_epoch() -> None:
    assert task_of(STREAM.get, 2, PLAIN, is_stream=True) == Task("q", "7", 2)
    assert task_of(STREAM.get, 2, NAMED, is_stream=True) == Task("mine", "7", 2)


def test_a_batch_is_known_by_its_run_or_by_the_users_id() -> None:
    """Also in foreachBatch, where there is a query: one epoch may write several times there."""
    assert task_of(STREAM.get, 2, PLAIN, is_stream=False) == Task("app", "3", 2)
    assert task_of(STREAM.get, 2, NAMED, is_stream=False) == Task("mine", "batch", 2)


@pytest.mark.parametrize("is_stream", [True, False])
def test_without_an_id_rows_cannot_be_recognised(is_stream: bool) -> None:
    with pytest.raises(UserError, match=r'use \.option\("dedup", "false"\)'):
        task_of({}.get, 2, PLAIN, is_stream=is_stream)
    assert task_of({}.get, 2, WriteOptions(topic="t", dedup=False), is_stream=is_stream).partition == 2
