"""Encodes a run as journal entries, and decodes it. Plain JSON, without names of Python objects."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from holdfast.checkpoint.errors import RecordDecodeError, RunDamaged, UnknownVersion
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import StoredRun
from holdfast.core.errors import PayloadError
from holdfast.core.info import RunInfo
from holdfast.core.json_value import to_json_value
from holdfast.core.message import NO_USAGE, MessageCodec, Usage
from holdfast.core.prompt import make_request_key
from holdfast.core.state import History, PhaseOutput, RunState, StepEnd, StepTimes

#: The newest format of the entry bodies. Increased when an older holdfast could not read the new format.
#: Version 2 has prompts of content parts. Other runs are written as version 1, which older workers read.
FORMAT_VERSION = 2

#: Maps a version to the function that upgrades its entries to the next version.
UPGRADES: Mapping[int, Callable[[Sequence[Entry]], Sequence[Entry]]] = {1: lambda entries: entries}

#: Characters of a prompt that listings show.
PROMPT_SUMMARY_LENGTH = 200


class RunMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored identity of a run: agent, caller, prompt, inputs."""

    run_id: str
    agent_name: str
    agent_id: str = ""
    caller_id: str = ""
    channel_id: str = ""
    guild_id: str = ""
    #: Text; a summary of it if the prompt has content parts.
    prompt: str = ""
    model_tier: str = ""
    parent_run_id: str | None = None
    lineage: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    #: All inputs except the prompt.
    inputs: dict[str, Any] = {}
    #: The content parts of a prompt that is not text alone, as plain data.
    content: list[Any] = []

    @classmethod
    def from_info(cls, info: RunInfo) -> "RunMeta":
        """Return the stored form of `info`.

        Raises:
            PayloadError: an input cannot be stored without changing it.
        """
        return cls(
            run_id=info.run_id,
            agent_name=info.agent_name,
            agent_id=info.agent_id,
            caller_id=info.caller_id,
            channel_id=info.channel_id,
            guild_id=info.guild_id,
            prompt=info.prompt,
            model_tier=info.model_tier,
            parent_run_id=info.parent_run_id,
            lineage=info.lineage,
            labels=info.labels,
            inputs=to_json_value(
                {name: value for name, value in info.inputs.items() if name != "prompt"}, "the inputs"
            ),
            content=info.content if isinstance(info.content, list) else [],
        )

    def to_info(self) -> RunInfo:
        return RunInfo(
            run_id=self.run_id,
            agent_name=self.agent_name,
            agent_id=self.agent_id,
            caller_id=self.caller_id,
            channel_id=self.channel_id,
            guild_id=self.guild_id,
            model_tier=self.model_tier,
            parent_run_id=self.parent_run_id,
            lineage=self.lineage,
            labels=self.labels,
            inputs={**self.inputs, "prompt": self.content or self.prompt},
        )

    @property
    def request_key(self) -> str:
        """Equal for runs with the same prompt and inputs."""
        return make_request_key(self.content or self.prompt, self.inputs)

    def summary(self) -> "RunMeta":
        """Return the small part that listings show."""
        return msgspec.structs.replace(self, prompt=self.prompt[:PROMPT_SUMMARY_LENGTH], inputs={}, content=[])


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Progress of a run. Stored beside the journal, replaced by every write, shown in listings."""

    steps: int = msgspec.field(default=0, name="iteration")
    own_usage: Usage = NO_USAGE
    child_usage: Usage = NO_USAGE
    elapsed: timedelta = timedelta(0)
    #: Number of finished phases, and the name of the current one.
    phases: int = 0
    phase: str = ""
    annotations: dict[str, Any] = msgspec.field(default_factory=dict, name="notes")

    @property
    def usage(self) -> Usage:
        return self.own_usage + self.child_usage

    @classmethod
    def from_state(cls, state: RunState) -> "Progress":
        return cls(
            steps=state.steps,
            own_usage=state.own_usage,
            child_usage=state.child_usage,
            elapsed=state.elapsed,
            phases=len(state.phases),
            phase=state.phase,
            annotations=_to_json_annotations(state.annotations),
        )

    def at_step_end(self, end: StepEnd) -> "Progress":
        """Return the progress as of `end`: the run may have continued since."""
        if (
            end.own_usage is self.own_usage
            and end.child_usage is self.child_usage
            and end.annotations == self.annotations
        ):
            return self
        return msgspec.structs.replace(
            self,
            own_usage=end.own_usage,
            child_usage=end.child_usage,
            annotations=_to_json_annotations(end.annotations),
        )


def _to_json_annotations(annotations: dict[str, Any]) -> dict[str, Any]:
    return to_json_value(annotations, "an annotation") if annotations else {}


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Body of a `STEP` entry."""

    at: datetime
    #: An encoded `Progress`.
    progress: msgspec.Raw
    #: Not in journals of versions that did not measure them.
    times: StepTimes | None = None


class Begin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of the `BEGIN` entry, the first of a journal."""

    version: int
    meta: RunMeta
    #: Of a rewritten journal: how many of its first messages take the place of earlier ones.
    repeated: int = 0

    @classmethod
    def from_meta(cls, meta: RunMeta, repeated: int = 0) -> "Begin":
        """Return the entry for a new journal, of the oldest version that can hold it."""
        return cls(version=2 if meta.content else 1, meta=meta, repeated=repeated)


class RecordedResult(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a `RESULT` entry: a tool result that is not in the conversation yet."""

    call: str
    #: Step count when recorded. Results from an earlier step are ignored on load.
    steps: int = msgspec.field(name="iteration")
    message: msgspec.Raw


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of the `OUTCOME` entry, the last of a run whose outcome is kept."""

    output: Any = None
    error: str | None = None
    usage: Usage = NO_USAGE


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a journal: the state to resume from, or the outcome."""

    meta: RunMeta
    state: RunState
    outcome: Outcome | None = None


_T = TypeVar("_T")


def encode(body: Any) -> bytes:
    """Encode an entry body as JSON.

    Raises:
        PayloadError: it holds a value that cannot be stored.
    """
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
        raise PayloadError(f"{type(body).__name__} cannot be stored: {exc}; use plain JSON data") from exc


def decode(body: bytes, kind: type[_T]) -> _T:
    """Decode an entry body.

    Raises:
        RecordDecodeError: it does not match `kind`.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise RecordDecodeError(f"a stored {kind.__name__} cannot be read: {exc}") from exc


class _Version(msgspec.Struct):
    version: int


def _read_version(stored: StoredRun) -> int:
    run_id = stored.record.run_id
    if not stored.entries or stored.entries[0].kind is not EntryKind.BEGIN:
        raise RunDamaged(run_id, "its journal does not begin with a begin entry")
    version = decode(stored.entries[0].body, _Version).version
    if version > FORMAT_VERSION:
        raise UnknownVersion(run_id, version, FORMAT_VERSION)
    return version


def read_begin(stored: StoredRun) -> Begin:
    """Return the first entry of a stored run's journal.

    Raises:
        UnknownVersion: a newer holdfast wrote it.
        RunDamaged: the journal lacks its first entry.
        RecordDecodeError: the entry cannot be decoded.
    """
    _read_version(stored)
    return decode(stored.entries[0].body, Begin)


def read_checkpoint(
    stored: StoredRun,
    codec: MessageCodec,
    upgrades: Mapping[int, Callable[[Sequence[Entry]], Sequence[Entry]]] = UPGRADES,
) -> Checkpoint:
    """Decode the journal of a stored run.

    Raises:
        UnknownVersion: a newer holdfast wrote it.
        RunDamaged: the journal lacks its first entry, or adopts a result that it does not hold.
        RecordDecodeError: an entry cannot be decoded.
    """
    version, entries = _read_version(stored), stored.entries
    for old in range(version, FORMAT_VERSION):
        if old not in upgrades:
            raise RecordDecodeError(
                f"run {stored.record.run_id} has format version {version}, from which no upgrade is known"
            )
        entries = upgrades[old](entries)
    return _build_checkpoint(entries, decode(stored.record.progress, Progress), codec)


def _build_checkpoint(entries: Sequence[Entry], progress: Progress, codec: MessageCodec) -> Checkpoint:
    begin = decode(entries[0].body, Begin)
    outcome: Outcome | None = None
    phases: list[PhaseOutput] = []
    messages: list[Any] = []
    results: dict[str, tuple[int, Any]] = {}
    for entry in entries[1:]:
        if entry.kind is EntryKind.MESSAGE:
            messages.append(_decode_message(codec, entry.body))
        elif entry.kind is EntryKind.RESULT:
            recorded = decode(entry.body, RecordedResult)
            results[recorded.call] = recorded.steps, _decode_message(codec, bytes(recorded.message))
        elif entry.kind is EntryKind.ADOPT:
            calls = decode(entry.body, list[str])
            if not results.keys() >= set(calls) or len(set(calls)) < len(calls):
                raise RunDamaged(
                    begin.meta.run_id, f"entry {entry.seq} adopts a tool result that is not in the journal"
                )
            messages.extend(results.pop(call)[1] for call in calls)
        elif entry.kind is EntryKind.PHASE:
            phases.append(decode(entry.body, PhaseOutput))
            messages, results = [], {}
        elif entry.kind is EntryKind.OUTCOME:
            outcome = decode(entry.body, Outcome)
    state = RunState(
        codec=codec,
        history=History(messages),
        steps=progress.steps,
        phases=phases,
        phase=progress.phase,
        results={call: result for call, (step, result) in results.items() if step == progress.steps},
        own_usage=progress.own_usage,
        child_usage=progress.child_usage,
        elapsed=progress.elapsed,
        annotations=progress.annotations,
    )
    return Checkpoint(meta=begin.meta, state=state, outcome=outcome)


def _decode_message(codec: MessageCodec, body: bytes) -> Any:
    try:
        return codec.decode(body)
    except Exception as exc:  # an adapter's codec may raise any error of its library
        raise RecordDecodeError(f"a stored message cannot be read by {type(codec).__name__}: {exc}") from exc
