"""Options of users and policies: their forms, and that errors and getBrokerConfig do not show secrets."""

import pytest

from broker.options import BrokerOptions
from mqcommon.errors import ConfigError
from mqcommon.options import load_conf, to_properties

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
def test_wrong_values(values: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        BrokerOptions(**values)  # type: ignore[arg-type]
    assert text in str(error.value)
    assert "top-secret" not in str(error.value)
