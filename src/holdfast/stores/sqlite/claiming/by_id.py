"""Claims of one run, by its id. They run in a write transaction."""

from collections.abc import Collection

from holdfast.checkpoint.claim import Claim, backoff
from holdfast.checkpoint.errors import LimitReached, RunBusy, RunNotClaimable, RunNotFound
from holdfast.checkpoint.limits import list_limit_names
from holdfast.checkpoint.record import RunStatus
from holdfast.stores.sqlite.claiming.limits import read_slots
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.run_row import find_run
from holdfast.stores.sqlite.transaction import Transaction, to_micros


def claim(
    run_id: str,
    worker_id: str,
    statuses: Collection[RunStatus],
    steal: bool,
    within_limits: bool,
    liveness: Liveness,
    transaction: Transaction,
) -> Claim:
    run = find_run(run_id, transaction)
    if run is None:
        raise RunNotFound(run_id)
    counts_as = {run.status}
    if run.status is RunStatus.RUNNING:
        if not liveness.is_alive(run.owner, transaction.execute):
            counts_as.add(RunStatus.INTERRUPTED)
        elif run.owner is not None and not steal:
            raise RunBusy(run_id, run.owner)
    if run.is_due(transaction.now_micros):
        counts_as.add(RunStatus.INTERRUPTED)
    if counts_as.isdisjoint(statuses):
        raise RunNotClaimable(run_id, run.status.value, run.reason)
    if within_limits and not has_slot(run.agent_name, run.key or None, run.parent_run_id, liveness, transaction):
        raise LimitReached(run_id, run.status.value)
    return claim_run(run.run_key, run_id, run.strikes, worker_id, transaction)


def has_slot(
    agent_name: str, key: str | None, parent_run_id: str | None, liveness: Liveness, transaction: Transaction
) -> bool:
    """Return whether no limit of such a run is reached."""
    names = list_limit_names(agent_name, key, parent_run_id)
    return not names or read_slots(liveness, transaction.execute).try_take(names)


def claim_run(run_key: int, run_id: str, strikes: int, worker_id: str, transaction: Transaction) -> Claim:
    """Give the run to the worker. `strikes` are those before this claim."""
    token, strikes = transaction.next_token(), strikes + 1
    not_before = to_micros(transaction.now + backoff(strikes))
    row = (run_key, worker_id, token, strikes, not_before, transaction.now_micros)
    previous = transaction.execute(statement("running_owner"), (run_key,)).fetchone()
    transaction.execute(statement("claim_run"), row)
    taken_from = None if previous is None else previous[0]
    return Claim(run_id=run_id, worker_id=worker_id, token=token, strikes=strikes, taken_from=taken_from)
