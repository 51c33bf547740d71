"""The OpenAPI description is what the server does."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from starlette.routing import Route
from tests.web.conftest import Site
from tests.web.test_api import fetch_result, submit

from holdfast import App
from holdfast.web.api import make_api


@pytest.fixture
async def description(site: Site) -> dict[str, Any]:
    async with site.client("") as anyone:
        described: dict[str, Any] = (await anyone.get("/openapi.json")).json()
    return described


def validate(description: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    root = {**schema, "components": description["components"]}
    jsonschema.Draft202012Validator(root).validate(value)


def test_every_route_is_described_and_nothing_else(description: dict[str, Any]) -> None:
    api = make_api(App([], None))
    routes = {
        (route.path, method.lower())
        for route in api.routes
        if isinstance(route, Route) and route.path not in ("/openapi.json", "/metrics")
        for method in route.methods or ()
    }
    assert routes == {(path, method) for path, methods in description["paths"].items() for method in methods}
    for path, methods in description["paths"].items():
        for described in methods.values():
            named = [each["name"] for each in described["parameters"] if each["in"] == "path"]
            assert named == re.findall(r"{(\w+)}", path)


def test_the_schemas_are_valid_and_every_reference_has_a_target(description: dict[str, Any]) -> None:
    assert description["openapi"] == "3.1.0"
    for schema in description["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)

    def find_references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [ref for item in value.values() for ref in find_references(item)]
        return [ref for item in value for ref in find_references(item)] if isinstance(value, list) else []

    known = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    references = set(find_references(description))
    assert references <= known
    assert "#/components/schemas/Problem" in references


async def test_responses_are_as_described(description: dict[str, Any], ann: httpx.AsyncClient) -> None:
    await submit(ann, "described", "note")
    await fetch_result(ann, "described")
    for path in ("/runs", "/runs/{run_id}", "/runs/{run_id}/result"):
        response = await ann.get(path.format(run_id="described"))
        described = description["paths"][path]["get"]["responses"][str(response.status_code)]
        validate(description, described["content"]["application/json"]["schema"], response.json())
        refused = await ann.get(path.format(run_id="none"), params={"limit": "none"})
        problem = description["paths"][path]["get"]["responses"]["default"]["content"]["application/problem+json"]
        validate(description, problem["schema"], refused.json())


async def test_numbers_within_the_described_bounds_are_accepted(
    description: dict[str, Any], ann: httpx.AsyncClient
) -> None:
    [limit] = [each for each in description["paths"]["/runs"]["get"]["parameters"] if each["name"] == "limit"]
    least, most = limit["schema"]["minimum"], limit["schema"]["maximum"]
    given = [least - 1, least, most, most + 1]
    responses = [await ann.get("/runs", params={"limit": number}) for number in given]
    assert [response.status_code for response in responses] == [422, 200, 200, 422]


async def test_bodies_that_fit_the_description_are_accepted(
    description: dict[str, Any], ann: httpx.AsyncClient
) -> None:
    schema = description["paths"]["/runs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    for body, fits in (
        ({"agent": "clerk", "input": "note", "labels": {"a": "b"}, "not_before": "2026-01-01T00:00:00Z"}, True),
        ({"agent": "clerk", "input": ["note"]}, True),
        ({"agent": "clerk"}, False),
        ({"agent": "clerk", "input": "note", "labels": {"a": 1}}, False),
        ({"agent": "clerk", "input": "note", "more": 1}, False),
    ):
        accepted = (await ann.post("/runs", json=body)).status_code == 202
        valid = True
        try:
            validate(description, schema, body)
        except jsonschema.ValidationError:
            valid = False
        assert (accepted, valid) == (fits, fits), body


def generate_client(description: dict[str, Any], tmp_path: Path) -> None:
    """Generate the package `generated_client` in a folder. No operation may be left out."""
    (tmp_path / "openapi.json").write_text(json.dumps(description))
    options = {"path": tmp_path / "openapi.json", "output-path": tmp_path / "generated_client", "meta": "none"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of ruff, which formats the client
    subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning"]
        + [f"--{name}={value}" for name, value in options.items()],
        check=True,
        env={**os.environ, "PATH": path},
    )


async def test_a_generated_client_starts_a_run_and_reads_it(
    site: Site, description: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_client(description, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    package, models = map(importlib.import_module, ("generated_client", "generated_client.models"))
    api = {
        name: importlib.import_module(f"generated_client.api.default.{name}")
        for name in ("submit_run", "get_result", "get_run")
    }
    client = package.Client(base_url=site.url, headers={"x-user": "ann"}, timeout=60)
    async with client:
        request = models.RunRequest(
            agent="clerk", input_=["note"], labels=models.RunRequestLabelsType0.from_dict({"a": "b"})
        )
        accepted = await api["submit_run"].asyncio(client=client, body=request, idempotency_key="generated")
        assert accepted == models.RunReference(run_id="generated")
        result: Any = None
        while not isinstance(result, models.RunResult):
            result = await api["get_result"].asyncio("generated", client=client, wait=1)
            assert isinstance(result, models.RunReference | models.RunResult), result
        run = await api["get_run"].asyncio("generated", client=client)
        assert run.labels.to_dict() == {"a": "b"}
        assert 0 < run.elapsed <= run.total
        problem = await api["get_run"].asyncio("none", client=client)
        assert (problem.status, problem.title) == (404, "Run not found")


async def test_a_refused_method_is_answered_with_all_methods_of_the_path(
    description: dict[str, Any], ann: httpx.AsyncClient
) -> None:
    for path, methods in description["paths"].items():
        refused = await ann.put(re.sub(r"{\w+}", "x", path))
        assert refused.status_code == 405
        assert {each.strip().lower() for each in refused.headers["allow"].split(",")} == set(methods)


async def test_an_error_names_a_conversation_by_its_key(ann: httpx.AsyncClient) -> None:
    path = "/conversations/talker/named"
    accepted = await ann.post(f"{path}/messages", json={"content": "hello", "id": "first"})
    stored_id = accepted.json()["run_id"]
    assert stored_id.count("named") == 1
    assert len(stored_id) > len("named")
    for response in (
        await ann.get("/conversations/talker/none"),
        await ann.get(f"{path}/turns/none"),
        await ann.post(f"{path}/messages", json={"content": "something else", "id": "first"}),
        await ann.post(f"{path}/fork", json={"at_turn": 99, "key": "other"}),
        await ann.post(f"{path}/fork", json={"at_turn": 1, "key": "named"}),
    ):
        detail = response.json()["detail"]
        assert response.is_client_error
        assert re.search(r"conversation (named|none)\b", detail), detail
        assert stored_id.partition("named")[0] not in detail
