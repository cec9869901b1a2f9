"""The example file of the documentation."""

from skylark.broker.security.accounts.account_file import parse_file
from skylark.mqcommon.yaml_documents import parse_yaml
from tests.tidy.tree import ROOT


def test_the_example_file_is_right() -> None:
    path = ROOT / "conf" / "plain_acl.yml"
    accounts = parse_file(parse_yaml(path.read_text(), str(path)), str(path)).accounts
    assert [account.admin for account in accounts.values()] == [False, True]
