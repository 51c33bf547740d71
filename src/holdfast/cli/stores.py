"""Opens the store of a command."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.errors import CommandError
from holdfast.cli.output import print_diagnostic
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.agent import AgentSource
from holdfast.db.url import parse_sqlite_path
from holdfast.runtime.client import RunClient
from holdfast.runtime.mailer import Mailer
from holdfast.stores.url import DEFAULT_URL, store_from_url

#: Report a store that takes longer than this to open.
_SLOW_OPEN_SECONDS = 3.0


def resolve_store_url(given: str) -> str:
    """Return the URL of `--store`, or the default."""
    return given or os.environ.get("HOLDFAST_STORE") or DEFAULT_URL


def make_store(given: str, *, create: bool = False) -> CheckpointStore:
    """Return the store, not open.

    Args:
        create: permit a SQLite file that does not exist yet.

    Raises:
        CommandError: the SQLite file does not exist, or a dependency is not installed.
        StoreError: the URL is not valid.
    """
    url = resolve_store_url(given)
    scheme, _, _ = url.partition(":")
    try:
        store = store_from_url(url)
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("holdfast"):
            raise
        raise CommandError(f'{scheme}: needs {exc.name}, which is not installed: pip install "holdfast[all]"') from exc
    path = Path(parse_sqlite_path(url)) if scheme == "sqlite" else None
    if not create and path is not None and not path.exists():
        raise CommandError(f"there is no store at {path}: name another with --store, or create one with run or submit")
    return store


async def get_record(store: CheckpointStore, run_id: str) -> RunRecord:
    """The run's record, without its journal. Raises `RunNotFound`."""
    return await store.get_record(run_id)


@contextmanager
def report_slow_open() -> Iterator[None]:
    """Print a diagnostic if the store does not open within some seconds."""
    timer = asyncio.get_running_loop().call_later(
        _SLOW_OPEN_SECONDS, print_diagnostic, "waiting for the store to answer ..."
    )
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def open_store(given: str, *, create: bool = False) -> AsyncIterator[CheckpointStore]:
    """Open the store and close it at the end."""
    store = make_store(given, create=create)
    with report_slow_open():
        await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_mailer(given: str) -> AsyncIterator[Mailer]:
    """Open the store to send mail to its runs."""
    async with open_store(given) as store:
        yield Mailer(store, clock=SYSTEM_CLOCK)


@asynccontextmanager
async def open_client(
    given: str, agents: Mapping[str, AgentSource] | None = None, *, create: bool = False
) -> AsyncIterator[tuple[RunClient, CheckpointStore]]:
    """Open a client of the store. It is registered as a worker until the end of the command."""
    store = make_store(given, create=create)
    checkpoints = StoreCheckpoints(store)
    with report_slow_open():
        await checkpoints.open()
    try:
        yield RunClient(checkpoints, agents or {}), store
    finally:
        await checkpoints.close()
