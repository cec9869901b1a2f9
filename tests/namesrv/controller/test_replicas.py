"""The state of the Controllers: what brokers may change, whatever they ask in whatever order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skylark.mqcommon.errors import ProtocolError
from skylark.namesrv.controller import replicas as replicas_module
from skylark.namesrv.controller.commands import (
    VERSION,
    AlterSyncStateSet,
    ApplyBrokerId,
    Candidate,
    Change,
    CleanBrokerData,
    ElectMaster,
    RegisterBroker,
    decode_change,
    encode_change,
)
from skylark.namesrv.controller.replicas import BrokerSet, ChangeOutcome, Replicas
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.strict_cbor import dumps

NAME = "broker-a"
IDS = st.integers(1, 4)
SOME_IDS = st.lists(IDS, unique=True, max_size=4).map(tuple)
CANDIDATES = st.lists(
    st.builds(Candidate, IDS, st.integers(-1, 3), st.integers(0, 100), st.integers(0, 2)),
    unique_by=lambda each: each.broker_id,
    max_size=4,
).map(tuple)


class Sets(RuleBasedStateMachine):
    """Two Controllers apply the same entries; one of them comes from a snapshot now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = Replicas()
        self.follower = Replicas()
        self.masters: dict[int, int] = {}  # by epoch

    @property
    def known(self) -> BrokerSet:
        return self.replicas.sets.get(NAME) or BrokerSet("c", NAME)

    def do(self, change: Change) -> ChangeOutcome:
        data = encode_change(change)
        assert decode_change(data) == change
        before = self.known
        outcome = self.replicas.apply(0, data)
        assert self.follower.apply(0, data) == outcome
        after = self.known
        if outcome.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE):
            assert after == before
        if not isinstance(change, ElectMaster | CleanBrokerData):
            assert (after.master, after.master_epoch) == (before.master, before.master_epoch)
        # A set without replicas is forgotten, its epochs, too.
        if after.replicas and after.sync_state_set != before.sync_state_set:
            assert after.sync_state_set_epoch == before.sync_state_set_epoch + 1
        return outcome

    @rule(broker_id=IDS, code=st.sampled_from(["a", "b"]))
    def claim(self, broker_id: int, code: str) -> None:
        before = self.known
        outcome = self.do(ApplyBrokerId("c", NAME, broker_id, f"{code}{broker_id}"))
        if outcome.code == ResponseCode.SUCCESS:
            assert self.known.replicas[broker_id].check_code == f"{code}{broker_id}"
            assert broker_id == before.next_id or before.replicas[broker_id].check_code == f"{code}{broker_id}"

    @rule(broker_id=IDS)
    def register(self, broker_id: int) -> None:
        known = broker_id in self.known.replicas
        assert (self.do(RegisterBroker(NAME, broker_id, f"ip:{broker_id}")).code == ResponseCode.SUCCESS) == known

    @rule(master=IDS, new_set=SOME_IDS, alive=SOME_IDS, epoch_off=st.integers(-1, 1), set_off=st.integers(-1, 1))
    def alter(
        self, master: int, new_set: tuple[int, ...], alive: tuple[int, ...], epoch_off: int, set_off: int
    ) -> None:
        before = self.known
        change = AlterSyncStateSet(
            NAME, master, before.master_epoch + epoch_off, new_set, before.sync_state_set_epoch + set_off, alive
        )
        if self.do(change).code == ResponseCode.SUCCESS:
            assert master == before.master
            assert epoch_off == set_off == 0
            assert master in new_set
            assert set(new_set) <= set(before.replicas)
            assert set(new_set) - before.sync_state_set <= set(alive)

    @rule(new_set=SOME_IDS, alive=SOME_IDS, epochs_off=st.sampled_from([(0, 0), (0, 0), (-1, 0), (0, -1)]))
    def alter_as_the_master(
        self, new_set: tuple[int, ...], alive: tuple[int, ...], epochs_off: tuple[int, int]
    ) -> None:
        known = self.known
        if known.master is not None:
            self.alter(known.master, tuple(sorted({known.master, *new_set})), alive, *epochs_off)

    @rule(broker_id=st.none() | IDS, designated=st.booleans(), candidates=CANDIDATES, unclean=st.booleans())
    def elect(self, broker_id: int | None, designated: bool, candidates: tuple[Candidate, ...], unclean: bool) -> None:
        before = self.known
        outcome = self.do(ElectMaster(NAME, broker_id, designated and broker_id is not None, candidates, unclean))
        after = self.known
        if outcome.code != ResponseCode.SUCCESS:
            assert after.master in (before.master, None)
            return
        assert after.master_epoch == before.master_epoch + 1
        assert after.master is not None
        assert after.sync_state_set == {after.master}
        assert after.master in before.sync_state_set or not before.master_epoch or unclean
        assert outcome.is_unclean == (bool(before.sync_state_set) and after.master not in before.sync_state_set)
        assert after.master_epoch not in self.masters
        self.masters[after.master_epoch] = after.master

    @rule(broker_ids=SOME_IDS, alive=SOME_IDS, even_living=st.booleans())
    def clean(self, broker_ids: tuple[int, ...], alive: tuple[int, ...], even_living: bool) -> None:
        before = self.known
        if self.do(CleanBrokerData(NAME, broker_ids, alive, even_living)).code == ResponseCode.SUCCESS:
            gone = set(before.replicas) - set(self.known.replicas)
            assert gone == (set(broker_ids) or set(before.replicas))
            assert even_living or not gone & set(alive)
            if NAME not in self.replicas.sets:
                self.masters.clear()  # another set under the same name

    @rule()
    def follower_takes_a_snapshot(self) -> None:
        self.follower = Replicas()
        self.follower.restore(self.replicas.snapshot())

    @invariant()
    def all_controllers_agree(self) -> None:
        assert self.follower.sets == self.replicas.sets

    @invariant()
    def a_set_is_sound(self) -> None:
        known = self.known
        assert known.sync_state_set <= set(known.replicas)
        assert known.master is None or known.master in known.sync_state_set
        assert all(each < known.next_id for each in known.replicas)
        if known.master is not None:
            assert self.masters[known.master_epoch] == known.master


TestSets = Sets.TestCase
TestSets.settings = settings(stateful_step_count=30)


@pytest.fixture
def replicas() -> Replicas:
    """A set of two replicas, the first of which leads with both in the SyncStateSet."""
    found = Replicas()
    for change in (
        ApplyBrokerId("c", NAME, 1, "a1"),
        RegisterBroker(NAME, 1, "ip:1"),
        ApplyBrokerId("c", NAME, 2, "a2"),
        RegisterBroker(NAME, 2, "ip:2"),
        ElectMaster(NAME, 1, False, (Candidate(1),), False),
        AlterSyncStateSet(NAME, 1, 1, (1, 2), 1, (1, 2)),
    ):
        assert found.change(change).code == ResponseCode.SUCCESS
    return found


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (ApplyBrokerId("other", NAME, 3, "a3"), ResponseCode.CONTROLLER_BROKER_ID_INVALID, "belongs to cluster c"),
        (ApplyBrokerId("c", NAME, 3, "a3"), ResponseCode.CONTROLLER_BROKER_ID_INVALID, "sets of 2 replicas"),
        (
            AlterSyncStateSet(NAME, 2, 1, (2,), 2, (1, 2)),
            ResponseCode.CONTROLLER_INVALID_MASTER, "the current leader is:{1}, not {2}",
        ),
        (
            AlterSyncStateSet(NAME, 1, 0, (1,), 2, (1, 2)),
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, "master epoch is:{1}, not {0}",
        ),
        (
            AlterSyncStateSet(NAME, 1, 1, (1,), 1, (1, 2)),
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, "syncStateSet epoch is:{2}, not {1}",
        ),
        (
            AlterSyncStateSet(NAME, 1, 1, (2,), 2, (1, 2)),
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "don't contains origin leader {1}",
        ),
    ],
)  # fmt: skip
def test_a_change_that_the_set_does_not_allow_is_refused_with_the_reason(
    replicas: Replicas, change: Change, code: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas_module, "MAX_REPLICAS", 2)
    before = replicas.sets[NAME]
    outcome = replicas.change(change)
    assert outcome.code == code and text in (outcome.remark or "")
    assert replicas.sets[NAME] == outcome.broker_set == before


@pytest.mark.parametrize(("version", "kind"), [(VERSION + 1, 0), (VERSION, 99)])
def test_an_entry_of_a_later_version_is_refused_with_what_to_do(version: int, kind: int) -> None:
    with pytest.raises(ProtocolError, match="run the newer Skylark on all Controllers"):
        decode_change(dumps([version, kind, "c", NAME, 1, "a1"]))
