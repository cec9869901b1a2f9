"""Options from environment variables: names, values, secrets in files, and variables that belong to nobody."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from skylark.broker.options import BrokerOptions
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.options.conf_file import load_conf, raw_value
from skylark.mqcommon.options.environment import (
    DAEMONS,
    OF_CLIENTS,
    options_class,
    variables_of,
    without_options_of,
)
from skylark.mqcommon.options.fields import BYTES, LimitedKey, Option, limited, option, options_of


@dataclass(frozen=True)
class Options:
    ignored_keys: ClassVar[frozenset[str]] = frozenset({"useEpollNativeSelector", "tls.server.need.client"})

    limited_keys: ClassVar[dict[str, LimitedKey]] = {"storeType": limited("default", "use a store of its own")}

    listen_port: int = option(10911, "port", minimum=0, maximum=65535)
    broker_ip1: str = option("", "address", key="brokerIP1")
    namesrv_addr: str = option("", "NameServers", env="NAMESRV_ADDR")
    tls_enable: bool = option(False, "tls", key="tls.enable")
    log_format: str = option("text", "format", choices=("text", "json"))
    cache_size: int = option(4_096, "memory", unit=BYTES, minimum=1)
    password: str = option("", "password", secret=True)


def load(environ: dict[str, str], path: str | None = None, warnings: list[str] | None = None) -> Options:
    return load_conf(Options, path, environ=environ, warnings=warnings)


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(environ)
    return str(caught.value)


def test_a_rocketmq_key_with_a_value_that_would_do_harm_is_refused() -> None:
    assert load({"SKYLARK_STORE_TYPE": "Default"}) == Options()
    assert refusal({"SKYLARK_STORE_TYPE": "rocksdb"}) == "SKYLARK_STORE_TYPE=rocksdb: use a store of its own"


def test_each_key_has_a_variable() -> None:
    environ = {
        "SKYLARK_LISTEN_PORT": " 1 ",
        "SKYLARK_BROKER_IP1": "10.0.0.1",
        "SKYLARK_NAMESRV_ADDR": "a:1",
        "SKYLARK_TLS_ENABLE": "TRUE",
        "SKYLARK_LOG_FORMAT": "json",
        "SKYLARK_CACHE_SIZE": "64MB",
        "SKYLARK_PASSWORD": "hidden",
        "PATH": "/bin",
    }
    assert load(environ) == Options(1, "10.0.0.1", "a:1", True, "json", 64 << 20, "hidden")
    assert load(dict.fromkeys(environ, " ")) == Options()


def test_a_conf_file_beats_a_variable_which_beats_the_one_of_rocketmq(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=2\n")
    environ = {"SKYLARK_LISTEN_PORT": "1", "SKYLARK_NAMESRV_ADDR": "a:1", "NAMESRV_ADDR": "b:1"}
    assert load(environ, str(conf)) == Options(listen_port=2, namesrv_addr="a:1")


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("SKYLARK_LISTEN_PORT", "x", "SKYLARK_LISTEN_PORT: 'x' is not an integer; give a number from 0 to 65535"),
        ("SKYLARK_LOG_FORMAT", "xml", "SKYLARK_LOG_FORMAT: 'xml' is not a choice; give text or json"),
        ("SKYLARK_LISTENPORT", "1", "SKYLARK_LISTENPORT: unknown variable; did you mean SKYLARK_LISTEN_PORT?"),
        ("SKYLARK_listenPort", "1", "SKYLARK_listenPort: unknown variable; did you mean SKYLARK_LISTEN_PORT?"),
        ("SKYLARK_LISTN_PORT", "1", "SKYLARK_LISTN_PORT: unknown variable; did you mean SKYLARK_LISTEN_PORT?"),
        ("SKYLARK_FLUSH_DISK", "1", "SKYLARK_FLUSH_DISK: unknown variable; did you mean SKYLARK_FLUSH_DISK_TYPE?"),
        ("SKYLARK_ZZZ", "1", "SKYLARK_ZZZ: unknown variable; docs/reference/conf.md lists all keys"),
        ("SKYLARK_CACHE_SIZ", "1", "SKYLARK_CACHE_SIZ: unknown variable; did you mean SKYLARK_CACHE_SIZE?"),
        ("SKYLARK_LOG_FORMAT_FILE", "x", "SKYLARK_LOG_FORMAT_FILE: unknown variable; did you mean SKYLARK_LOG_FORMAT?"),
    ],
)
def test_a_mistake_names_the_variable_and_the_remedy(name: str, text: str, error: str) -> None:
    assert refusal({name: text}) == error


def test_a_key_of_another_daemon_is_let_pass() -> None:
    warnings: list[str] = []
    environ = {"SKYLARK_FLUSH_DISK_TYPE": "SYNC_FLUSH", "SKYLARK_GRPC_SERVER_PORT": "8081", "SKYLARK_LOGIN": "true"}
    assert load({**environ, "SKYLARK_TRACE_ON": "true"}, warnings=warnings) == Options()
    assert warnings == []


def test_a_key_of_rocketmq_without_effect_is_warned_of() -> None:
    warnings: list[str] = []
    load({"SKYLARK_USE_EPOLL_NATIVE_SELECTOR": "true", "SKYLARK_TLS_SERVER_NEED_CLIENT": "x"}, warnings=warnings)
    assert warnings == [
        f"SKYLARK_{name}: a RocketMQ option that Skylark does not use; it has no effect"
        for name in ("USE_EPOLL_NATIVE_SELECTOR", "TLS_SERVER_NEED_CLIENT")
    ]


def test_what_kubernetes_and_docker_say_of_services_is_no_option() -> None:
    service = {
        "SKYLARK_LISTEN_SERVICE_HOST": "10.0.0.1",
        "SKYLARK_LISTEN_SERVICE_PORT": "10911",
        "SKYLARK_LISTEN_SERVICE_PORT_CLIENTS": "10911",
        "SKYLARK_LISTEN_PORT": "tcp://10.0.0.1:10911",
        "SKYLARK_PORT": "tcp://10.0.0.1:10911",
        "SKYLARK_LISTEN_PORT_10911_TCP": "tcp://10.0.0.1:10911",
        "SKYLARK_LISTEN_PORT_10911_TCP_PROTO": "tcp",
        "SKYLARK_LISTEN_PORT_10911_TCP_PORT": "10911",
        "SKYLARK_LISTEN_PORT_10911_TCP_ADDR": "10.0.0.1",
    }
    assert load(service) == Options()


def test_a_secret_may_be_in_a_file_of_any_mode(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hidden\n")
    file.chmod(0o444)
    assert load({"SKYLARK_PASSWORD_FILE": str(file)}).password == "hidden"
    both = {"SKYLARK_PASSWORD_FILE": str(file), "SKYLARK_PASSWORD": "x"}
    assert refusal(both) == "SKYLARK_PASSWORD and SKYLARK_PASSWORD_FILE are one option; give one of them"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "cannot be read: No such file or directory; name a file that user"),
        (b"\xff", "not UTF-8 text: invalid start byte at byte 0"),
        (b"x" * 65537, "larger than a secret can be (65536 bytes)"),
    ],
)
def test_a_file_without_a_secret_is_named(tmp_path: Path, data: bytes | None, why: str) -> None:
    file = tmp_path / "password"
    if data is not None:
        file.write_bytes(data)
    error = refusal({"SKYLARK_PASSWORD_FILE": str(file)})
    assert error.startswith(f"SKYLARK_PASSWORD_FILE: {file}: {why}")


def test_the_format_of_the_first_lines_may_come_from_a_variable(tmp_path: Path) -> None:
    environ = {"SKYLARK_LOG_FORMAT": "json"}
    assert raw_value(Options, "logFormat", None, {}, environ) == "json"
    assert raw_value(Options, "logFormat", None, {"log_format": "text"}, environ) == "text"
    conf = tmp_path / "broker.conf"
    conf.write_text("logFormat=text\n")
    assert raw_value(Options, "logFormat", conf, {}, environ) == "text"
    conf.write_text("")
    assert raw_value(Options, "logFormat", conf, {}, environ) == "json"


def test_an_environment_without_the_options_of_a_daemon_keeps_the_others() -> None:
    environ = {"SKYLARK_HEALTH_PORT": "1", "SKYLARK_BIND_ADDRESS": "::", "SKYLARK_LOGIN": "true", "NAMESRV_ADDR": "a:1"}
    left = without_options_of(BrokerOptions, environ, but=("bind_address",))
    assert left == {name: text for name, text in environ.items() if name != "SKYLARK_HEALTH_PORT"}


def all_options() -> list[Option]:
    return [o for daemon in DAEMONS for o in options_of(options_class(daemon))]


def test_no_two_options_of_a_daemon_have_one_variable() -> None:
    for daemon in DAEMONS:
        names = [name for o in options_of(options_class(daemon)) for name in variables_of(o)]
        assert len(names) == len(set(names))


def test_no_option_looks_like_a_service_of_kubernetes() -> None:
    assert all(not o.variable.endswith(("_SERVICE_HOST", "_SERVICE_PORT")) for o in all_options())


def test_variables_of_clients_are_no_options() -> None:
    assert OF_CLIENTS.isdisjoint(name for o in all_options() for name in variables_of(o))
