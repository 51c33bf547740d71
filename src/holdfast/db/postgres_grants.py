"""The rights of a worker and of a reader on the tables in one schema."""

from collections.abc import Iterator

#: The versions of the tables, which only their owner changes.
_VERSION_TABLES = ("schema_version", "battery")

_WORKER_RIGHTS = {"tables": "select, insert, update, delete", "sequences": "usage"}
_READER_RIGHTS = {"tables": "select"}


def make_grants(schema: str, *, worker: str = "", reader: str = "") -> Iterator[str]:
    """Yield the statements, for the owner of the tables to execute. They may be repeated.

    Neither role may create, alter or drop anything. Functions need no grant: every role may call them, and they run
    with the rights of their caller. So does NOTIFY.
    """
    for role, rights in ((worker, _WORKER_RIGHTS), (reader, _READER_RIGHTS)):
        if role:
            yield from _grant(_quote(schema), _quote(role), rights)
    if worker:
        versions = ", ".join(f"{_quote(schema)}.{table}" for table in _VERSION_TABLES)
        yield f"revoke insert, update, delete on {versions} from {_quote(worker)}"


def _grant(schema: str, role: str, rights: dict[str, str]) -> Iterator[str]:
    yield f"grant usage on schema {schema} to {role}"
    for kind, granted in rights.items():
        yield f"grant {granted} on all {kind} in schema {schema} to {role}"
        # For what a later migration of the same owner creates.
        yield f"alter default privileges in schema {schema} grant {granted} on {kind} to {role}"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
