"""holdfast grants"""

from typing import Annotated

import typer

from holdfast.cli.errors import CommandError, UsageError
from holdfast.cli.options import StoreOption
from holdfast.cli.stores import resolve_store_url
from holdfast.db.url import POSTGRES_SCHEMES, redact_url


def grants(
    worker: Annotated[
        str, typer.Option("--worker", metavar="ROLE", help="A role that executes, submits and answers runs.")
    ] = "",
    reader: Annotated[str, typer.Option("--reader", metavar="ROLE", help="A role that only reads.")] = "",
    store: StoreOption = "",
) -> None:
    """Print the SQL that gives PostgreSQL roles the rights they need, and no more.

    Execute it as the owner of the tables, who runs `holdfast migrate`. It also covers tables that a later migration
    creates. Connects to nothing.
    """
    if not worker and not reader:
        raise UsageError("name a role: --worker ROLE, --reader ROLE, or both")
    url = resolve_store_url(store)
    if url.partition(":")[0] not in POSTGRES_SCHEMES:
        raise CommandError(f"{redact_url(url)} has no roles: they are for PostgreSQL")
    from holdfast.db.postgres_grants import make_grants
    from holdfast.db.postgres_url import parse_schema

    for statement in make_grants(parse_schema(url), worker=worker, reader=reader):
        print(f"{statement};")
