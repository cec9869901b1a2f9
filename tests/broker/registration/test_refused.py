"""A broker that its NameServer does not let in."""

import pytest

from broker.options import BrokerOptions
from broker.registration import registrar as registrar_module
from remoting.protocol.codes import ResponseCode
from tests.broker.registration.test_registrar import RecordingNamesrv, broker, serving, until


async def test_a_broker_that_may_not_register_says_what_to_set_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(BrokerOptions, "register_period_ms", 10)
    monkeypatch.setattr(registrar_module, "REFUSALS_A_LINE", 5)
    namesrv = RecordingNamesrv()
    namesrv.refuse = True
    namesrv.refusal = (ResponseCode.NO_PERMISSION, "request 103 needs the signature of an administrator")
    who = '{"accessKey":"broker-1","secretKey":"hidden"}'
    async with serving(namesrv) as addr, broker(addr, inner_client_authentication_credentials=who) as (_, registrar):
        await until(lambda: len(namesrv.channels) > 6)
        lines = [record.getMessage() for record in caplog.records if "not registered" in record.getMessage()]
        assert 2 <= len(lines) <= len(namesrv.channels) // 5 + 1
        assert lines[0].endswith(
            "answered code 16: request 103 needs the signature of an administrator; set"
            " innerClientAuthenticationCredentials (now of broker-1) to an administrator's account in the aclFile of"
            " that NameServer"
        )
        assert "hidden" not in caplog.text
        namesrv.refuse = False
        await until(lambda: registrar.registered_addrs == [addr])
