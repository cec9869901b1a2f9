"""What users import from `sdk`."""

import typing
from importlib.metadata import version

import pytest

import skylark.sdk
from skylark import Admin, SubscriptionGroupConfig, TopicConfig


@pytest.mark.parametrize("name", sdk.__all__)
def test_each_name_is_there(name: str) -> None:
    assert getattr(sdk, name).__name__ == name


def test_what_admin_takes_comes_from_here() -> None:
    assert typing.get_type_hints(Admin.create_topic)["config"] is TopicConfig
    assert typing.get_type_hints(Admin.create_group)["config"] is SubscriptionGroupConfig


def test_the_version_is_the_packages() -> None:
    assert sdk.__version__ == version("skylark-mq")


def test_a_completer_sees_all_names() -> None:
    assert set(sdk.__all__) <= set(dir(sdk))
