"""Files of secrets that others may use are refused."""

import os
import stat
from pathlib import Path

import pytest

from skylark.mqcommon.disk.secret_file import MAX_SECRET_BYTES, check_mode, read_secret_file
from skylark.mqcommon.errors import ConfigError, UserError


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_its_owner_is_read(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: a\n")
    file.chmod(mode)
    assert read_secret_file(file) == "accessKey: a\n"


@pytest.mark.parametrize("mode", [0o640, 0o644, 0o602, 0o610])
def test_a_file_of_others_is_refused_and_what_to_do_is_said(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: a\n")
    file.chmod(mode)
    with pytest.raises(UserError, match=f"its mode {mode:04o} lets others use it; run chmod 600 {file}$"):
        read_secret_file(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    with pytest.raises(UserError, match=r"tools\.yml: cannot be read: No such file or directory"):
        read_secret_file(file)
    file.touch(0o600)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"tools\.yml: not UTF-8 text"):
        read_secret_file(file)
    file.write_bytes(b"x" * (MAX_SECRET_BYTES + 1))
    with pytest.raises(UserError, match="larger than a file of secrets"):
        read_secret_file(str(file))


@pytest.mark.parametrize(
    ("owner", "user", "mode", "taken"),
    [
        (0, 10001, 0o440, True),
        (0, 10001, 0o640, True),
        (0, 10001, 0o444, False),
        (0, 0, 0o440, False),
        (10001, 10001, 0o440, False),
        (10002, 10001, 0o440, False),
    ],
    ids=["of-an-orchestrator", "written-by-root", "for-all", "process-of-root", "of-the-user", "of-another-user"],
)
def test_a_file_of_root_for_the_group_of_the_process(
    monkeypatch: pytest.MonkeyPatch, owner: int, user: int, mode: int, taken: bool
) -> None:
    """Kubernetes mounts Secrets for a user without rights in this way."""
    monkeypatch.setattr("os.geteuid", lambda: user)
    status = os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 10001, 0, 0, 0, 0))
    if taken:
        check_mode("accounts.yml", status)
    else:
        with pytest.raises(ConfigError, match="lets others use it"):
            check_mode("accounts.yml", status)
