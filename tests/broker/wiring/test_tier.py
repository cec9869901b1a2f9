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


def test_a_bucket_whose_library_is_missing_is_refused_by_the_name_of_the_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another test of the process may have imported the module that needs the library.
    for module in ("obstore", "obstore.store", "skylark.mqcommon.tier.buckets.objects"):
        monkeypatch.setitem(sys.modules, module, None)
    core: Any = SimpleNamespace(options=BrokerOptions(tier_path="s3://bucket/x"), store=None, role=None, clock=None)
    unused: Any = None
    with pytest.raises(UserError, match=r"^tierPath: .*needs Skylark's extra tier"):
        wire_tier(core, unused, unused, lambda: 0)


@pytest.mark.parametrize("package", ["pyarrow", "isal"])
def test_a_broker_without_what_its_uploads_need_is_refused(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    core: Any = SimpleNamespace(options=SimpleNamespace(tier_path="file:///x"))
    unused: Any = None
    with pytest.raises(UserError, match=f"tierPath needs Skylark's extra tier .*{package}"):
        wiring._tiered(core, unused, unused)
