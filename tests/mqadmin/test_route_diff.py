"""routeDiff at NameServers that are fakes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner, Result

from skylark.mqadmin.cli import mqadmin
from skylark.mqadmin.session import Settings
from skylark.mqcommon.errors import ConnectFailed, RequestTimeout
from tests.mqadmin.fake import FakeAdmin, FakeClients, World, route

A, B, C = "10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.3:9876"


@dataclass
class Fakes(FakeClients):
    """A World for each NameServer."""

    worlds: dict[str, World]

    @asynccontextmanager
    async def admin(self, settings: Settings) -> AsyncIterator[Any]:
        yield FakeAdmin(self.worlds.get(settings.namesrv, self.world), settings)


def compare(worlds: dict[str, World], *arguments: str) -> Result:
    command = ["routeDiff", "-n", ";".join(worlds), *arguments]
    return CliRunner().invoke(mqadmin, command, obj=Fakes(World(), worlds), prog_name="mqadmin")


def world(**members: Any) -> World:
    return World(topics=["T", "U"], routes={"T": route(), "U": route()}, **members)


def test_name_servers_that_tell_the_same() -> None:
    result = compare({A: world(), B: world()})
    assert (result.exit_code, result.stdout) == (0, "2 NameServers, 2 brokers, 2 topics: all tell the same\n")


def test_differences_and_a_name_server_that_does_not_answer_are_rows() -> None:
    other = world(kv={("ORDER_TOPIC_CONFIG", "T"): "broker-a:4"})
    other.routes = {"T": route(8)}
    dead = world(errors={("cluster_info",): ConnectFailed(C, "no")})
    result = compare({A: world(), B: other, C: dead}, "--output", "json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["namesrvAddrs"], found["topicCount"]) == ([A, B], 2)
    rows = {(row["kind"], row["name"], row["what"]): row["values"] for row in found["differences"]}
    assert "no" in rows.pop(("nameServer", C, "error"))[C]
    assert rows == {
        ("orderConf", "T", "value"): {A: None, B: "broker-a:4"},
        ("topic", "T", "queues of broker-a"): {
            A: "read=4 write=4 perm=6 flag=0",
            B: "read=8 write=8 perm=6 flag=0",
        },
        ("topic", "U", "known"): {A: "yes", B: None},
    }
    of_one = json.loads(compare({A: world(), B: other}, "-t", "U", "--output", "json").stdout)["differences"]
    assert [row["what"] for row in of_one] == ["known"]
    table = compare({A: world(), B: other}).stdout.splitlines()
    assert table[0].split() == ["#Kind", "#Name", "#What", "#NameServer", "#Value"]
    assert table[-1] == "2 NameServers, 2 brokers, 2 topics: 3 differences"


def test_a_name_server_that_dies_meanwhile_is_left_out_and_told() -> None:
    dying = world(errors={("topic_route",): RequestTimeout(B, 105, 1.0)})
    result = compare({A: world(), B: dying}, "-t", "T", "-t", "U", "--output", "json")
    assert result.exit_code == 1
    assert [row["name"] for row in json.loads(result.stdout)["differences"]] == [B]


def test_what_cannot_be_compared_is_said() -> None:
    result = compare({A: world()})
    assert result.exit_code == 1
    assert "give several" in result.stderr
    result = compare({A: world(), B: world()}, "-t", "Typo")
    assert result.exit_code == 1
    assert "no NameServer knows topic Typo" in result.stderr
