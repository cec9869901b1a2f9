"""An archive of Spark's classes is used while it fits this Java and this Spark, and otherwise left alone."""

import os
from pathlib import Path

import pytest

from tests.support import spark_home

pytest.importorskip("pyspark")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with an archive."""
    made = tmp_path / "made"
    monkeypatch.setattr(spark_home, "MADE", made)
    assert spark_home.quick_spark_home(made) == made
    (made / spark_home.ARCHIVE).touch()
    (made / spark_home.IDENTITY).write_text(spark_home.identity(), encoding="utf-8")
    return made


def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables that are set in an environment without any variable of Spark; Java is found as before."""
    before = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment = dict(before)
    monkeypatch.setattr(spark_home.os, "environ", environment)
    spark_home.use_quick_spark(tmp_path / "spark")
    return {name: value for name, value in environment.items() if name not in before}


def test_an_archive_of_this_java_is_used(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = used(tmp_path, monkeypatch)
    assert environment["SPARK_HOME"] == str(made)
    assert environment[spark_home.SUBMIT_OPTIONS].startswith(f"-XX:SharedArchiveFile={made / spark_home.ARCHIVE} ")


@pytest.mark.parametrize("change", ["java", "Spark", "archive"])
def test_an_archive_that_does_not_fit_is_left_alone(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    if change == "java":
        monkeypatch.setattr(spark_home, "java_identity", lambda: "another Java")
    elif change == "Spark":
        (made / "jars").unlink()
        (made / "jars").symlink_to(tmp_path)
    else:
        (made / spark_home.ARCHIVE).unlink()
    assert used(tmp_path, monkeypatch) == {"SPARK_HOME": str(tmp_path / "spark")}
    assert (tmp_path / "spark" / "jars").is_dir()
