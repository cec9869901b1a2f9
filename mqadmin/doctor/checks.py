"""The checks of `mqadmin doctor`, and the list of them in the order in which they are shown. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from skylark.mqadmin.doctor.facts import (
    FAIL,
    INFO,
    OK,
    WARN,
    BrokerFacts,
    Check,
    Facts,
    Finding,
    NameServerFacts,
    ReplicaSetFacts,
    few,
)
from skylark.mqcommon.addresses import split_address
from skylark.remoting.protocol.group_subscriptions import differences

# brokerStatus has the time to the second. Synchronised clocks differ by milliseconds.
MAX_SKEW_MS = 2_000
# From this difference on, times of messages, retention and delays are plainly wrong.
WRONG_CLOCK_MS = 60_000
_RUNTIME = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_LOCAL = ("127.", "0.0.0.0", "::1", "::", "localhost")
# With fewer open files, a broker maps fewer queue files than usual.
FEW_OPEN_FILES = 8_192
# A broker's container is about to be killed, and a disk is slow, or does not work, from these values on.
SHORT_MEMORY_PERCENT = 90
SLOW_FLUSH_MS = 1_000
STUCK_FLUSH_MS = 10_000
# A bucket that did not answer for this long needs somebody who looks after it.
BUCKET_AWAY_MINUTES = 15
# scrubCycleDays of a broker whose options are not known.
SCRUB_DAYS = 14
MIB = 1024 * 1024
MAX_LAG_BYTES = 16 * 1024 * 1024
MAX_LAG_MS = 10_000
_AWAY = "slaveAwayMs_"
_GROUP_PROBLEM = "dledgerProblem"
_COPY_PROBLEM = "copiedLogProblem"
# A group whose oldest waiting message is older than this is warned about.
MAX_DELAY_MS = 10 * 60_000
DAY_MS = 24 * 3600 * 1000
SOON_DAYS = 30


# --- NameServers: each answers, all agree, and no two brokers have the same name and id


def name_servers_answer(facts: Facts) -> Iterator[Finding]:
    """Every NameServer answers. While two NameServers answer, clients and brokers survive the loss of one more."""
    alive = sum(one.error is None or one.refused for one in facts.name_servers)
    for one in facts.name_servers:
        if one.error is None:
            yield Finding(OK, one.addr, f"answers, and knows {len(one.brokers)} broker names, {len(one.topics)} topics")
        elif one.refused:
            yield Finding(WARN, one.addr, one.error)
        else:
            text = f"{one.error}; {alive} of {len(facts.name_servers)} are left" if alive else one.error
            remedy = "start it, or take it out of namesrvAddr of brokers and clients"
            yield Finding(WARN if alive > 1 else FAIL, one.addr, text, remedy)


def name_servers_agree(facts: Facts) -> Iterator[Finding]:
    """All NameServers know the same brokers and topics: each client asks only one NameServer."""
    answering = [one for one in facts.name_servers if one.error is None]
    known_by = Counter(address for one in answering for address in _addresses(one))
    topics = {topic for one in answering for topic in one.topics}
    yield from _split(answering)
    for one in answering:
        if missing := known_by.keys() - _addresses(one):
            remedy = "give these brokers all NameServers in namesrvAddr; look at their logs for failed registrations"
            alone = [address for address in missing if known_by[address] == 1]
            text = f"does not know these brokers, others do: {few(missing)}"
            if alone:
                text += f"; only one NameServer knows {few(alone)}"
            yield Finding(FAIL if alone else WARN, one.addr, text, remedy)
        elif absent := topics - one.topics:
            yield Finding(
                WARN,
                one.addr,
                f"does not know these topics, others do: {few(absent)}",
                "wait for the brokers' next registration (30 s); delete topics with mqadmin deleteTopic at all of them",
            )
        elif len(answering) > 1:
            yield Finding(OK, one.addr, "knows what the others know")


def _split(answering: list[NameServerFacts]) -> Iterator[Finding]:
    """NameServers that have different addresses for one broker send clients to different brokers."""
    addrs: dict[tuple[str, int], dict[str, list[str]]] = {}
    for one in answering:
        for name, by_id in one.brokers.items():
            for broker_id, addr in by_id.items():
                addrs.setdefault((name, broker_id), {}).setdefault(addr, []).append(one.addr)
    for (name, broker_id), by_addr in sorted(addrs.items()):
        if len(by_addr) > 1:
            text = "; ".join(f"{addr} by {few(servers)}" for addr, servers in sorted(by_addr.items()))
            yield Finding(
                FAIL,
                f"{name}:{broker_id}",
                f"known at different addresses: {text}",
                "stop the broker that does not belong there; restart the NameServer that has an old address",
            )


def brokers_are_here(facts: Facts) -> Iterator[Finding]:
    """No broker that NameServers know is away: an absent broker's messages cannot be read."""
    absent = {name: reason for one in facts.name_servers for name, reason in one.absent.items()}
    for name, reason in sorted(absent.items()):
        yield Finding(
            WARN, name, f"is away: {reason}", f"start it; if it is gone for good: mqadmin forgetBroker -b {name}"
        )


def ids_are_unique(facts: Facts) -> Iterator[Finding]:
    """No two brokers share a name and an id."""
    seen = set()
    for one in facts.name_servers:
        for name, addrs in one.contested.items():
            for broker_id, rival in addrs.items():
                addr = one.brokers.get(name, {}).get(broker_id, "?")
                seen.add((f"{name}:{broker_id}", addr, rival))
    for where, addr, rival in sorted(seen):
        yield Finding(
            FAIL,
            where,
            f"registered from {addr} and from {rival}",
            "stop one of them, or give it another brokerName or brokerId",
        )


def registrations_are_guarded(facts: Facts) -> Iterator[Finding]:
    """No stranger can register a broker beside guarded brokers: clients and tools would send it signed requests."""
    guarded = [one.where for one in facts.brokers if one.has_access_control]
    for one in facts.name_servers:
        if not guarded or one.error is not None:
            continue
        if one.is_guarded:
            yield Finding(OK, one.addr, "takes registrations only from users that its conf file names")
        else:
            yield Finding(
                FAIL,
                one.addr,
                f"anybody may register brokers here, while these have access control: {few(guarded)}",
                "set registrationUsers in its conf file (docs/operate/security-cluster.md), and restart it",
            )


def _addresses(one: NameServerFacts) -> set[str]:
    return {
        _registration(name, broker_id, addr) for name, by_id in one.brokers.items() for broker_id, addr in by_id.items()
    }


def _registration(name: str, broker_id: int, addr: str) -> str:
    return f"{name}:{broker_id} {addr}"


# --- single brokers


def brokers_answer(facts: Facts) -> Iterator[Finding]:
    """Every broker answers at the address that NameServers give to clients."""
    if not facts.brokers and any(one.error is None for one in facts.name_servers):
        yield Finding(
            WARN, "cluster", "no broker is registered", "start a broker with namesrvAddr of these NameServers"
        )
    for broker in facts.brokers:
        if broker.error is None:
            yield Finding(OK, broker.where, f"answers within {broker.took_ms} ms")
        elif broker.refused:
            yield Finding(WARN, broker.where, broker.error)
        else:
            remedy = "start it, or open its port to this machine; is the address wrong, set its brokerIP1"
            left = [other for other in facts.sets[broker.name] if other.error is None or other.refused]
            # The set still has a master, and survives the loss of one more broker.
            is_safe = len(left) > 1 and any(other.is_master for other in left)
            text = f"{broker.error}; {len(left)} of its set are left" if left else broker.error
            yield Finding(WARN if is_safe else FAIL, broker.where, text, remedy)


def addresses_are_usable(facts: Facts) -> Iterator[Finding]:
    """Brokers are known by addresses that other machines can use."""
    remote = [one.addr for one in facts.name_servers if not _is_local(one.addr)]
    for broker in facts.brokers:
        if _is_local(broker.addr) and remote:
            yield Finding(
                FAIL,
                broker.where,
                "every machine reaches only itself at this address",
                "set brokerIP1 to the address at which clients reach the broker's machine",
            )


def ports_are_open(facts: Facts) -> Iterator[Finding]:
    """The fast port and the port for slaves can be reached."""
    needs = {
        "fast": "RocketMQ's slaves and clients with VIP channels need it; open it, or set fastListenPort=0",
        "DLedger": "the others of its group need it: open it between them; from here it need not be reachable",
        "HA": "slaves need it: open it between the brokers of the set; from here it need not be reachable",
    }
    for broker in facts.answering:
        for port in broker.ports:
            if port.error is None:
                yield Finding(OK, broker.where, f"{port.kind} port {port.addr} is open")
            else:
                yield Finding(WARN, broker.where, f"{port.kind} port {port.addr}: {port.error}", needs[port.kind])


def clocks_agree(facts: Facts) -> Iterator[Finding]:
    """The clocks of brokers agree with this machine's clock."""
    for broker in facts.answering:
        skew_ms = clock_skew_ms(broker)
        if skew_ms is None:
            yield Finding(INFO, broker.where, "does not tell the time")
        elif abs(skew_ms) <= MAX_SKEW_MS:
            yield Finding(OK, broker.where, "has the same time as this machine, to the second")
        else:
            direction = "ahead of" if skew_ms > 0 else "behind"
            state = FAIL if abs(skew_ms) > WRONG_CLOCK_MS else WARN
            yield Finding(
                state,
                broker.where,
                f"its clock is {abs(skew_ms) / 1000:.0f} s {direction} this machine's clock",
                "synchronise the clocks of all machines (NTP): delays, retention and store times depend on them",
            )
        yield from _went_back(broker)


def _went_back(broker: BrokerFacts) -> Iterator[Finding]:
    """Findings when the broker has seen its clock set back."""
    ahead_ms, times = (_number(broker.info.get(key)) or 0 for key in ("storeTimeAheadMs", "clockSetBackTimes"))
    by_s = (_number(broker.info.get("clockSetBackMs")) or 0) / 1000
    if ahead_ms > MAX_SKEW_MS:
        yield Finding(
            WARN,
            broker.where,
            f"its clock was set back: store times are {ahead_ms / 1000:,.0f} s ahead of it",
            "correct the clock if it is wrong. Until it has caught up, new messages get the store time of the last one,"
            " so a search by time does not find them",
        )
    if times:
        yield Finding(
            INFO,
            broker.where,
            f"its clock went back {times} times since the start, by {by_s:,.1f} s in all",
            "let NTP slew the clock while brokers run, and step it only when the machine boots",
        )


def clock_skew_ms(broker: BrokerFacts) -> int | None:
    """How far the broker's clock is ahead of this machine's; 0 if the precision of the answer (a second) explains it.

    The broker's time is the sum of bootTimestamp and runtime, which all RocketMQ brokers report.
    """
    boot, runtime = broker.info.get("bootTimestamp", ""), _RUNTIME.fullmatch(broker.info.get("runtime", ""))
    if not boot.isdecimal() or runtime is None:
        return None
    days, hours, minutes, seconds = map(int, runtime.groups())
    now_ms = int(boot) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    # The broker's time is at most a second later than this sum, and was measured within half a round trip.
    early, late = now_ms - broker.took_ms // 2, now_ms + 1_000 + broker.took_ms // 2
    if early <= broker.asked_ms <= late:
        return 0
    return early - broker.asked_ms if early > broker.asked_ms else late - broker.asked_ms


def versions_are_equal(facts: Facts) -> Iterator[Finding]:
    """All brokers have the same version."""
    found: dict[str, list[str]] = {}
    for broker in facts.answering:
        found.setdefault(broker.info.get("brokerVersionDesc", "unknown"), []).append(broker.where)
    if len(found) == 1:
        yield Finding(OK, "cluster", f"all brokers have version {next(iter(found))}")
    elif found:
        text = "; ".join(f"{version}: {few(names)}" for version, names in sorted(found.items()))
        yield Finding(WARN, "cluster", f"brokers have different versions: {text}", "update the older ones")


def disks_have_space(facts: Facts) -> Iterator[Finding]:
    """The disks of brokers have room for messages."""
    for broker in facts.answering:
        try:
            used = round(float(broker.info.get("commitLogDiskRatio", "")) * 100)
        except (ValueError, OverflowError):
            yield Finding(INFO, broker.where, "does not tell how full its disk is")
            continue
        text = f"{used} % of the disk is used"
        refused, early = broker.percent("diskSpaceWarningLevelRatio", 90), broker.percent("diskMaxUsedSpaceRatio", 75)
        if used >= refused:
            yield Finding(FAIL, broker.where, f"{text}: sends are refused", "make room, or lower fileReservedTime")
        elif used >= early:
            remedy = "make room, or lower fileReservedTime; messages are deleted early from here on"
            yield Finding(WARN, broker.where, text, remedy)
        else:
            yield Finding(OK, broker.where, text)


def open_files_suffice(facts: Facts) -> Iterator[Finding]:
    """The limit of open files leaves room for connections and for the files of many queues."""
    for broker in facts.answering:
        limit = _number(broker.info.get("openFilesLimit"))
        if limit is None:
            continue
        maps = _number(broker.info.get("mostMappedQueueFiles")) or 0
        text = f"may have {limit:,} open files, {maps:,} of them for queues"
        if limit < FEW_OPEN_FILES:
            remedy = (
                f"raise ulimit -n (systemd: LimitNOFILE) to {FEW_OPEN_FILES:,} or more: reads of more queues than that"
                " are slower, and connections get half of the limit"
            )
            yield Finding(WARN, broker.where, text, remedy)
        else:
            yield Finding(OK, broker.where, text)


def memory_suffices(facts: Facts) -> Iterator[Finding]:
    """The memory that brokers may have, by the limits of their containers, is not used up."""
    for broker in facts.answering:
        limit, used = (_number(broker.info.get(key)) for key in ("memoryLimit", "memoryUsed"))
        if not limit or used is None:
            continue
        percent = 100 * used // limit
        text = f"uses {percent} % of the memory that it may have, {limit // MIB:,} MiB"
        if percent >= SHORT_MEMORY_PERCENT:
            remedy = (
                "raise the limit of its container, or lower maxBufferedBytes and maxConnections: at the limit the"
                " kernel kills the broker"
            )
            yield Finding(FAIL, broker.where, text, remedy)
        else:
            yield Finding(OK, broker.where, text)


def disks_are_fast(facts: Facts) -> Iterator[Finding]:
    """No disk takes longer than a second for an fsync: sends that wait for the disk would time out."""
    for broker in facts.answering:
        slowest_ms = _number(broker.info.get("slowestFlushMs"))
        if slowest_ms is None:
            continue
        text = f"its slowest fsync of the last minutes took {slowest_ms / 1000:,.1f} s"
        if slowest_ms < SLOW_FLUSH_MS:
            yield Finding(OK, broker.where, text)
        else:
            remedy = "look for other programs that write to its disk (iostat -x), and for errors of the disk (dmesg)"
            yield Finding(FAIL if slowest_ms >= STUCK_FLUSH_MS else WARN, broker.where, text, remedy)


def stores_are_sound(facts: Facts) -> Iterator[Finding]:
    """No block of a log is damaged, no disk damages block after block, and each store was read as a whole lately."""
    for broker in facts.answering:
        damaged = _number(broker.info.get("blocksDamaged"))
        if damaged is None:
            continue  # RocketMQ's, or an older Skylark
        bad = _number(broker.info.get("badBlocksInCycle")) or 0
        disk = "its SMART values (smartctl -a) and the kernel's log (dmesg)"
        if broker.info.get("diskIsFailing") == "true":
            text = f"its disk has damaged {bad} blocks of the log since its scrub began"
            remedy = f"look at {disk}; replace the disk, and let the broker copy its store from another one of its set"
            yield Finding(FAIL, broker.where, text, remedy)
        elif damaged:
            text = f"damaged blocks of its log: {damaged}; no other broker could say what they should be"
            remedy = (
                "start the other brokers of its set; mqadmin scrub --status names the places, docs/operate/disk-lies.md"
                " says more"
            )
            yield Finding(FAIL, broker.where, text, remedy)
        elif bad:
            text = f"blocks of the log that its disk has damaged since its scrub began: {bad}; all are repaired"
            yield Finding(WARN, broker.where, text, f"look at {disk}: if it happens again, replace the disk")
        elif lost := _number(broker.info.get("sumFilesLost")):
            text = f"files of block sums that were gone or damaged at its start, and are not made again yet: {lost}"
            remedy = "have its scrub make them again: mqadmin scrub --now; and see what has removed or changed them"
            yield Finding(WARN, broker.where, text, remedy)
        else:
            yield _last_scrub(broker, facts.now_ms)


def _last_scrub(broker: BrokerFacts, now_ms: int) -> Finding:
    if broker.config.get("scrubEnable") == "false":
        text = "it does not read its store by itself, so damage is found when somebody needs the bytes (scrubEnable)"
        return Finding(INFO, broker.where, text)
    last_ms = _number(broker.info.get("lastScrubEndMs"))
    since_ms = last_ms or _number(broker.info.get("bootTimestamp")) or now_ms
    days = _number(broker.config.get("scrubCycleDays")) or SCRUB_DAYS
    if now_ms - since_ms > 2 * days * DAY_MS:
        text = f"its store was not read as a whole for {(now_ms - since_ms) // DAY_MS} days; scrubCycleDays is {days}"
        remedy = "its disk is too busy: run mqadmin scrub --now when there is less to do, or raise scrubCycleDays"
        return Finding(WARN, broker.where, text, remedy)
    text = "no damage of its store is known" + ("" if last_ms else ", but no scrub has ended yet")
    return Finding(OK, broker.where, text)


def buckets_take_files(facts: Facts) -> Iterator[Finding]:
    """Each set with tiered storage has one broker that writes to its bucket, and can."""
    sets: dict[str, list[BrokerFacts]] = {}
    for broker in facts.answering:
        if broker.info.get("tierRole"):
            sets.setdefault(broker.name, []).append(broker)
        if broker.info.get("tierProblem"):
            yield _bucket_problem(broker, facts.now_ms)
        elif skipped := _number(broker.info.get("tierSkippedMessages")):
            text = f"messages in its bucket that are damaged, and that readers have skipped since its start: {skipped}"
            remedy = "run mqadmin tierVerify --full; bring the objects back from their versions or a copy of the bucket"
            yield Finding(WARN, broker.where, text, remedy)
        elif broker.info.get("tierRole"):
            behind = (_number(broker.info.get("tierBehindBytes")) or 0) // MIB
            stored = (_number(broker.info.get("tierStoredBytes")) or 0) // MIB
            text = f"its bucket has {stored:,} MiB, {behind:,} MiB of full files are not there yet"
            yield Finding(OK, broker.where, text)
    for broker in facts.answering:
        # Only a broker of Skylark has blocksDamaged.
        if broker.name in sets and "tierRole" not in broker.info and "blocksDamaged" in broker.info:
            text = "it has no tierPath, and others of its set have: as the master it would upload nothing"
            yield Finding(WARN, broker.where, text, "give all brokers of the set the same tierPath")
    for name, brokers in sets.items():
        paths = {broker.info.get("tierPath", "") for broker in brokers}
        if len(paths) > 1:
            text = f"its brokers have different buckets: {few(sorted(paths))}"
            yield Finding(FAIL, name, text, "give all brokers of the set the same tierPath")


def _bucket_problem(broker: BrokerFacts, now_ms: int) -> Finding:
    since_ms = _number(broker.info.get("tierProblemSinceMs")) or now_ms
    minutes = max(now_ms - since_ms, 0) // 60_000
    text = f"nothing goes to its bucket for {minutes:,} minutes: {broker.info.get('tierProblem')}"
    remedy = (
        "docs/operate/tiered.md says what to do; no message is lost, but files that are not in the bucket stay on the"
        " disk until it is full, and then sends are refused"
    )
    must_act = broker.info.get("tierRole") == "STOPPED" or broker.info.get("tierRetryInMs", "").startswith("-")
    return Finding(FAIL if must_act or minutes >= BUCKET_AWAY_MINUTES else WARN, broker.where, text, remedy)


def settings_are_safe(facts: Facts) -> Iterator[Finding]:
    """Settings that may lose messages, as INFO: they may be intended. Brokers with the same setting share a finding."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for broker in facts.answering:
        for setting in _risks(broker):
            found.setdefault(setting, []).append(f"{broker.name}:{broker.broker_id}")
    for (state, text, remedy), names in found.items():
        yield Finding(state, few(names), text, remedy)


def _risks(broker: BrokerFacts) -> Iterator[tuple[str, str, str]]:
    config = broker.config
    if config.get("flushDiskType") == "ASYNC_FLUSH":
        text = "flushDiskType=ASYNC_FLUSH: a power loss loses about the last second of messages"
        # Fewer new pages wait for flushCommitLogThoroughInterval, whose default is RocketMQ's. A DLedger group flushes
        # few pages as often as many.
        if config.get("flushCommitLogLeastPages") != "0" and not broker.group_size:
            seconds = (_number(config.get("flushCommitLogThoroughInterval")) or 10_000) / 1000
            text += f"; with few messages, up to {seconds:g} s of them"
        yield INFO, text, "SYNC_FLUSH, if acknowledged messages must survive that"
    if broker.has_controllers:
        yield from _risks_with_controllers(config)
    elif broker.is_master and not broker.group_size and config.get("brokerRole") == "ASYNC_MASTER":
        text = "brokerRole=ASYNC_MASTER: a lost disk loses what slaves do not have yet"
        yield INFO, text, "SYNC_MASTER with a slave, if acknowledged messages must survive that"
    if not broker.elects_master and config.get("brokerRole") == "SYNC_MASTER" and config.get("inSyncReplicas") == "1":
        yield WARN, "inSyncReplicas=1: a SYNC_MASTER waits for no slave", "set it to 2"
    if config.get("cleanFileForciblyEnable") == "true":
        percent = broker.percent("diskSpaceCleanForciblyRatio", 85)
        text = f"above {percent} % of the disk the oldest messages are deleted, however young"
        yield INFO, text, "cleanFileForciblyEnable=false, if sends are to be refused instead"


def _risks_with_controllers(config: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    least = config.get("minInSyncReplicas", "1")
    if config.get("allAckInSyncStateSet") != "true":
        text = (
            f"allAckInSyncStateSet=false, minInSyncReplicas={least} (RocketMQ's choice): acknowledged messages are "
            "lost when all brokers die at once and a broker that lagged is back first"
        )
        yield INFO, text, "allAckInSyncStateSet=true (docs/operate/controller.md says what each choice loses)"
        return
    text = "allAckInSyncStateSet=true: an acknowledged message is on all of the SyncStateSet"
    if least == "0":
        text += ", of at least two brokers where the set has three (minInSyncReplicas=0)"
        yield INFO, text, ""
    elif least == "1":
        yield (
            INFO,
            f"{text}, which may be one broker (minInSyncReplicas=1): its disk then has the only copy",
            "set it to 2",
        )
    else:
        yield INFO, f"{text}, of at least {least} brokers (minInSyncReplicas={least})", ""


def _is_local(addr: str) -> bool:
    return split_address(addr)[0].startswith(_LOCAL)


def certificates_last(facts: Facts) -> Iterator[Finding]:
    """No certificate ends soon, and none has ended."""
    remedy = "make a new one and put it where the old one is; the broker reads it while it runs"
    for one in facts.certificates:
        if one.not_after_ms is None:
            yield Finding(INFO, one.where, f"its certificate cannot be read from here: {one.error}")
            continue
        days = (one.not_after_ms - facts.now_ms) // DAY_MS
        if days < 0:
            yield Finding(FAIL, one.where, f"its certificate ended {-days} days ago", remedy)
        else:
            yield Finding(
                WARN if days < SOON_DAYS else OK,
                one.where,
                f"its certificate ends in {days} days",
                remedy if days < SOON_DAYS else "",
            )


# --- broker sets: each has a master, and its slaves have the master's messages


def sets_have_masters(facts: Facts) -> Iterator[Finding]:
    """Each set has a master: without a master, the set's topics can only be read."""
    for name, brokers in facts.sets.items():
        if not any(broker.is_master for broker in brokers):
            yield Finding(
                FAIL, name, f"has no master, only {len(brokers)} slaves: it takes no messages", "start its master again"
            )


def slaves_keep_up(facts: Facts) -> Iterator[Finding]:
    """Slaves show all of their logs and are close behind the master; each SYNC_MASTER has a slave, and none is away."""
    for broker in facts.brokers:
        if problem := broker.info.get(_COPY_PROBLEM):
            remedy = "start a replica that has the record; see docs/operate/disk-lies.md"
            yield Finding(FAIL, broker.where, f"messages that it has copied are not shown: {problem}", remedy)
    for brokers in facts.sets.values():
        master = next((broker for broker in brokers if broker.is_master and broker.error is None), None)
        if master is None:
            continue
        others = [broker for broker in brokers if not broker.is_master]
        if (
            not others
            and not master.elects_master
            and master.config.get("brokerRole") == "SYNC_MASTER"
            and master.config.get("inSyncReplicas") != "1"
        ):
            remedy = "start a slave, or set brokerRole=ASYNC_MASTER"
            yield Finding(FAIL, master.where, "a SYNC_MASTER without a slave: sends are SLAVE_NOT_AVAILABLE", remedy)
        for slave in others:
            if slave.error is None:
                yield _lag(master, slave)
        if not master.elects_master:
            yield from _away(master, others)


def groups_have_majorities(facts: Facts) -> Iterator[Finding]:
    """All members of each DLedger group answer: without a majority the group takes no messages."""
    for broker in facts.brokers:
        if problem := broker.info.get(_GROUP_PROBLEM):
            remedy = "if it stays, move the damaged member's store away, and start it: see docs/operate/dledger.md"
            yield Finding(FAIL, broker.where, problem, remedy)
    for name, brokers in facts.sets.items():
        size = max((broker.group_size for broker in brokers), default=0)
        alive = sum(broker.error is None for broker in brokers)
        least = size // 2 + 1
        if not size or alive >= size:
            continue
        text = f"{alive} of {size} members of its DLedger group answer"
        remedy = "start the others again; see mqadmin dledgerMembers"
        if alive < least:
            yield Finding(FAIL, name, f"{text}: it takes no messages", remedy)
        else:
            spare = alive - least
            yield Finding(WARN, name, f"{text}: it survives the loss of {spare or 'no'} more", remedy)


def _away(master: BrokerFacts, slaves: list[BrokerFacts]) -> Iterator[Finding]:
    """Slaves that the master remembers and NameServers no longer list. With Controllers, see `replicas_are_in_sync`."""
    away = {key.removeprefix(_AWAY): value for key, value in master.info.items() if key.startswith(_AWAY)}
    left = sum(slave.error is None for slave in slaves)
    for addr in sorted(away.keys() - {slave.addr for slave in slaves}):
        text = f"its slave {addr} has been away for {(_number(away[addr]) or 0) / 1000:,.0f} s"
        remedy = "start it again; if it will not return, its master forgets it after a day"
        if left:
            yield Finding(WARN, master.where, f"{text}; {left} are left", remedy)
        else:
            yield Finding(FAIL, master.where, f"{text}, and no other is left: the master has the only copy", remedy)


def _lag(master: BrokerFacts, slave: BrokerFacts) -> Finding:
    reported = _number(master.info.get(f"slaveAckDiff_{slave.addr}"))
    lag_ms = _number(master.info.get(f"slaveBehindMs_{slave.addr}")) or 0
    ends = [_number(broker.info.get("commitLogMaxOffset")) for broker in (master, slave)]
    behind = reported
    if behind is None and ends[0] is not None and ends[1] is not None:
        behind = max(ends[0] - ends[1], 0)
    if behind is None:
        return Finding(WARN, slave.where, "how far it is behind its master is unknown", "see mqadmin haStatus")
    text = f"{behind:,} bytes and {lag_ms / 1000:.1f} s behind its master"
    most = _number(master.config.get("haMaxGapNotInSync")) or 256 * 1024 * 1024
    remedy = "look at its log and at the network between the two; see mqadmin haStatus"
    if behind >= most:
        return Finding(FAIL, slave.where, f"{text}: it is not in sync", remedy)
    if behind > MAX_LAG_BYTES or lag_ms > MAX_LAG_MS:
        return Finding(WARN, slave.where, text, remedy)
    return Finding(OK, slave.where, text)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


# --- Controllers, and the sets whose masters Controllers choose


def controllers_answer(facts: Facts) -> Iterator[Finding]:
    """Each Controller answers, one Controller leads, and the group survives the loss of one more."""
    away = [one for one in facts.controllers if one.error is not None]
    for one in facts.controllers:
        if one.error is not None:
            yield Finding(WARN, one.addr, one.error, "start it, or take it out of the group: mqadmin controllerMembers")
        elif one.is_leader:
            yield Finding(OK, one.addr, "leads the Controllers")
        elif one.leader:
            yield Finding(OK, one.addr, f"follows {one.leader}")
    if not facts.controllers:
        return
    total = len(facts.controllers)
    if not any(one.leader for one in facts.controllers):
        yield Finding(
            FAIL,
            "controllers",
            f"nobody leads, {total - len(away)} of {total} answer: no master can be chosen, and "
            "masters refuse sends when they cannot prove that they lead",
            "start Controllers until a majority runs",
        )
    elif away and total - len(away) - 1 <= total // 2:
        text = f"{total - len(away)} of {total} answer: when one more is lost there is no majority"
        yield Finding(FAIL, "controllers", text, "start the others")


def replicas_are_in_sync(facts: Facts) -> Iterator[Finding]:
    """Each set has a master, and acknowledged messages are on more than one broker."""
    for name, known in facts.replica_sets.items():
        yield from _in_sync(name, known)


def _in_sync(name: str, known: ReplicaSetFacts) -> Iterator[Finding]:
    together, total = len(known.in_sync), len(known.in_sync) + len(known.others)
    dead = sorted(addr for addr, alive in {**known.in_sync, **known.others}.items() if not alive)
    behind = sorted(addr for addr, alive in known.others.items() if alive)
    text = f"SyncStateSet: {together} of {total} brokers"
    text += f"; not alive: {few(dead)}" if dead else ""
    text += f"; not in sync: {few(behind)}" if behind else ""
    remedy = "start those that are away; look at the logs of those that are not in sync, and at mqadmin getSyncStateSet"
    gone = f"if one will not return: mqadmin cleanBrokerMetadata -bn {name}"
    if not known.master:
        yield Finding(FAIL, name, f"has no master: it takes no messages. {text}", remedy)
    elif together == 1 and total > 1:
        yield Finding(FAIL, name, f"what is acknowledged now is on one broker only. {text}", f"{remedy}; {gone}")
    elif together < total or dead:
        yield Finding(WARN, name, text, f"{remedy}; {gone}")
    else:
        yield Finding(OK, name, text)


# --- consumer groups


def groups_keep_up(facts: Facts) -> Iterator[Finding]:
    """No group has much left to consume."""
    late = 0
    for one in facts.groups:
        if one.lag <= facts.max_lag and one.delay_ms <= MAX_DELAY_MS:
            continue
        late += 1
        where = f"{one.group} {one.topic}"
        text = f"{one.lag:,} messages wait, the queue that lags most by {one.delay_ms / 1000:,.0f} s"
        if one.members:
            remedy = "start more consumers, or look at what its handlers wait for (mqadmin consumerProgress -g)"
            yield Finding(WARN, where, text, remedy)
        else:
            remedy = "start its consumers, or delete the group with mqadmin deleteSubGroup if it is not needed"
            yield Finding(WARN, where, f"{text}, and no consumer is connected", remedy)
    looked_at = len({one.group for one in facts.groups})
    if not late and looked_at:
        yield Finding(OK, "groups", f"none of {looked_at} groups has more than {facts.max_lag:,} messages to consume")
    if facts.groups_left_out:
        yield Finding(
            INFO, "groups", f"{facts.groups_left_out} more were not looked at", "see mqadmin consumerProgress"
        )


def subscriptions_agree(facts: Facts) -> Iterator[Finding]:
    """All members of a group have the same subscriptions: a member only gets messages of its own queues."""
    divided = 0
    for group, members in sorted(facts.wanted.items()):
        if text := differences(members):
            divided += 1
            yield Finding(
                FAIL,
                group,
                f"its members have different subscriptions, so some messages reach nobody: {text}",
                "give all members the same subscriptions, or each kind of consumer a group of its own",
            )
    if facts.wanted and not divided:
        yield Finding(OK, "groups", f"the members of each of {len(facts.wanted)} groups have the same subscriptions")


def nothing_is_dead(facts: Facts) -> Iterator[Finding]:
    """No group has dead letters: messages that its consumers gave up."""
    for group, count in sorted(facts.dead_letters.items()):
        if count:
            remedy = f"mqadmin resendDlq -g {group} --dry-run lists what was not sent again; without --dry-run sends it"
            yield Finding(INFO, group, f"{count:,} dead letters", remedy)


def orders_are_whole(facts: Facts) -> Iterator[Finding]:
    """Each broker in an ordered topic's record takes the recorded queues: clients use no other queues for a key."""
    followed = [one for one in facts.orders if one.has_route and one.is_in_route]
    for one in facts.orders:
        if not one.has_route:
            yield Finding(
                WARN,
                one.topic,
                f"there is no such topic, but a record of its order: {one.record}",
                f"a new topic of the name would get it: mqadmin updateOrderConf -m delete -t {one.topic}",
            )
        elif one.is_in_route and one.lacks:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(one.lacks.items()))
            yield Finding(
                FAIL,
                one.topic,
                f"sends of some keys fail: by NameServer {one.namesrv} its order is {one.record}, but {reasons}",
                "start the broker, let it take messages again (mqadmin undrain, addWritePerm, updateTopicPerm), or give"
                f" it the queues (mqadmin updateTopic -o true -t {one.topic}); if it is gone for good: mqadmin"
                f" updateOrderConf -m put -t {one.topic} -v BROKER:QUEUES;...",
            )
    if followed and not any(one.lacks for one in followed):
        yield Finding(OK, "topics", f"the routes of {len({one.topic for one in followed})} ordered topics are whole")


# --- all checks

CHECKS: tuple[tuple[str, Check], ...] = (
    ("nameserver", name_servers_answer),
    ("routes", name_servers_agree),
    ("absent", brokers_are_here),
    ("rivals", ids_are_unique),
    ("registration", registrations_are_guarded),
    ("broker", brokers_answer),
    ("address", addresses_are_usable),
    ("port", ports_are_open),
    ("clock", clocks_agree),
    ("certificate", certificates_last),
    ("version", versions_are_equal),
    ("disk", disks_have_space),
    ("slow-disk", disks_are_fast),
    ("damage", stores_are_sound),
    ("bucket", buckets_take_files),
    ("files", open_files_suffice),
    ("memory", memory_suffices),
    ("master", sets_have_masters),
    ("replication", slaves_keep_up),
    ("dledger", groups_have_majorities),
    ("controller", controllers_answer),
    ("sync-state-set", replicas_are_in_sync),
    ("lag", groups_keep_up),
    ("subscription", subscriptions_agree),
    ("order", orders_are_whole),
    ("dead-letters", nothing_is_dead),
    ("setting", settings_are_safe),
)


def run_checks(facts: Facts, checks: Iterable[tuple[str, Check]] = CHECKS) -> Iterator[tuple[str, Finding]]:
    """The findings of each check, with the check's name; a check that raises becomes a finding."""
    for question, reason in facts.unanswered:
        yield "facts", Finding(WARN, question, reason, "what depends on it is not checked")
    for name, check in checks:
        try:
            found = list(check(facts))
        except Exception as error:  # such as an answer that the check does not expect
            yield (
                name,
                Finding(WARN, "doctor", f"this check failed: {error!r}", "report it, with the versions of the servers"),
            )
        else:
            yield from ((name, finding) for finding in found)
