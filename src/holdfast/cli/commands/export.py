"""holdfast export"""

import asyncio
import base64
from typing import Any

import msgspec

from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.record import StoredRun
from holdfast.cli.options import RunArgument, StoreOption
from holdfast.cli.output import print_json_line
from holdfast.cli.stores import open_store
from holdfast.runtime.reading import summarize_run


def export(run: RunArgument, store: StoreOption = "") -> None:
    """Write a run to stdout as JSON lines.

    The first line is the run's record, the others are all entries of its journal. No agent's code is needed.
    """
    stored = asyncio.run(_load(store, run))
    print_json_line({"kind": "run", **msgspec.to_builtins(summarize_run(stored.record))})
    for entry in stored.entries:
        print_json_line({"kind": entry.kind, "seq": entry.seq, **_encode_body(entry)})


async def _load(store_url: str, run_id: str) -> StoredRun:
    async with open_store(store_url) as store:
        return await store.load(run_id)


def _encode_body(entry: Entry) -> dict[str, Any]:
    try:
        # The original bytes: a decoded value could change numbers and the order of keys.
        msgspec.json.decode(entry.body)
        return {"body": msgspec.Raw(entry.body)}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {"base64": base64.b64encode(entry.body).decode()}
