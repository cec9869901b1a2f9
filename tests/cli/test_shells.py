"""`skylark completion`."""

import pytest
from click.testing import CliRunner

from skylark.cli.main import skylark


# click asks bash for its version.
@pytest.mark.parametrize("shell", [pytest.param("bash", marks=pytest.mark.process), "zsh", "fish"])
def test_a_script_asks_skylark_for_completions(shell: str) -> None:
    result = CliRunner().invoke(skylark, ["completion", shell])
    assert result.exit_code == 0
    assert f"_SKYLARK_COMPLETE={shell}_complete" in result.output
