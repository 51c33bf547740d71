"""A store wrapper that redacts every write."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.claims import Claim
from holdfast.checkpoint.codec import Begin, Draft, RunMeta, decode, encode
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import Mail, NewRun, Receipt, Release
from holdfast.checkpoint.store import RunStore
from holdfast.core.redaction import Redact
from holdfast.stores.wrapper import StoreWrapper

#: The fields of a run's meta that hold free text. The others identify the run and are stored unchanged: stores find,
#: count and resume runs by them.
_REDACTED_FIELDS = ("prompt", "labels", "inputs", "content")


#: The fields of a turn that are ids of messages, or digests.
_TURN_FIELDS = ("turn_id", "joined", "digest", "recent_turns")


class RedactingStore(StoreWrapper):
    """Wraps another `RunStore`. A resumed run reads its conversation redacted.

    The ids and names of the run, its parent, agent, caller, channel and guild are not redacted.
    """

    def __init__(self, store: RunStore, redact: Redact) -> None:
        super().__init__(store)
        self._redact = redact

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        return await self._store.create(self._redact_run(run), worker_id=worker_id)

    async def create_within(self, connection: Any, run: NewRun) -> bytes | None:
        return await super().create_within(connection, self._redact_run(run))

    def _redact_run(self, run: NewRun) -> NewRun:
        entries = self._redact_entries(run.entries)
        # Redact before truncating: a truncated secret would no longer match the pattern.
        summary = decode(entries[0].body, Begin).meta.summary()
        return msgspec.structs.replace(
            run,
            labels=summary.labels,
            meta=encode(summary),
            progress=self._redact_progress(run.progress),
            entries=entries,
        )

    async def append(self, claim: Claim, write: Append) -> None:
        redacted = msgspec.structs.replace(
            write, entries=self._redact_entries(write.entries), progress=self._redact_progress(write.progress)
        )
        await self._store.append(claim, redacted)

    async def release(self, claim: Claim, release: Release) -> None:
        redacted = msgspec.structs.replace(
            release,
            reason=self._redact(release.reason),
            entries=self._redact_entries(release.entries),
            progress=None if release.progress is None else self._redact_progress(release.progress),
        )
        await self._store.release(claim, redacted)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        body = self._redact_data(msgspec.json.decode(mail.body))
        return await self._store.post(run_id, msgspec.structs.replace(mail, body=msgspec.json.encode(body)))

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        await self._store.put_draft(claim, None if draft is None else self._redact_draft(draft))

    def stored_meta(self, meta: RunMeta) -> RunMeta:
        """Return `meta` as this store keeps it."""
        return msgspec.convert(self._redact_meta(msgspec.to_builtins(meta)), RunMeta)

    def _redact_entries(self, entries: Sequence[Entry]) -> list[Entry]:
        return [
            msgspec.structs.replace(
                entry,
                body=self._redact_begin(entry.body) if entry.kind is EntryKind.BEGIN else self._redact_body(entry.body),
            )
            for entry in entries
        ]

    def _redact_begin(self, body: bytes) -> bytes:
        begin = msgspec.json.decode(body)
        return msgspec.json.encode({**begin, "meta": self._redact_meta(begin["meta"])})

    def _redact_meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        redacted: Any = self._redact({name: meta[name] for name in _REDACTED_FIELDS if name in meta})
        return {**meta, **redacted}

    def _redact_draft(self, body: bytes) -> bytes:
        """Redact a draft. Its last words may be the beginning of a secret: they are left out until a space follows."""
        draft = msgspec.json.decode(body, type=Draft)
        text, reasoning = self._redact(_cut_last_word(draft.text)), self._redact(_cut_last_word(draft.reasoning))
        return msgspec.json.encode(msgspec.structs.replace(draft, text=text, reasoning=reasoning))

    def _redact_body(self, body: bytes) -> bytes:
        data = msgspec.json.decode(body)
        redacted = self._redact_data(data)
        if isinstance(data, dict) and "input" in data:  # a turn that has ended
            redacted["input"] = self._redact_data(data["input"])
        return msgspec.json.encode(redacted)

    def _redact_progress(self, body: bytes) -> bytes:
        data = msgspec.json.decode(body)
        redacted = self._redact_data(data)
        if "turn" in data:
            redacted["turn"] = self._redact_data(data["turn"])
        return msgspec.json.encode(redacted)

    def _redact_data(self, data: Any) -> Any:
        """Redact an object, except the ids of messages: turns are found by them."""
        redacted: Any = self._redact(data)
        kept = {name: data[name] for name in _TURN_FIELDS if name in data} if isinstance(data, dict) else {}
        return {**redacted, **kept} if kept else redacted


def _cut_last_word(text: str) -> str:
    *_, last = text.split()[-1:] or [""]
    return text if text[-1:].isspace() else text[: len(text) - len(last)]


def stored_meta(store: RunStore, meta: RunMeta) -> RunMeta:
    """Return `meta` as `store` keeps it."""
    return store.stored_meta(meta) if isinstance(store, RedactingStore) else meta
