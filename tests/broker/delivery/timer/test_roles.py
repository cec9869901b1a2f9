"""Timed messages in a set of brokers: on the slave with the log, delivered by whoever is the master, once."""

from functools import partial

import pytest

from broker.registration import registrar as registrar_module
from broker.replication import slave as slave_module
from tests.broker.delivery.delay.test_roles import become_master, send
from tests.broker.replication.sets import SLAVE, broker, namesrv
from tests.support.waiting import until

SOON, LATER = "TIMER_DELAY_MS\x011\x02", "TIMER_DELAY_MS\x013000\x02"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "MASTERLESS_S", 0.02)
    monkeypatch.setattr(slave_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(slave_module, "MAX_PAUSE_S", 0.05)


async def test_a_promoted_slave_goes_on_where_its_log_ends() -> None:
    async with namesrv() as addr:
        common = {"namesrv_addr": addr, "timer_precision_ms": 100}
        async with (
            broker(**common, broker_role="SYNC_MASTER", total_replicas=2) as one,
            broker(**common, **SLAVE) as two,
        ):
            await until(partial(send, one, b"0", "", "W"), "the slave follows")
            assert await send(one, b"later", LATER)
            for number in range(5):
                assert await send(one, b"%d" % number, SOON)
            await one.has("T", 5)
            one.broker.role.demoted(2)
            await until(lambda: two.log_end == one.log_end, "the slave has all")
            await become_master(two)
            # This send makes the topic there, if the slave has not copied it from its master yet. It may be repeated.
            await until(partial(send, two, b"again", SOON), "the other one follows")

            async def later_came() -> bool:
                return b"later" in await two.bodies("T")

            await until(later_came, "what waited is delivered")
            await until(lambda: two.log_end == one.log_end, "the other one has all")
            for each in (one, two):
                found = [body for body in await each.bodies("T") if body != b"again"]
                assert sorted(found) == [b"0", b"1", b"2", b"3", b"4", b"later"]


async def test_a_broker_that_was_killed_delivers_what_was_due_meanwhile_once() -> None:
    async with broker(timer_precision_ms=100) as one:
        assert await send(one, b"a", SOON)
        await one.has("T", 1)
        assert await send(one, b"b", "TIMER_DELAY_MS\x01700\x02")
        fs = one.kill()
    async with broker(fs, timer_precision_ms=100) as again:
        assert await again.has("T", 2) == [b"a", b"b"]
