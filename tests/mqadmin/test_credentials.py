"""Where mqadmin's credentials come from, and that its clients get them."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skylark.mqadmin.cli import mqadmin
from skylark.mqadmin.session import SdkClients, Settings
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.credentials import credentials_of_tools
from tests.mqadmin.fake import NAMESRV, FakeClients, World

KEYS = {"ROCKETMQ_ACCESS_KEY": "env", "ROCKETMQ_SECRET_KEY": "secret of env"}
ENV = {
    "ROCKETMQ_ACCESS_KEY": None,
    "ROCKETMQ_SECRET_KEY": None,
    "ROCKETMQ_HOME": None,
    "ROCKETMQ_CREDENTIALS_FILE": None,
}


class NotingClients(FakeClients):
    """Keeps the settings of the last Admin."""

    settings: Settings

    def admin(self, settings: Settings) -> Any:
        self.settings = settings
        return super().admin(settings)


def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[Result, Credentials | None]:
    clients = NotingClients(World())
    given = ["topicList", "-n", NAMESRV, *arguments]
    result = CliRunner().invoke(mqadmin, given, obj=clients, prog_name="mqadmin", env={**ENV, **(env or {})})
    return result, clients.settings.credentials if hasattr(clients, "settings") else None


def tools_yml(folder: Path, who: str, mode: int = 0o600) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "tools.yml"
    file.write_text(f"accessKey: {who}\nsecretKey: secret of {who}\n")
    file.chmod(mode)
    return file


def test_a_file_beats_the_environment_and_that_beats_rocketmqs_file(tmp_path: Path) -> None:
    file = tools_yml(tmp_path / "mine", "file")
    home = {"ROCKETMQ_HOME": str(tools_yml(tmp_path / "home" / "conf", "home").parent.parent)}
    assert run()[1] is None
    assert run(env=home)[1] == Credentials("home", "secret of home")
    assert run(env={**home, **KEYS})[1] == Credentials("env", "secret of env")
    for arguments, env in (["--credentials", str(file)], {}), ([], {"ROCKETMQ_CREDENTIALS_FILE": str(file)}):
        result, found = run(*arguments, env={**home, **KEYS, **env})
        assert (result.exit_code, found) == (0, Credentials("file", "secret of file"))


def test_only_servers_that_are_named_get_rocketmqs_signature(tmp_path: Path) -> None:
    file = tools_yml(tmp_path, "file")
    found = run("--credentials", str(file))[1]
    assert found is not None and not found.may_sign_plainly_at("10.0.0.5:10911")
    for arguments, env in (
        (["--plain-signature-addresses", "10.0.0.0/8"], {}), ([], {"ROCKETMQ_PLAIN_SIGNATURE_ADDRESSES": "10.0.0.0/8"}),
    ):  # fmt: skip
        found = run("--credentials", str(file), *arguments, env=env)[1]
        assert found is not None and found.may_sign_plainly_at("10.0.0.5:10911")
    result, _ = run("--credentials", str(file), "--plain-signature-addresses", "*")
    assert result.exit_code == 2 and "give host:port or a network" in result.output


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tools_yml(tmp_path, "file", 0o644)
    result, found = run("--credentials", str(file))
    assert (result.exit_code, found) == (1, None)
    assert f"{file}: it holds secrets, and its mode 0644 lets others use it; run chmod 600 {file}" in result.stderr


def test_rocketmqs_own_file_that_others_may_read_is_only_warned_about(tmp_path: Path) -> None:
    file = tools_yml(tmp_path / "conf", "home", 0o644)
    result, found = run(env={"ROCKETMQ_HOME": str(tmp_path)})
    assert (result.exit_code, found) == (0, None)
    assert f"mqadmin: requests are not signed: {file}: it holds secrets" in result.stderr
    assert credentials_of_tools(None, {"ROCKETMQ_HOME": str(tmp_path / "none")}, pytest.fail) is None


def test_half_of_the_environment_is_an_error() -> None:
    result, _ = run(env={"ROCKETMQ_ACCESS_KEY": "a"})
    assert result.exit_code == 1 and "ROCKETMQ_SECRET_KEY is not set" in result.stderr


def test_the_clients_of_the_sdk_get_them() -> None:
    settings = Settings(NAMESRV, credentials=Credentials("a", "secret"))
    clients: Any = SdkClients()
    for made in (clients.admin(settings), clients.producer(settings, "g"), clients.consumer(settings, "g")):
        assert made._client.instance._credentials == Credentials("a", "secret")
    assert "secret" not in repr(settings)
