"""The alert rules and the dashboard in docs/monitoring name only what the monitor ``prometheus`` exports."""

from __future__ import annotations

import itertools
import json
import re

import promql_parser
import pytest
import yaml

from holdfast.adapters.monitor import prometheus as prometheus_names
from holdfast.adapters.monitor.prometheus import ExportedFigures
from tests.support.rules.source_tree import ROOT

FOLDER = ROOT / "docs" / "monitoring"
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
_OTHERS = {"up"}  # Prometheus' own
_INTERVALS = {"$__rate_interval": "5m", "$__range": "6h"}


def alerts():
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def queries():
    """Return all queries of the dashboard."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    return found + [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]


def exported():
    """Return the names that a run exports, and the values of their own labels."""
    figures = ExportedFigures()
    figures.begin(1, 0.0)
    figures.rewind(0)
    figures.record(
        1, dict.fromkeys([*prometheus_names.GAUGES, "eval_loss/a", "eval_bits_per_byte/a", "suite/a/b"], 1.0), 1.0
    )
    return {family.name: [labels for labels, _ in family.samples] for family in figures.families()}


def selectors(expression):
    """Yield the name and the matchers of each selector in a parsed expression."""
    text = expression.prettify()
    for match in re.finditer(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?", text):
        if match[1].startswith("holdfast_") or match[1] in _OTHERS:
            yield match[1], dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))


def test_there_are_rules_and_panels():
    """The files are not empty, names of alerts and numbers of panels are unique, and each alert has a summary."""
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) >= 8
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in alerts())
    panels = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(panels) == len(set(panels)) > 10


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in alerts()), *queries()])
def test_expressions_parse_and_name_what_is_exported(expression):
    """Each expression is PromQL, and its metrics and events are exported."""
    for name, interval in _INTERVALS.items():
        expression = expression.replace(name, interval)
    found = list(selectors(promql_parser.parse(expression)))
    assert found
    names = exported()
    assert {name for name, _ in found} - names.keys() <= _OTHERS
    for name, matchers in found:
        for label in {"event", "state"} & matchers.keys():
            assert {label: matchers[label]} in names[name]


def test_the_documentation_names_what_is_exported():
    """docs/trackers.md names no metric that the monitor does not export."""
    text = (ROOT / "docs" / "trackers.md").read_text(encoding="utf-8")
    found = set(re.findall(r"holdfast_[a-z_]+", text))
    assert len(found) > 10
    assert found <= exported().keys()


def test_panels_do_not_overlap():
    """No two panels of the dashboard take the same place in the grid of 24 columns."""
    places = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        columns, rows = range(grid["x"], grid["x"] + grid["w"]), range(grid["y"], grid["y"] + grid["h"])
        cells = set(itertools.product(columns, rows))
        assert not cells & places
        places |= cells
