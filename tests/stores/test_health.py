"""The health check of durable stores."""

from pathlib import Path

import pytest
from tests.store_kinds import DURABLE, STORES

from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import NewRun
from holdfast.checkpoint.store import SupportsHealthCheck
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.stores.from_url import store_from_url


@pytest.mark.parametrize("kind", DURABLE)
async def test_the_health_check_reports_version_and_size(kind: str, tmp_path: Path) -> None:
    with STORES[kind].open_empty(tmp_path) as url:
        store = store_from_url(url)
        assert isinstance(store, SupportsHealthCheck)
        await store.open()
        try:
            empty = await store.check_health()
            await store.register_worker(WorkerIdentity(worker_id="w", process=this_process()))
            body = b'"%s"' % (b"x" * 200_000)
            entries = [Entry(seq=0, kind=EntryKind.BEGIN, body=body)]
            await store.create(NewRun(run_id="r", agent_name="a", info=b"{}", progress=b"{}", entries=entries))
            filled = await store.check_health()
        finally:
            await store.close()
    assert empty.version == empty.known_version >= 1
    assert list(empty.problems) == list(filled.problems) == []
    # PostgreSQL compresses the body to almost nothing.
    assert filled.size > empty.size + (0 if kind == "postgres" else 200_000)
