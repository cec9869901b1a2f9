"""Who may use RocketMQ's signature for what, as options say it."""

import pytest

from skylark.remoting.protocol.plain_codes import PlainCodes, Whos, plain_refusal


def test_users_and_addresses_get_their_codes_only() -> None:
    codes = PlainCodes(" slave@10.0.0.7:21,43 ; 10.1.0.0/16:3004;app: 17;[fd00::1]:28;anna@[fd00::]/8:1 ;")
    assert codes.allow("slave", "10.0.0.7", 43)
    assert codes.allow("slave", "::ffff:10.0.0.7", 21)
    assert not codes.allow("slave", "10.0.0.8", 43)
    assert not codes.allow("other", "10.0.0.7", 43)
    assert not codes.allow("slave", "10.0.0.7", 3004)
    assert codes.allow("anybody", "10.1.2.3", 3004)
    assert codes.allow("app", "192.0.2.1", 17)
    assert codes.allow("anybody", "fd00::1", 28)
    assert not codes.allow("app", "a host name", 28)
    assert not PlainCodes("").allow("app", "10.0.0.7", 17)


@pytest.mark.parametrize(
    "text", ["*:17", "app", "app:", ":17", "app:17,x", "app:*", "a b:17", "true", "10.0.0.0/33:17", "app@here/8:17"]
)
def test_what_names_nobody_or_no_codes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a user, an address or a network"):
        PlainCodes(text)


def test_whos_have_no_codes() -> None:
    found = Whos("proxy@10.0.0.9; 10.0.0.8;anna")
    assert found.has("proxy", "10.0.0.9") and found.has("x", "10.0.0.8") and found.has("anna", "10.0.0.1")
    assert not found.has("proxy", "10.0.0.1") and not Whos("").has("proxy", "10.0.0.9")
    with pytest.raises(ValueError, match="is not a user"):
        Whos("proxy:17")


def test_a_refusal_says_what_to_add() -> None:
    assert PlainCodes("app@10.0.0.7:17").allow("app", "10.0.0.7", 17)
    assert "add app@10.0.0.7:17 to plainSignatureCodes" in plain_refusal("app", "10.0.0.7", 17)
