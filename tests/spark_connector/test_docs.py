from pathlib import Path

import pytest

from mqcommon.options.command_line import markdown_table
from spark_connector.options.read import ReadOptions
from spark_connector.options.write import WriteOptions
from spark_connector.schema import spark_schema
from spark_connector.writing.rows import COLUMN_TYPES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


@pytest.mark.parametrize("options", [ReadOptions, WriteOptions])
def test_the_option_table_is_current(options: type) -> None:
    """Copy the table that this prints into the page when an option has changed."""
    table = markdown_table(options)
    assert table in PAGE.read_text(), table


def test_every_column_is_documented_with_its_type() -> None:
    page = PAGE.read_text().replace("&lt;", "<").replace("&gt;", ">")
    for field in spark_schema(include_properties=True):
        assert f"| `{field.name}` | {field.dataType.simpleString()} |" in page


def test_every_column_that_can_be_written_is_documented() -> None:
    page = PAGE.read_text()
    writing = page[page.index("## Writing") :]
    assert [name for name in COLUMN_TYPES if f"`{name}`" not in writing] == []
