"""What users import from `sdk`."""

import typing
from importlib.metadata import version

import pytest

import skylark
from skylark import Admin, SubscriptionGroupConfig, TopicConfig


@pytest.mark.parametrize("name", skylark.__all__)
def test_each_name_is_there(name: str) -> None:
    assert getattr(skylark, name).__name__ == name


def test_what_admin_takes_comes_from_here() -> None:
    assert typing.get_type_hints(Admin.create_topic)["config"] is TopicConfig
    assert typing.get_type_hints(Admin.create_group)["config"] is SubscriptionGroupConfig


def test_the_version_is_the_packages() -> None:
    assert skylark.__version__ == version("skylark-mq")


def test_a_completer_sees_all_names() -> None:
    assert set(skylark.__all__) <= set(dir(skylark))
