"""The live part of a run's page: what it reads, and what it sends."""

from starlette.requests import Request
from tests.probe_store import ProbeStore
from tests.web.ui.journals import store_long_run

from holdfast import App
from holdfast.checkpoint.codec import Step, encode
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.store import get_record
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.run.messages import NATIVE_CODEC, Reply
from holdfast.stores.memory import MemoryStore
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui.run_view.run_stream import RunChanges, RunUpdates
from holdfast.web.ui.site import Site

READS = {"load", "get_record", "list_page", "list_runs", "read_mail"}


def make_request(run_id: str) -> Request:
    request = Request(
        {"type": "http", "path_params": {"run_id": run_id}, "query_string": b"", "headers": [], "state": {}}
    )
    request.state.principal = LOCAL_PRINCIPAL
    return request


async def test_an_update_reads_the_store_once_at_most() -> None:
    reads: list[str] = []

    async def count(method: str) -> None:
        if method in READS:
            reads.append(method)

    store = ProbeStore(MemoryStore(), before=count)
    async with App([], store, worker=False) as app:
        await store_long_run(store, "r1", 3)
        worker = WorkerIdentity(worker_id="w1", process=this_process())
        await store.register_worker(worker)
        claim = await store.claim("r1", "w1")
        record = await get_record(store, "r1")
        updates = RunUpdates(Site(app, None), make_request("r1"), after=-1)
        assert "thought 3" in await updates.begin(record)
        changes = RunChanges(app, record)
        for number in range(4, 10):
            seq = (await get_record(store, "r1")).next_seq
            progress = Progress(steps=number)
            bodies = [
                (EntryKind.MESSAGE, NATIVE_CODEC.encode(Reply(text=f"thought {number}"))),
                (EntryKind.STEP, encode(Step(at=SYSTEM_CLOCK.now(), progress=progress))),
            ]
            entries = [Entry(seq=seq + place, kind=kind, body=body) for place, (kind, body) in enumerate(bodies)]
            await store.append(claim, Append(entries=entries, progress=encode(progress), step_finished=True))
            changes.has_entries, changes.has_children = True, number == 6
            reads.clear()
            frames = [await updates.render(changes)]
            assert len(reads) <= 1
            if number == 6:  # the children first: the next update has the step
                frames.append(await updates.render(changes))
                assert len(reads) <= 2
            assert f"thought {number}" in frames[-1]
            assert f'id="step-{number - 1}"' not in frames[-1], "a finished step is sent once"
        reads.clear()
        changes.draft = "and so"
        assert "and so" in await updates.render(changes)
        assert reads == [], "the text of a reply in progress needs no read"
