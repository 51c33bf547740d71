"""A database server that says nothing: batteries give up on it, and nothing else waits for it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
from tests.postgres_proxy import CuttingProxy, Harm
from tests.postgres_server import LocalServer, fresh_database

from holdfast.batteries.budget import Ledger, Spend
from holdfast.batteries.budget.ledger import SCHEMA
from holdfast.db.postgres_tables import PostgresTables
from holdfast.db.tables import TablesError, TablesUnavailable
from holdfast.db.urls import tables_from_url

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
#: Longer than any test waits.
PATIENT = timedelta(hours=1)


class SilentServer:
    """Takes connections and says nothing."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.reached.set()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
async def silent() -> AsyncIterator[tuple[SilentServer, str]]:
    """The server, and the URL of a database of it."""
    silent = SilentServer()
    async with await asyncio.start_server(silent.accept, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        yield silent, f"postgresql://x@127.0.0.1:{port}/db?sslmode=disable&gssencmode=disable&connect_timeout=100"
        silent.hang_up()


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    server = LocalServer()
    yield server
    server.remove()


@pytest.fixture
def proxied(server: LocalServer, proxy: CuttingProxy) -> Iterator[str]:
    """A database behind the proxy."""
    with fresh_database(server) as url:
        yield proxy.url(urlsplit(url).path.removeprefix("/"))


async def test_closing_does_not_hold_up_the_event_loop(silent: tuple[SilentServer, str]) -> None:
    server, url = silent
    tables = PostgresTables(url, timeout=PATIENT)
    opening = asyncio.create_task(tables.open(SCHEMA))
    await server.reached.wait()
    closing = asyncio.create_task(tables.close())
    await asyncio.sleep(0)
    # That this is reached is the test: the server lives in the same loop.
    server.hang_up()
    await closing
    with pytest.raises(TablesUnavailable):
        await opening


async def test_an_answer_that_does_not_come_is_given_up(proxy: CuttingProxy, proxied: str) -> None:
    ledger = Ledger(PostgresTables(proxied, timeout=timedelta(seconds=1)))
    await ledger.open()
    proxy.harm(Harm.FALL_SILENT, b"INSERT INTO budget_total")
    with pytest.raises(TablesUnavailable):
        await ledger.commit("r", ["a"], Spend(tokens=1), NOW)
    assert proxy.landed.is_set()
    assert (await ledger.spent("a", NOW)).tokens == 0
    await ledger.close()


async def test_calls_that_wait_behind_one_that_is_given_up_are_made(proxy: CuttingProxy, proxied: str) -> None:
    ledger = Ledger(PostgresTables(proxied, timeout=timedelta(seconds=1)))
    await ledger.open()
    proxy.harm(Harm.FALL_SILENT, b"INSERT INTO budget_total")
    first = asyncio.create_task(ledger.commit("r", ["a"], Spend(tokens=1), NOW))
    await proxy.landed.wait()
    # The caller no longer waits, so another task has to notice.
    first.cancel()
    assert (await ledger.spent("a", NOW)).tokens == 0
    await ledger.close()


async def test_whoever_stops_waiting_for_the_end_cuts_the_connection(proxy: CuttingProxy, proxied: str) -> None:
    tables = PostgresTables(proxied, timeout=PATIENT)
    ledger = Ledger(tables)
    await ledger.open()
    proxy.harm(Harm.FALL_SILENT, b"INSERT INTO budget_total")
    settling = asyncio.create_task(ledger.commit("r", ["a"], Spend(tokens=1), NOW))
    await proxy.landed.wait()
    closing = asyncio.create_task(tables.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(TablesUnavailable):
        await settling
    assert closing.cancelled()


async def test_tables_that_were_closed_say_so_until_they_are_opened_again(database_url: str) -> None:
    tables = tables_from_url(database_url)
    await tables.open(SCHEMA)
    await tables.close()
    await tables.close()
    with pytest.raises(TablesError, match="closed"):
        await tables.read(lambda cursor: cursor.execute("SELECT 1"))
    with pytest.raises(TablesError, match="closed"):
        await tables.transaction(lambda cursor: cursor.execute("SELECT 1"))
    await tables.open(SCHEMA)
    assert await tables.read(lambda cursor: cursor.execute("SELECT 1")) == [(1,)]
    await tables.close()


ENDS = """
import asyncio, sys
from datetime import timedelta
from holdfast.batteries.budget.ledger import SCHEMA
from holdfast.db.postgres_tables import PostgresTables

async def main():
    opening = asyncio.ensure_future(PostgresTables(sys.argv[1], timeout=timedelta(hours=1)).open(SCHEMA))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

asyncio.run(main())
print("ended")
"""


async def test_a_process_ends_while_the_server_says_nothing(silent: tuple[SilentServer, str]) -> None:
    server, url = silent
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENDS, url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    await server.reached.wait()
    async with asyncio.timeout(60):
        output, _ = await program.communicate(b"go\n")
    assert (output, program.returncode) == (b"ended\n", 0)
