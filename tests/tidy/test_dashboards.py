"""The alert rules and the dashboard in conf/metrics name metrics and labels that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from skylark.broker.metrics.table import BROKER_METRICS
from skylark.namesrv.metrics import NAMESRV_METRICS
from tests.tidy.tree import ROOT

FOLDER = Path(__file__).parent
DIRECTORY = ROOT / "conf" / "metrics"
RULES = DIRECTORY / "skylark-alerts.yml"
# Labels that Prometheus adds, or all of a daemon's metrics have.
COMMON = {"instance", "job", "cluster", "node_type", "node_id"}


def known() -> dict[str, set[str]]:
    found = {"up": set(COMMON)}
    for metric in (*BROKER_METRICS, *NAMESRV_METRICS):
        labels = COMMON | set(metric.labels)
        if metric.kind == "histogram":
            found |= {f"{metric.name}_bucket": labels | {"le"}, f"{metric.name}_sum": labels,
                      f"{metric.name}_count": labels}  # fmt: skip
        else:
            found[metric.name] = labels
    return found


def expressions() -> list[tuple[str, str]]:
    """Each expression, and the text beside it that names labels in braces."""
    rules = RULES.read_text(encoding="utf-8").split("- alert:")[1:]
    found = []
    for rule in rules:
        expr = re.search(r"expr: (?:>-)?(.*?)\n +(?:for|labels):", rule, re.DOTALL)
        assert expr
        found.append((" ".join(expr[1].split()), " ".join(re.findall(r"\$labels\.(\w+)", rule))))
    panels = json.loads((DIRECTORY / "skylark-dashboard.json").read_text(encoding="utf-8"))["panels"]
    for panel in panels:
        for target in panel["targets"]:
            found.append((target["expr"], " ".join(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))))
    return found


@pytest.mark.parametrize(("expr", "shown"), expressions())
def test_metrics_and_labels_exist(expr: str, shown: str) -> None:
    names = set(re.findall(r"\b(?:rocketmq_|skylark_)\w+|\bup\b", expr))
    assert names and names <= known().keys()
    labels = set(shown.split())
    for group in re.findall(r"by \(([^)]*)\)", expr):
        labels |= {label.strip() for label in group.split(",")}
    for matchers in re.findall(r"\{([^}]*)\}", expr):
        labels |= {matcher.partition("=")[0].strip() for matcher in matchers.split(",")}
    for name in names:
        assert labels <= known()[name], name


def test_an_expression_shows_only_labels_that_its_sum_keeps() -> None:
    for expr, shown in expressions():
        kept = re.findall(r"by \(([^)]*)\)", expr)
        if kept:
            assert set(shown.split()) <= {label.strip() for label in kept[0].split(",")}, expr


@pytest.mark.parametrize(("command", "file"), [("check", RULES), ("test", FOLDER / "alerts.yml")])
def test_alerts_fire_when_they_should(command: str, file: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian: prometheus) is not installed")
    done = subprocess.run([promtool, command, "rules", file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test() -> None:
    names = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
    tested = re.findall(r"alertname: (\w+)", (FOLDER / "alerts.yml").read_text(encoding="utf-8"))
    assert set(names) == set(tested)
