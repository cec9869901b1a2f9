"""The option innerClientAuthenticationCredentials of both daemons."""

from pathlib import Path
from typing import Any

import pytest

from skylark.broker.options import BrokerOptions
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.options.conf_file import load_conf, to_properties
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.protocol.signature import Credentials

WHO = '{"accessKey":"broker-1","secretKey":"a:b=c"}'


@pytest.mark.parametrize("cls", [BrokerOptions, NamesrvOptions])
def test_it_is_read_as_rocketmq_has_it(tmp_path: Path, cls: type[BrokerOptions] | type[NamesrvOptions]) -> None:
    conf = tmp_path / "a.conf"
    conf.touch(0o600)
    conf.write_text(f"innerClientAuthenticationCredentials={WHO}\n")
    options = load_conf(cls, conf, environ={})
    assert options.inner_credentials == Credentials("broker-1", "a:b=c")
    assert "a:b=c" not in to_properties(options)
    assert cls().inner_credentials is None
    assert load_conf(cls, environ={"ROCKETMQ_INNER_CLIENT_CREDENTIALS": WHO}) == options
    conf.chmod(0o640)
    with pytest.raises(ConfigError, match="holds innerClientAuthenticationCredentials, and its mode 0640 lets others"):
        load_conf(cls, conf, environ={})
    conf.write_text("listenPort=1\n")
    assert load_conf(cls, conf, environ={}).listen_port == 1


def test_they_are_for_servers_that_sign_whole_requests_and_for_those_that_are_named() -> None:
    who = BrokerOptions(inner_client_authentication_credentials=WHO).inner_credentials
    assert who is not None and not who.may_sign_plainly_at("10.0.0.5:9876")
    peer = "10.0.0.5:9876"
    named: dict[str, Any] = {"inner_client_authentication_credentials": WHO, "plain_signature_addresses": peer}
    who = BrokerOptions(**named).inner_credentials
    assert who is not None and who.may_sign_plainly_at("10.0.0.5:9876") and not who.may_sign_plainly_at("10.0.0.5:1")


@pytest.mark.parametrize("text", ["*", "10.0.0.5", "10.0.0.5/8", "true"])
def test_the_option_for_rocketmqs_signature_wants_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match=r"plainSignatureAddresses: .*give host:port or a network"):
        NamesrvOptions(plain_signature_addresses=text)


@pytest.mark.parametrize(
    "text", ["hidden", '"hidden"', '{"accessKey":"hidden"}', '{"accessKey":"a","secretKey":5}',
             '{"accessKey":"a","secretKey":"hidden","more":"x"}'],
)  # fmt: skip
def test_a_wrong_value_is_an_error_that_does_not_show_it(text: str) -> None:
    with pytest.raises(ConfigError, match=r'innerClientAuthenticationCredentials: it is not .*give {"accessKey"') as no:
        BrokerOptions(inner_client_authentication_credentials=text)
    assert "hidden" not in str(no.value)
