"""The commands about tiered storage: what is in the bucket, whether it is sound, and the way back from it."""

import os
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import field
from typing import TYPE_CHECKING, Any

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import broker_addr, option, time_option, where
from skylark.mqadmin.render import seconds_text
from skylark.mqadmin.scope import Scope, chosen_addrs
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import BrokerError, RemotingError, SkylarkError, UserError
from skylark.mqcommon.extras import needs_extra
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.tier.layout import set_name
from skylark.sdk.admin.reports.report import FLAT

if TYPE_CHECKING:
    from skylark.broker.commands.tier_restore import TierRestored
    from skylark.mqcommon.tier.bucket import Bucket
    from skylark.mqcommon.tier.verify import Verified
    from skylark.remoting.protocol.requests.tier import TierStatus

# Roles of `TierStatus`; its module is imported only when a broker answers.
OFF, STARTING, OWNER = "OFF", "STARTING", "OWNER"
POLL_S = 0.5
# How long a broker may not answer before tierPurge gives up; the broker goes on.
AWAY_S = 30.0
BUCKET_TIMEOUT_S = 30.0
MIB = 1024 * 1024


class Directory(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """The absolute path of a directory, which need not be there."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return os.path.abspath(os.path.expanduser(str(value)))


def tier_path(*, required: bool = False) -> click.Option:
    """--tierPath, the URL of a bucket."""
    return option(
        "",
        "tierPath",
        "bucket, as in the broker's conf: s3://BUCKET/PREFIX, gs://, az:// or file:///DIRECTORY",
        default=None,
        required=required,
        metavar="URL",
    )


def broker_set(help: str, *, required: bool = False) -> click.Option:
    """--set, the name of a broker set in the bucket."""
    return option("", "set", help, default=None, required=required, metavar="BROKER_NAME")


# --- tierStatus


@lazy_dataclass(frozen=True, slots=True)
class BrokerTier:
    """A broker's set in the bucket; with the role OFF no other member of ``status`` has a value."""

    broker_addr: str
    status: "TierStatus" = field(metadata=FLAT)


def _status_lines(found: list[BrokerTier]) -> Iterator[str]:
    for each in found:
        one = each.status
        if one.role == OFF:
            yield f"{each.broker_addr}: no bucket (tierPath is not set)"
            continue
        where_ = f"{one.url}, set {one.broker_set}, epoch {one.epoch}, manifest {one.manifest}"
        yield f"{each.broker_addr}: {one.role}, {where_}"
        oldest = f", oldest message {seconds_text(one.oldest_ms)}" if one.oldest_ms else ""
        yield (
            f"  in the bucket: log from {one.start:,} to {one.uploaded_to:,}, {one.segments:,} files,"
            f" {one.stored_bytes >> 20:,} MiB{oldest}"
        )
        copied = f"metadata copied {seconds_text(one.metadata_ms)}" if one.metadata_ms else "metadata not copied yet"
        yield (
            f"  not yet there: {one.behind_bytes >> 20:,} MiB of full files;"
            f" open file copied to {one.tail_to:,}; {copied}"
        )
        if one.tombstones or one.leftovers or one.purge_left:
            left = f", {one.purge_left:,} files to purge" if one.purge_left else ""
            yield f"  deleted topics: {one.tombstones:,}; objects to remove: {one.leftovers:,}{left}"
        if one.problem:
            retry = f"tried again in {one.retry_in_ms / 1000:.0f} s" if one.retry_in_ms >= 0 else "you have to act"
            yield f"  NOT WRITING since {seconds_text(one.problem_since_ms)}: {one.problem} ({retry})"


@command("tierStatus", *where("ask"), show=_status_lines)
async def tier_status(session: Session, scope: Scope) -> list[BrokerTier]:
    """Show what brokers have in their buckets, and what keeps them from uploading.

    -c asks all brokers of a cluster, slaves too: these read from the bucket only. Exit code 1: a broker cannot write.
    """
    found: list[BrokerTier] = []
    for addr in await chosen_addrs(session, scope, slaves=True):
        try:
            status = await _ask_status(session, addr)
        except SkylarkError as error:
            session.fail(error, f"ask {addr}")
            continue
        found.append(BrokerTier(addr, status))
        if status.problem:
            session.failed = True
    return found


async def _ask_status(session: Session, addr: str) -> "TierStatus":
    try:
        return await session.admin.tier_status(addr)
    except BrokerError as error:
        if not error.is_unknown_request:
            raise
        raise UserError(
            f"{addr} is not a broker of Skylark, or an old one, and has no bucket; a bucket without its broker:"
            " mqadmin tierVerify --tierPath URL"
        ) from None


# --- tierVerify


@lazy_dataclass(frozen=True, slots=True)
class SetVerified:
    """What a check of a set in a bucket has found. ``full``: objects were read, and their CRCs compared."""

    url: str
    full: bool
    found: "Verified"


def _verify_lines(checked: list[SetVerified]) -> Iterator[str]:
    for one in checked:
        found = one.found
        for name in found.missing:
            yield f"{found.broker_set}: {name} is missing"
        yield from (f"{found.broker_set}: {text}" for text in (*found.damaged, *found.gaps))
        if found.manifest < 0:
            yield f"{found.broker_set}: {one.url} has no manifest of it"
            continue
        how = "read, all CRCs compared" if one.full else "there in their sizes (--full compares the bytes)"
        verdict = (
            f"sound: {found.objects:,} objects {how}" if found.is_sound else f"NOT sound, of {found.objects:,} objects"
        )
        yield (
            f"{found.broker_set}: manifest {found.manifest:,}, log from {found.start:,} to {found.tail_to:,},"
            f" {found.segments:,} files, {found.stored_bytes >> 20:,} MiB: {verdict}"
        )


@command(
    "tierVerify",
    *where("take the bucket of"),
    tier_path(),
    broker_set("with --tierPath: this set only; default: all sets there"),
    option("", "full", "read all objects, and compare their CRCs; costs a read of the whole bucket", is_flag=True),
    show=_verify_lines,
    either=("broker_addr", "cluster_name", "tier_path"),
    asks_servers=False,
)
async def tier_verify(
    session: Session,
    broker_addr: str | None,
    cluster_name: str | None,
    tier_path: str | None,
    set: str | None,
    full: bool,
) -> list[SetVerified]:
    """Check that all objects of broker sets are in the bucket: sizes, or with --full all bytes.

    This command reads the bucket itself, so it needs credentials of the bucket in its environment; no broker need run
    with --tierPath. Nothing is changed. Exit code 1: something is missing or damaged.
    """
    import trio

    if set is not None and tier_path is None:
        raise UserError("--set is a set in --tierPath: give --tierPath, too")
    checked: list[SetVerified] = []
    for url, sets in (await _buckets(session, broker_addr, cluster_name, tier_path, set)).items():
        with _opened(url) as bucket:
            for name in sets or await trio.to_thread.run_sync(_all_sets, bucket):
                found = await trio.to_thread.run_sync(_verify, session, bucket, name, full, abandon_on_cancel=True)
                session.clear_progress()
                checked.append(SetVerified(url, full, found))
                if not found.is_sound or found.manifest < 0:
                    session.failed = True
    if not checked and not session.failed:
        raise UserError(
            "there is no set to check: the bucket is empty, or has another prefix: give the tierPath of a broker's conf"
        )
    return checked


async def _buckets(
    session: Session, addr: str | None, cluster: str | None, url: str | None, broker_set: str | None
) -> dict[str, list[str]]:
    """The sets to check, by the URLs of their buckets; an empty list: all sets of the bucket."""
    if url is not None:
        return {url: [set_name(broker_set)] if broker_set else []}
    found: dict[str, list[str]] = {}
    for each in await chosen_addrs(session, Scope(addr, cluster)):
        try:
            status = await _ask_status(session, each)
            if status.role == OFF:
                raise UserError(f"{each} has no bucket: tierPath is not set")
        except SkylarkError as error:
            session.fail(error, f"ask {each}")
        else:
            found.setdefault(status.url, []).append(status.broker_set)
    return found


def _all_sets(bucket: "Bucket") -> list[str]:
    from skylark.mqcommon.tier.opening import sets_in

    return sets_in(bucket)


def _verify(session: Session, bucket: "Bucket", name: str, full: bool) -> "Verified":
    import trio

    from skylark.mqcommon.tier.manifests import ManifestLog

    with needs_extra("mqadmin tierVerify", "tier"):
        from skylark.mqcommon.tier.verify import verify_set

    def progress(objects: int, bytes_: int) -> None:
        verb = "read" if full else "found"
        trio.from_thread.run_sync(session.progress, f"{name}: {objects:,} objects {verb}, {bytes_ >> 20:,} MiB")

    return verify_set(bucket, name, ManifestLog(bucket, name), full=full, progress=progress)


def _opened(url: str) -> AbstractContextManager["Bucket"]:
    """The bucket at a URL, open in a ``with`` block."""
    from skylark.mqcommon.tier.opening import open_bucket

    return closing(open_bucket(url, timeout_s=BUCKET_TIMEOUT_S))


# --- tierRestore


def _restore_lines(made: "TierRestored") -> Iterator[str]:
    if made.shortened:
        yield f"older files of the log stay in the bucket only: {made.shortened}"
    yield (
        f"{made.directory}: log from {made.log_start:,} to {made.log_end:,}, {made.files:,} files; {made.queues:,}"
        " queues without a message in it go on where the bucket's messages end"
    )
    if made.lowered:
        yield f"offsets of groups that were past the end of their queues, and are at the end now: {made.lowered:,}"
    if not made.metadata_ms:
        yield f"the bucket has no copy of topics, groups and offsets: broker rebuildMetadata {made.directory}"
    if made.unclean:
        yield f"the store was not closed cleanly, so its first start takes longer: {made.unclean}"
    yield (
        f"restored. Start a broker with brokerName={made.broker_name} storePathRootDir={made.directory}"
        f" mappedFileSizeCommitLog={made.segment_bytes} and the same tierPath: it reads older messages from the bucket"
    )
    yield "messages that came after the last copy of the open file are lost: where a slave has them, use the slave"
    if made.mode != "plain":
        yield f"the broker was in {made.mode} mode: see docs/operate/tiered.md before the start"


@command(
    "tierRestore",
    tier_path(required=True),
    broker_set("the set to restore: the brokerName of its brokers", required=True),
    option("", "to", "the new store: a new or empty directory", type=Directory(), metavar="DIR", required=True),
    time_option(
        "",
        "since",
        "messages from then on come back to the disk; default: those of the last hour before the loss",
        default=None,
    ),
    option("", "all", "all messages come back to the disk", is_flag=True),
    show=_restore_lines,
    asks_servers=False,
)
async def tier_restore(
    session: Session, tier_path: str, set: str, to: str, since: int | None, all: bool
) -> "TierRestored":
    """Make a broker's store of the bucket alone, when the disk is gone and no other broker has the log.

    The newest files of the log come back, with topics, groups, offsets and users; older messages stay in the bucket,
    from which the broker reads them. Each file is compared with its CRC. An interrupted restore goes on by the same
    command. Credentials of the bucket are read from the environment.
    """
    import trio

    if all and since is not None:
        raise UserError("give --all or --since, not both")
    how = ["--all"] if all else ["--since", str(since)] if since is not None else []
    again = shlex.join(["mqadmin", "tierRestore", "--tierPath", tier_path, "--set", set, "--to", to, *how])

    def restore(bucket: "Bucket") -> "TierRestored":
        with needs_extra("mqadmin tierRestore", "tier"):
            from skylark.broker.commands.tier_restore import restore_set
        from skylark.mqcommon.disk.files import OsFiles

        def progress(done: int, total: int) -> None:
            trio.from_thread.run_sync(session.progress, f"restored {done >> 20:,} of {total >> 20:,} MiB of log")

        def say(line: str) -> None:
            trio.from_thread.run_sync(session.say, line)

        since_ms = 0 if all else since
        return restore_set(OsFiles(), bucket, set_name(set), to, again, since_ms=since_ms, say=say, progress=progress)

    with _opened(tier_path) as bucket:
        return await trio.to_thread.run_sync(restore, bucket, abandon_on_cancel=True)


# --- tierPurge


@lazy_dataclass(frozen=True, slots=True)
class TierPurged:
    """A broker that has purged its bucket. ``leftovers``: replaced objects, which are removed within 24 hours."""

    broker_addr: str
    url: str
    broker_set: str
    leftovers: int


def _purge_lines(done: list[TierPurged]) -> Iterator[str]:
    for one in done:
        yield (
            f"{one.broker_addr}: {one.url} set {one.broker_set} has nothing of deleted topics any more;"
            f" {one.leftovers:,} old objects are removed within 24 hours"
        )


@command("tierPurge", *where("purge the bucket of"), show=_purge_lines)
async def tier_purge(session: Session, scope: Scope) -> list[TierPurged]:
    """Remove the bytes of deleted topics from the bucket now, and not when the time of their files is over.

    A deleted topic is hidden at once, but its bytes stay in objects that other topics share. The master writes these
    objects anew, which reads and writes each of them once; the old ones are removed 24 hours later. -c has each master
    of a cluster do that. When the command is interrupted, the brokers go on.
    """
    done: list[TierPurged] = []
    begun: list[str] = []
    for addr in await chosen_addrs(session, scope):
        try:
            if (await _ask_status(session, addr)).role == OFF:
                raise UserError(f"{addr} has no bucket: tierPath is not set")
            await session.admin.begin_tier_purge(addr)
        except SkylarkError as error:
            session.fail(error, f"purge the bucket of {addr}")
        else:
            begun.append(addr)
    for addr in begun:
        try:
            status = await _until_purged(session, addr)
        except SkylarkError as error:
            session.fail(error, f"purge the bucket of {addr}")
            continue
        done.append(TierPurged(addr, status.url, status.broker_set, status.leftovers))
    return done


async def _until_purged(session: Session, addr: str) -> "TierStatus":
    import trio

    give_up_at, was_away = trio.current_time() + AWAY_S, False
    while True:
        try:
            status = await session.admin.tier_status(addr)
        except RemotingError:
            was_away = True
            if trio.current_time() >= give_up_at:
                raise
        else:
            give_up_at = trio.current_time() + AWAY_S
            if status.problem:
                raise UserError(f"{status.problem}; the broker goes on with the purge when it can write again")
            # A broker that starts again, or loses the set, forgets what it was asked for.
            if status.role != OWNER or (was_away and not status.purge_left):
                raise UserError("the broker was away, or has lost the set: ask the master again, by the same command")
            if not status.purge_left:
                return status
            session.progress(f"{addr}: {status.purge_left:,} files left to purge")
        await trio.sleep(POLL_S)


# --- tierTakeOver


@command(
    "tierTakeOver", broker_addr("the master that is to own its set in the bucket", required=True), show=_status_lines
)
async def tier_take_over(session: Session, broker_addr: str) -> list[BrokerTier]:
    """Have a master own its set in the bucket, although an owner of a later term was there.

    Controllers and DLedger groups count terms, by which the bucket tells a new master from a deposed one. When they
    begin with 1 again, since all Controllers were lost, a master that is stopped by "another owner" needs this once.
    Make sure that no other master of the set runs. The log of the broker is compared with the bucket all the same.
    """
    import trio

    if (await _ask_status(session, broker_addr)).role == OFF:
        raise UserError(f"{broker_addr} has no bucket: tierPath is not set")
    await session.admin.take_tier_over(broker_addr)
    give_up_at = trio.current_time() + AWAY_S
    while True:
        status = await _ask_status(session, broker_addr)
        if status.role != STARTING or trio.current_time() >= give_up_at:
            break
        await trio.sleep(POLL_S)
    if status.role != OWNER:
        why = status.problem or "it has not begun to write yet; mqadmin tierStatus shows when it writes"
        raise UserError(f"{broker_addr} does not own its set: {why}")
    return [BrokerTier(broker_addr, status)]


FAMILIES = {"Stores": (tier_status, tier_verify, tier_restore, tier_purge, tier_take_over)}
