"""Options of access control: their forms, and that errors and getBrokerConfig do not show secrets."""

import pytest

from broker.options import BrokerOptions
from mqcommon.errors import ConfigError
from mqcommon.options.conf_file import load_conf, to_properties

USER = '{"username":"root","password":"top-secret"}'


def test_the_values_as_the_broker_uses_them() -> None:
    options = load_conf(
        BrokerOptions,
        overrides={
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": USER,
            "authenticationWhitelist": "10, 310,",
            "authorizationWhitelist": "34",
        },
    )
    assert options.first_user == ("root", "top-secret")
    assert (options.unsigned_codes, options.open_codes) == ({10, 310}, {34})
    assert "top-secret" not in to_properties(options)
    assert BrokerOptions().first_user is None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"acl_enable": True}, "aclFile: aclEnable needs the accounts"),
        ({"migrate_auth_from_v1_enabled": True}, "aclFile: migrateAuthFromV1Enabled needs the accounts"),
        ({"acl_enable": True, "acl_file": "x", "authentication_enabled": True}, "cannot both be asked"),
        ({"authorization_enabled": True}, "authorizationEnabled: without authenticationEnabled"),
        ({"authentication_whitelist": "10;310"}, "authenticationWhitelist: '10;310' is no request code"),
        ({"authorization_whitelist": "-1"}, "authorizationWhitelist: '-1'"),
        ({"init_authentication_user": "root:top-secret"}, "initAuthenticationUser: the value is not of the form"),
        ({"init_authentication_user": '["top-secret"]'}, "is not of the form"),
        ({"init_authentication_user": '{"username":"root"}'}, "is not of the form"),
        ({"init_authentication_user": '{"username":"","password":"top-secret"}'}, "is empty, or no text"),
        ({"init_authentication_user": '{"username":1,"password":"top-secret"}'}, "is empty, or no text"),
    ],
)
def test_wrong_values(values: dict[str, object], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    with pytest.raises(ConfigError) as error:
        BrokerOptions(**values)  # type: ignore[arg-type]
    assert text in str(error.value)
    assert "top-secret" not in str(error.value)


def test_the_file_of_accounts_is_where_rocketmq_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", "/opt/rocketmq")
    assert BrokerOptions(acl_enable=True).acl_path == "/opt/rocketmq/conf/plain_acl.yml"
    assert BrokerOptions(acl_enable=True, acl_file="/etc/x.yml").acl_path == "/etc/x.yml"
