"""The state of the Controllers: what brokers may change, whatever they ask in whatever order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skylark.namesrv.controller.commands import (
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
