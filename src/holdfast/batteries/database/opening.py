"""From the URL of the checkpoints to the tables beside them."""

from holdfast.batteries.database.errors import TablesError
from holdfast.batteries.database.tables import Tables


def tables_from_url(url: str) -> Tables:
    """The tables in the database that `url` names, not opened yet.

    Raises:
        TablesError: the URL names no database that batteries can use; `memory:` and `file:` stores have none.
    """
    scheme, _, rest = url.partition(":")
    if scheme in ("postgresql", "postgres"):
        from holdfast.batteries.database.postgres import PostgresTables

        return PostgresTables(url)
    if scheme == "sqlite" and rest.removeprefix("//"):
        from holdfast.batteries.database.sqlite import SqliteTables

        return SqliteTables(rest.removeprefix("//"))
    raise TablesError(f"batteries keep nothing in {url!r}: use sqlite:PATH or postgresql://..., or their memory store")
