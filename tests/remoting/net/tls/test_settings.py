"""RocketMQ's tls.properties."""

import pytest

from skylark.mqcommon.errors import ConfigError
from skylark.remoting.net.tls.settings import ENFORCING, PERMISSIVE, REQUIRE, ServerTls, Tls, parse_properties

PAIR = {"tls.server.certPath": "c", "tls.server.keyPath": "k"}


def test_nothing_is_no_tls() -> None:
    found = parse_properties({}, "f")
    assert found.server is None and found.client is None


def test_a_server_of_each_mode() -> None:
    assert parse_properties(PAIR, "f").server == ServerTls(PERMISSIVE, "c", "k")
    assert parse_properties({**PAIR, "tls.server.mode": "disabled"}, "f").server is None
    for key in ("tls.server.mode", "server.ssl.mode"):
        assert parse_properties({**PAIR, key: "Enforcing"}, "f").server == ServerTls(ENFORCING, "c", "k")


def test_clients_that_are_verified() -> None:
    ca = {**PAIR, "tls.server.trustCertPath": "ca"}
    for more in ({"tls.server.authClient": "true"}, {"tls.server.need.client.auth": "require"}):
        found = parse_properties({**ca, **more}, "f").server
        assert found is not None and (found.client_certificates, found.ca_file) == (REQUIRE, "ca")


def test_requests_to_others() -> None:
    client = {"tls.client.trustCertPath": "ca", "tls.client.certPath": "c", "tls.client.keyPath": "k"}
    expected = Tls("ca", "c", "k", check_name=False)
    assert parse_properties({**client, "tls.enable": "true"}, "f").client == expected
    assert parse_properties(client, "f", use_tls=True).client == expected
    found = parse_properties({**client, "tls.client.authServer": "false"}, "f", use_tls=True).client
    assert found is not None and not found.verify


def test_test_mode_makes_a_certificate_and_trusts_any() -> None:
    found = parse_properties({"tls.test.mode.enable": "true", "tls.enable": "true"}, "f")
    assert found.server is not None and found.server.is_test
    assert found.client is not None and not found.client.verify
    given = parse_properties({**PAIR, "tls.test.mode.enable": "true"}, "f").server
    assert given is not None and not given.is_test


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tls.server.certPath": "c"}, "belong together"),
        ({"tls.server.mode": "on"}, "tls.server.mode must be one of disabled, permissive, enforcing, not on"),
        ({"tls.enable": "yes"}, "tls.enable must be true or false, not yes"),
        ({**PAIR, "tls.server.authClient": "true"}, "set tls.server.trustCertPath"),
        ({"tls.server.mode": "enforcing"}, "needs tls.server.certPath"),
    ],
)
def test_mistakes_name_file_and_key(values: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        parse_properties(values, "/etc/tls.properties")
    assert str(caught.value).startswith("/etc/tls.properties: ")
