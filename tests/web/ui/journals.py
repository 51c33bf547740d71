"""Stored runs that no agent executes, written straight into a store."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.checkpoint.codec import Begin, Step, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.core.run.state import CallTime, StepCalls, StepTimes
from holdfast.core.run.waiting import WaitingCall, WaitKind
from holdfast.fanout import ModelResponse, ResponseSnapshot, WriteSnapshot
from holdfast.fanout.cells import AGENT_PREFIX
from holdfast.fanout.responses import ASK_TOOL, CellRecord

_START = datetime(2026, 1, 1, tzinfo=UTC)


async def store_long_run(
    store: RunStore | None,
    run_id: str,
    steps: int,
    *,
    agent: str = "nobody",
    size: int = 200,
    parent: str | None = None,
) -> None:
    """Store a queued run with this many finished steps, each with one call and its result."""
    assert store is not None
    info = RunInfo(run_id=run_id, agent_name=agent, prompt="A long journey.")
    bodies = [
        (EntryKind.BEGIN, encode(Begin(info=info))),
        (EntryKind.MESSAGE, NATIVE_CODEC.encode(User(text="A long journey."))),
    ]
    progress = Progress()
    for number in range(1, steps + 1):
        call = ToolCall(id=f"c{number}", name="walk", arguments={"to": number})
        progress = Progress(steps=number, own_usage=Usage(input_tokens=100 * number, cost_usd=0.001 * number))
        ended = Step(at=_START + timedelta(seconds=number), progress=progress)
        result = ToolResult(call_id=call.id, tool="walk", content="." * size)
        bodies += [
            (EntryKind.MESSAGE, NATIVE_CODEC.encode(Reply(text=f"thought {number}", tool_calls=[call]))),
            (EntryKind.MESSAGE, NATIVE_CODEC.encode(result)),
            (EntryKind.STEP, encode(ended)),
        ]
    entries = [Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(bodies)]
    new = NewRun(
        run_id=run_id,
        agent_name=agent,
        parent_run_id=parent,
        info=encode(info.summarize()),
        progress=encode(progress),
        entries=entries,
    )
    await store.create(new)


async def store_workflow_run(store: RunStore | None, run_id: str, tools: Sequence[str]) -> list[str]:
    """Store a workflow that has called these tools, each third with an error. Returns the names."""
    assert store is not None
    info = RunInfo(run_id=run_id, agent_name="nobody", loop="workflow", inputs={"names": list(tools[:20])})
    bodies = [
        (EntryKind.BEGIN, encode(Begin(info=info))),
        (EntryKind.MESSAGE, NATIVE_CODEC.encode(User(text=msgspec.json.encode(info.inputs).decode()))),
    ]
    for number, tool in enumerate(tools, 1):
        call = ToolCall(id=f"{tool}:{number}", name=tool, arguments={tool: number - 1}, effect=tool, can_undo=True)
        error = {"type_name": tool, "message": tool} if number % 3 == 0 else None
        result = ToolResult(call_id=call.id, tool=tool, content=error or {tool: tool}, error=error is not None)
        times = StepTimes(20, 0, (CallTime(call.id, 0, 20),))
        ended = Step(at=_START + timedelta(seconds=number), progress=Progress(steps=number), times=times)
        bodies += [
            (EntryKind.MESSAGE, NATIVE_CODEC.encode(Reply(tool_calls=[call]))),
            (EntryKind.MESSAGE, NATIVE_CODEC.encode(result)),
            (EntryKind.STEP, encode(ended)),
        ]
    new = NewRun(
        run_id=run_id,
        agent_name="nobody",
        info=encode(info.summarize()),
        progress=encode(Progress(steps=len(tools))),
        entries=[Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(bodies)],
    )
    await store.create(new)
    return [tool for tool in tools if "```" not in tool and "\r" not in tool]


async def store_fanout(store: RunStore | None, run_id: str) -> None:
    """Store a fan-out of which two models have answered, with proposed files, and one is in progress."""
    assert store is not None
    first = (WriteSnapshot(path="app.py", content="import os\n\nprint(1)\n"), WriteSnapshot(path="old.py", delete=True))
    second = (
        WriteSnapshot(path="app.py", content="import os\n\nprint(2)\n"),
        WriteSnapshot(path=".github/workflows/ci.yml", content="run: sh\n"),
    )
    responses = [
        ModelResponse(
            model_id="fake:one", text="I print **one**.", proposed_writes=first, input_tokens=900, cost_usd=0.02
        ),
        ModelResponse(model_id="fake:two", text="<b>I</b> print two.", proposed_writes=second, input_tokens=800),
    ]
    records = [CellRecord(given=ResponseSnapshot.from_response(response)) for response in responses]
    cells = [*(response.model_id for response in responses), "fake:three"]
    calls = [ToolCall(id=cell, name=ASK_TOOL, arguments={"cell": cell}) for cell in cells]
    messages = [
        User(text="Print a number."),
        Reply(tool_calls=calls),
        *(
            ToolResult(call_id=cell, tool=ASK_TOOL, content=msgspec.to_builtins(record))
            for cell, record in zip(cells, records, strict=False)
        ),
    ]
    info = RunInfo(run_id=run_id, agent_name=f"{AGENT_PREFIX}{run_id}", prompt="Print a number.", loop="native")
    bodies = [
        (EntryKind.BEGIN, encode(Begin(info=info))),
        *((EntryKind.MESSAGE, NATIVE_CODEC.encode(message)) for message in messages),
    ]
    entries = [Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(bodies)]
    new = NewRun(
        run_id=run_id,
        agent_name=info.agent_name,
        info=encode(info.summarize()),
        progress=encode(Progress()),
        entries=entries,
    )
    await store.create(new)


async def store_parked_run(
    store: RunStore | None,
    run_id: str,
    *,
    in_doubt: tuple[str, ...] = ("p1",),
    reason: str = "in doubt: pay",
    prompt: str = "Pay the invoice of ann.",
    call: ToolCall | None = None,
    is_begun: bool = True,
) -> None:
    """Store a run of the clerk that is parked: its payment was started, and its outcome is not known.

    One that is not begun has no payment yet.
    """
    assert store is not None
    info = RunInfo(run_id=run_id, agent_name="clerk", prompt=prompt)
    call = call or ToolCall(id="p1", name="pay", arguments={"amount": 129.0, "to": "ann"})
    bodies = [
        (EntryKind.BEGIN, encode(Begin(info=info))),
        (EntryKind.MESSAGE, NATIVE_CODEC.encode(User(text=info.prompt_text))),
        (EntryKind.MESSAGE, NATIVE_CODEC.encode(Reply(text="I pay ann now.", tool_calls=[call]))),
    ]
    new = NewRun(
        run_id=run_id,
        agent_name="clerk",
        info=encode(info.summarize()),
        progress=encode(Progress(calls=StepCalls(in_doubt=in_doubt))),
        entries=[Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(bodies[: 2 + is_begun])],
    )
    await store.register_worker(WorkerIdentity(worker_id=f"w-{run_id}", process=this_process()))
    claim = await store.create(new, worker_id=f"w-{run_id}")
    assert claim is not None
    await store.release(claim, Release(status=RunStatus.PARKED, reason=reason))


HOSTILE = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "'><svg onload=window.hacked=1>",
    "</textarea></pre></details><script>window.hacked = 1</script>",
    "{{ 7 * 7 }}{% raw %}",
    "[click](javascript:window.hacked=1)",
    "<a href='javascript:window.hacked=1'>x</a>",
    '<hx-partial hx-target="body" hx-swap="innerHTML">gone</hx-partial>',
    '<div hx-get="/" hx-trigger="load" hx-on:click="window.hacked=1">x</div>',
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<base href='https://evil.example/'>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "```\n</pre><script>window.hacked = 1</script>\n```".replace("\n", " "),
    "data: 1\r\n\r\nevent: hack\u2028",
)


async def store_hostile_run(store: RunStore | None, run_id: str, kind: WaitKind = "question") -> None:
    """Store a waiting run in which everything that others can write is hostile, as lines, cells, items and data."""
    assert store is not None
    text = "\n".join(HOSTILE)
    cells = "\n".join(f"| {line} | {line} |" for line in HOSTILE)
    items = "\n".join(f"- {line}" for line in HOSTILE)
    # A line of the text begins with a fence: what follows it is code.
    rich = f"| {HOSTILE[0]} | b |\n|---|---|\n{cells}\n\n{items}\n\n# {HOSTILE[0]}\n\n{text}"
    label = HOSTILE[1]
    info = RunInfo(
        run_id=run_id, agent_name=HOSTILE[0], caller_id=HOSTILE[1], prompt=text, labels={label: label, "q": label}
    )
    call = ToolCall(id=HOSTILE[3], name=HOSTILE[2], arguments={HOSTILE[1]: HOSTILE[1], "options": [*HOSTILE]})
    looked = ToolCall(id="look", name="look", arguments={})
    hints = {HOSTILE[1]: {"description": HOSTILE[0]}, HOSTILE[0]: {"enum": [HOSTILE[5], *HOSTILE]}}
    asked = WaitingCall(
        run_id=run_id,
        call_id=call.id,
        step=2,
        tool=call.name,
        kind=kind,
        arguments=call.arguments,
        schema={"properties": hints},
        topic="answer:2:x",
        reason=text,
        asked_at=_START,
        audience=HOSTILE[0],
    )
    progress = Progress(steps=1, phase=HOSTILE[0], calls=StepCalls(waits={call.id: asked}))
    times = StepTimes(20, 0, (CallTime(call.id, 0, 20),))
    ended = Step(
        at=_START,
        progress=Progress(steps=1, phase=HOSTILE[0], own_usage=Usage(cost_usd=0.5)),
        times=times,
        traces={call.id: text},
    )
    failed = ToolResult(call_id=call.id, tool=call.name, content=text, error=True)
    found = ToolResult(call_id="look", tool="look", content={HOSTILE[2]: [*HOSTILE, {line: line for line in HOSTILE}]})
    bodies = [
        (EntryKind.BEGIN, encode(Begin(info=info))),
        (EntryKind.MESSAGE, NATIVE_CODEC.encode(System(text=text))),
        (EntryKind.MESSAGE, NATIVE_CODEC.encode(Reply(text=rich, tool_calls=[call, looked], model=HOSTILE[0]))),
        (EntryKind.MESSAGE, NATIVE_CODEC.encode(failed)),
        (EntryKind.MESSAGE, NATIVE_CODEC.encode(found)),
        (EntryKind.STEP, encode(ended)),
        (EntryKind.MESSAGE, NATIVE_CODEC.encode(Reply(text=text, tool_calls=[call]))),
    ]
    entries = [Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(bodies)]
    new = NewRun(
        run_id=run_id,
        agent_name=info.agent_name,
        caller_id=info.caller_id,
        labels=info.labels,
        info=encode(info.summarize()),
        progress=encode(progress),
        entries=entries,
    )
    worker_id = f"{HOSTILE[0]} {run_id}"
    await store.register_worker(WorkerIdentity(worker_id=worker_id, process=this_process()))
    claim = await store.create(new, worker_id=worker_id)
    assert claim is not None
    await store.release(claim, Release(status=RunStatus.WAITING, reason=text, wake_on=["answer:2:x"]))
