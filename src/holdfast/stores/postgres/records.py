"""The decoding of the rows that hold runs and their journals."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Entry, unpack_segments
from holdfast.checkpoint.record import Mail, Receipt, RunRecord, RunStatus, StoredRun, make_damaged_record
from holdfast.checkpoint.workers import ProcessIdentity, is_process_alive
from holdfast.core.run.info import RunIndex
from holdfast.db.postgres_connection import Rows
from holdfast.stores.postgres.database import unescape_text


class _RunRow(msgspec.Struct, frozen=True):
    """The result of `record.sql`. Bytes are hexadecimal digits."""

    run_id: str
    agent_name: str
    caller_id: str
    parent_run_id: str | None
    status: RunStatus
    created_at: datetime
    updated_at: datetime
    owner: str | None
    #: Host and process of the owner, while the run is running and the owner is registered.
    host: str | None
    pid: int | None
    started: str | None
    heard_from: bool | None
    token: int
    strikes: int
    not_before: datetime
    wake_at: datetime | None
    wake_on: Sequence[str]
    labels: Mapping[str, str]
    priority: int
    concurrency_key: str | None
    tenant: str
    background: bool
    reason: str
    cancel_requested: bool
    expires_at: datetime | None
    first_seq: int
    next_seq: int
    size: int
    info: str
    progress: str


class _MailRow(msgspec.Struct, frozen=True):
    """Unread mail, as `load_run.sql` returns it."""

    mail_id: str
    topic: str
    posted_at: datetime
    body: str


_MAIL_DECODER = msgspec.json.Decoder(list[_MailRow])
_ROW_DECODER = msgspec.json.Decoder(_RunRow)


class RecordDecoder:
    """Makes records of rows that were read at one moment. Checks once for each worker whether it is alive."""

    def __init__(self) -> None:
        self._alive_owners: dict[str, bool] = {}

    def decode(self, encoded: str | bytes, created_at: datetime) -> RunRecord:
        """Return a record. A damaged row is shown as a parked run: the others of its page can be read."""
        try:
            return self.from_row(_ROW_DECODER.decode(encoded))
        except (msgspec.DecodeError, ValueError, OverflowError) as exc:
            row = msgspec.json.decode(encoded)
            index = RunIndex(
                run_id=unescape_text(row["run_id"]),
                agent_name=unescape_text(row["agent_name"]),
                caller_id=unescape_text(row["caller_id"]),
                tenant=unescape_text(row["tenant"]),
            )
            return make_damaged_record(index, created_at, exc)

    def from_row(self, row: _RunRow) -> RunRecord:
        return RunRecord(
            run_id=unescape_text(row.run_id),
            agent_name=unescape_text(row.agent_name),
            caller_id=unescape_text(row.caller_id),
            parent_run_id=None if row.parent_run_id is None else unescape_text(row.parent_run_id),
            status=row.status,
            created_at=row.created_at.astimezone(UTC),
            updated_at=row.updated_at.astimezone(UTC),
            owner=None if row.owner is None else unescape_text(row.owner),
            owner_alive=self._is_owner_alive(row),
            token=row.token,
            strikes=row.strikes,
            not_before=row.not_before.astimezone(UTC),
            wake_at=None if row.wake_at is None else row.wake_at.astimezone(UTC),
            wake_on=tuple(unescape_text(topic) for topic in row.wake_on),
            labels={unescape_text(name): unescape_text(value) for name, value in row.labels.items()},
            priority=row.priority,
            concurrency_key=unescape_text(row.concurrency_key or ""),
            tenant=unescape_text(row.tenant),
            background=row.background,
            reason=unescape_text(row.reason),
            cancel_requested=row.cancel_requested,
            expires_at=None if row.expires_at is None else row.expires_at.astimezone(UTC),
            next_seq=row.next_seq,
            size=row.size,
            info=bytes.fromhex(row.info),
            progress=bytes.fromhex(row.progress),
        )

    def _is_owner_alive(self, row: _RunRow) -> bool:
        if row.owner is None or row.host is None or row.pid is None or row.started is None:
            return False
        if row.owner not in self._alive_owners:
            known = is_process_alive(make_process_identity(row.host, row.pid, row.started))
            self._alive_owners[row.owner] = bool(row.heard_from) if known is None else known
        return self._alive_owners[row.owner]


def make_process_identity(host: str, pid: int, started: str) -> ProcessIdentity:
    return ProcessIdentity(host=unescape_text(host), pid=pid, started=unescape_text(started))


def decode_run(rows: Rows, after: int) -> StoredRun | None:
    """Return the run in the rows of `load_run`; `None` if there is none.

    Raises:
        RunDamaged: an entry is missing or was changed, or the record was.
    """
    if not rows:
        return None
    try:
        row = _ROW_DECODER.decode(rows[0][3])
        record = RecordDecoder().from_row(row)
    except (msgspec.DecodeError, ValueError, OverflowError) as exc:
        run_id = unescape_text(msgspec.json.decode(rows[0][3])["run_id"])
        raise RunDamaged(run_id, f"its record is not what was written ({exc})") from exc
    first = due = max(row.first_seq, after + 1)
    entries: list[Entry] = []
    for seq, layout, checksum, body in rows[1:]:
        if seq != due and (entries or seq > due):
            raise RunDamaged(record.run_id, f"entry {due} is missing")
        try:
            entries += unpack_segments([(seq, layout, checksum, body)])
        except (ValueError, LookupError) as exc:
            raise RunDamaged(record.run_id, f"the row that begins with entry {seq} was changed") from exc
        due = entries[-1].seq + 1
    if due < row.next_seq:
        raise RunDamaged(record.run_id, f"entry {due} is missing")
    if due > max(row.next_seq, after + 1):
        raise RunDamaged(record.run_id, f"there are {due - row.next_seq} entries more than were written")
    earlier = first - entries[0].seq if entries else 0
    return StoredRun(record=record, entries=tuple(entries[earlier:]), mail=_decode_mail(rows[0][1]))


def make_receipt(mail: Mail, response: Mapping[str, Any]) -> Receipt:
    """Return the receipt for posted mail, from the answer of `post_mail.sql`."""
    posted_at = msgspec.convert(response["posted_at"], datetime).astimezone(UTC)
    if response["new"]:
        return Receipt(is_new=True, mail=msgspec.structs.replace(mail, posted_at=posted_at))
    stored = Mail(
        mail_id=mail.mail_id,
        topic=unescape_text(response["topic"]),
        body=bytes.fromhex(response["body"]),
        posted_at=posted_at,
    )
    return Receipt(is_new=False, mail=stored, consumed=response["consumed"])


def _decode_mail(encoded: str | None) -> tuple[Mail, ...]:
    return tuple(
        Mail(
            mail_id=unescape_text(row.mail_id),
            topic=unescape_text(row.topic),
            body=bytes.fromhex(row.body),
            posted_at=row.posted_at.astimezone(UTC),
        )
        for row in (_MAIL_DECODER.decode(encoded) if encoded else ())
    )
