"""printMsg and printMsgByQueue."""

import json
from typing import Any

import pytest

from skylark.mqadmin.commands.messages import DEFAULT_LIMIT
from tests.mqadmin.fake import PULL_COUNT, World, message, route, run

JSON = ("--output", "json")
SEPARATOR = "-" * 56


def world_of(count: int, queues: int = 2, **members: Any) -> World:
    """``count`` messages in each queue, tags TagA and TagB in turn, a millisecond between them."""
    stored = [
        message(
            queue_id=queue, queue_offset=at, store_timestamp=1000 + at, tags="TagB" if at % 2 else "TagA", **members
        )
        for queue in range(queues)
        for at in range(count)
    ]
    return World(messages=stored, routes={"AdminT": route(queues)})


def places(world: World, *arguments: str) -> list[tuple[int, int]]:
    result = run(world, *arguments, *JSON)
    assert result.exit_code == 0, result.stderr
    return [(one["queueId"], one["queueOffset"]) for one in json.loads(result.stdout)["messages"]]


def print_msg(world: World, *arguments: str) -> list[tuple[int, int]]:
    return places(world, "printMsg", "-t", "AdminT", *arguments)


def by_queue(world: World, *arguments: str) -> Any:
    return run(world, "printMsgByQueue", "-t", "AdminT", "-a", "broker-a", "-i", "1", *arguments)


# --- printMsg


def test_each_queue_has_its_bounds_its_messages_and_a_line() -> None:
    lines = run(world_of(2), "printMsg", "-t", "AdminT").stdout.splitlines()
    name = "MessageQueue [topic=AdminT, brokerName=broker-a, queueId={}]"
    assert lines[0] == "minOffset=0, maxOffset=2, " + name.format(0)
    assert lines[4] == "minOffset=0, maxOffset=2, " + name.format(1)
    assert lines[3] == lines[7] == SEPARATOR
    assert all(line.startswith("MSGID: ") and line.endswith("BODY: hello admin") for line in lines[1:3] + lines[5:7])


def test_a_span_of_time() -> None:
    world = world_of(5)
    assert print_msg(world, "-b", "1001", "-e", "1003") == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert print_msg(world, "-b", "9999") == []
    assert run(world, "printMsg", "-t", "AdminT", "-b", "1970-01-01T00:00:01.002Z").exit_code == 0
    assert world.called("search_offset")[-1][1] == 1002


def test_tags_and_stretches_without_them() -> None:
    world = world_of(PULL_COUNT + 4, 1)
    for one in world.messages[:PULL_COUNT]:
        one.tags = "TagC"
    assert print_msg(world, "-s", "TagA") == [(0, PULL_COUNT), (0, PULL_COUNT + 2)]
    lines = run(world, "printMsg", "-t", "AdminT", "-s", "TagA").stdout.splitlines()
    assert lines[1].endswith(f"no matched msg. status=NO_MATCHED_MSG, offset={PULL_COUNT}")


def test_no_more_than_the_limit_and_a_line_that_says_how_to_get_more() -> None:
    world = world_of(3)
    table = run(world, "printMsg", "-t", "AdminT", "--limit", "4")
    assert table.exit_code == 0
    assert table.stdout.count("MSGID: ") == 4
    assert table.stderr == (
        "mqadmin: stopped after 4 messages: --limit N prints more, --limit 0 all; -b and -e choose a time\n"
    )
    document = json.loads(run(world, "printMsg", "-t", "AdminT", "--limit", "4", *JSON).stdout)
    assert document["limited"] and [queue["offset"] for queue in document["queues"]] == [3, 1]


@pytest.mark.parametrize("limit", ["6", "7", "0"])
def test_a_limit_that_is_not_reached_is_not_mentioned(limit: str) -> None:
    world = world_of(3)
    assert run(world, "printMsg", "-t", "AdminT", "--limit", limit).stderr == ""
    assert len(print_msg(world, "--limit", limit)) == 6


def test_a_limit_reached_at_the_end_of_a_queue() -> None:
    result = run(world_of(3), "printMsg", "-t", "AdminT", "--limit", "3", *JSON)
    assert "stopped after 3 messages" in result.stderr
    assert [queue["queueId"] for queue in json.loads(result.stdout)["queues"]] == [0]


def test_the_limit_that_counts_when_none_is_given() -> None:
    world = world_of(DEFAULT_LIMIT + 5, 1)
    result = run(world, "printMsg", "-t", "AdminT", *JSON)
    assert len(json.loads(result.stdout)["messages"]) == DEFAULT_LIMIT
    assert f"stopped after {DEFAULT_LIMIT} messages" in result.stderr


def test_bodies_in_another_charset_and_left_out() -> None:
    world = world_of(1, 1, body="中文".encode("gbk"))
    assert run(world, "printMsg", "-t", "AdminT", "-c", "GBK").stdout.splitlines()[1].endswith("BODY: 中文")
    line = run(world, "printMsg", "-t", "AdminT", "-d", "false").stdout.splitlines()[1]
    assert line.endswith("BODY: NOT PRINT BODY") and "body=NOT PRINT BODY," in line
    [found] = json.loads(run(world, "printMsg", "-t", "AdminT", "-d", "false", *JSON).stdout)["messages"]
    assert "body" not in found and "bodyBase64" not in found
    for charset in ("klingon", "base64", "idna", "rot13"):
        assert run(world, "printMsg", "-t", "AdminT", "-c", charset).exit_code == 2
    half = world_of(1, 1, body=b"+2AA-")
    for arguments in ((), JSON):
        assert "?" in run(half, "printMsg", "-t", "AdminT", "-c", "utf-7", *arguments).stdout


def test_nothing_a_message_holds_drives_the_terminal() -> None:
    evil = {"body": b"\x1b]0;owned\x07\r\n", "msg_id": "\x1b[2J", "properties": {"\x9b": "\x08"}}
    text = run(world_of(1, 1, **evil), "printMsg", "-t", "AdminT").stdout
    assert "\\x1b]0;owned\\x07\\x0d" in text
    assert not {"\x1b", "\r", "\x07", "\x08", "\x9b"} & set(text)


# --- printMsgByQueue


def test_one_queue() -> None:
    world = world_of(2)
    lines = by_queue(world, "-p", "true").stdout.splitlines()
    assert len(lines) == 2 and all(line.endswith("BODY: NOT PRINT BODY") for line in lines)
    assert by_queue(world, "-p", "true", "-d", "true").stdout.splitlines()[0].endswith("BODY: hello admin")
    arguments = ("printMsgByQueue", "-t", "AdminT", "-a", "broker-a", "-i", "1", "-p", "true")
    assert places(world, *arguments) == [(1, 0), (1, 1)]
    assert places(world, *arguments, "-s", "TagB") == [(1, 1)]
    assert places(world, *arguments, "-b", "1001") == [(1, 1)]


def test_tags_are_counted_to_the_end_whatever_is_printed() -> None:
    world = world_of(2 * PULL_COUNT + 1)
    world.messages[-1].tags = None
    result = by_queue(world, "-f", "true")
    assert result.stdout == f"Tag: {'TagA':<30} Count: {PULL_COUNT}\nTag: {'TagB':<30} Count: {PULL_COUNT}\n"
    assert result.stderr == ""
    both = by_queue(world, "-f", "true", "-p", "true", "--limit", "3")
    assert both.stdout.count("MSGID: ") == 3 and f"Count: {PULL_COUNT}\n" in both.stdout
    assert "stopped after 3 messages" in both.stderr
    document = json.loads(by_queue(world, "-f", "true", *JSON).stdout)
    assert document["tags"] == {"TagA": PULL_COUNT, "TagB": PULL_COUNT} and document["messages"] == []


def test_the_limit_of_a_queue() -> None:
    world = world_of(2 * PULL_COUNT)
    result = by_queue(world, "-p", "true", "--limit", str(PULL_COUNT))
    assert result.stdout.count("MSGID: ") == PULL_COUNT and "stopped after" in result.stderr
    assert len(world.called("pull")) == 1


def test_neither_printing_nor_counting_is_wrong_usage() -> None:
    result = by_queue(world_of(1))
    assert result.exit_code == 2
    assert "-p true" in result.stderr and "-f true" in result.stderr


def test_a_queue_that_is_not_there() -> None:
    result = run(world_of(1), "printMsgByQueue", "-t", "AdminT", "-a", "broker-a", "-i", "9", "-p", "true")
    assert result.exit_code == 1
    assert "broker broker-a has queues 0 to 1" in result.stderr
