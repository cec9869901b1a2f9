"""What waits to be delivered, replicas, accounts and policies, and the doctor."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from skylark.mqadmin.commands.accounts import RequestKind, explain_acl, get_acl_config
from skylark.mqadmin.commands.controllers import controller_members, dledger_members, get_controller_metadata
from skylark.mqadmin.commands.doctor import doctor
from skylark.mqadmin.commands.users import list_acl, list_user
from skylark.mqadmin.scope import Scope
from skylark.mqcommon.errors import BrokerError, SkylarkError
from skylark.mqconsole.people.person import Person
from skylark.mqconsole.people.roles import Role
from skylark.mqconsole.showing import texts
from skylark.mqconsole.showing.findings import STATES, counts, with_away
from skylark.mqconsole.showing.tables import Column, table, wanted
from skylark.mqconsole.web.asking import Asked, View
from skylark.mqconsole.web.site import Site
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.controller import BrokerReplicasInfo
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.topology import role_text
from skylark.sdk.endpoint import ask_all

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
    Column("sourceIps", "From", lambda value: ", ".join(value or ()) or "anywhere"),
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
    Column("awaySince", "Away since", lambda value: texts.moment(value) if value else texts.NONE),
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
    site.page("/accounts/explain", Role.READER, "explain.html", explain_access)
    site.page("/doctor", Role.READER, "doctor.html", doctor_page)


async def _replicas(ask: Asked) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """The Controllers that brokers have in their options, the sets whose masters they choose, and DLedger groups.

    Also what could not be found out.
    """
    person = ask.person
    masters = [row for row in ask.snapshot.masters() if row["error"] is None]
    configs = await ask_all([row["brokerAddr"] for row in masters], person.admin.broker_config)
    problems = [f"broker {addr}: {explain(error)}" for addr, error in configs.errors.items()]
    groups: dict[str, list[str]] = {}
    agreeing = []
    for row in masters:
        config = configs.values.get(row["brokerAddr"], {})
        if config.get("enableControllerMode") == "true" and (addrs := config.get("controllerAddr", "")):
            groups.setdefault(addrs.replace(",", ";"), []).append(row["brokerName"])
        if config.get("enableDLegerCommitLog") == "true":
            agreeing.append(row["brokerName"])
    controllers: list[dict[str, Any]] = []
    sets: list[dict[str, Any]] = []
    members: list[dict[str, Any]] = []
    # Sets may have different Controllers. One group that is away must not hide the others.
    for addrs, names in groups.items():
        try:
            rows, complaints = await person.look(get_controller_metadata, controller_address=addrs)
            problems += complaints
            controllers += rows
            group = await person.run(controller_members, controller_address=addrs, add=None, remove=None, transfer=None)
            members.append({"name": "Controllers", **group})
            found: BrokerReplicasInfo = await person.admin.sync_state_sets(addrs.split(";"), sorted(names))
            sets += [{"brokerName": name, **one.to_wire()} for name, one in sorted(found.replicas_info_table.items())]
        except SkylarkError as error:
            problems.append(explain(error))
    for name in agreeing:
        try:
            group = await person.run(dledger_members, broker_name=name, add=None, remove=None, transfer=None)
        except SkylarkError as error:
            problems.append(explain(error))
        else:
            members.append({"name": name, **group})
    return {"controllers": controllers, "sets": sets, "dledger": members}, problems


def replica_rows(brokers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each broker of the snapshot, as part of its set. Pure."""
    rows = []
    for one in brokers:
        state = "fail" if one["error"] is not None else "warn" if one["inSync"] is False else "ok"
        kept = ("brokerName", "brokerAddr", "lagBytes", "lagMs", "awaySince", "error")
        rows.append({"role": role_text(one["brokerId"]), "state": state, **{name: one[name] for name in kept}})
    return sorted(rows, key=lambda row: (row["brokerName"], row["role"] != "master", row["role"]))


async def waiting(ask: Asked) -> View:
    masters = {row["brokerAddr"]: row for row in ask.snapshot.masters() if row["error"] is None}
    answers = await ask.person.recent(
        "waiting", lambda: ask_all(masters, lambda addr: ask.person.admin.drain_status(addr))
    )
    rows = [
        {
            "brokerName": masters[addr]["brokerName"],
            "brokerAddr": addr,
            "delayed": found.delayed,
            "timed": found.timed,
            "half": found.half,
            "popped": found.popped,
            "timerReadBehind": masters[addr]["timerReadBehind"],
        }
        for addr, found in answers.values.items()
        if addr in masters
    ]
    problems = [f"broker {addr}: {explain(error)}" for addr, error in answers.errors.items()]
    shown = table(rows, WAITING, wanted(ask.fields.values), searched=("brokerName", "brokerAddr"), sort="brokerName")
    sums = {name: sum(row[name] for row in rows) for name in ("delayed", "timed", "half", "popped")}
    return View("Waiting", {"sums": sums}, {"waiting": shown}, problems=problems)


async def replicas(ask: Asked) -> View:
    found, problems = await ask.person.recent("replicas", partial(_replicas, ask))
    rows = replica_rows(ask.snapshot.brokers)
    shown = table(rows, REPLICAS, wanted(ask.fields.values), searched=("brokerName", "brokerAddr", "role"))
    has_master = {row["brokerName"] for row in rows if row["role"] == "master" and row["error"] is None}
    masterless = sorted({row["brokerName"] for row in rows} - has_master)
    return View("Replicas", {**found, "masterless": masterless}, {"replicas": shown}, problems=list(problems))


async def accounts(ask: Asked) -> View:
    clusters = ask.snapshot.clusters()
    view = View("Accounts", {"clusters": clusters, "files": []})
    asked = wanted(ask.fields.values)
    scopes = [Scope(None, name) for name in clusters]
    users: list[dict[str, Any]] = []
    policies: list[dict[str, Any]] = []
    for scope in scopes:
        for found, command, more in (
            (users, list_user, {"filter": None}),
            (policies, list_acl, {"subject": None, "resource": None}),
            (view.data["files"], get_acl_config, {}),
        ):
            try:
                rows, problems = await ask.person.recent(
                    f"{command.name} {scope}", partial(ask.person.look, command, scope=scope, **more)
                )
            except BrokerError as error:
                # Brokers without files of accounts say so with the code of any failure.
                if command is not get_acl_config or error.code == ResponseCode.NO_PERMISSION:
                    view.problems.append(explain(error))
                continue
            found += rows
            view.problems += problems
    view.tables["users"] = table(users, USERS, asked, searched=("username",), sort="username")
    # No address means every address.
    policies = [row | {"sourceIps": row["sourceIps"] or []} for row in policies]
    view.tables["policies"] = table(policies, POLICIES, asked, searched=("subject", "resource"), sort="subject")
    return view


async def explain_access(ask: Asked) -> View:
    fields = ask.fields
    view = View("May this client do that?", {"clusters": ask.snapshot.clusters(), "answers": None})
    if not fields.text("account"):
        return view
    kind = fields.text("request")
    view.data["answers"], view.problems = await ask.person.look(
        explain_acl,
        scope=Scope(None, ask.cluster()),
        access_key=fields.text("account"),
        remote_address=fields.needed("address", "the address of the client"),
        topic=fields.text("topic") or None,
        group=fields.text("group") or None,
        request=RequestKind().convert(kind, None, None) if kind else None,
    )
    return view


async def findings_for(person: Person) -> list[dict[str, Any]]:
    """What the doctor finds with this person's credentials, from WARN on."""
    async with person.admin:
        with person.deadline():
            found, _ = await person.look(doctor, quiet=True, max_lag=MAX_LAG)
    findings: list[dict[str, Any]] = found["findings"]
    return findings


async def doctor_page(ask: Asked) -> View:
    found, problems = await ask.person.recent("doctor", lambda: ask.person.look(doctor, quiet=False, max_lag=MAX_LAG))
    findings = with_away(found["findings"], ask.snapshot.away)
    rows = sorted(findings, key=lambda row: STATES.index(row["state"]))
    asked = wanted({"size": "500"} | dict(ask.fields.values))
    shown = table(rows, FINDINGS, asked, searched=("state", "check", "where", "text"))
    return View("Doctor", {"counts": counts(rows)}, {"findings": shown}, problems=problems)
