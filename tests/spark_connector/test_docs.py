import re
from pathlib import Path

import pytest

from skylark.mqcommon.options.command_line import markdown_table
from skylark.mqcommon.options.fields import options_of
from skylark.spark_connector.options.read import ReadOptions
from skylark.spark_connector.options.write import WriteOptions
from skylark.spark_connector.schema import spark_schema
from skylark.spark_connector.writing.rows import COLUMN_TYPES

DOCS = Path(__file__).resolve().parents[2] / "docs" / "guides"
PAGE, WRITING = DOCS / "spark.md", DOCS / "spark-writing.md"


@pytest.mark.parametrize(("options", "page"), [(ReadOptions, PAGE), (WriteOptions, WRITING)])
def test_the_option_table_is_current(options: type, page: Path) -> None:
    """Copy the table that this prints into the page when an option has changed."""
    table = markdown_table(options)
    assert table in page.read_text(), table


def test_every_column_is_documented_with_its_type() -> None:
    page = PAGE.read_text().replace("&lt;", "<").replace("&gt;", ">")
    for field in spark_schema(include_properties=True):
        assert f"| `{field.name}` | {field.dataType.simpleString()} |" in page


def test_every_column_that_can_be_written_is_documented() -> None:
    writing = WRITING.read_text()
    assert [name for name in COLUMN_TYPES if f"`{name}`" not in writing] == []


def test_each_option_of_kafka_that_is_called_the_same_is_known() -> None:
    page = (DOCS / "spark-from-kafka.md").read_text()
    tables = page[page.index("## Options of the source") : page.index("## Columns")]
    source, sink = tables.split("## Options of the sink")
    for options, table in ((ReadOptions, source), (WriteOptions, sink)):
        known = {one.key.lower() for one in options_of(options)} | set(options.aliases)
        rows = re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE)
        same = [name for names, here in rows if here.startswith("same") for name in re.findall(r"`(.*?)`", names)]
        assert [name for name in same if name.lower() not in known] == []
        ours = [name for _, here in rows if not here.startswith("none") for name in re.findall(r"`([a-z]\w+)`", here)]
        words = {"latest", "error", "committed"}
        assert [name for name in ours if name not in words and name.lower() not in known] == []
