"""Options about signatures that cannot be read are named."""

import pytest

from skylark.mqcommon.errors import ConfigError
from skylark.remoting.net.signature_options import SignatureOptions


@pytest.mark.parametrize(
    ("codes", "reached", "key"),
    [("slave@10.0.0.7", "", "plainSignatureCodes: "), ("", "no address", "reachedAtAddresses: ")],
)
def test_an_option_that_cannot_be_read_is_named(codes: str, reached: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        SignatureOptions(codes, reached).check_signature_options()


def test_a_server_is_meant_by_the_addresses_of_the_option_and_of_routes() -> None:
    options = SignatureOptions("slave@10.0.0.7:21", "10.1.0.0/16,10.0.0.1:10911")
    options.check_signature_options()
    meant = options.reached_at(["10.0.0.2:10911"])
    assert [meant(addr) for addr in ("10.1.2.3:1", "10.0.0.1:10911", "10.0.0.2:10911")] == [True] * 3
    assert [meant(addr) for addr in ("10.2.0.1:1", "10.0.0.1:10912")] == [False] * 2
