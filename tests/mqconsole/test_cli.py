from pathlib import Path

import pytest
from click.testing import CliRunner

from skylark.mqconsole.cli import main


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(main, words, env={"NAMESRV_ADDR": None, **(env or {})})
    return done.exit_code, done.output


def test_it_has_the_options_of_mqadmin_for_the_cluster() -> None:
    code, text = run("--help")
    assert code == 0
    for option in ("-n, --namesrvAddr", "--credentials", "--tls-config", "--timeout", "--listen-port", "--login"):
        assert option in text
    assert "--output" not in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "no NameServer address: give -n HOST:PORT or set NAMESRV_ADDR"),
        (("-n", "127.0.0.1:9876", "--bind-address", "0.0.0.0"), "others can reach the console: set login=true"),
        (("-n", "127.0.0.1:9876", "--bind-address", "0.0.0.0", "--login", "true"), "set httpsCertFile"),
        (("-n", "127.0.0.1:9876", "--credentials", "/nothing/here"), "/nothing/here"),
        (("-n", "127.0.0.1:9876", "--tls-config", "/nothing/here"), "/nothing/here"),
        (("-n", "127.0.0.1:9876", "-c", "/nothing/here"), "/nothing/here"),
    ],
)
def test_it_does_not_start_with_a_mistake(words: tuple[str, ...], text: str) -> None:
    code, said = run(*words)
    assert code == 1 and said.startswith("mqconsole: ") and text in said


def test_options_come_from_a_file_too(tmp_path: Path) -> None:
    conf = tmp_path / "console.conf"
    conf.write_text("listenPort=8089\npollInterval=10\n")
    code, said = run("-c", str(conf), "-p", "--poll-interval", "20")
    assert code == 0
    assert {"listenPort=8089", "pollInterval=20", "login=false"} <= set(said.splitlines())
