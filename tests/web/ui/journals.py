"""Stored runs that no agent executes, written straight into a store."""

from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.checkpoint.codec import Begin, Progress, RunMeta, Step, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import NewRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.message import NATIVE_CODEC, Reply, ToolCall, ToolResult, Usage, User

_START = datetime(2026, 1, 1, tzinfo=UTC)


async def store_long_run(
    store: CheckpointStore | None, run_id: str, steps: int, *, agent: str = "nobody", size: int = 200
) -> None:
    """Store a queued run with this many finished steps, each with one call and its result."""
    assert store is not None
    meta = RunMeta(run_id=run_id, agent_name=agent, prompt="A long journey.")
    bodies = [
        (EntryKind.BEGIN, encode(Begin.from_meta(meta))),
        (EntryKind.MESSAGE, NATIVE_CODEC.encode(User(text="A long journey."))),
    ]
    progress = Progress()
    for number in range(1, steps + 1):
        call = ToolCall(id=f"c{number}", name="walk", arguments={"to": number})
        progress = Progress(steps=number, own_usage=Usage(input_tokens=100 * number, cost_usd=0.001 * number))
        ended = Step(at=_START + timedelta(seconds=number), progress=msgspec.Raw(encode(progress)))
        result = ToolResult(call_id=call.id, tool="walk", content="." * size)
        bodies += [
            (EntryKind.MESSAGE, NATIVE_CODEC.encode(Reply(text=f"thought {number}", tool_calls=[call]))),
            (EntryKind.MESSAGE, NATIVE_CODEC.encode(result)),
            (EntryKind.STEP, encode(ended)),
        ]
    entries = [Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(bodies)]
    new = NewRun(
        run_id=run_id, agent_name=agent, meta=encode(meta.summary()), progress=encode(progress), entries=entries
    )
    await store.create(new)
