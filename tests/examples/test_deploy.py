"""The unit and the manifest in examples/deploy: their structure, and their commands as the real parser reads them."""

import configparser
import shlex
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from holdfast import WorkerSettings
from holdfast.cli.commands.serving import parse_size
from holdfast.cli.program import build_program
from holdfast.runtime.status_server import STORE_TIMEOUT

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"

#: A shutdown takes at most this many seconds: docs/how-to/deploys.md.
SHUTDOWN_S = WorkerSettings().shutdown_timeout.total_seconds() + 15


def parse_command(words: list[str]) -> dict[str, Any]:
    """The parameters of a `holdfast worker` command."""
    name, command, *arguments = words
    assert Path(name).name == "holdfast"
    params: dict[str, Any] = build_program().commands[command].make_context(command, arguments).params
    return params


def read_unit() -> configparser.ConfigParser:
    # Not strict: systemd adds the lines of a repeated setting, such as SystemCallFilter.
    unit = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=False)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read(DEPLOY / "holdfast-worker@.service")
    return unit


def test_the_systemd_unit_starts_a_worker_that_is_recycled_and_has_time_to_drain() -> None:
    unit = read_unit()
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    params = parse_command(shlex.split(service["ExecStart"].replace("%i", "1")))
    assert (params["code"], params["health_port"]) == ("mypackage.service:app", 8081)
    assert params["max_runs"] is not None
    assert parse_size(params["max_memory"]) > 0
    assert service["Restart"] == "always"
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > SHUTDOWN_S


def test_the_kubernetes_manifest_starts_workers_that_are_probed_recycled_and_have_time_to_drain() -> None:
    (deployment,) = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    spec, template = deployment["spec"], deployment["spec"]["template"]
    assert spec["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert template["spec"]["terminationGracePeriodSeconds"] > SHUTDOWN_S
    (container,) = template["spec"]["containers"]
    params = parse_command([*container["command"], *container["args"]])
    (port,) = container["ports"]
    probe = container["readinessProbe"]
    assert (probe["httpGet"]["path"], probe["httpGet"]["port"]) == ("/healthz", port["name"])
    assert params["health_port"] == port["containerPort"]
    assert params["health_host"] == "0.0.0.0"
    assert probe["timeoutSeconds"] > STORE_TIMEOUT.total_seconds()
    assert "livenessProbe" not in container
    assert parse_size(params["max_memory"]) < parse_size(container["resources"]["limits"]["memory"].removesuffix("i"))
    assert {each["name"] for each in container["env"]} >= {"HOLDFAST_STORE"}


def test_the_systemd_unit_can_neither_change_its_code_nor_gain_privileges() -> None:
    service = read_unit()["Service"]
    assert (service["ProtectSystem"], service["ProtectHome"], service["NoNewPrivileges"]) == ("strict", "yes", "yes")
    assert service["CapabilityBoundingSet"] == ""
    filters = [line for line in (DEPLOY / "holdfast-worker@.service").read_text().splitlines() if "CallFilter=" in line]
    assert filters == ["SystemCallFilter=@system-service", "SystemCallFilter=~@privileged @resources"]


def test_the_container_of_the_kubernetes_manifest_has_a_read_only_root_and_no_capability() -> None:
    (deployment,) = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    assert security["capabilities"] == {"drop": ["ALL"]}
    profile = security.get("seccompProfile") or pod["securityContext"]["seccompProfile"]
    assert profile == {"type": "RuntimeDefault"}
    assert security.get("runAsNonRoot") or pod["securityContext"]["runAsNonRoot"]
