"""The columns of a run that decide whether a write, a claim or mail is allowed."""

import json
from typing import NamedTuple

import apsw

from holdfast.checkpoint.record import RunStatus
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.transaction import Transaction


class RunRow(NamedTuple):
    run_key: int
    token: int
    status: RunStatus
    next_seq: int
    owner: str | None
    strikes: int
    reason: str
    #: Key of the last segment of the journal; 0: the journal is empty.
    last_segment: int
    #: The number of unread mails.
    unread: int
    wake_at: int | None
    #: JSON.
    wake_on: str
    agent_name: str
    parent_run_id: str | None
    #: Empty for a run without one.
    key: str

    def is_due(self, now_micros: int) -> bool:
        """Whether it waits for a time that has come."""
        return self.status is RunStatus.WAITING and self.wake_at is not None and self.wake_at <= now_micros

    def waits_for(self, topic: str) -> bool:
        return self.status is RunStatus.WAITING and topic in json.loads(self.wake_on)


def find_run(run_id: str, transaction: Transaction) -> RunRow | None:
    row = transaction.fetch_one(statement("run_row"), (run_id,))
    if row is None:
        return None
    run_key, token, status, *rest = row
    if status is None:
        raise apsw.CorruptError(f"the record of run {run_id} is missing")
    return RunRow(run_key, token, RunStatus(status), *rest)
