"""The group table."""

import pytest

from skylark.broker.meta import groups
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from tests.broker.meta.support import MetadataDir, options


def test_system_groups_are_those_of_rocketmq() -> None:
    # golden: GET_ALL_SUBSCRIPTIONGROUP_CONFIG of Apache RocketMQ 5.3.3
    assert set(MetadataDir().groups.names()) == {
        "SELF_TEST_C_GROUP", "CID_ONSAPI_OWNER", "CID_ONSAPI_PERMISSION", "CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER",
        "CID_ONS-HTTP-PROXY", "FILTERSRV_CONSUMER", "CID_ONSAPI_PULL",
    }  # fmt: skip


def test_first_use_creates_a_group_where_that_is_allowed() -> None:
    meta = MetadataDir()
    assert meta.groups.get_or_create("g") == SubscriptionGroupConfig("g")
    assert meta.groups.data_version.counter == 2
    meta.groups.get_or_create("g")
    assert meta.groups.data_version.counter == 2
    meta.kill()
    assert meta.groups.get("g") is not None


@pytest.mark.parametrize("name", ["", "a b", "x" * 256, "g@t"])
def test_a_text_that_is_no_group_name_is_not_created(name: str) -> None:
    assert MetadataDir().groups.get_or_create(name) is None


def test_without_auto_creation_only_system_groups_are_created() -> None:
    table = MetadataDir(options(auto_create_subscription_group=False)).groups
    assert table.get_or_create("g") is None
    assert table.get_or_create("CID_RMQ_SYS_NEW") is not None


def test_a_full_disk_keeps_no_new_group_from_reading() -> None:
    meta = MetadataDir()
    meta.fs.capacity = meta.fs.used()
    assert meta.groups.get_or_create("g") == SubscriptionGroupConfig("g")
    assert meta.groups.get("g") is None
    meta.fs.capacity += 100_000
    meta.groups.get_or_create("g")
    meta.kill()
    assert meta.groups.get("g") is not None


def test_a_limited_number_of_groups_is_made_on_first_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group_table = MetadataDir().groups
    monkeypatch.setattr(groups, "MAX_MADE_ON_USE", len(group_table.names()) + 1)
    assert group_table.get_or_create("g") is not None
    assert group_table.get_or_create("h") is group_table.get_or_create("i") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    group_table.put(SubscriptionGroupConfig("h"))
    assert group_table.get_or_create("h") is not None, "administrators may make more"
