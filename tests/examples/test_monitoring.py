"""The dashboard and the alert rules in examples/deploy name metrics and labels that a worker exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from tests.examples.test_deploy import DEPLOY

from holdfast import Agent, App, Reply
from holdfast.checkpoint.record import RunStatus
from holdfast.core.run.status import AttemptEnd

DOCS = Path(__file__).parents[2] / "docs"
RULES = [rule for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text())
EXPRESSIONS = [
    *(rule["expr"] for rule in RULES),
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]),
]
METRIC = re.compile(r"\b(holdfast_\w+)(?:\{([^}]*)\})?")
#: The values of a label that are words of the code.
VALUES = {
    "status": {status.value for status in RunStatus},
    "end": {end.value for end in AttemptEnd},
    "call": {"model", "tool"},
    "type": {"input", "output"},
}


async def read_exported() -> dict[str, set[str]]:
    """The labels of each metric, by the name of its samples."""

    async def model(messages: object, tools: object) -> Reply:
        return Reply(text="Hello.")

    async with App([Agent(name="greeter", model=model)], "memory:") as app:
        await app.run("greeter", "Hi")
        app.metrics.get("greeter").add_failed_call("book")
        await app.submit("greeter", "later", not_before=None)
        text = await app.render_metrics()
    samples = re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE)
    exported: dict[str, set[str]] = {name: set() for name in re.findall(r"^# TYPE (\w+) (?:counter|gauge)", text, re.M)}
    for name, labels in samples:
        exported.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return exported


def find_label_matchers(matchers: str) -> Iterator[tuple[str, str]]:
    return iter(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', matchers))


@pytest.mark.parametrize("expression", EXPRESSIONS)
async def test_a_metric_of_an_expression_is_exported_with_its_labels(expression: str) -> None:
    exported = await read_exported()
    found = METRIC.findall(expression)
    assert found
    grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(",")}
    for name, matchers in found:
        assert name in exported
        used = dict(find_label_matchers(matchers))
        # A gauge of a store without such runs has no samples here.
        known = exported[name] or {"agent"}
        assert used.keys() | grouped <= known, f"{name} has the labels {sorted(known)}"
        for label, value in used.items():
            assert label not in VALUES or set(value.split("|")) <= VALUES[label]


async def test_every_exported_metric_is_on_the_dashboard() -> None:
    shown = {name for expression in EXPRESSIONS for name, _ in METRIC.findall(expression)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in await read_exported()}
    assert families == {re.sub(r"_bucket$", "", name) for name in shown}


def test_each_alert_says_what_to_do_and_names_an_existing_page() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        pages = re.findall(r"[\w-]+(?:/[\w-]+)*\.md", rule["annotations"]["description"])
        assert all((DOCS / page).exists() for page in pages)
        assert pages or "holdfast " in rule["annotations"]["description"]


def test_the_panels_do_not_overlap() -> None:
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert all(x < 24 for x, _ in places)


def test_prometheus_scrapes_the_health_port_of_the_workers_and_reads_the_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    assert all((DEPLOY / rules).exists() for rules in config["rule_files"])
    [job] = config["scrape_configs"]
    [found] = job["dns_sd_configs"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    [worker] = found["names"]
    assert f"--health-port={found['port']}" in compose["services"][worker]["command"]
