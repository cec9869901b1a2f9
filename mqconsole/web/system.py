"""Pages about waiting messages, replicas, accounts and policies, and the doctor."""

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Final

from skylark import Admin
from skylark.mqadmin.doctor.examine import examine
from skylark.mqcommon.errors import BrokerError, SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqconsole.people.person import Person
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.findings import STATES, counts, with_away
from skylark.mqconsole.showing.tables import Column, table, wanted
from skylark.mqconsole.watching.snapshot import BrokerRow
from skylark.mqconsole.web.asking import Asked, View
from skylark.mqconsole.web.site import Site
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.raft import RaftMembers
from skylark.remoting.protocol.requests.shrinking import DrainStatus
from skylark.remoting.protocol.requests.tier import FOLLOWER, OWNER, STARTING, STOPPED
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.reports.accounts import BrokerAccounts, accounts_at, explain_access, request_code
from skylark.sdk.admin.reports.broker_load import BucketUse, SlaveLag, StoreScrubs
from skylark.sdk.admin.reports.controllers import (
    ControllerMetadata,
    ReplicaSet,
    controller_metadata,
    dledger_leader,
    replica_sets,
)
from skylark.sdk.admin.reports.findings import DoctorFinding
from skylark.sdk.admin.reports.problems import ReportProblem
from skylark.sdk.admin.reports.report import FLAT, named
from skylark.sdk.admin.reports.users import PolicyRow, UserRow, policies_at, users_at
from skylark.sdk.admin.scope import Scope, addrs_in
from skylark.sdk.admin.topology import role_text
from skylark.sdk.endpoint import Answers, ask_all

WAITING = (
    Column("brokerName", "Set"),
    Column("brokerAddr", "Master"),
    Column("delayed", "Delayed", texts.count, is_number=True, hint="by a delay level, also retries"),
    Column("timed", "Timed", texts.count, is_number=True, hint="for a time of delivery"),
    Column(
        "half", "Transactions", texts.count, is_number=True, hint="halves that are neither committed nor rolled back"
    ),
    Column("popped", "Popped", texts.count, is_number=True, hint="check points of messages that are not acknowledged"),
    Column("timerReadBehind", "Timer behind", texts.count, is_number=True, hint="seconds that the timer lags"),
)
USERS = (
    Column("username", "User"),
    Column("userType", "Type"),
    Column("userStatus", "Status"),
    Column("brokerAddr", "Broker"),
)
POLICIES = (
    Column("subject", "Subject"),
    Column("resource", "Resource"),
    Column("actions", "Actions", lambda value: ", ".join(value or ())),
    Column("decision", "Decision"),
    Column("sourceIps", "From", lambda value: ", ".join(value) or "anywhere"),
    Column("policyType", "Kind"),
    Column("brokerAddr", "Broker"),
)
_STATES = {"ok": "answers", "fail": "no answer", "warn": "not in sync"}
REPLICAS = (
    Column("brokerName", "Set"),
    Column("role", "Role"),
    Column("brokerAddr", "Address"),
    Column("state", "State", lambda value: _STATES[value]),
    Column("lagBytes", "Behind", texts.size, is_number=True, hint="what a slave lacks of its master's log"),
    Column("lagMs", "Behind for", texts.duration, is_number=True, hint="how old the first message is that it lacks"),
    Column(
        "lastScrub",
        "Last scrub",
        lambda value: "never" if value == 0 else texts.moment(value),
        hint="when all of its store was last read to find damage",
    ),
    Column("blocksRepaired", "Repaired", texts.count, is_number=True, hint="damaged blocks repaired since its start"),
    Column("suspects", "Suspects", texts.count, is_number=True, hint="damaged blocks that could not be repaired"),
    Column("awaySince", "Away since", lambda value: texts.moment(value) if value else texts.NONE),
)
_ROLES = {OWNER: "writes", FOLLOWER: "reads", STOPPED: "stopped", STARTING: "starts"}
BUCKETS = (
    Column("brokerName", "Set"),
    Column("brokerAddr", "Address"),
    Column("state", "State", lambda value: {"ok": "works", "warn": "waits for the bucket", "fail": "stopped"}[value]),
    Column("tierRole", "Role", lambda value: _ROLES.get(value, value)),
    Column("tierStoredBytes", "In the bucket", texts.size, is_number=True),
    Column("tierBehindBytes", "Not there yet", texts.size, is_number=True, hint="full files that are not uploaded"),
    Column("tierOldest", "Oldest message", lambda value: texts.moment(value) if value else texts.NONE),
    Column("tierProblem", "Problem", lambda value: value or texts.NONE),
    Column("tierProblemSince", "Since", lambda value: texts.moment(value) if value else texts.NONE),
)
FINDINGS = (
    Column("state", "State"),
    Column("check", "Check"),
    Column("where", "Where"),
    Column("text", "What"),
    Column("remedy", "What to do"),
)
MAX_LAG: Final = 10_000


def add_system(site: Site) -> None:
    """Register the pages."""

    site.page("/waiting", Role.READER, "waiting.html", waiting)
    site.page("/replicas", Role.READER, "replicas.html", replicas)
    site.page("/accounts", Role.READER, "accounts.html", accounts)
    site.page("/accounts/explain", Role.READER, "explain.html", access_page)
    site.page("/doctor", Role.READER, "doctor.html", doctor_page)


@lazy_dataclass(frozen=True, slots=True)
class RaftGroup:
    """The members of a Raft group."""

    name: str
    members: RaftMembers = field(metadata=FLAT)


@lazy_dataclass(slots=True)
class RaftFindings:
    """The Controllers in brokers' options, the sets whose masters they choose, and all Raft groups.

    ``problems``: questions without an answer, as texts.
    """

    controllers: list[ControllerMetadata] = field(default_factory=list)
    sets: list[ReplicaSet] = field(default_factory=list)
    groups: list[RaftGroup] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def _raft_findings(ask: Asked) -> RaftFindings:
    person = ask.person
    masters = [row for row in ask.snapshot.masters() if row.error is None]
    configs = await ask_all([row.broker_addr for row in masters], person.admin.broker_config)
    found = RaftFindings(problems=[f"broker {addr}: {explain(error)}" for addr, error in configs.errors.items()])

    def tell(problem: ReportProblem) -> None:
        found.problems.append(str(problem))

    groups: dict[str, list[str]] = {}
    agreeing = []
    for row in masters:
        config = configs.values.get(row.broker_addr, {})
        if config.get("enableControllerMode") == "true" and (addrs := config.get("controllerAddr", "")):
            groups.setdefault(addrs.replace(",", ";"), []).append(row.broker_name)
        if config.get("enableDLegerCommitLog") == "true":
            agreeing.append(row.broker_name)
    # Sets may have different Controllers. One group that is away must not hide the others.
    for addrs, names in groups.items():
        controllers = addrs.split(";")
        try:
            found.controllers += await controller_metadata(person.admin, controllers, on_problem=tell)
            found.groups.append(RaftGroup("Controllers", await person.admin.controller_members(controllers)))
            found.sets += await replica_sets(person.admin, controllers, sorted(names))
        except SkylarkError as error:
            found.problems.append(explain(error))
    for name in agreeing:
        try:
            leader = await dledger_leader(person.admin, name)
            found.groups.append(RaftGroup(name, await person.admin.dledger_members(leader)))
        except SkylarkError as error:
            found.problems.append(explain(error))
    return found


@lazy_dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A broker as part of its set; ``state`` is ok, warn (not in sync) or fail (it does not answer, see ``error``)."""

    role: str
    state: str
    broker_name: str
    broker_addr: str
    lag: SlaveLag = field(metadata=FLAT)
    scrubs: StoreScrubs = field(metadata=FLAT)
    away_since_ms: int | None = field(metadata=named("awaySince"))
    error: str | None


def replica_rows(brokers: Iterable[BrokerRow]) -> list[ReplicaRow]:
    """A row for each broker of the snapshot. Pure."""
    rows = []
    for one in brokers:
        state = "fail" if one.error is not None else "warn" if one.in_sync is False else "ok"
        role = role_text(one.broker_id)
        rows.append(
            ReplicaRow(role, state, one.broker_name, one.broker_addr, one.lag, one.scrubs, one.away_since_ms, one.error)
        )
    return sorted(rows, key=lambda row: (row.broker_name, row.role != "master", row.role))


@lazy_dataclass(frozen=True, slots=True)
class BucketRow:
    """A broker with a bucket; ``state``: ok, warn (the bucket does not answer) or fail (an administrator must act)."""

    state: str
    broker_name: str
    broker_addr: str
    bucket: BucketUse = field(metadata=FLAT)


def bucket_rows(brokers: Iterable[BrokerRow]) -> list[BucketRow]:
    """A row for each broker that has a bucket. Pure."""
    rows = []
    for one in brokers:
        if one.bucket.role is not None:
            state = "fail" if one.bucket.role == STOPPED else "warn" if one.bucket.problem else "ok"
            rows.append(BucketRow(state, one.broker_name, one.broker_addr, one.bucket))
    return sorted(rows, key=lambda row: (row.broker_name, row.bucket.role != OWNER, row.broker_addr))


@lazy_dataclass(frozen=True, slots=True)
class WaitingRow:
    """The messages that wait at a master: delayed messages, open transactions, and popped messages."""

    broker_name: str
    broker_addr: str
    delayed: int
    timed: int
    half: int
    popped: int
    timer_behind_s: int = field(metadata=named("timerReadBehind"))


@lazy_dataclass(frozen=True, slots=True)
class WaitingSums:
    """The messages that wait at all masters; see `WaitingRow`."""

    delayed: int
    timed: int
    half: int
    popped: int


async def waiting(ask: Asked) -> View:
    masters = {row.broker_addr: row for row in ask.snapshot.masters() if row.error is None}
    answers: Answers[DrainStatus] = await ask.person.recent(
        "waiting", lambda: ask_all(masters, lambda addr: ask.person.admin.drain_status(addr))
    )
    rows = [
        WaitingRow(
            masters[addr].broker_name,
            addr,
            found.delayed,
            found.timed,
            found.half,
            found.popped,
            masters[addr].load.timer_behind_s,
        )
        for addr, found in answers.values.items()
        if addr in masters
    ]
    problems = [f"broker {addr}: {explain(error)}" for addr, error in answers.errors.items()]
    shown = table(rows, WAITING, wanted(ask.fields.values), searched=("brokerName", "brokerAddr"), sort="brokerName")
    sums = WaitingSums(
        sum(row.delayed for row in rows),
        sum(row.timed for row in rows),
        sum(row.half for row in rows),
        sum(row.popped for row in rows),
    )
    return View("Waiting", {"sums": sums}, {"waiting": shown}, problems=problems)


async def replicas(ask: Asked) -> View:
    found: RaftFindings = await ask.person.recent("replicas", partial(_raft_findings, ask))
    rows = replica_rows(ask.snapshot.brokers)
    shown = table(rows, REPLICAS, wanted(ask.fields.values), searched=("brokerName", "brokerAddr", "role"))
    has_master = {row.broker_name for row in rows if row.role == "master" and row.error is None}
    masterless = sorted({row.broker_name for row in rows} - has_master)
    data = {
        "controllers": found.controllers,
        "sets": found.sets,
        "dledger": found.groups,
        "masterless": masterless,
    }
    tables = {"replicas": shown}
    if buckets := bucket_rows(ask.snapshot.brokers):
        tables["buckets"] = table(buckets, BUCKETS, wanted({"size": "500"}), searched=(), sort="brokerName")
    return View("Replicas", data, tables, problems=list(found.problems))


@lazy_dataclass(slots=True)
class _Accounts:
    """Users, policies and accounts in files of a cluster; ``problems``: questions without an answer."""

    users: list[UserRow] = field(default_factory=list)
    policies: list[PolicyRow] = field(default_factory=list)
    files: list[BrokerAccounts] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def _accounts_of(admin: Admin, cluster: str) -> _Accounts:
    found = _Accounts()
    addrs = await addrs_in(admin, Scope(None, cluster))
    try:
        found.users = await users_at(admin, addrs)
    except BrokerError as error:
        found.problems.append(explain(error))
    try:
        found.policies = await policies_at(admin, addrs)
    except BrokerError as error:
        found.problems.append(explain(error))
    try:
        found.files = await accounts_at(admin, addrs)
    except BrokerError as error:
        # Brokers without files of accounts answer with the general failure code.
        if error.code == ResponseCode.NO_PERMISSION:
            found.problems.append(explain(error))
    return found


async def accounts(ask: Asked) -> View:
    clusters = ask.snapshot.clusters()
    asked = wanted(ask.fields.values)
    admin = ask.person.admin
    found: list[_Accounts] = [
        await ask.person.recent(f"accounts {name}", partial(_accounts_of, admin, name)) for name in clusters
    ]
    files = [one for each in found for one in each.files]
    view = View("Accounts", {"clusters": clusters, "files": files})
    view.problems = [problem for each in found for problem in each.problems]
    users = [row for each in found for row in each.users]
    view.tables["users"] = table(users, USERS, asked, searched=("username",), sort="username")
    # No address means every address.
    policies = [replace(row, source_ips=row.source_ips or []) for each in found for row in each.policies]
    view.tables["policies"] = table(policies, POLICIES, asked, searched=("subject", "resource"), sort="subject")
    return view


async def access_page(ask: Asked) -> View:
    fields, admin = ask.fields, ask.person.admin
    view = View("May this client do that?", {"clusters": ask.snapshot.clusters(), "answers": None})
    if not fields.text("account"):
        return view
    kind = fields.text("request")
    view.data["answers"] = await explain_access(
        admin,
        await addrs_in(admin, Scope(None, ask.cluster())),
        fields.text("account"),
        fields.needed("address", "the address of the client"),
        topic=fields.text("topic") or None,
        group=fields.text("group") or None,
        request=request_code(kind) if kind else None,
    )
    return view


async def findings_for(person: Person) -> Sequence[DoctorFinding]:
    """The doctor's findings of WARN and FAIL, with this person's credentials."""
    async with person.admin:
        with person.deadline():
            found = await examine(person, person.timeout_ms, max_lag=MAX_LAG, quiet=True)
    return found.findings


async def doctor_page(ask: Asked) -> View:
    person = ask.person
    found = await person.recent("doctor", lambda: examine(person, person.timeout_ms, max_lag=MAX_LAG))
    findings = with_away(found.findings, ask.snapshot.away)
    rows = sorted(findings, key=lambda row: STATES.index(row.state))
    asked = wanted({"size": "500"} | dict(ask.fields.values))
    shown = table(rows, FINDINGS, asked, searched=("state", "check", "where", "text"))
    return View("Doctor", {"counts": counts(rows)}, {"findings": shown})
