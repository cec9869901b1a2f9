from pathlib import Path

import javaproperties
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.conf_file import edit, save_changes
from mqcommon.files import OsFiles

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)


def test_only_the_changed_line_changes() -> None:
    text = "# first\nlistenPort = 1\n\nother : a\\\n  b\n! last\n"
    assert edit(text, {"listenPort": "2"}) == "# first\nlistenPort=2\n\nother : a\\\n  b\n! last\n"


def test_new_keys_come_last() -> None:
    assert edit("# c\na=1\n", {"b": "2"}) == "# c\na=1\nb=2\n"


@given(st.dictionaries(TEXTS, TEXTS), st.dictionaries(TEXTS, TEXTS))
def test_what_was_set_is_read_back(before: dict[str, str], changes: dict[str, str]) -> None:
    text = javaproperties.dumps(before, timestamp=None)
    assert javaproperties.loads(edit(text, changes)) == before | changes


def test_a_missing_file_is_made_and_an_old_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    save_changes(OsFiles(), str(path), {"a": "1"})
    save_changes(OsFiles(), str(path), {"a": "2"})
    assert path.read_text() == "a=2\n"
    assert (tmp_path / "x.conf.bak").read_text() == "a=1\n"


def test_a_last_line_without_an_end_and_foreign_bytes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    path.write_bytes(b"# gr\xfc\xdfe\na=1")
    save_changes(OsFiles(), str(path), {"b": "2"})
    assert path.read_bytes() == b"# gr\xfc\xdfe\na=1\nb=2\n"


def test_a_file_with_a_secret_stays_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("haSecret=x\n")
    path.chmod(0o600)
    for value in ("1", "2"):
        save_changes(OsFiles(), str(path), {"a": value})
        assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {
            "broker.conf": 0o600, "broker.conf.bak": 0o600
        }  # fmt: skip
