"""`skylark send` and `skylark tail` against a broker."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import click
import pytest
from click.testing import CliRunner

from skylark import Message
from skylark.blocking import Admin, Producer, PullConsumer
from skylark.cli import following
from skylark.cli.main import skylark
from skylark.testing import Cluster

numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(options={"enablePropertyFilter": True}) as opened:
        yield opened


@pytest.fixture
def nameserver(cluster: Cluster) -> str:
    return cluster.nameserver


Run = Callable[..., list[str]]


@pytest.fixture
def run(nameserver: str) -> Run:
    """Runs a command: the lines that it prints."""

    def lines(command: str, *arguments: str, stdin: bytes = b"", code: int = 0) -> list[str]:
        result = CliRunner().invoke(skylark, [command, *arguments, "-n", nameserver], input=stdin)
        assert result.exit_code == code, result.output
        return result.output.splitlines()

    return lines


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic that the NameServer knows."""
    name = f"topic-{next(numbers)}"
    cluster.create_topic(name)
    return name


def bodies(lines: list[str]) -> list[str]:
    return sorted(json.loads(line)["body"] for line in lines)


def test_what_is_sent_is_read_with_its_place(run: Run, topic: str) -> None:
    sent = run("send", topic, "tea", "grüße", "--tag", "drinks", "--key", "k1", "--property", "size=2", "--json")
    places = {
        (each["msgId"], each["brokerName"], each["queueId"], each["queueOffset"]) for each in map(json.loads, sent)
    }
    read = [json.loads(line) for line in run("tail", topic, "--from", "first", "--no-follow", "--json")]
    assert {(each["msgId"], each["brokerName"], each["queueId"], each["queueOffset"]) for each in read} == places
    assert sorted(each["body"] for each in read) == ["grüße", "tea"]
    assert {(each["tags"], each["keys"], each["properties"]["size"]) for each in read} == {("drinks", "k1", "2")}


def test_a_line_shows_id_and_place_and_the_reader_sees_the_same_place(run: Run, topic: str) -> None:
    (sent,) = run("send", topic, "tea", "--tag", "drinks", "--key", "k1")
    (read,) = run("tail", topic, "--from", "-1h", "--no-follow")
    assert read.split()[2:] == [sent.split()[1], "drinks", "k1", "tea"]


def test_a_body_is_sent_as_often_as_count_says(run: Run, topic: str) -> None:
    assert len(run("send", topic, "tea", "--count", "3")) == 3
    assert len(run("tail", topic, "--from", "first", "--no-follow")) == 3
    assert len(run("tail", topic, "--from", "first", "--count", "2")) == 2


def test_tags_and_conditions_choose_messages(run: Run, topic: str) -> None:
    for tag in ("A", "B", "C"):
        run("send", topic, tag.lower(), "--tag", tag, "--property", f"letter={tag}")
    whole = ("tail", topic, "--from", "first", "--no-follow", "--json", "--filter")
    assert bodies(run(*whole, "A || C")) == ["a", "c"]
    assert bodies(run(*whole, "letter = 'B'")) == ["b"]
    assert "SQL92 expression, character" in run(*whole, "letter = = 'B'", code=1)[-1]


def test_a_group_s_view_begins_at_its_offsets_and_leaves_them(run: Run, topic: str, nameserver: str) -> None:
    run("send", topic, "old", "--count", "4")
    with PullConsumer(nameserver, group="readers") as consumer:
        for queue in consumer.message_queues(topic):
            consumer.commit_offset(queue, consumer.max_offset(queue))
    run("send", topic, "new", "--count", "4")
    for _ in range(2):
        assert bodies(run("tail", topic, "--group", "readers", "--no-follow", "--json")) == ["new"] * 4
    with Admin(nameserver) as admin:
        rows = admin.consume_stats("readers", topic).offset_table.values()
    assert sum(row.broker_offset - row.consumer_offset for row in rows) == 4


def test_a_group_and_a_starting_point_exclude_each_other(run: Run, topic: str) -> None:
    assert "only one of --group and --from" in run("tail", topic, "--group", "g", "--from", "first", code=2)[-1]


def test_an_unknown_topic_ends_a_tail_that_does_not_follow(run: Run) -> None:
    assert "no NameServer knows topic nowhere" in run("tail", "nowhere", "--no-follow", code=1)[-1]


def test_a_tail_waits_for_its_topic_and_prints_the_message_that_makes_it(
    run: Run, nameserver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(text: str, **options: Any) -> None:
        echo(text, **options)
        if text.startswith("waiting"):
            sender.start()

    def first() -> None:
        with Producer(nameserver) as producer:
            producer.send(Message("late", b"first"))

    echo, sender = click.echo, threading.Thread(target=first)
    monkeypatch.setattr(following.click, "echo", send)
    *told, line = run("tail", "late", "--count", "1")
    sender.join()
    assert told == ["waiting for topic late, which does not exist yet"]
    assert line.endswith("  first")


@pytest.mark.parametrize("in_json", [False, True])
def test_a_body_cannot_forge_a_line_or_control_the_terminal(run: Run, topic: str, in_json: bool) -> None:
    body = "one\n2026-11-30 00:00:00,000  broker-a/0:99  forged\x9b31m\u202e\u2066"
    run("send", topic, body)
    whole = ("tail", topic, "--from", "first", "--no-follow")
    if in_json:
        (line,) = run(*whole, "--json")
        assert json.loads(line)["body"] == body
    else:
        (line,) = run(*whole)
        assert line.endswith("  one\\n2026-11-30 00:00:00,000  broker-a/0:99  forged\\x9b31m\\u202e\\u2066")
    assert line.isprintable()


def test_a_delayed_message_is_not_there_at_once(run: Run, topic: str) -> None:
    run("send", topic, "now")
    run("send", topic, "later", "--delay", "1h")
    assert bodies(run("tail", topic, "--from", "first", "--no-follow", "--json")) == ["now"]


@pytest.mark.parametrize("arguments", [("--delay", "soon"), ("--property", "size"), ("--count", "0")])
def test_wrong_values_are_usage_errors(run: Run, topic: str, arguments: tuple[str, str]) -> None:
    assert "Invalid value" in run("send", topic, "tea", *arguments, code=2)[-1]


def test_a_topic_with_a_blank_is_refused(run: Run) -> None:
    assert run("send", "my topic", "tea", code=1)[-1].startswith("skylark: topic is str 'my topic'")


@pytest.mark.process
def test_lines_of_stdin_are_messages_and_a_closed_pipe_ends_a_tail(nameserver: str, topic: str) -> None:
    environ = {**os.environ, "NAMESRV_ADDR": nameserver}
    program = [sys.executable, "-m", "skylark"]
    subprocess.run(
        [*program, "send", topic, "-"], input=b"a\r\nb\n\nlast", env=environ, check=True, capture_output=True
    )
    tail = subprocess.Popen(
        [*program, "tail", topic, "--from", "first"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert tail.stdout is not None and tail.stderr is not None
    # A line of an empty body ends with the blanks before it.
    read = sorted(tail.stdout.readline().split(b"  ")[-1].strip() for _ in range(4))
    assert read == [b"", b"a", b"b", b"last"]
    tail.stdout.close()
    assert tail.wait(60) == 1
    with tail.stderr as said:
        assert said.read() == b""
