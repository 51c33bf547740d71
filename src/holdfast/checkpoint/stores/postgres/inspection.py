"""How the schema stands: its version, its size, and whether its indexes can be used."""

from holdfast.checkpoint.inspection import Inspection
from holdfast.checkpoint.stores.postgres.database import Database

_STATEMENT = """
select (select coalesce(max(version), 0) from holdfast.schema_version),
    coalesce(sum(pg_table_size(class.oid)), 0)::bigint,
    coalesce(array_agg(class.relname::text) filter (where not index.indisvalid), '{}')
from pg_catalog.pg_class as class
left join pg_catalog.pg_index as index on index.indexrelid = class.oid
where class.relnamespace = %s::text::regnamespace and class.relkind in ('r', 'i')
"""


async def inspect(database: Database) -> Inspection:
    """Ask the server's catalogue. Whether its files are sound is the server's business."""
    return await database.persist(lambda: _inspect_once(database))


async def _inspect_once(database: Database) -> Inspection:
    scripts = database.scripts
    async with await database.connect() as connection:
        cursor = await connection.execute(scripts.inline(_STATEMENT).encode(), [f'"{scripts.schema}"'])
        [(version, size, unusable)] = await cursor.fetchall()
    return Inspection(
        version=version,
        known_version=len(scripts.migrations),
        size=size,
        problems=[f"the index {name} cannot be used: reindex it" for name in unusable],
    )
