"""The programs of docs/guides/faststream.md run as they stand there."""

from tests.support.manual import blocks

PROGRAMS = [block.text for block in blocks("docs/guides/faststream.md") if block.language == "python"]
