"""The first user."""

import json

import pytest

from skylark.broker.security.users.first_users import make_first_users
from skylark.mqcommon.errors import ConfigError
from skylark.remoting.protocol.requests.auth import UserInfo
from tests.broker.meta.support import MetadataDir, options
from tests.broker.security.users.rows import SECRET


def conf(name: str) -> str:
    return json.dumps({"username": name, "password": SECRET})


def test_the_first_user_is_made_once(caplog: pytest.LogCaptureFixture) -> None:
    meta = MetadataDir(options(init_authentication_user=conf("root"), authentication_enabled=True))
    users = meta.metadata.users
    make_first_users(meta.options, users)
    assert users.get("root") == UserInfo("root", SECRET, "Super", "enable")
    users.put(UserInfo("root", "changed", "Super", "enable"))
    make_first_users(meta.options, users)
    assert users.get("root") == UserInfo("root", "changed", "Super", "enable")
    assert "there is no super user" not in caplog.text
    users.put(UserInfo("root", "changed", "Super", "disable"))
    make_first_users(meta.options, users)
    assert "there is no super user" in caplog.text


def test_a_wrong_name_stops_the_start() -> None:
    meta = MetadataDir(options(init_authentication_user=conf("a b")))
    with pytest.raises(ConfigError, match="initAuthenticationUser: The username 'a b' has blanks"):
        make_first_users(meta.options, meta.metadata.users)
