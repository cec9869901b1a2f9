"""Reading the files again: what is new counts, what is broken keeps the old accounts."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skylark.broker.security.accounts.edits import AccountChange
from skylark.broker.security.accounts.files import AccountFiles
from skylark.mqcommon.errors import UserError
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, account, write


def files(folder: Path) -> AccountFiles:
    return AccountFiles(str(folder / "plain_acl.yml"), white_skips_all=True)


def of(*names: str) -> str:
    return "accounts:\n" + "".join(account(name) for name in names)


def test_the_folder_beside_the_file_is_read_too(tmp_path: Path) -> None:
    write(tmp_path / "plain_acl.yml", ADMIN)
    write(tmp_path / "acl" / "one.yml", of("account-1"))
    write(tmp_path / "acl" / "more" / "two.yaml", of("account-2"))
    write(tmp_path / "acl" / "notes.txt", "no accounts")
    found = files(tmp_path)
    assert found.refresh() == []
    assert sorted(found.rules.accounts) == ["account-1", "account-2", "admin-account"]
    rules = found.rules
    assert found.refresh() == []
    assert found.rules is rules, "nothing has changed"
    os.remove(tmp_path / "acl" / "one.yml")
    assert found.refresh() == []
    assert sorted(found.rules.accounts) == ["account-2", "admin-account"]


def test_the_folder_alone_is_enough(tmp_path: Path) -> None:
    write(tmp_path / "acl" / "one.yml", of("account-1"))
    found = files(tmp_path)
    assert found.refresh() == []
    found.change(found.path, lambda document: document.put_account(AccountChange("account-2", SECRET)), 7)
    assert found.refresh() == []
    assert sorted(found.rules.accounts) == ["account-1", "account-2"]
    assert os.stat(found.path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("broken", ["", "\n", "accounts: x", "accounts:\n- accessKey: short", "'"])
def test_a_broken_file_keeps_its_accounts_and_others_change(tmp_path: Path, broken: str) -> None:
    write(tmp_path / "plain_acl.yml", ADMIN)
    write(tmp_path / "acl" / "one.yml", of("account-1"))
    found = files(tmp_path)
    assert found.refresh() == []
    write(tmp_path / "acl" / "one.yml", broken)
    write(tmp_path / "plain_acl.yml", ADMIN + account("account-2"))
    (problem,) = found.refresh()
    assert problem.startswith(str(tmp_path / "acl" / "one.yml"))
    assert sorted(found.rules.accounts) == ["account-1", "account-2", "admin-account"]
    write(tmp_path / "acl" / "one.yml", of("account-3"))
    assert found.refresh() == []
    assert sorted(found.rules.accounts) == ["account-2", "account-3", "admin-account"]


def test_a_file_that_is_gone_keeps_its_accounts(tmp_path: Path) -> None:
    """An editor may remove the file before it writes the new one."""
    write(tmp_path / "plain_acl.yml", ADMIN)
    found = files(tmp_path)
    assert found.refresh() == []
    os.remove(tmp_path / "plain_acl.yml")
    (problem,) = found.refresh()
    assert "cannot be read: No such file" in problem
    assert sorted(found.rules.accounts) == ["admin-account"]
    write(tmp_path / "plain_acl.yml", of("account-1"))
    assert found.refresh() == []
    assert sorted(found.rules.accounts) == ["account-1"]


def test_an_account_in_two_files_keeps_all_old_accounts(tmp_path: Path) -> None:
    write(tmp_path / "plain_acl.yml", ADMIN)
    found = files(tmp_path)
    assert found.refresh() == []
    write(tmp_path / "acl" / "one.yml", of("admin-account", "account-1"))
    for _ in range(2):
        (problem,) = found.refresh()
        assert "account admin-account is in" in problem
        assert sorted(found.rules.accounts) == ["admin-account"]
    write(tmp_path / "acl" / "one.yml", of("account-1"))
    assert found.refresh() == []
    assert sorted(found.rules.accounts) == ["account-1", "admin-account"]


def test_a_file_that_others_may_read_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path / "plain_acl.yml", ADMIN)
    found = files(tmp_path)
    os.chmod(tmp_path / "plain_acl.yml", 0o640)
    (problem,) = found.refresh()
    assert "lets others use it; run chmod 600" in problem


def test_without_any_file_there_is_a_problem(tmp_path: Path) -> None:
    assert "plain_acl.yml: cannot be read: No such file" in files(tmp_path).refresh()[0]


def test_a_change_that_would_break_the_file_is_not_made(tmp_path: Path) -> None:
    path = write(tmp_path / "plain_acl.yml", ADMIN)
    found = files(tmp_path)
    with pytest.raises(UserError, match="'10' is no address"):
        found.change(path, lambda document: document.put_white(["10"]), 7)
    assert Path(path).read_text() == ADMIN
    assert os.listdir(tmp_path) == ["plain_acl.yml"]


def test_changes_count_versions_and_keep_the_mode(tmp_path: Path) -> None:
    path = write(tmp_path / "plain_acl.yml", ADMIN)
    found = files(tmp_path)
    for now_ms in (7, 8):
        found.change(path, lambda document: document.put_white(["10.0.0.1"]), now_ms)
    assert found.refresh() == []
    (file,) = found.rules.files
    assert (file.version.counter, file.version.timestamp) == (2, 8)
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_changes_of_several_instances_at_once_are_all_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "plain_acl.yml", ADMIN)

    def change(name: str) -> None:
        of_instance = files(tmp_path)
        for number in range(5):
            account = AccountChange(f"{name}-account-{number}", SECRET)
            of_instance.change(path, lambda document, account=account: document.put_account(account), 7)

    with ThreadPoolExecutor() as pool:
        list(pool.map(change, ("one", "two")))
    found = files(tmp_path)
    assert found.refresh() == []
    made = [f"{name}-account-{number}" for name in ("one", "two") for number in range(5)]
    assert sorted(found.rules.accounts) == ["admin-account", *made]
    assert found.rules.files[0].version.counter == 10


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write(tmp_path / "plain_acl.yml", ADMIN)
    found = files(tmp_path)
    with pytest.raises(UserError, match=r"nowhere/x.yml: cannot be written"):
        found.change(str(tmp_path / "nowhere" / "x.yml"), lambda document: document.put_white([]), 7)


def test_a_file_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some editors empty the file first."""
    path = tmp_path / "plain_acl.yml"
    write(path, ADMIN)
    found = files(tmp_path)
    assert found.refresh() == []
    whole = ADMIN + account("account-1")
    steps = iter([whole[: len(ADMIN) // 2], whole])
    write(path, "")
    monkeypatch.setattr(
        "skylark.broker.security.accounts.files.time.sleep", lambda seconds: write(path, next(steps, whole))
    )
    assert found.refresh() == []
    assert sorted(found.rules.accounts) == ["account-1", "admin-account"]


def test_a_change_in_place_of_a_file_that_is_gone_is_not_made(tmp_path: Path) -> None:
    """Such a change would end the accounts that are in force, and with them the accounts of administrators."""
    path = write(tmp_path / "plain_acl.yml", ADMIN)
    found = files(tmp_path)
    assert found.refresh() == []
    os.remove(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        found.change(path, lambda document: document.put_white(["10.0.0.1"]), 7)
    assert not os.path.exists(path)


def test_an_account_that_another_file_has_got_is_not_added(tmp_path: Path) -> None:
    path = write(tmp_path / "plain_acl.yml", ADMIN)
    found = files(tmp_path)
    assert found.refresh() == []
    write(tmp_path / "acl" / "one.yml", of("account-1"))
    with pytest.raises(UserError, match="account account-1 is in"):
        found.change(path, lambda document: document.put_account(AccountChange("account-1", SECRET)), 7)
    assert Path(path).read_text() == ADMIN


def test_a_file_is_changed_while_another_is_broken(tmp_path: Path) -> None:
    path = write(tmp_path / "plain_acl.yml", ADMIN)
    found = files(tmp_path)
    assert found.refresh() == []
    write(tmp_path / "acl" / "one.yml", "accounts: x")
    found.change(path, lambda document: document.put_account(AccountChange("account-1", SECRET)), 7)
    assert len(found.refresh()) == 1
    assert sorted(found.rules.accounts) == ["account-1", "admin-account"]


def test_a_folder_that_cannot_be_listed_keeps_its_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "plain_acl.yml", ADMIN)
    write(tmp_path / "acl" / "one.yml", of("account-1"))
    found = files(tmp_path)
    assert found.refresh() == []

    def refused(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refused)
    (problem,) = found.refresh()
    assert "Permission denied" in problem
    assert sorted(found.rules.accounts) == ["account-1", "admin-account"]
