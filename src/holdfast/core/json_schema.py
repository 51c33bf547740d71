"""Checks JSON data against a JSON schema as tools have it, without the tool: types, fields, choices and bounds."""

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}

#: Deeper data is accepted: the tool checks it when it is called.
_MAX_DEPTH = 50


def find_mismatch(value: Any, schema: Mapping[str, Any]) -> str:
    """Return the first part of `value` that does not fit, such as `amount: is not of type integer`; empty if all fits.

    Keywords that are not known here, patterns among them, accept everything.
    """
    return next(_find(value, schema, schema, "", 0), "")


def _find(value: Any, schema: Any, root: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    if isinstance(reference := schema.get("$ref"), str):
        yield from _find(value, _resolve(reference, root), root, path, depth + 1)
    if (kinds := schema.get("type")) is not None:
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not any(_has_type(value, kind) for kind in kinds):
            yield _describe(path, f"is not of type {' or '.join(kinds)}")
            return
    if "enum" in schema and value not in schema["enum"]:
        yield _describe(path, f"is not one of {', '.join(map(repr, schema['enum']))}")
    if "const" in schema and value != schema["const"]:
        yield _describe(path, f"is not {schema['const']!r}")
    for each in schema.get("allOf", ()):
        yield from _find(value, each, root, path, depth + 1)
    for name in ("anyOf", "oneOf"):
        choices = [list(_find(value, each, root, path, depth + 1)) for each in schema.get(name, ())]
        if choices and all(choices):
            yield min(choices, key=len)[0] if len(choices) == 1 else _describe(path, "fits none of the allowed forms")
    yield from _find_out_of_bounds(value, schema, path)
    if isinstance(value, dict):
        yield from _find_in_object(value, schema, root, path, depth)
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _find(item, schema.get("items"), root, f"{path}[{index}]", depth + 1)


def _find_in_object(
    value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], path: str, depth: int
) -> Iterator[str]:
    fields, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield _describe(_join(path, name), "is missing")
    for name, item in value.items():
        if name in fields:
            yield from _find(item, fields[name], root, _join(path, name), depth + 1)
        elif others is False:
            yield _describe(_join(path, name), "is not an argument")
        else:
            yield from _find(item, others, root, _join(path, name), depth + 1)


def _find_out_of_bounds(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield _describe(path, f"is less than {schema['minimum']}")
        if value > schema.get("maximum", value):
            yield _describe(path, f"is more than {schema['maximum']}")
    if isinstance(value, str | list):
        low, high = ("minLength", "maxLength") if isinstance(value, str) else ("minItems", "maxItems")
        if not schema.get(low, 0) <= len(value) <= schema.get(high, len(value)):
            yield _describe(path, f"has a length of {len(value)}, which is out of bounds")


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _has_type(value: Any, kind: str) -> bool:
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    is_flag = isinstance(value, bool) and kind != "boolean"
    return not is_flag and isinstance(value, _TYPES.get(kind, (object,)))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _describe(path: str, text: str) -> str:
    return f"{path or 'the value'}: {text}"
