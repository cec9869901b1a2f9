"""Checks of single brokers: they can be reached, their clocks, versions, disks and settings. Pure."""

import re
from collections.abc import Iterator, Mapping

from mqcommon.addresses import split_address
from sdk.admin.doctor.facts import BrokerFacts, Facts
from sdk.admin.doctor.findings import FAIL, INFO, OK, WARN, Finding, few

# brokerStatus says the time to the second. Clocks that are synchronised differ by milliseconds.
MAX_SKEW_MS = 2_000
# From here on times of messages, retention and delays are plainly wrong.
WRONG_CLOCK_MS = 60_000
_RUNTIME = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_LOCAL = ("127.", "0.0.0.0", "::1", "::", "localhost")


def reachable(facts: Facts) -> Iterator[Finding]:
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
            # The set has a master, and one of its brokers may still be lost.
            is_safe = len(left) > 1 and any(other.is_master for other in left)
            text = f"{broker.error}; {len(left)} of its set are left" if left else broker.error
            yield Finding(WARN if is_safe else FAIL, broker.where, text, remedy)


def advertised(facts: Facts) -> Iterator[Finding]:
    """Brokers are known by addresses that other machines can use."""
    remote = [one.addr for one in facts.name_servers if not _is_local(one.addr)]
    for broker in facts.brokers:
        if _is_local(broker.addr) and remote:
            yield Finding(
                FAIL, broker.where, "every machine reaches only itself at this address",
                "set brokerIP1 to the address at which clients reach the broker's machine",
            )  # fmt: skip


def ports(facts: Facts) -> Iterator[Finding]:
    """The fast port and the port for slaves can be reached."""
    needs = {
        "fast": "RocketMQ's slaves and clients with VIP channels need it; open it, or set fastListenPort=0",
        "HA": "slaves need it: open it between the brokers of the set; from here it need not be reachable",
    }
    for broker in facts.answering:
        for port in broker.ports:
            if port.error is None:
                yield Finding(OK, broker.where, f"{port.kind} port {port.addr} is open")
            else:
                yield Finding(WARN, broker.where, f"{port.kind} port {port.addr}: {port.error}", needs[port.kind])


def clocks(facts: Facts) -> Iterator[Finding]:
    """The clocks of brokers agree with the one of this machine."""
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
                state, broker.where, f"its clock is {abs(skew_ms) / 1000:.0f} s {direction} that of this machine",
                "synchronise the clocks of all machines (NTP): delays, retention and store times depend on them",
            )  # fmt: skip


def clock_skew_ms(broker: BrokerFacts) -> int | None:
    """How far the broker's clock is ahead; 0 while the answer, which is in seconds, allows for that.

    The time of the broker is bootTimestamp and runtime together, which all RocketMQ brokers give.
    """
    boot, runtime = broker.info.get("bootTimestamp", ""), _RUNTIME.fullmatch(broker.info.get("runtime", ""))
    if not boot.isdecimal() or runtime is None:
        return None
    days, hours, minutes, seconds = map(int, runtime.groups())
    now_ms = int(boot) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    # The broker's time is at most a second later than that, and was so within half of the round trip.
    early, late = now_ms - broker.took_ms // 2, now_ms + 1_000 + broker.took_ms // 2
    if early <= broker.asked_ms <= late:
        return 0
    return early - broker.asked_ms if early > broker.asked_ms else late - broker.asked_ms


def versions(facts: Facts) -> Iterator[Finding]:
    """All brokers have the same version."""
    found: dict[str, list[str]] = {}
    for broker in facts.answering:
        found.setdefault(broker.info.get("brokerVersionDesc", "unknown"), []).append(broker.where)
    if len(found) == 1:
        yield Finding(OK, "cluster", f"all brokers have version {next(iter(found))}")
    elif found:
        text = "; ".join(f"{version}: {few(names)}" for version, names in sorted(found.items()))
        yield Finding(WARN, "cluster", f"brokers have different versions: {text}", "update the older ones")


def disks(facts: Facts) -> Iterator[Finding]:
    """There is room for messages."""
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


def settings(facts: Facts) -> Iterator[Finding]:
    """What may lose messages, as information: it may be meant so. Brokers with the same setting are named together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for broker in facts.answering:
        for setting in _risks(broker):
            found.setdefault(setting, []).append(f"{broker.name}:{broker.broker_id}")
    for (state, text, remedy), names in found.items():
        yield Finding(state, few(names), text, remedy)


def _risks(broker: BrokerFacts) -> Iterator[tuple[str, str, str]]:
    config = broker.config
    if config.get("flushDiskType") == "ASYNC_FLUSH":
        text = "flushDiskType=ASYNC_FLUSH: a power loss loses the last second of messages"
        yield INFO, text, "SYNC_FLUSH, if acknowledged messages must survive that"
    if broker.has_controllers:
        yield from _risks_with_controllers(config)
    elif broker.is_master and config.get("brokerRole") == "ASYNC_MASTER":
        text = "brokerRole=ASYNC_MASTER: a lost disk loses what slaves do not have yet"
        yield INFO, text, "SYNC_MASTER with a slave, if acknowledged messages must survive that"
    if not broker.has_controllers and config.get("brokerRole") == "SYNC_MASTER" and config.get("inSyncReplicas") == "1":
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
            "lost when all brokers die at once and one that lagged is back first"
        )
        yield INFO, text, "allAckInSyncStateSet=true (docs/controller.md says what each choice loses)"
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
