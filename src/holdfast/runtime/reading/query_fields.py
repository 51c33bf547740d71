"""The fields of `RunQuery` as data: commands, HTTP parameters, clients and MCP tools are made from them."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from holdfast.runtime.reading.run_views import RunQuery

#: One text, one or several texts, NAME=VALUE pairs, or a time.
FieldKind = Literal["text", "texts", "pairs", "time"]

_KINDS: dict[Any, FieldKind] = {Iterable: "texts", Mapping: "pairs", datetime: "time"}


class QueryField(NamedTuple):
    """One condition of a listing."""

    name: str
    kind: FieldKind
    #: A sentence for users, such as "Only runs of this agent."
    help: str

    @property
    def parameter(self) -> str:
        """Its name where each value is given alone: `label` for the field `labels`."""
        return self.name.removesuffix("s") if self.kind == "pairs" else self.name

    @property
    def is_repeatable(self) -> bool:
        return self.kind in ("texts", "pairs")


def _read_fields() -> tuple[QueryField, ...]:
    fields = []
    for name, hint in get_type_hints(RunQuery, include_extras=True).items():
        value, text = get_args(hint)
        types = (get_origin(each) or each for each in get_args(value))
        fields.append(QueryField(name, next((_KINDS[each] for each in types if each in _KINDS), "text"), text))
    return tuple(fields)


QUERY_FIELDS = _read_fields()


def encode_query(query: RunQuery) -> dict[str, Any]:
    """Return the parameters of a request for this query."""
    values: dict[str, Any] = {**query}
    given = [(field, values[field.name]) for field in QUERY_FIELDS if values.get(field.name) is not None]
    return {field.parameter: _encode(field, value) for field, value in given}


def _encode(field: QueryField, value: Any) -> Any:
    match field.kind:
        case "texts":
            return [value] if isinstance(value, str) else list(value)
        case "pairs":
            return [f"{name}={text}" for name, text in value.items()]
        case "time":
            return value.isoformat()
    return value
