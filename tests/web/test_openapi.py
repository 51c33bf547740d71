"""The OpenAPI description is what the server does."""

import re
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
