"""The lines of a journal: one JSON object each, closed by a checksum.

    {"run":{"run_id":...},"meta":{...},"crc":"5c1f09aa"}                        first line: what never changes
    {"seq":0,"kind":"begin","body":{...},"crc":"..."}                           an entry
    {"state":{"status":"running",...},"at":412,"sum":"...","progress":{...},"crc":"..."}

A write is its entries and then one state line. That line commits them: `at` is where the write begins in the file and
`sum` the checksum of everything between there and the state line.
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
_BASE64 = b'{"base64":"'
#: `,"crc":"` and eight digits and `"}` and the end of the line.
_SEAL = 19


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
    #: Bytes of the entry lines in this file. What else is in it, a rewrite would save.
    kept: int = 0


class _OriginHead(msgspec.Struct):
    run: Origin


class _EntryHead(msgspec.Struct):
    seq: int
    kind: EntryKind


class StateHead(msgspec.Struct):
    """A state line without its progress."""

    state: State
    at: int
    sum: str


_any_json = msgspec.json.Decoder(list[msgspec.Raw])
_origin_head = msgspec.json.Decoder(_OriginHead)
_entry_head = msgspec.json.Decoder(_EntryHead)
_state_head = msgspec.json.Decoder(StateHead)


class NotALine(Exception):
    """These bytes are not a line as it was written."""


def origin_line(origin: Origin, meta: bytes) -> bytes:
    return _with_payload(_OriginHead(origin), b"meta", meta)


def entry_line(entry: Entry) -> bytes:
    return _with_payload(_EntryHead(entry.seq, entry.kind), b"body", entry.body)


def state_line(state: State, progress: bytes, *, at: int, written: bytes) -> bytes:
    """The line that commits `written`, which begins at the offset `at`."""
    return _with_payload(StateHead(state, at, checksum(written)), b"progress", progress)


def parse_origin(line: bytes) -> tuple[Origin, bytes]:
    head, meta = _split(line, b"meta")
    return _parse(_origin_head, head).run, meta


def parse_entry(line: bytes) -> Entry:
    head, body = _split(line, b"body")
    parsed = _parse(_entry_head, head)
    return Entry(seq=parsed.seq, kind=parsed.kind, body=body)


def parse_state(line: bytes) -> tuple[StateHead, bytes]:
    head, progress = _split(line, b"progress")
    return _parse(_state_head, head), progress


def checksum(data: bytes) -> str:
    return f"{crc32(data):08x}"


def sealed(content: bytes) -> bytes:
    """A JSON object as a line with its checksum."""
    content = content[:-1]
    return b'%s,"crc":"%08x"}\n' % (content, crc32(content))


def unsealed(line: bytes) -> bytes:
    """The JSON object that `sealed` was given.

    Raises:
        NotALine: the bytes are not what was written.
    """
    content = line[:-_SEAL]
    if line[-_SEAL:] != b',"crc":"%08x"}\n' % crc32(content):
        raise NotALine("the checksum does not fit")
    return content + b"}"


def _with_payload(head: msgspec.Struct, key: bytes, payload: bytes) -> bytes:
    return sealed(b'%s,"%s":%s}' % (msgspec.json.encode(head)[:-1], key, _shown(payload)))


def _split(line: bytes, key: bytes) -> tuple[bytes, bytes]:
    """Head and payload of a line. Quotes within JSON strings are escaped, so the first such key is the real one."""
    head, found, rest = unsealed(line).partition(b',"%s":' % key)
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
    return base64.b64decode(shown[len(_BASE64) : -2])


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
