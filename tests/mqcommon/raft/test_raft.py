"""Single scenes of the paper and of the thesis; tests/sim/raft has random histories."""

from collections.abc import Callable

import pytest

from skylark.mqcommon.raft.errors import ChangeRefused, NotLeader, Overloaded
from skylark.mqcommon.raft.membership import AddLearner, Members, Promote, Remove
from skylark.mqcommon.raft.messages import (
    APPLICATION,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    RaftEntry,
    RaftMessage,
    Snapshot,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from skylark.mqcommon.raft.plausible import LAST_INDEX, LAST_TERM, MAX_INDEX_STEP, MAX_TERM_STEP
from skylark.mqcommon.raft.raft import Leader
from skylark.mqcommon.raft.ready import HardState
from tests.mqcommon.raft.hand import ELECTION_MS, Hand


def led(*names: str) -> Hand:
    """A group that the first of ``names`` leads."""
    hand = Hand(*names)
    hand.elect(names[0])
    assert hand[names[0]].is_leader
    return hand


def test_a_leader_is_elected_and_its_entries_are_applied_everywhere() -> None:
    hand = led("a", "b", "c")
    assert hand["a"].propose(b"x") == (2, 1)
    hand.deliver()
    assert hand.applied() == {"a": [b"x"], "b": [b"x"], "c": [b"x"]}
    assert [hand[name].leader for name in "abc"] == ["a", "a", "a"]


def test_followers_name_the_leader() -> None:
    hand = led("a", "b", "c")
    with pytest.raises(NotLeader, match="ask a") as refused:
        hand["b"].propose(b"x")
    assert refused.value.leader == "a"


def test_a_leader_that_is_gone_is_replaced_soon_and_one_that_others_hear_stays() -> None:
    hand = led("a", "b", "c")
    term = hand["a"].term
    hand["b"].unreachable("a")
    hand.tick("b", ELECTION_MS // 2)
    hand.deliver()
    # c has heard its leader lately, so it does not help to depose it.
    assert (hand["a"].is_leader, hand["b"].term) == (True, term)
    hand.heartbeat("a")
    hand.down.add("a")
    for name in "bc":
        hand[name].unreachable("a")
    hand.tick("b", ELECTION_MS // 2)
    hand.deliver()
    assert (hand["b"].is_leader, hand["c"].leader) == (True, "b")


def test_the_first_of_a_new_group_need_not_wait_for_a_leader() -> None:
    hand = Hand("a", "b", "c")
    hand["a"].stand_first()
    hand.tick("a", ELECTION_MS // 2)
    hand.deliver()
    assert (hand["a"].is_leader, hand["a"].term) == (True, 1)
    hand.crash("a")
    hand["a"].stand_first()
    hand.tick("a", ELECTION_MS // 2)
    hand.deliver()
    assert hand["a"].term == 1, "after a restart there may be a leader"


def test_votes_of_an_older_term_do_not_count() -> None:
    hand = Hand("a", "b", "c")
    hand.nodes["a"].hard_state = HardState(3, "")
    hand.crash("a")
    candidate = hand["a"]
    candidate.stand(pre=False)
    hand.nodes["a"].work()
    for term, is_leader in ((3, False), (4, True)):
        candidate.step(VoteResponse("b", "a", term, True))
        assert (candidate.term, isinstance(candidate.role, Leader)) == (4, is_leader)


def test_entries_of_older_terms_are_not_committed_by_counting() -> None:
    """Figure 8: an entry of an older term can be on a majority and still be replaced."""
    hand = Hand("s1", "s2", "s3", "s4", "s5")
    s1 = hand.nodes["s1"]
    s1.stored = [RaftEntry(1, 1, APPLICATION, b"1"), RaftEntry(2, 2, APPLICATION, b"2")]
    s1.hard_state = HardState(3, "")
    hand.crash("s1")
    leader = hand["s1"]
    leader.stand(pre=False)
    s1.work()
    for voter in ("s2", "s3"):
        leader.step(VoteResponse(voter, "s1", 4, True))
    s1.work()
    for follower in ("s2", "s3"):
        leader.step(AppendResponse(follower, "s1", 4, 2))
    assert leader.log.commit == 0
    for follower in ("s2", "s3"):
        leader.step(AppendResponse(follower, "s1", 4, 3))
    assert leader.log.commit == 3


def test_a_voter_does_not_elect_a_node_that_lacks_entries() -> None:
    hand = led("a", "b", "c")
    hand.down = {"c"}
    hand["a"].propose(b"x")
    hand.deliver()
    hand.down = {"a"}
    hand.elect("c")
    assert not hand["c"].is_leader
    hand.elect("b")
    assert hand["b"].is_leader
    assert hand["b"].log.last == 3


def test_a_vote_is_sent_when_it_is_on_disk() -> None:
    hand = Hand("a", "b", "c")
    voter = hand["b"]
    voter.step(VoteRequest("a", "b", 1, 0, 0))
    ready = voter.ready()
    assert ready.messages == ()
    assert ready.persist is not None and ready.persist.hard_state == HardState(1, "a")
    assert ready.persist.messages == (VoteResponse("b", "a", 1, True),)
    voter.step(VoteRequest("c", "b", 1, 0, 0))
    assert voter.ready().messages == ()  # the refusal, too, is of a term that is not on disk
    voter.persisted()
    assert voter.ready().messages == (VoteResponse("b", "c", 1, False),)


def test_a_node_that_was_cut_off_does_not_depose_the_leader() -> None:
    hand = led("a", "b", "c")
    hand.down = {"c"}
    for _ in range(5):
        hand.tick("c", 2 * ELECTION_MS)
    assert hand["c"].term == 1
    hand.now_ms = 0
    hand.down = set()
    hand.deliver()
    assert hand["a"].is_leader and hand["a"].term == 1


def test_a_leader_without_a_majority_gives_up() -> None:
    hand = led("a", "b", "c")
    hand.down = {"b", "c"}
    hand.tick("a", ELECTION_MS)
    hand.tick("a", ELECTION_MS)
    assert not hand["a"].is_leader


def test_an_entry_that_nobody_else_has_is_replaced() -> None:
    hand = led("a", "b", "c")
    hand.down = {"b", "c"}
    hand["a"].propose(b"lost")
    hand.deliver()
    hand.down = {"a"}
    hand.elect("b")
    hand["b"].propose(b"kept")
    hand.deliver()
    hand.down = set()
    hand.heartbeat("b")
    hand.heartbeat("b")
    assert hand.applied() == {"a": [b"kept"], "b": [b"kept"], "c": [b"kept"]}
    assert hand.nodes["a"].stored == hand.nodes["b"].stored


def test_a_read_waits_for_a_majority_that_still_follows() -> None:
    hand = led("a", "b", "c")
    hand.down = {"b", "c"}
    hand["a"].read_index("early")
    hand.deliver()
    assert hand.nodes["a"].reads == []
    # An answer to a heartbeat of before the read proves nothing.
    hand["a"].step(HeartbeatResponse("b", "a", 1, 0))
    hand.deliver()
    assert hand.nodes["a"].reads == []
    hand.down = {"c"}
    hand.heartbeat("a")
    assert [(read.context, read.index) for read in hand.nodes["a"].reads] == [("early", 1)]


def test_a_new_leader_answers_reads_when_it_knows_what_is_committed() -> None:
    hand = led("a", "b", "c")
    hand["a"].propose(b"x")
    hand.deliver(only=("a", "b"))
    hand.down = {"a"}
    hand.elect("b")
    hand["b"].read_index("r")
    hand.deliver()
    assert [read.index for read in hand.nodes["b"].reads] == [3]


def test_reads_of_a_deposed_leader_come_back() -> None:
    hand = led("a", "b", "c")
    hand.down = {"b", "c"}
    hand["a"].read_index("r")
    hand.deliver()
    hand["a"].step(Heartbeat("b", "a", 5, 0, 1))
    hand.deliver()
    assert [(read.context, read.index) for read in hand.nodes["a"].reads] == [("r", None)]


def test_a_learner_gets_everything_and_counts_for_nothing_until_it_is_promoted() -> None:
    hand = led("a", "b", "c")
    hand.add("d")
    hand["a"].propose(b"x")
    hand["a"].change(AddLearner("d", "d:1"))
    hand.deliver()
    assert hand.nodes["d"].applied == [b"x"]
    hand.down = {"b", "c"}
    hand["a"].propose(b"y")
    hand.deliver()
    assert hand.nodes["a"].applied == [b"x"]
    hand.down = set()
    hand.heartbeat("a")
    hand["a"].change(Promote("d"))
    hand.deliver()
    assert set(hand["d"].members.voters) == {"a", "b", "c", "d"}


def test_members_change_one_at_a_time() -> None:
    hand = led("a", "b", "c")
    hand["a"].change(AddLearner("d", ""))
    with pytest.raises(ChangeRefused, match="not committed yet"):
        hand["a"].change(Remove("b"))


def test_a_new_leader_does_not_change_members_before_it_committed() -> None:
    hand = Hand("a", "b", "c")
    hand["a"].stand(pre=False)
    hand.nodes["a"].work()
    hand["a"].step(VoteResponse("b", "a", 1, True))
    with pytest.raises(ChangeRefused, match="the leader is new"):
        hand["a"].change(Remove("b"))


def test_a_change_that_is_not_committed_goes_with_its_entry() -> None:
    hand = led("a", "b", "c")
    hand.down = {"b", "c"}
    hand["a"].change(Remove("c"))
    hand.deliver()
    assert set(hand["a"].members.voters) == {"a", "b"}
    hand.down = {"a"}
    hand.elect("b")
    hand.down = set()
    hand.heartbeat("b")
    hand.heartbeat("b")
    assert set(hand["a"].members.voters) == {"a", "b", "c"}


def test_a_learner_that_is_far_behind_is_not_promoted() -> None:
    hand = led("a")
    hand.add("d")
    hand["a"].change(AddLearner("d", ""))
    for _ in range(1500):
        hand["a"].propose(b"x")
    hand.down = {"d"}
    hand.deliver()
    with pytest.raises(ChangeRefused, match="lacks"):
        hand["a"].change(Promote("d"))


def test_a_leader_that_is_removed_gives_up_when_that_is_committed() -> None:
    hand = led("a", "b", "c")
    hand["a"].change(Remove("a"))
    hand.deliver()
    assert not hand["a"].is_leader
    hand.elect("b")
    assert hand["b"].is_leader and set(hand["b"].members.voters) == {"b", "c"}


def test_the_leadership_is_handed_over_without_a_timeout() -> None:
    hand = led("a", "b", "c")
    hand["a"].transfer("c")
    with pytest.raises(Overloaded, match="handed to c"):
        hand["a"].propose(b"x")
    hand.deliver()
    assert hand["c"].is_leader and hand["a"].leader == "c"


def test_a_candidate_to_which_the_leadership_is_handed_stands_at_once() -> None:
    hand = led("a", "b", "c")
    hand.down = {"a", "b"}
    hand.tick("c", 2 * ELECTION_MS)
    hand["c"].step(TimeoutNow("a", "c", 1))
    hand.down = set()
    hand.deliver()
    assert hand["c"].is_leader and hand["c"].term == 2


def test_a_transfer_to_a_node_that_is_away_is_given_up() -> None:
    hand = led("a", "b", "c")
    hand.down = {"c"}
    hand["a"].transfer("c")
    hand.deliver()
    for _ in range(ELECTION_MS // 10):
        hand.heartbeat("a")
    assert hand["a"].propose(b"x")


def test_a_follower_whose_entries_are_gone_gets_a_snapshot() -> None:
    hand = led("a", "b", "c")
    hand.down = {"c"}
    for number in range(20):
        hand["a"].propose(b"%d" % number)
        hand.deliver()
    hand["a"].compact(hand["a"].make_snapshot(15, b"state at 15"), 0)
    hand.down = set()
    hand.heartbeat("a")
    hand.heartbeat("a")
    assert hand.nodes["c"].applied == [b"state at 15", *(b"%d" % number for number in range(14, 20))]
    assert hand.nodes["c"].snapshot.index == 15


def test_a_snapshot_of_entries_that_are_here_takes_none_away() -> None:
    hand = led("a", "b", "c")
    hand.down = {"b"}
    for body in (b"x", b"y"):
        hand["a"].propose(body)
        hand.deliver(only={"c"})
    log = hand["c"].log
    assert (log.commit, log.last) == (1, 3)
    hand["c"].step(InstallSnapshot("a", "c", 1, Snapshot(2, 1, hand["a"].members, b"state")))
    assert (log.commit, log.last) == (2, 3)


def test_a_snapshot_of_before_what_is_committed_is_answered_with_the_commit() -> None:
    hand = led("a", "b", "c")
    hand["a"].propose(b"x")
    hand.deliver()
    log, commit = hand["c"].log, hand["a"].log.commit
    hand.heartbeat("a")
    assert log.commit == commit > 1
    hand["c"].step(InstallSnapshot("a", "c", 1, Snapshot(1, 1, hand["a"].members, b"state")))
    answers = [message for message in hand.nodes["c"].work() if isinstance(message, AppendResponse)]
    assert [answer.index for answer in answers] == [commit] and log.last == commit


def test_a_follower_whose_snapshot_is_lost_is_asked_again() -> None:
    hand = led("a", "b", "c")
    hand.down = {"c"}
    for number in range(20):
        hand["a"].propose(b"%d" % number)
        hand.deliver()
    hand["a"].compact(hand["a"].make_snapshot(15, b"state at 15"), 0)
    hand.down, hand.loses = set(), (InstallSnapshot,)
    hand.heartbeat("a")
    hand.heartbeat("a")
    hand.loses = ()
    hand.heartbeat("a")
    assert hand.nodes["c"].applied == []
    for _ in range(5 * ELECTION_MS // 10):
        hand.heartbeat("a")
    assert hand.nodes["c"].applied == [b"state at 15", *(b"%d" % number for number in range(14, 20))]


def test_requests_are_sent_ahead_of_their_answers_and_bounded() -> None:
    hand = led("a", "b")
    for _ in range(100):
        hand["a"].propose(bytes(1 << 19))
    messages = hand.nodes["a"].raft.ready().messages
    requests = [message for message in messages if isinstance(message, AppendRequest)]
    assert len(requests) > 4
    assert sum(len(entry.data) for request in requests for entry in request.entries) <= 9 << 20


def test_more_than_the_limit_is_not_taken() -> None:
    hand = led("a", "b")
    with pytest.raises(Overloaded, match="wait to be committed"):
        for _ in range(100):
            hand["a"].propose(bytes(1 << 20))


@pytest.mark.parametrize("ahead", [MAX_TERM_STEP + 1, LAST_TERM, (1 << 63) - 1])
@pytest.mark.parametrize(
    "forged",
    [
        lambda term: Heartbeat("b", "a", term, 0, 0),
        lambda term: AppendRequest("b", "a", term, 0, 0, (), 0),
        lambda term: InstallSnapshot("b", "a", term, Snapshot(9, 9, Members({}), b"")),
        lambda term: VoteRequest("b", "a", term, 9, 9, False, True),
        lambda term: VoteResponse("b", "a", term, False, False),
        lambda term: TimeoutNow("b", "a", term),
    ],
)
def test_an_absurd_term_changes_nothing(forged: Callable[[int], RaftMessage], ahead: int) -> None:
    hand = led("a", "b", "c")
    term = hand["a"].term
    message = forged(min(term + ahead, (1 << 63) - 1))
    hand["a"].step(message)
    hand.deliver()
    absurd = hand["a"].absurd
    assert absurd is not None and absurd.message == message
    assert (hand["a"].term, hand["a"].is_leader) == (term, True)
    hand["a"].propose(b"goes on")
    hand.deliver()
    assert hand.nodes["c"].applied == [b"goes on"]


FAR = (1 << 63) - 1


@pytest.mark.parametrize(
    "forged",
    [
        lambda term, last: AppendRequest("a", "c", term, last, term, (RaftEntry(last + 1, FAR, APPLICATION, b"x"),), 0),
        lambda term, last: AppendRequest("a", "c", term, last, term, (RaftEntry(FAR, term, APPLICATION, b"x"),), 0),
        lambda term, last: AppendRequest("a", "c", term, last, term, (RaftEntry(last + 1, 0, APPLICATION, b"x"),), 0),
        lambda term, last: AppendRequest("a", "c", term, FAR, term, (), 0),
        lambda term, last: AppendRequest("a", "c", term, last, FAR, (), 0),
        lambda term, last: AppendRequest("a", "c", term, last, term, (), last + MAX_INDEX_STEP + 1),
        lambda term, last: Heartbeat("a", "c", term, FAR, 1),
        lambda term, last: Heartbeat("a", "c", term, LAST_INDEX + 1, 1),
        lambda term, last: InstallSnapshot("a", "c", term, Snapshot(FAR, term, Members({"c": "c"}), b"")),
        lambda term, last: InstallSnapshot("a", "c", term, Snapshot(last + 5, FAR, Members({"c": "c"}), b"")),
        lambda term, last: VoteRequest("b", "c", term + 1, FAR, term, False, True),
        lambda term, last: VoteRequest("b", "c", term + 1, last, FAR, False, True),
        lambda term, last: VoteRequest("b", "c", term + 1, last, term + 2, False, True),
    ],
)
def test_an_absurd_number_in_a_message_locks_nobody_out(forged: Callable[[int, int], RaftMessage]) -> None:
    hand = led("a", "b", "c")
    follower = hand["c"]
    last = follower.log.last
    message = forged(hand["a"].term, last)
    follower.step(message)
    hand.deliver()
    assert follower.absurd is not None and follower.absurd.message == message
    assert (follower.log.last, follower.log.last_term, follower.term) == (last, hand["a"].term, hand["a"].term)
    hand["a"].propose(b"goes on")
    hand.deliver()
    assert hand.nodes["c"].applied == [b"goes on"]
    # Its vote is free for the others, too.
    hand.down.add("a")
    hand.elect("b", only=("b", "c"))
    assert hand["b"].is_leader


@pytest.mark.parametrize(
    "forged",
    [
        lambda term: AppendResponse("c", "a", term, FAR),
        lambda term: AppendResponse("c", "a", term, 1000),
        lambda term: AppendResponse("c", "a", term, 1, True, FAR, term),
        lambda term: AppendResponse("c", "a", term, 1, True, 1, FAR),
        lambda term: HeartbeatResponse("c", "a", term, FAR),
    ],
)
def test_a_forged_answer_does_not_end_the_replication_to_a_member(forged: Callable[[int], RaftMessage]) -> None:
    hand = led("a", "b", "c")
    leader = hand["a"]
    message = forged(leader.term)
    leader.step(message)
    assert leader.absurd is not None and leader.absurd.message == message
    hand["a"].propose(b"goes on")
    hand.deliver()
    assert hand.nodes["c"].applied == [b"goes on"]


def test_a_node_that_was_cut_off_for_years_comes_back() -> None:
    hand = led("a", "b", "c")
    hand.down.add("c")
    for name in ("a", "b"):
        node = hand.nodes[name]
        node.hard_state = HardState(node.hard_state.term + MAX_TERM_STEP - 2, "")
        hand.crash(name)
    hand.elect("b", only=("a", "b"))
    hand.down.clear()
    hand.heartbeat("b")
    assert hand["c"].term == hand["b"].term and hand["c"].leader == "b"


def test_a_new_node_takes_the_term_of_its_group_whatever_it_is() -> None:
    hand = led("a", "b")
    hand.nodes["a"].hard_state = HardState(4 * MAX_TERM_STEP, "")
    hand.nodes["b"].hard_state = HardState(4 * MAX_TERM_STEP, "")
    hand.crash("a")
    hand.crash("b")
    hand.elect("a")
    hand.add("d")
    hand["d"].step(Heartbeat("a", "d", hand["a"].term, 0, 0))
    assert hand["d"].term == hand["a"].term
