"""The OpenAPI 3.1 description of the API, made from its operations and their types."""

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from holdfast.web.api.operation import Operation, Parameter
from holdfast.web.wire import PROBLEM_JSON, Problem

_SCHEMA_PLACE = "#/components/schemas/{name}"


def make_openapi(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the description of the operations as plain data."""
    operations = list(operations)
    types = [each for operation in operations for each in (operation.request, operation.response) if each is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template=_SCHEMA_PLACE)
    described = dict(zip(map(repr, [*types, Problem]), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, described)
    return {
        "openapi": "3.1.0",
        "info": {"title": "holdfast", "version": version("holdfast")},
        "paths": paths,
        "components": {"schemas": components},
    }


def _describe(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    names = re.findall(r"{(\w+)(?::\w+)?}", operation.path)
    path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    response: dict[str, Any] = {"description": operation.summary}
    if operation.response is not None:
        response["content"] = {operation.media_type: {"schema": schemas[repr(operation.response)]}}
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "parameters": path + list(map(_describe_parameter, operation.parameters)),
        "responses": {
            str(operation.status): response,
            "default": {
                "description": "The request was refused.",
                "content": {PROBLEM_JSON: {"schema": schemas[repr(Problem)]}},
            },
        },
    }
    if operation.scope is not None:
        described["x-scope"] = operation.scope
    if operation.request is not None:
        body = {"application/json": {"schema": schemas[repr(operation.request)]}}
        described["requestBody"] = {"required": True, "content": body}
    return described


def _describe_parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": False,
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }
