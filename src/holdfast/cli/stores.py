"""Opening the store that a command works on."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.errors import CommandError
from holdfast.cli.output import print_diagnostic
from holdfast.core.agent import AgentSource
from holdfast.runtime.client import RunClient
from holdfast.stores.url import DEFAULT_URL, store_from_url

#: Seconds after which somebody in front of a terminal begins to wonder.
_SLOW_OPEN_SECONDS = 3.0


def resolve_store_url(given: str) -> str:
    """The URL of the store that is meant by `--store URL`, or by its absence."""
    return given or os.environ.get("HOLDFAST_STORE") or DEFAULT_URL


def redact_url(url: str) -> str:
    """`url` as it may be shown."""
    secret = urlsplit(url).password if "@" in url else None
    shown = url.replace(f":{secret}@", ":***@") if secret else url
    return re.sub(r"([?&]password=)[^&]*", r"\1***", shown)


def make_store(given: str, *, create: bool = False) -> CheckpointStore:
    """The store, not opened yet.

    Args:
        create: whether a store on disk may be made now. To look at one that is not there is a mistake.

    Raises:
        CommandError: there is none at that place, or what it needs is not installed.
        StoreError: the URL names no store.
    """
    url = resolve_store_url(given)
    scheme, _, rest = url.partition(":")
    path = rest.removeprefix("//")
    if not create and scheme == "sqlite" and path and not Path(path).exists():
        raise CommandError(f"there is no store at {path}: name another with --store, or make one with run or submit")
    try:
        return store_from_url(url)
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("holdfast"):
            raise
        raise CommandError(f'{scheme}: needs {exc.name}, which is not installed: pip install "holdfast[all]"') from exc


async def get_record(store: CheckpointStore, run_id: str) -> RunRecord:
    """The run's record, without its journal. Raises `RunNotFound`."""
    return await store.get_record(run_id)


@contextmanager
def report_slow_open() -> Iterator[None]:
    """Say so when a store takes its time to open: it may be away, and is waited for."""
    timer = asyncio.get_running_loop().call_later(
        _SLOW_OPEN_SECONDS, print_diagnostic, "waiting for the store to answer ..."
    )
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def open_store(given: str, *, create: bool = False) -> AsyncIterator[CheckpointStore]:
    """The store, open, to look into it."""
    store = make_store(given, create=create)
    with report_slow_open():
        await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_client(
    given: str, agents: Mapping[str, AgentSource] | None = None, *, create: bool = False
) -> AsyncIterator[tuple[RunClient, CheckpointStore]]:
    """What can be done to the runs of the store, by a worker that exists for the length of one command."""
    store = make_store(given, create=create)
    checkpoints = StoreCheckpoints(store)
    with report_slow_open():
        await checkpoints.open()
    try:
        yield RunClient(checkpoints, agents or {}), store
    finally:
        await checkpoints.close()
