"""Every file of a store cut at every byte, zeroed from every byte on, and with a bit flipped in every byte.

After each the store opens with all that was durable, or StoreCorrupt names file and offset, or (for rot that no start
looks for, because it reads only what is behind the checkpoint) ``verifyStore`` tells it. Never anything else.
"""

import pytest

from broker.commands.verify_store import verify
from mqcommon.errors import ProtocolError, StoreCorrupt, StoreError
from tests.broker.store.damage import (
    TINY,
    LastStop,
    Opened,
    Whole,
    check,
    damaged,
    open_or_refuse,
    unprotected,
    whole,
)
from tests.support.memory_files import MemoryFiles
from tests.support.rot import Ways, cut_anywhere, flipped_anywhere, zeroed_anywhere

LAST_STOPS = pytest.mark.parametrize("last_stop", list(LastStop), ids=lambda last_stop: last_stop.value)
KINDS = ("commitlog/", "consumequeue/", "index/", "checkpoint", "queueEnds", "abort", "lock")


def files(before: Whole, kind: str) -> list[str]:
    return [path for path in before.fs.paths() if path.startswith(f"/store/{kind}")]


def told(fs: MemoryFiles) -> bool:
    """Whether verifyStore finds damage."""
    return not verify(fs, TINY, repair=False, say=lambda line: None)


@LAST_STOPS
def test_every_kind_of_file_is_there(last_stop: LastStop) -> None:
    before = whole(last_stop)
    kinds = {kind for kind in KINDS if files(before, kind)}
    assert kinds == set(KINDS) - ({"abort"} if last_stop is LastStop.CLEAN else set())
    assert len(files(before, "commitlog/")) > 3 and len(files(before, "index/")) > 1
    opened = open_or_refuse(before.fs)
    assert isinstance(opened, Opened)
    check(opened, before)


@LAST_STOPS
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_at_any_byte_loses_nothing_silently(kind: str, last_stop: LastStop) -> None:
    before = whole(last_stop)
    for path in files(before, kind):
        for at, data in cut_anywhere(before.fs.read(path)):
            opened = open_or_refuse(damaged(before.fs, path, data))
            if isinstance(opened, StoreCorrupt):
                assert kind == "commitlog/", f"{path} cut at {at} stops the start: {opened}"
            else:
                check(opened, before)


@LAST_STOPS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ways", [zeroed_anywhere, flipped_anywhere], ids=["zeros", "bits"])
def test_rot_is_repaired_refused_or_told(ways: Ways, kind: str, last_stop: LastStop) -> None:
    before = whole(last_stop)
    paths = files(before, kind)
    # The files in the middle of the log are like the first one.
    for path in dict.fromkeys([*paths[:1], *paths[-2:]]):
        content = before.fs.read(path)
        exempt = unprotected(content) if kind == "commitlog/" and ways is flipped_anywhere else ()
        for at, data in ways(content):
            fs = damaged(before.fs, path, data)
            opened = open_or_refuse(damaged(before.fs, path, data))
            if isinstance(opened, StoreCorrupt):
                continue
            try:
                check(opened, before)
            except (AssertionError, ProtocolError, StoreError):
                assert at in exempt or told(fs), f"{path} damaged at {at}: nobody tells"
