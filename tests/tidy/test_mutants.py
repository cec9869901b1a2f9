"""The mutants of scripts/mutants.py fit the code as it is; a nightly run sees that tests notice them."""

import pytest

from scripts.daemons import ROOT
from scripts.mutants import MUTANTS, Mutant, copy_tree, is_noticed


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_each_mutant_changes_one_place(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1 and mutant.old != mutant.new
    assert (ROOT / mutant.tests).exists()


@pytest.mark.nightly
def test_each_mutant_is_noticed(tmp_path_factory: pytest.TempPathFactory) -> None:
    tree = tmp_path_factory.mktemp("mutants")
    copy_tree(tree)
    assert [mutant for mutant in MUTANTS if not is_noticed(tree, mutant)] == []
