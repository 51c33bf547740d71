"""A store wrapper that redacts every write."""

from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any

import msgspec

from holdfast.checkpoint.codec import Begin, Draft, decode, encode
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import Mail, NewRun, Receipt, Release
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.core.redaction import Redact
from holdfast.core.run.info import RunInfo
from holdfast.stores.wrapper import StoreWrapper

#: The fields of a run's info that hold free text. The others identify the run and are stored unchanged: stores find,
#: count and resume runs by them.
_REDACTED_FIELDS = ("prompt", "labels", "inputs")
#: Fields of holdfast itself, outside of user data: ids, kinds, times and digests. They are stored unchanged, so that
#: no name and no pattern of a redactor changes how a run resumes.
_SYSTEM_FIELDS = frozenset(
    {
        *("run_id", "call_id", "call", "tool", "step", "kind", "type", "topic", "tokens", "has_token"),
        *("asked_at", "expires_at", "at", "next_at", "elapsed", "attempts", "times", "not_started", "in_doubt"),
        *("turn_id", "joined", "digest", "recent_turns", "status", "effect", "end"),
    }
)
#: The same in messages, whose form depends on the agent's loop.
_MESSAGE_FIELDS = frozenset({"role", "call_id", "tool_call_id"})
#: Fields that hold user data: nothing below them is a field of holdfast.
_DATA_FIELDS = frozenset({"arguments", "args", "content", "value", "metadata", "output", "traces"})


class RedactingStore(StoreWrapper):
    """Wraps another `RunStore`. A resumed run reads its conversation redacted.

    The ids and names of the run, its parent, agent, caller, channel and guild are not redacted.
    """

    def __init__(self, store: RunStore, redact: Redact) -> None:
        super().__init__(store)
        self._redact = redact

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        return await self._store.create(self._redact_run(run), worker_id=worker_id, connection=connection)

    def _redact_run(self, run: NewRun) -> NewRun:
        entries = self._redact_entries(run.entries)
        # Redact before truncating: a truncated secret would no longer match the pattern.
        summary = decode(entries[0].body, Begin).info.summarize()
        return msgspec.structs.replace(
            run,
            labels=summary.indexed_labels,
            info=encode(summary),
            progress=self._redact_body(run.progress, _SYSTEM_FIELDS),
            entries=entries,
        )

    def append(self, claim: Claim, write: Append) -> Awaitable[None]:
        return self._store.append(claim, self._redact_write(write))

    async def transact(self, claim: Claim, function: Callable[[Any], Any], make_write: Callable[[Any], Append]) -> Any:
        def make_redacted_write(value: Any) -> Append:
            return self._redact_write(make_write(value))

        return await self._store.transact(claim, function, make_redacted_write)

    def _redact_write(self, write: Append) -> Append:
        return msgspec.structs.replace(
            write,
            entries=self._redact_entries(write.entries),
            progress=self._redact_body(write.progress, _SYSTEM_FIELDS),
        )

    async def release(self, claim: Claim, release: Release) -> None:
        redacted = msgspec.structs.replace(
            release,
            reason=self._redact(release.reason),
            entries=self._redact_entries(release.entries),
            progress=None if release.progress is None else self._redact_body(release.progress, _SYSTEM_FIELDS),
        )
        if (notice := release.notify) is not None:
            notice = msgspec.structs.replace(notice, mail=self._redact_mail(notice.mail))
            redacted = msgspec.structs.replace(redacted, notify=notice)
        await self._store.release(claim, redacted)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        return await self._store.post(run_id, self._redact_mail(mail))

    def _redact_mail(self, mail: Mail) -> Mail:
        if mail.topic.startswith("signal:"):  # its payload is user data, whatever the names in it
            body = msgspec.json.encode(self._redact(msgspec.json.decode(mail.body)))
        else:
            body = self._redact_body(mail.body, _SYSTEM_FIELDS)
        return msgspec.structs.replace(mail, body=body)

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        await self._store.put_draft(claim, None if draft is None else self._redact_draft(draft))

    def stored_info(self, info: RunInfo) -> RunInfo:
        """Return `info` as this store keeps it."""
        return msgspec.convert(self._redact_info(msgspec.to_builtins(info)), RunInfo)

    def _redact_entries(self, entries: Sequence[Entry]) -> list[Entry]:
        return [msgspec.structs.replace(entry, body=self._redact_entry(entry)) for entry in entries]

    def _redact_entry(self, entry: Entry) -> bytes:
        match entry.kind:
            case EntryKind.BEGIN:
                return self._redact_begin(entry.body)
            case EntryKind.MESSAGE:
                return self._redact_body(entry.body, _MESSAGE_FIELDS)
            case EntryKind.ADOPT:  # ids of calls
                return entry.body
        return self._redact_body(entry.body, _SYSTEM_FIELDS)

    def _redact_begin(self, body: bytes) -> bytes:
        begin = msgspec.json.decode(body)
        return msgspec.json.encode({**begin, "info": self._redact_info(begin["info"])})

    def _redact_info(self, info: dict[str, Any]) -> dict[str, Any]:
        given = {name: info[name] for name in _REDACTED_FIELDS if name in info}
        return {**info, **self._restore(given, self._redact(given), frozenset())}

    def _redact_draft(self, body: bytes) -> bytes:
        """Redact a draft. Its last words may be the beginning of a secret: they are left out until a space follows."""
        draft = msgspec.json.decode(body, type=Draft)
        text, reasoning = self._redact(_cut_last_word(draft.text)), self._redact(_cut_last_word(draft.reasoning))
        return msgspec.json.encode(msgspec.structs.replace(draft, text=text, reasoning=reasoning))

    def _redact_body(self, body: bytes, fields: Set[str]) -> bytes:
        """Redact an object, except its system `fields`."""
        data = msgspec.json.decode(body)
        return msgspec.json.encode(self._restore(data, self._redact(data), fields))

    def _restore(self, data: Any, redacted: Any, fields: Set[str]) -> Any:
        """Return the redacted data with the system `fields`, the structure and the numbers of the original."""
        if not isinstance(data, str) and type(redacted) is not type(data):
            # A field of holdfast has a name that the redactor replaces: only the texts below it are redacted.
            redacted = self._redact(data) if isinstance(data, dict | list) else data
        if isinstance(data, dict) and isinstance(redacted, dict):
            return {name: self._restore_field(name, data.get(name), value, fields) for name, value in redacted.items()}
        if isinstance(data, list) and isinstance(redacted, list) and len(data) == len(redacted):
            return [self._restore(each, value, fields) for each, value in zip(data, redacted, strict=True)]
        return redacted

    def _restore_field(self, name: str, data: Any, redacted: Any, fields: Set[str]) -> Any:
        if name in fields:
            return data
        if name == "tool_calls":
            return self._restore(data, redacted, {"id", "name"})
        if name == "message":  # the recorded result of a call
            return self._restore(data, redacted, _MESSAGE_FIELDS)
        return redacted if name in _DATA_FIELDS else self._restore(data, redacted, fields)


def _cut_last_word(text: str) -> str:
    *_, last = text.split()[-1:] or [""]
    return text if text[-1:].isspace() else text[: len(text) - len(last)]


def stored_info(store: RunStore, info: RunInfo) -> RunInfo:
    """Return `info` as `store` keeps it."""
    return store.stored_info(info) if isinstance(store, RedactingStore) else info
