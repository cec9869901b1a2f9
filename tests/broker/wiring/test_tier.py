"""What a tier is refused for before it sends a request."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from skylark.broker.options import BrokerOptions
from skylark.broker.wiring import wiring
from skylark.broker.wiring.tier import wire_tier
from skylark.mqcommon.errors import UserError


def test_files_of_the_log_that_no_index_can_describe_are_refused() -> None:
    options = BrokerOptions(tier_path="file:///unused", mapped_file_size_commit_log=1 << 32)
    core: Any = SimpleNamespace(options=options, store=None, role=None, clock=None)
    unused: Any = None
    with pytest.raises(UserError, match="mappedFileSizeCommitLog=4294967296"):
        wire_tier(core, unused, unused, lambda: 0)


@pytest.mark.parametrize("package", ["pyarrow", "isal"])
def test_a_broker_without_what_its_uploads_need_is_refused(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    core: Any = SimpleNamespace(options=SimpleNamespace(tier_path="file:///x"))
    unused: Any = None
    with pytest.raises(UserError, match=f"tierPath needs Skylark's extra tier .*{package}"):
        wiring._tiered(core, unused, unused)
