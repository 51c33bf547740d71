"""The lines of a journal: one JSON object each.

    {"run":{"run_id":...},"meta":{...},"crc":"5c1f09aa"}                        first line: what never changes
    {"begin":{...}}                                                             an entry, under its kind
    {"state":{"status":"running",...},"at":412,"sum":"...","progress":{...},"crc":"..."}
    {"message":{...}}
    {"step":{"at":...,"progress":{...}}}
    {"saved":"2026-11-15T12:00:07Z","next_seq":3,"size":53,"at":612,"sum":"...","since":430,"crc":"..."}

A write is its entries and then one line that commits them: `at` is where the write begins in the file and `sum` the
checksum of everything between there and this line. It is a `state` line, or the short `saved` line where nothing about
the run changed but its length, its time and its progress: the rest of its state is in the state line at `since`, and a
progress with which the last entry ends is not said again. `crc` is the checksum of the line and of that progress.

Version 1 had no `saved` lines, and wrote entries like this, which are still read:

    {"seq":0,"kind":"begin","body":{...},"crc":"..."}
"""

import base64
from datetime import datetime
from typing import TypeVar
from zlib import crc32

import msgspec

from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.lifecycle import Status

T = TypeVar("T")

STATE_START = b'{"state":'
SAVED_START = b'{"saved":'
_V1_ENTRY_START = b'{"seq":'
_ENTRY_STARTS = {kind: b'{"%s":' % kind.encode() for kind in EntryKind}
_KINDS = {start: kind for kind, start in _ENTRY_STARTS.items()}
_BASE64 = b'{"base64":"'
_PROGRESS_KEY = b',"progress":'
#: `,"crc":"` and eight digits and `"}` and the end of the line.
SEAL = 19
#: What an entry line has beside its body, at least.
_FRAME = min(map(len, _KINDS)) + len(b"}\n")


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What never changes in the life of a run, and which journal this is of those the run has had."""

    run_id: str
    agent_name: str
    caller_id: str = ""
    parent_run_id: str | None = None
    created_at: datetime
    #: New for every file, so that what is kept beside a journal is not taken for another one's.
    journal: str


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the run stands: the part of its record that changes, without the progress."""

    status: Status
    owner: str | None = None
    token: int = 0
    strikes: int = 0
    updated_at: datetime
    not_before: datetime
    reason: str = ""
    cancel_requested: bool = False
    expires_at: datetime | None = None
    next_seq: int = 0
    size: int = 0
    #: Bytes of the entry lines in this file, at least. What else is in it, a rewrite would save.
    kept: int = 0


class StateHead(msgspec.Struct, frozen=True):
    """A state line without its progress."""

    state: State
    at: int
    sum: str


class SavedHead(msgspec.Struct, frozen=True):
    """A saved line without its progress."""

    #: The state's `updated_at`.
    saved: datetime
    next_seq: int
    size: int
    at: int
    sum: str
    #: Where the state line begins that says the rest.
    since: int

    def state(self, base: State) -> State:
        """The state of the run, of which `base` stands at `since`."""
        entries, bodies = self.next_seq - base.next_seq, self.size - base.size
        return State(
            status=base.status,
            owner=base.owner,
            token=base.token,
            strikes=base.strikes,
            updated_at=self.saved,
            not_before=base.not_before,
            reason=base.reason,
            cancel_requested=base.cancel_requested,
            expires_at=base.expires_at,
            next_seq=self.next_seq,
            size=self.size,
            kept=base.kept + bodies + entries * _FRAME,
        )


class _OriginHead(msgspec.Struct):
    run: Origin


class _V1EntryHead(msgspec.Struct):
    seq: int
    kind: EntryKind


_any_json = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_origin_head = msgspec.json.Decoder(_OriginHead)
_v1_entry_head = msgspec.json.Decoder(_V1EntryHead)
_state_head = msgspec.json.Decoder(StateHead)
_saved_head = msgspec.json.Decoder(SavedHead)


class NotALine(Exception):
    """These bytes are not a line as it was written."""


def origin_line(origin: Origin, meta: bytes) -> bytes:
    return sealed(_with_payload(_encode(_OriginHead(origin)), b"meta", meta))


def entry_line(entry: Entry) -> bytes:
    return b"%s%s}\n" % (_ENTRY_STARTS[entry.kind], _shown(entry.body))


def state_line(state: State, progress: bytes, *, at: int, written: bytes) -> bytes:
    """The line that commits `written`, which begins at the offset `at`."""
    return sealed(_with_payload(_encode(StateHead(state, at, checksum(written))), b"progress", progress))


def saved_line(saved: SavedHead, progress: bytes, *, above: bytes) -> bytes:
    """The short line; `above` is the last of those it commits, if there is one."""
    line = _encode(saved)
    if _progress_in(above) == progress:
        return sealed(line, beside=progress)
    return sealed(_with_payload(line, b"progress", progress))


def parse_origin(line: bytes) -> tuple[Origin, bytes]:
    head, meta = _split(unsealed(line), b"meta")
    return _parse(_origin_head, head).run, meta


def parse_entry(line: bytes) -> tuple[int | None, EntryKind, bytes]:
    """Number, kind and body. Only version 1 wrote numbers, and checksums: now the line that commits it has both."""
    if line.startswith(_V1_ENTRY_START):
        head, body = _split(unsealed(line), b"body")
        parsed = _parse(_v1_entry_head, head)
        return parsed.seq, parsed.kind, body
    start = line[: line.find(b":") + 1]
    kind = _KINDS.get(start)
    if kind is None or not line.endswith(b"}\n"):
        raise NotALine("it is none of those that a journal has")
    return None, kind, _hidden(line[len(start) : -2])


def parse_state(line: bytes) -> tuple[StateHead, bytes]:
    """The line without its progress, and the progress."""
    head, progress = _split(unsealed(line), b"progress")
    return _parse(_state_head, head), progress


def parse_saved(line: bytes, above: bytes) -> tuple[SavedHead, bytes]:
    """The line without its progress, and the progress, which may be in the line `above`."""
    if refers_above(line):
        progress = _progress_in(above)
        head = unsealed(line, beside=progress)
    else:
        head, progress = _split(unsealed(line), b"progress")
    return _parse(_saved_head, head), progress


def refers_above(line: bytes) -> bool:
    """Whether the progress of this saved line is in the line above it."""
    return _PROGRESS_KEY not in line


def checksum(data: bytes) -> str:
    return f"{crc32(data):08x}"


def sealed(content: bytes, *, beside: bytes = b"") -> bytes:
    """A JSON object as a line with its checksum, which protects what stands `beside` it, too."""
    content = content[:-1]
    return b'%s,"crc":"%08x"}\n' % (content, crc32(content, crc32(beside)))


def unsealed(line: bytes, *, beside: bytes = b"") -> bytes:
    """The JSON object that `sealed` was given.

    Raises:
        NotALine: the bytes are not what was written.
    """
    content = line[:-SEAL]
    if line[-SEAL:] != b',"crc":"%08x"}\n' % crc32(content, crc32(beside)):
        raise NotALine("the checksum does not fit")
    return content + b"}"


def _progress_in(line: bytes) -> bytes:
    """The progress that the body in an entry line ends with, if it looks like that.

    Bodies are opaque, and nothing depends on what this finds: it is used where it gives back the same bytes.
    """
    _, found, rest = line.rpartition(_PROGRESS_KEY)
    return rest[: -len(b"}}\n")] if found else b""


def _with_payload(head: bytes, key: bytes, payload: bytes) -> bytes:
    return b'%s,"%s":%s}' % (head[:-1], key, _shown(payload))


def _split(content: bytes, key: bytes) -> tuple[bytes, bytes]:
    """Head and payload of a line. Quotes within JSON strings are escaped, so the first such key is the real one."""
    head, found, rest = content.partition(b',"%s":' % key)
    if not found:
        raise NotALine(f"it has no {key.decode()}")
    return head + b"}", _hidden(rest[:-1])


def _parse(decoder: "msgspec.json.Decoder[T]", head: bytes) -> T:
    try:
        return decoder.decode(head)
    except msgspec.DecodeError as error:
        raise NotALine(str(error)) from error


def _shown(payload: bytes) -> bytes:
    """JSON as it is, for people to read; other bytes as base64. Either way the same bytes come back."""
    if _is_json_on_one_line(payload) and not payload.startswith(_BASE64):
        return payload
    return _BASE64 + base64.b64encode(payload) + b'"}'


def _hidden(shown: bytes) -> bytes:
    if not shown.startswith(_BASE64):
        return shown
    try:
        return base64.b64decode(shown[len(_BASE64) : -2])
    except ValueError as error:
        raise NotALine(str(error)) from error


def _is_json_on_one_line(payload: bytes) -> bool:
    if b"\n" in payload or b"\r" in payload:
        return False
    try:
        # The decoder skips over strings without looking whether they are text.
        payload.isascii() or payload.decode()
        [value] = _any_json.decode(b"[%s]" % payload)
    except (ValueError, RecursionError):
        return False
    return bytes(value) == payload
