"""holdfast migrate"""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import JsonOption, StoreOption
from holdfast.cli.output import Output, print_json
from holdfast.cli.stores import report_slow_open

if TYPE_CHECKING:
    from holdfast.cli.migrations import TablesVersion


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing. Exit with 1 if a migration is needed.")
    ] = False,
    langgraph: Annotated[
        bool, typer.Option("--langgraph", help="Also the tables of HoldfastSaver, LangGraph's checkpointer.")
    ] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create or migrate the tables of a store and of all batteries.

    An App does this when it is opened, if its database user may. Run it before a deploy where workers have a user
    without that right. Workers of the version before continue meanwhile.
    """
    pending = [each for each in asyncio.run(_run(store, check, langgraph)) if each.found != each.known]
    if as_json:
        print_json(pending)
    else:
        verb = "needs a migration" if check else "migrated"
        lines = [f"{each.tables}: {verb} from version {each.found} to {each.known}" for each in pending]
        for line in lines or ["all tables are up to date"]:
            Output().print_line(line)
    sys.exit(1 if check and pending else 0)


async def _run(store_url: str, check: bool, langgraph: bool) -> "list[TablesVersion]":
    from holdfast.cli.migrations import migrate_all, read_versions

    with report_slow_open():
        versions = await read_versions(store_url, langgraph=langgraph)
        if not check:
            await migrate_all(store_url, langgraph=langgraph)
    return versions
