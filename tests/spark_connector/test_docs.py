from pathlib import Path

from mqcommon.options import markdown_table
from spark_connector.options import ReadOptions
from spark_connector.schema import spark_schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def test_the_option_table_is_current() -> None:
    """Copy the table that this prints into the page when an option has changed."""
    table = markdown_table(ReadOptions)
    assert table in PAGE.read_text(), table


def test_every_column_is_documented_with_its_type() -> None:
    page = PAGE.read_text().replace("&lt;", "<").replace("&gt;", ">")
    for field in spark_schema(include_properties=True):
        assert f"| `{field.name}` | {field.dataType.simpleString()} |" in page
