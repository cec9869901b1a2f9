"""Version numbers against known names."""

import pytest

from skylark.sdk.admin.reports.versions import VERSION_NAMES, version_name


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (37, "V3_0_11"),
        (62, "V3_1_8_SNAPSHOT"),
        (121, "V3_4_9"),
        (233, "V4_1_0"),
        (401, "V4_9_4"),
        (409, "V4_9_8"),
        (413, "V5_0_0"),
        (479, "V5_3_3"),
        (612, "HIGHER_VERSION"),
        (9999, "HIGHER_VERSION"),
        (-1, "-1"),
    ],
)
def test_names(version: int, name: str) -> None:
    assert version_name(version) == name


def test_each_name_is_there_once() -> None:
    assert len(set(VERSION_NAMES)) == len(VERSION_NAMES) == 613
