"""Opening the store that a command works on."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.checkpoint.factory import Checkpoints
from holdfast.checkpoint.opening import DEFAULT_URL, store_from_url
from holdfast.checkpoint.operations import Operations
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.errors import CommandError
from holdfast.cli.output import talk
from holdfast.run.agent import AgentSource

_PAST_EVERY_ENTRY = 2**62
#: Seconds after which somebody in front of a terminal begins to wonder.
_SILENCE = 3.0


def url_of(given: str) -> str:
    """The URL of the store that is meant by `--store URL`, or by its absence."""
    return given or os.environ.get("HOLDFAST_STORE") or DEFAULT_URL


def without_secret(url: str) -> str:
    """`url` as it may be shown."""
    secret = urlsplit(url).password if "@" in url else None
    shown = url.replace(f":{secret}@", ":***@") if secret else url
    return re.sub(r"([?&]password=)[^&]*", r"\1***", shown)


def store_for(given: str, *, create: bool = False) -> CheckpointStore:
    """The store, not opened yet.

    Args:
        create: whether a store on disk may be made now. To look at one that is not there is a mistake.

    Raises:
        CommandError: there is none at that place, or what it needs is not installed.
        StoreError: the URL names no store.
    """
    url = url_of(given)
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


async def record_of(store: CheckpointStore, run_id: str) -> RunRecord:
    """The run's record, without its journal. Raises `RunNotFound`."""
    return (await store.load(run_id, after=_PAST_EVERY_ENTRY)).record


@contextmanager
def waiting_is_told() -> Iterator[None]:
    """Say so when a store takes its time to open: it may be away, and is waited for."""
    timer = asyncio.get_running_loop().call_later(_SILENCE, talk, "waiting for the store to answer ...")
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def opened(given: str, *, create: bool = False) -> AsyncIterator[CheckpointStore]:
    """The store, open, to look into it."""
    store = store_for(given, create=create)
    with waiting_is_told():
        await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def operating(
    given: str, agents: Mapping[str, AgentSource] | None = None, *, create: bool = False
) -> AsyncIterator[tuple[Operations, CheckpointStore]]:
    """What can be done to the runs of the store, by a worker that exists for the length of one command."""
    store = store_for(given, create=create)
    checkpoints = Checkpoints(store)
    with waiting_is_told():
        await checkpoints.open()
    try:
        yield Operations(checkpoints, agents or {}), store
    finally:
        await checkpoints.close()
