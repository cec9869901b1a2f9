"""The topology of a cluster: what it sums up, and what is drawn of it."""

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from skylark.sdk.admin.reports.broker_load import SlaveLag
from skylark.sdk.admin.topology import SetFacts, SetMember, Topology, topology
from skylark.sdk.admin.topology_picture import MOST_SETS, picture


def broker(broker_id: int = 0, error: str | None = None) -> SetMember:
    return SetMember(broker_id, f"10.0.0.{broker_id}:10911", "V5_3_3", 1.0, 2.0, SlaveLag(), error)


def cluster_of(sets: int, topics: int) -> Topology:
    """Each topic on each set; topic number n has a lag of n on each."""
    queues = {f"topic-{number:04d}": (8, 8) for number in range(topics)}
    lags = {(f"group-{number % 50:02d}", f"topic-{number:04d}"): number for number in range(topics)}
    return topology(
        SetFacts("c", f"broker-{number:03d}", [broker(), broker(1)], queues, lags) for number in range(sets)
    )


def texts(svg: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(each.itertext()) for each in found]


def test_a_set_a_topic_and_a_group_sum_up_and_the_largest_lag_is_first() -> None:
    found = topology(
        [
            SetFacts(
                "c", "a", [broker(), broker(1)],
                {"T": (8, 4), "U": (1, 1), "%RETRY%g": (1, 1), "c_REPLY_TOPIC": (1, 1)},
                {("g", "T"): 5, ("g", "%RETRY%g"): 2, ("h", "U"): 9},
            ),
            SetFacts("c", "b", [broker(1)], {"T": (2, 2), "SCHEDULE_TOPIC_XXXX": (18, 18)}, {("g", "T"): 7}),
        ]
    )  # fmt: skip
    [cluster] = found.clusters
    kept = ("broker_name", "has_master", "topic_count", "read_queues", "write_queues", "lag")
    assert [[getattr(one, name) for name in kept] for one in cluster.sets] == [
        ["a", True, 2, 9, 5, 16],
        ["b", False, 1, 2, 2, 7],
    ]
    assert [(row.topic, row.read_queues, row.lag, row.groups) for row in found.topics] == [
        ("T", 10, 12, {"g": 12}),
        ("U", 1, 9, {"h": 9}),
    ]
    assert [(row.consumer_group, row.lag, row.topics) for row in found.groups] == [
        ("g", 14, {"T": 12, "%RETRY%g": 2}),
        ("h", 9, {"U": 9}),
    ]


def test_a_large_cluster_is_drawn_with_the_largest_lags_and_the_rest_as_a_sum() -> None:
    found = cluster_of(100, 1_000)
    svg = picture(found, 20)
    words = texts(svg)
    assert len(svg) < 150_000
    assert words[0] == "100 sets, 200 brokers, 1,000 topics, 50 groups, lag 49,950,000"
    assert sum(bool(re.fullmatch(r"broker-\d+", word)) for word in words) == MOST_SETS
    assert "and 60 more sets: 120 brokers, 480,000 write queues, lag 29,970,000" in words
    assert [word for word in words if re.fullmatch(r"topic-\d+", word)] == [
        f"topic-{n:04d}" for n in range(999, 979, -1)
    ]
    assert f"and 980 more topics: lag {sum(range(980)) * 100:,}" in words


def test_sets_in_trouble_are_among_those_that_are_drawn() -> None:
    sets = [SetFacts("c", f"b{n:03d}", [broker()], {}, {("g", "T"): 5}) for n in range(MOST_SETS)]
    sets += [SetFacts("c", "z-headless", [broker(1)]), SetFacts("c", "z-dead", [broker(0, "no answer")])]
    words = texts(picture(topology(sets), 5))
    assert "z-headless (no master)" in words
    assert "and 2 more sets: 2 brokers, 0 write queues, lag 10" in words
    assert any("no answer" in word for word in words)


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_any_name_makes_a_picture_that_is_well_formed(cluster: str, name: str, topic: str) -> None:
    sets = [SetFacts(cluster, name, [broker(0, topic)], {topic: (1, 1)}, {(name, topic): 3})]
    ElementTree.fromstring(picture(topology(sets), 1).encode("utf-8"))


def test_a_name_cannot_add_to_the_picture_and_is_whole_in_its_tooltip() -> None:
    name = '<script>alert("1")</script>&' + "x" * 500
    svg = picture(topology([SetFacts("c", name, [broker()])]), 1)
    assert "<script" not in svg
    titles = [each.text for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]
    assert name in titles
