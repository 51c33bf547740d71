"""Concurrency limits, and the slots in use. The functions that write run in a write transaction."""

from holdfast.checkpoint.limits import ConcurrencyLimit, LimitKind, LimitName, LimitUsage, Slots, make_limit
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.transaction import Execute, Transaction


def set_limit(limit: ConcurrencyLimit, default: bool, transaction: Transaction) -> None:
    transaction.execute(statement("set_limit"), (limit.kind, limit.name, limit.max_runs, default))
    transaction.notify = True


def remove_limit(kind: LimitKind, name: str, transaction: Transaction) -> bool:
    transaction.notify = True
    return transaction.fetch_one(statement("remove_limit"), (kind, name)) is not None


def list_usage(liveness: Liveness, execute: Execute) -> tuple[LimitUsage, ...]:
    rows = execute(statement("list_limits")).fetchall()
    slots = read_slots(liveness, execute)
    return tuple(
        LimitUsage(limit=make_limit(kind, name, max_runs), running=slots.used[kind, name], is_default=bool(is_default))
        for kind, name, max_runs, is_default in rows
    )


def read_slots(liveness: Liveness, execute: Execute) -> Slots:
    """Return the slots of all limits. A store without limits reads no runs."""
    caps: dict[LimitName, int] = {
        (kind, name): max_runs for kind, name, max_runs, _ in execute(statement("list_limits")).fetchall()
    }
    slots = Slots(caps, ())
    if not caps:
        return slots
    alive = liveness.alive_workers(execute)
    for owner, agent_name, key, count in execute(statement("running_runs")).fetchall():
        if owner in alive:
            slots.used["agent", agent_name] += count
            slots.used["key", key] += count
    return slots
