"""The fields of valueSchema are checked before Spark sees them, as its errors would name a text that nobody wrote."""

import pytest

from skylark.mqcommon.errors import UserError
from skylark.spark_connector.formats.ddl import check_ddl


@pytest.mark.parametrize(
    "ddl",
    [
        "id bigint",
        "id: BIGINT, `a ``b` string comment 'it''s, so'",
        "price decimal(9,2), other decimal, more DEC(9)",
        'a array<array<int>>, m map<string, struct<x:int,y:array<string>>> COMMENT "m", at timestamp',
        "struct<id: bigint, n: struct<x int>>",
        "id bigint NOT NULL, größe double, struct string",
        "name string collate UTF8_LCASE, n int",
    ],
)
def test_fields_pass(ddl: str) -> None:
    check_ddl(ddl)


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("id bigin", "field id: values have no type bigin, but bigint, .* \\(character 4 of 'id bigin'\\)"),
        ("id", "field id has no type \\(character 3"),
        ("id bigint name string", "'name' is unexpected \\(character 11"),
        ("id bigint,", "the name of a field is missing"),
        ("a array<int", "'>' is missing"),
        ("a array", "'<' is missing"),
        ("m map<string>", "',' is missing"),
        ("n struct<x:int,y:txt>", "field n.y: values have no type txt"),
        ("d interval day", "field d: values have no type interval"),
        ("p decimal(9,2", "'\\)' is missing"),
        ("id bigint)", "'\\)' is unexpected"),
        ("id bigint not", "'null' is missing"),
    ],
)
def test_mistakes_are_named(ddl: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^option valueSchema: {said}"):
        check_ddl(ddl)
