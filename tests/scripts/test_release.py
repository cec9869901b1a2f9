"""A release is refused unless version, CHANGELOG and tag agree and everything is committed."""

import pytest

from scripts.daemons import ROOT
from scripts.release import NEXT, TAG, mistake_in
from skylark.mqcommon.version import VERSION

CHANGELOG = f"# Changelog\n\n## {VERSION}\n\n## 0.0.1\n"


def test_the_changelog_of_this_tree_is_that_of_its_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert mistake_in(changelog, "", "", "c0ffee") == ""
    assert len(changelog.partition("\n## ")[2].partition("\n## ")[0].splitlines()) <= 100


@pytest.mark.parametrize(
    ("changelog", "changed", "tagged", "mistake"),
    [
        ("# Changelog\n\n## 0.0.1\n", "", "", "begins with 0.0.1, and the version"),
        ("# Changelog\n", "", "", "begins with nothing"),
        (CHANGELOG, " M setup.cfg", "", "not committed yet:\n M setup.cfg"),
        (CHANGELOG, "", "0ff1ce", f"the tag {TAG} is an earlier commit"),
        (CHANGELOG, "", "c0ffee", ""),
        (CHANGELOG, "", "", ""),
    ],
)
def test_what_does_not_agree_is_named(changelog: str, changed: str, tagged: str, mistake: str) -> None:
    found = mistake_in(changelog, changed, tagged, "c0ffee")
    assert found == mistake or (mistake and mistake in found)


def test_the_line_to_upload_has_no_file_of_another_version() -> None:
    (upload,) = [line for line in NEXT.splitlines() if "twine upload" in line]
    files = upload.partition("twine upload ")[2].partition("   #")[0]
    assert files == f"dist/skylark_mq-{VERSION}-py3-none-any.whl dist/skylark_mq-{VERSION}.tar.gz"
