"""Pages and changes over HTTP, on a cluster of two masters in threads of this process."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import pytest
import trio

from skylark import Admin, ConsumeFrom, Message, Producer, PullConsumer, PushConsumer
from skylark.mqcommon.errors import RouteNotFound
from skylark.mqcommon.message.message import MessageExt
from skylark.sdk.testing import Cluster
from tests.mqconsole.consoles import Browser, browser, console, give_up
from tests.support.waiting import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as made:
        made.create_topic("orders", queues=2)
        yield made


@pytest.fixture
async def who(cluster: Cluster) -> AsyncIterator[Browser]:
    async with console(cluster.nameserver) as address, browser(address) as found:
        await found.get("/topics")
        yield found


async def api(who: Browser, path: str) -> dict[str, Any]:
    answer = await who.client.get(f"/api{path}")
    assert answer.status_code == 200, (path, answer.text)
    found: dict[str, Any] = answer.json()
    return found


async def done(who: Browser, path: str, **fields: str) -> str:
    """The message of the next page after a change."""
    answer = await who.post(path, **fields)
    assert answer.status_code == 303, answer.text
    text = (await who.get(answer.headers["location"])).text
    said: str = text.partition('<p class="notice ')[2].partition("</p>")[0]
    return said.partition(">")[2]


async def send(cluster: Cluster, topic: str, count: int, **more: Any) -> list[str]:
    async with Producer(cluster.nameserver, group="P") as producer:
        return [(await producer.send(Message(topic, b'{"n": %d}' % n, **more))).msg_id for n in range(count)]


async def commit(cluster: Cluster, group: str, topic: str, at: str) -> None:
    async with PullConsumer(cluster.nameserver, group=group) as consumer:
        for queue in await consumer.message_queues(topic):
            await consumer.commit_offset(queue, 0 if at == "begin" else await consumer.max_offset(queue))


async def test_the_overview_has_all_brokers(who: Browser, cluster: Cluster) -> None:
    found = await api(who, "/overview")
    assert {row["brokerAddr"] for row in found["brokers"]["rows"]} == {node.address for node in cluster.brokers}
    assert [one["brokerName"] for one in found["clusters"][0]["sets"]] == ["broker-a", "broker-b"]
    assert (await who.get("/topology.svg")).text.startswith("<svg")
    assert (await who.get("/rates.csv")).text.startswith("series,from,to,value\n")
    page = await api(who, f"/brokers/{cluster.brokers[0].address}")
    assert page["broker"]["brokerName"] == "broker-a"
    assert any(row["name"] == "bootTimestamp" for row in page["status"]["rows"])


async def test_a_topic_is_created_changed_and_deleted(who: Browser, cluster: Cluster) -> None:
    assert await done(who, "/topics", topic="a%b", writeQueues="3", type="FIFO", order="1") == "topic a%b is created"
    page = await api(who, "/topics/a%25b")
    assert [(one["writeQueueNums"], one["order"], one["attributes"]) for one in page["configs"]] == [
        (3, True, {"message.type": "FIFO"})
    ] * 2
    said = await done(who, "/topics/a%25b/change", writeQueues="4", readQueues="4", perm="R", order="1")
    assert said == "topic a%b is changed"
    page = await api(who, "/topics/a%25b")
    assert {(one["writeQueueNums"], one["perm"], one["attributes"]["message.type"]) for one in page["configs"]} == {
        (4, 4, "FIFO")
    }
    assert "type a%b to confirm" in await done(who, "/topics/a%25b/delete", confirm="a")
    assert "are deleted" in await done(who, "/topics/a%25b/delete", confirm="a%b")
    assert (await who.client.get("/api/topics/a%25b")).status_code == 404


async def test_topics_are_listed_by_kind_and_filtered(who: Browser) -> None:
    listed = (await api(who, "/topics"))["topics"]
    assert [row["topic"] for row in listed["rows"]] == ["orders"]
    system = (await api(who, "/topics?kind=system&q=schedule"))["topics"]
    assert [row["topic"] for row in system["rows"]] == ["SCHEDULE_TOPIC_XXXX"]


async def test_messages_are_found_in_every_way(who: Browser, cluster: Cluster) -> None:
    said = await done(
        who, "/messages", topic="orders", body='{"item": "<b>tea</b>"}', tag="new", keys="k-1 k-2", properties="a=b"
    )  # fmt: skip
    offset_id = said.rpartition(" ")[2]
    page = await api(who, f"/messages/{offset_id}")
    message = page["message"]
    assert json.loads(page["body"]) == {"item": "<b>tea</b>"} and page["shownAs"] == "json"
    assert (message["properties"]["a"], message["tags"]) == ("b", "new")
    assert "&lt;b&gt;tea&lt;/b&gt;" in (await who.get(f"/messages/{offset_id}")).text
    assert "00000000  7b" in (await who.get(f"/messages/{offset_id}?form=hex")).text
    assert (await who.get(f"/messages/{offset_id}/body")).content == b'{"item": "<b>tea</b>"}'
    name = (await api(who, "/messages?by=time&topic=orders"))["messages"]["rows"][0]["brokerName"]
    for query in (
        f"by=id&id={offset_id}", "by=key&topic=orders&key=k-2", f"by=unique&topic=orders&key={message['msgId']}",
        f"by=offset&topic=orders&broker={name}&queue={message['queueId']}&offset={message['queueOffset']}",
        "by=time&topic=orders&begin=2020-01-01T00:00", "by=time&topic=orders&end=2099-01-01T00:00",
    ):  # fmt: skip
        rows = (await api(who, f"/messages?{query}"))["messages"]["rows"]
        assert [row["offsetMsgId"] for row in rows] == [offset_id], query
    none = await api(who, "/messages?by=key&topic=orders&key=another")
    assert (none["found"], none["problems"][0][:10]) == (0, "no message")
    assert (await who.client.get("/api/messages/nothing")).status_code == 404
    assert (await who.client.get("/api/messages?by=time&topic=orders&begin=tomorrow")).status_code == 400


async def test_a_group_shows_its_lag_and_why(who: Browser, cluster: Cluster) -> None:
    cluster.create_topic("paid", queues=2)
    await send(cluster, "paid", 10)
    await commit(cluster, "shop", "paid", "begin")
    page: dict[str, Any] = {}

    async def is_whole() -> bool:
        page.update(await api(who, "/groups/shop"))
        return not page["problems"] and page["lag"] == 10

    # A broker that does not answer in time on a busy machine is one of the page's problems. The group's queues are
    # found by its retry topic, which one broker may have registered before the other.
    await until(is_whole, "both brokers have answered")
    assert (page["lag"], page["reasons"][0]) == (10, "No consumer is connected.")
    assert sum(row["diff"] for row in page["queues"]["rows"]) == 10
    assert (await who.get("/groups/shop/lag.svg")).headers["content-type"] == "image/svg+xml"

    async def is_listed() -> bool:
        rows = (await api(who, "/groups?q=shop"))["groups"]["rows"]
        return [(row["group"], row["lag"]) for row in rows] == [("shop", 10)]

    await until(is_listed, "the collector has seen the lag")
    assert '"lag shop"' in (await who.get("/groups/shop/lag.csv")).text


async def test_a_reset_is_shown_before_it_is_done(who: Browser, cluster: Cluster) -> None:
    cluster.create_topic("reset", queues=1)
    await send(cluster, "reset", 6)
    await commit(cluster, "undo", "reset", "begin")
    skip = await api(who, "/groups/undo/reset?topic=reset&where=end")
    assert (skip["again"], skip["skipped"]) == (0, 6)

    async def is_whole() -> bool:
        return (await api(who, "/groups/undo"))["lag"] == 6

    # The group's queues are found by its retry topic, which one broker may have registered before the other.
    await until(is_whole, "the group's queues of both brokers")
    assert "goes on elsewhere in 2 queues" in await done(who, "/groups/undo/reset", topic="reset", where="end")
    assert (await api(who, "/groups/undo"))["lag"] == 0
    again = await api(who, "/groups/undo/reset?topic=reset&where=time&at=2020-01-01T00:00")
    assert (again["again"], again["skipped"]) == (6, 0)
    for wrong in ("&where=time&at=2099-01-01T00:00", "&where=time", "&where=", "", "&where=ende"):
        assert (await who.client.get(f"/api/groups/undo/reset?topic=reset{wrong}")).status_code == 400, wrong
    assert "give where the group goes on" in await done(who, "/groups/undo/reset", topic="reset", where="")
    assert (await api(who, "/groups/undo"))["lag"] == 0


async def test_forms_choose_nothing_that_is_dangerous(who: Browser, cluster: Cluster) -> None:
    await commit(cluster, "chosen", "orders", "begin")
    page = (await who.get("/groups/chosen")).text
    assert '<select name="where" required><option value="">' in page


async def test_a_group_says_what_its_handlers_do(who: Browser, cluster: Cluster) -> None:
    cluster.create_topic("slow", queues=1)
    await send(cluster, "slow", 6)
    is_free = trio.Event()

    async def handle(_: MessageExt) -> None:
        await is_free.wait()

    async with PushConsumer(
        cluster.nameserver, group="slow-ones", subscriptions={"slow": "*"}, handler=handle, concurrency=1,
        consume_from=ConsumeFrom.FIRST_OFFSET,
    ) as consumer:  # fmt: skip
        await until(lambda: consumer.cached == 6, "all messages are in the member's memory")

        async def is_told() -> bool:
            page = await api(who, "/groups/slow-ones")
            return page["lag"] == 6 and [one["cached"] for one in page["members"] or ()] == [6]

        await until(is_told, "the console sees the lag and the member")
        page = await api(who, "/groups/slow-ones")
        assert "All of it waits in the members' memory for a handler" in " ".join(page["reasons"])
        (one,) = page["members"]
        assert (one["concurrency"], one["consumeTps"], page["consumeTps"]) == (1, 0, 0)
        detail = await api(who, f"/groups/slow-ones/member?id={quote(one['clientId'])}")
        cached = {row["brokerName"]: row["cached"] for row in detail["queues"]["rows"] if row["topic"] == "slow"}
        assert sum(cached.values()) == 6 and "slow" in {row["topic"] for row in detail["subscriptions"]}
        assert (detail["concurrency"], detail["properties"]["PROP_CONSUMEORDERLY"]) == (1, "false")
        assert (await who.get("/groups/slow-ones/member?id=nobody@1")).status_code == 404
        assert (
            f"/groups/slow-ones/member?id={quote(one['clientId'], safe='')}"
            in (await who.get("/groups/slow-ones")).text
        )
        is_free.set()
        await until(lambda: consumer.consumed == 6, "the handler goes on")

        async def is_counted() -> bool:
            found = await api(who, "/groups/slow-ones")
            return bool(found["consumeTps"] and found["handlerMs"])

        await until(is_counted, "the rate and the time of the handler")
    assert "Handler takes" in (await who.get("/groups/slow-ones")).text


async def test_a_group_keeps_settings_that_no_form_has(who: Browser, cluster: Cluster) -> None:
    assert await done(who, "/groups", group="kept", retryMaxTimes="3", orderly="1") == "group kept is created"
    async with Admin(cluster.nameserver) as admin:
        for node in cluster.brokers:
            config = await admin.group_config(node.address, "kept")
            assert (config.retry_max_times, config.consume_message_orderly) == (3, True)
            config.consume_from_min_enable, config.which_broker_when_consume_slowly = True, 2
            await admin.create_group(node.address, config)
        assert await done(who, "/groups/kept/change", retryMaxTimes="5", paused="1") == "group kept is changed"
        config = await admin.group_config(cluster.brokers[0].address, "kept")
    assert (config.retry_max_times, config.consume_enable, config.consume_message_orderly) == (5, False, False)
    assert (config.consume_from_min_enable, config.which_broker_when_consume_slowly) == (True, 2)
    shown = (await who.get("/groups/kept")).text
    assert "<dt>groupRetryPolicy</dt><dd>type: CUSTOMIZED</dd>" in shown
    assert "<dt>consumeEnable</dt><dd>no</dd>" in shown and "&#39;" not in shown.partition("Settings")[2]
    assert "are deleted" in await done(who, "/groups/kept/delete", confirm="kept")


async def test_what_brokers_refuse_is_told(who: Browser, cluster: Cluster) -> None:
    said = await done(who, "/groups", group="no!name")
    assert said.count("create subscription group no!name: ") == len(cluster.brokers), said


async def test_dead_letters_are_listed_exported_and_resent(who: Browser, cluster: Cluster) -> None:
    cluster.create_topic("failing", queues=1)
    msg_id = await give_up(cluster.nameserver, "given-up", "failing", b"tea")

    async def is_there() -> bool:
        return (await api(who, "/groups/given-up"))["deadLetters"] == 1

    await until(is_there, "the NameServer knows the topic of dead letters")
    page = await api(who, "/groups/given-up/dead")
    (row,) = page["letters"]["rows"]
    assert (row["msgId"], row["topic"]) == (msg_id, "failing") and row["failReason"].startswith("ValueError: no tea")
    lines = (await who.get("/groups/given-up/dead.jsonl")).text.splitlines()
    assert [json.loads(line)["msgId"] for line in lines] == [msg_id]
    assert "choose a dead letter" in await done(who, "/groups/given-up/dead/resend")
    assert "1 dead letter was sent" in await done(who, "/groups/given-up/dead/resend", ids=msg_id)
    listed = await api(who, f"/messages?by=time&topic={quote('%RETRY%given-up')}")
    assert [row["msgId"] for row in listed["messages"]["rows"]] == [msg_id]
    assert "no broker knows group nobody" in (await who.get("/groups/nobody/dead")).text
    healthy = await who.get("/groups/shop/dead")
    assert healthy.status_code == 200 and 'type="checkbox"' not in healthy.text


async def test_a_ticked_dead_letter_is_sent_again_once_unless_again_is_ticked(who: Browser, cluster: Cluster) -> None:
    cluster.create_topic("twice", queues=1)
    await give_up(cluster.nameserver, "impatient", "twice", b"tea")

    async def is_there() -> bool:
        return (await api(who, "/groups/impatient"))["deadLetters"] == 1

    await until(is_there, "the NameServer knows the topic of dead letters")
    (row,) = (await api(who, "/groups/impatient/dead"))["letters"]["rows"]
    assert row["resentTimes"] == 0
    box = f"pick-{row['offsetMsgId']}"
    assert f'form="resend" name="{box}"' in (await who.get("/groups/impatient/dead")).text
    resend = "/groups/impatient/dead/resend"
    assert "1 dead letter was sent again" in await done(who, resend, **{box: "1"})
    left_out = await done(who, resend, **{box: "1"})
    assert "0 dead letters were sent again; 1 dead letter was sent before, and left out" in left_out
    (row,) = (await api(who, "/groups/impatient/dead"))["letters"]["rows"]
    assert row["resentTimes"] == 1
    assert "1 dead letter was sent again" in await done(who, resend, **{box: "1", "again": "1"})
    listed = await api(who, f"/messages?by=time&topic={quote('%RETRY%impatient')}")
    assert len(listed["messages"]["rows"]) == 2
    assert "choose a dead letter" in await done(who, resend, all="1", again="1")


async def test_a_master_that_is_away_is_no_unknown_page(who: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise RouteNotFound("%DLQ%g", "broker b has no master in its route", is_passing=True)

    monkeypatch.setattr(Admin, "dead_letters", fail)
    answer = await who.get("/groups/g/dead")
    assert answer.status_code == 502 and "broker b has no master in its route" in answer.text


async def test_a_trace_is_shown_over_time(who: Browser, cluster: Cluster) -> None:
    async with Producer(cluster.nameserver, group="traced", trace=True) as producer:
        msg_id = (await producer.send(Message("orders", b"x"))).msg_id

    async def is_traced() -> bool:
        return "steps" in await api(who, f"/trace?id={msg_id}") and bool(
            (await api(who, f"/trace?id={msg_id}"))["steps"]["total"]
        )

    await until(is_traced, "the trace is stored and indexed")
    assert '<rect class="bar"' in (await who.get(f"/trace?id={msg_id}")).text


async def test_one_field_searches_everything(who: Browser, cluster: Cluster) -> None:
    page = await api(who, "/search?q=BROKER-b")
    assert [one["title"] for one in page["kinds"]] == ["Brokers", "Topics", "Messages"]
    addr = cluster.brokers[1].address
    assert page["kinds"][0]["shown"] == [
        {"kind": "broker", "name": addr, "link": f"/brokers/{quote(addr, safe='')}",
         "detail": "master of broker-b in DefaultCluster"}
    ]  # fmt: skip
    for kind in page["kinds"]:
        assert (await who.get(kind["shown"][0]["link"])).status_code == 200, kind
    assert '<input type="search" name="q" value="orders"' in (await who.get("/search?q=orders")).text
    assert (await api(who, "/search?q="))["kinds"] == []


async def test_what_waits_is_counted(who: Browser, cluster: Cluster) -> None:
    async with Producer(cluster.nameserver, group="P") as producer:
        await producer.send(Message("orders", b"later", delay_level=18))
    found = await api(who, "/waiting")
    assert found["sums"]["delayed"] == 1


async def test_the_other_pages_are_there(who: Browser, cluster: Cluster) -> None:
    replicas = await api(who, "/replicas")
    assert (replicas["controllers"], replicas["dledger"], replicas["masterless"]) == ([], [], [])
    assert [(row["brokerName"], row["role"], row["state"]) for row in replicas["replicas"]["rows"]] == [
        ("broker-a", "master", "ok"), ("broker-b", "master", "ok"),
    ]  # fmt: skip
    assert [(row["lastScrub"], row["blocksRepaired"], row["suspects"]) for row in replicas["replicas"]["rows"]] == [
        (0, 0, 0), (0, 0, 0),
    ]  # fmt: skip
    assert "never" in (await who.get("/replicas")).text
    assert (await api(who, "/doctor"))["counts"]["FAIL"] == 0
    assert (await who.get("/accounts")).status_code == 200
    (one, _) = (await api(who, "/accounts/explain?account=a&topic=orders&address=127.0.0.1"))["answers"]
    assert one["allowed"] and "no access control" in one["text"]
    assert (await who.client.get("/api/accounts/explain?account=a&request=nonsense&address=1.2.3.4")).status_code == 400
    for path in ("/nothing", "/topics/nothing", "/groups/nobody", "/brokers/127.0.0.1:1"):
        assert (await who.get(path)).status_code == 404, path


async def test_a_broker_that_stops_makes_its_cell_grey(cluster: Cluster) -> None:
    with Cluster(2) as other:
        async with console(other.nameserver) as address, browser(address) as found:
            other.brokers[1].freeze()
            try:

                async def is_grey() -> bool:
                    rows = (await api(found, "/overview"))["brokers"]["rows"]
                    return [row["error"] is None for row in rows] == [True, False]

                await until(is_grey, "the frozen broker does not answer")
                page = await found.get("/")
                assert page.text.count('class="away"') == 1 and "no answer" in page.text
            finally:
                other.brokers[1].thaw()


async def test_a_master_that_dies_is_away_since_then_on_each_page() -> None:
    with Cluster(2) as other:
        async with console(other.nameserver) as address, browser(address) as found:
            await found.get("/")
            dead = other.brokers[1].address
            other.brokers[1].kill()

            async def is_away() -> bool:
                return [one["brokerAddr"] for one in (await api(found, "/overview"))["away"]] == [dead]

            await until(is_away, "the console misses the broker")
            page = await found.get("/topics")
            assert "1 broker is away" in page.text and f"master broker-b at {dead}</a> since 20" in page.text
            assert "1 failures and" in page.text
            overview = await found.get("/")
            assert overview.text.count('class="away"') == 1 and "no master" in overview.text
            doctor = await api(found, "/doctor")
            assert [row["where"] for row in doctor["findings"]["rows"] if row["check"] in ("away", "absent")] == [
                "broker-b"
            ]
            assert doctor["counts"]["FAIL"] == 1
            assert (await api(found, "/replicas"))["masterless"] == ["broker-b"]
            assert "no slave takes over without Controllers" in (await found.get("/replicas")).text
            page = await found.get(f"/brokers/{dead}")
            assert "It has left for good" in page.text and "<dt>Disk" not in page.text
            assert "<dt>Disk" in (await found.get(f"/brokers/{other.brokers[0].address}")).text
            living = other.brokers[0].address
            assert "no broker is away from" in await done(found, f"/brokers/{living}/left")
            assert "is shown no longer" in await done(found, f"/brokers/{dead}/left")


async def test_a_refresh_in_the_background_takes_no_notice(who: Browser) -> None:
    answer = await who.post("/topics/orders/delete", confirm="another")
    assert "to confirm" not in (await who.get("/topics", headers={"X-Refresh": "1"})).text
    assert answer.status_code == 303 and "to confirm" in (await who.get("/topics")).text


async def test_it_starts_without_a_cluster_and_says_so() -> None:
    async with console("127.0.0.1:9") as address, browser(address) as found:
        text = (await found.get("/")).text
        assert "The NameServers cannot be asked" in text and "127.0.0.1:9" in text


async def test_windows_hear_of_each_round(who: Browser) -> None:
    async with who.client.stream("GET", "/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in first(answer.aiter_lines(), 3)]
    assert lines[0].startswith("data: ")


async def first(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield await anext(lines)
