"""What is read from a store: the same as was written, or a clear refusal. Nothing in it is ever run."""

import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.codec import FORMAT_VERSION, Begin, RecordedResult, decode, decode_run, encode, encode_begin
from holdfast.checkpoint.errors import RecordDecodeError, RunDamaged, UnknownVersion
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus, StoredRun
from holdfast.core.errors import PayloadError
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Message, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.core.run.state import PhaseOutput

META = RunInfo(run_id="r", agent_name="a", prompt="go")
LONG_AGO = datetime(2030, 1, 1, tzinfo=UTC)


def stored(*bodies: tuple[EntryKind, bytes], progress: bytes = b"{}") -> StoredRun:
    entries = [Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(bodies)]
    record = RunRecord(
        run_id="r", agent_name="a", caller_id="", parent_run_id=None, status=RunStatus.INTERRUPTED, created_at=LONG_AGO,
        updated_at=LONG_AGO, owner=None, owner_alive=False, token=1, strikes=0, not_before=LONG_AGO, reason="",
        cancel_requested=False, expires_at=None, next_seq=len(entries), size=0, info=b"{}", progress=progress,
    )  # fmt: skip
    return StoredRun(record=record, entries=entries)


def begin(version: int = FORMAT_VERSION) -> tuple[EntryKind, bytes]:
    return EntryKind.BEGIN, encode(Begin(version=version, info=META))


def message(text: str) -> tuple[EntryKind, bytes]:
    return EntryKind.MESSAGE, NATIVE_CODEC.encode(User(text))


def result(call: str, steps: int = 0) -> tuple[EntryKind, bytes]:
    body = NATIVE_CODEC.encode(ToolResult(call_id=call, tool="t", content=call))
    return EntryKind.RESULT, encode(RecordedResult(call=call, steps=steps, message=msgspec.Raw(body)))


@pytest.mark.parametrize(
    "given",
    [
        System("be brief"),
        User("line\nbreak \0 \u2028 \U0001f600"),
        Reply(text="well", usage=Usage(input_tokens=2**70, cost_usd=0.1)),
        Reply(tool_calls=[ToolCall(id="1", name="t", arguments={"big": 10**400, "none": None, "nul": "\0"})]),
        Reply(tool_calls=(ToolCall(id="1", name="t"), ToolCall(id="2", name="t", arguments=[True, 1, 1.0]))),
        ToolResult(call_id="1", tool="t", content={"deep": [[None, -0.0]]}, error=True),
        ToolResult(call_id="1", tool="t"),
    ],
    ids=repr,
)
def test_a_message_is_one_line_of_json_and_reads_back_equal(given: Message) -> None:
    body = NATIVE_CODEC.encode(given)
    assert b"\n" not in body
    back = NATIVE_CODEC.decode(body)
    assert back == given
    assert repr(back) == repr(given)


def test_the_info_keeps_everything_that_a_run_is() -> None:
    info = RunInfo(
        run_id="r", agent_name="a", agent_id="1", caller_id="c", channel_id="ch", guild_id="g", model_tier="large",
        parent_run_id="p", labels={"team": "x"}, prompt="go \0", inputs={"files": ["a"], "n": 2**70},
    )  # fmt: skip
    assert decode(encode(info), RunInfo) == info


def test_the_journal_begins_with_the_version_of_its_format() -> None:
    begun = msgspec.json.decode(encode_begin(RunInfo(run_id="r", agent_name="a")))
    assert begun["version"] == 1, "earlier releases read no other"


def test_listings_get_only_the_head_of_a_prompt() -> None:
    info = RunInfo(run_id="r", agent_name="a", prompt="x" * 10_000, inputs={"file": "y" * 10_000})
    assert len(encode(info.summarize())) < 500


@pytest.mark.parametrize(
    "value", [float("nan"), b"raw", object(), "\ud800", {1: 2}], ids=lambda value: type(value).__name__
)
def test_an_input_that_would_come_back_changed_is_refused(value: Any) -> None:
    with pytest.raises(PayloadError, match="inputs"):
        encode_begin(RunInfo(run_id="r", agent_name="a", inputs={"value": value}))


def test_a_journal_is_read_as_it_was_written() -> None:
    checkpoint = decode_run(
        stored(
            begin(),
            message("first phase"),
            (EntryKind.PHASE, encode(PhaseOutput(name="plan", output={"n": 1}, steps=1, elapsed=timedelta(1)))),
            message("go"),
            result("c1", steps=3),
            result("c2", steps=3),
            result("c3", steps=3),
            (EntryKind.ADOPT, encode(["c2", "c1"])),
            progress=encode(Progress(steps=3, own_usage=Usage(requests=3), elapsed=timedelta(seconds=5))),
        ),
        NATIVE_CODEC,
    )
    state = checkpoint.state
    assert checkpoint.info == META
    assert list(state.history) == [
        User("go"),
        ToolResult(call_id="c2", tool="t", content="c2"),
        ToolResult(call_id="c1", tool="t", content="c1"),
    ]
    assert state.phases == [PhaseOutput(name="plan", output={"n": 1}, steps=1, elapsed=timedelta(1))]
    assert state.results == {"c3": ToolResult(call_id="c3", tool="t", content="c3")}
    assert (state.steps, state.own_usage.requests, state.elapsed) == (3, 3, timedelta(seconds=5))


def test_results_of_a_finished_step_are_not_taken_for_those_of_the_next() -> None:
    """A loop may put results into the conversation in a form of its own; a model may use an id again."""
    journal = stored(begin(), result("c1", steps=0), message("c1 said so"), progress=encode(Progress(steps=1)))
    assert decode_run(journal, NATIVE_CODEC).state.results == {}


@pytest.mark.parametrize("found", [FORMAT_VERSION + 1, 2**70])
def test_a_version_that_a_newer_holdfast_wrote_is_refused(found: int) -> None:
    with pytest.raises(UnknownVersion, match=f"version {found}.*upgrade holdfast"):
        decode_run(stored(begin(found), (EntryKind.MESSAGE, b"in a form of the future")), NATIVE_CODEC)


@pytest.mark.parametrize(
    "damage",
    [
        stored(),
        stored(message("no begin")),
        stored((EntryKind.BEGIN, b"not json")),
        stored((EntryKind.BEGIN, b"\xff")),
        stored((EntryKind.BEGIN, b'{"version": "1"}')),
        stored((EntryKind.BEGIN, b'{"version": 1}')),
        stored(begin(), (EntryKind.MESSAGE, b"")),
        stored(begin(), (EntryKind.MESSAGE, b'{"role": "emperor"}')),
        stored(begin(), (EntryKind.MESSAGE, b'{"role": "user"}')),
        stored(begin(), (EntryKind.RESULT, b'{"call": "c"}')),
        stored(begin(), (EntryKind.ADOPT, b'["missing"]')),
        stored(begin(), result("c"), (EntryKind.ADOPT, b'["c", "c"]')),
        stored(begin(), (EntryKind.ADOPT, b"{}")),
        stored(begin(), (EntryKind.PHASE, b"[]")),
        stored(begin(), (EntryKind.OUTCOME, b"[]")),
        stored(begin(), progress=b"[]"),
    ],
    ids=lambda damage: (
        "-".join(f"{entry.kind.value}:{entry.body.decode(errors='replace'):.20}" for entry in damage.entries) or "empty"
    ),
)
def test_what_cannot_be_read_is_a_checkpoint_error_and_never_a_crash(damage: StoredRun) -> None:
    with pytest.raises((RunDamaged, RecordDecodeError)):
        decode_run(damage, NATIVE_CODEC)


def test_loading_imports_runs_and_unpickles_nothing() -> None:
    """The interpreter itself tells: no import, no exec, no pickle, no process while a run full of names is loaded."""
    program = textwrap.dedent(
        """
        import sys
        from datetime import UTC, datetime
        import msgspec
        from tests.checkpoint.test_codec import NATIVE_CODEC, begin, message, result, stored, EntryKind, decode_run

        names = [
            {"py/object": "os.system", "py/reduce": ["os.system", ["true"]]},
            {"__class__": "subprocess.Popen", "args": ["true"]},
            {"lc": 1, "type": "constructor", "id": ["antigravity", "fly"], "kwargs": {}},
            "cos\\nsystem\\n(S'true'\\ntR.",
            "!!python/object/apply:os.system [true]",
        ]
        calls = [{"id": str(n), "name": "antigravity", "arguments": name} for n, name in enumerate(names)]
        reply = msgspec.json.encode({"role": "reply", "tool_calls": calls})
        run = stored(begin(), (EntryKind.MESSAGE, reply), message(names[3]), result("c1"))
        decode_run(run, NATIVE_CODEC)  # once, so that nothing of our own is left to import

        seen = []
        watched = ("import", "exec", "compile", "pickle.find_class", "marshal.loads", "subprocess.Popen", "os.system")
        watching = False
        def hook(event, args):
            if watching and event in watched:
                seen.append((event, args))
        sys.addaudithook(hook)
        watching = True
        loaded = decode_run(run, NATIVE_CODEC)
        watching = False
        assert not seen, seen
        assert "antigravity" not in sys.modules
        assert [call.arguments for call in loaded.state.history[0].tool_calls] == names
        watching = True
        compile("1", "x", "eval")
        watching = False
        assert seen, "the hook sees what happens"
        """
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=root)
