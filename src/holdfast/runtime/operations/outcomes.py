"""The outcome of a stored run: its result, or the error that says why it has none."""

from collections.abc import Mapping

from holdfast.checkpoint.codec import decode, decode_run
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import RunCancelled, RunFailed, RunParked
from holdfast.core.run.mail import BUDGET_TOPIC
from holdfast.core.run.result import Result
from holdfast.core.run.turns import TURN_TOPIC, ConversationIdle
from holdfast.core.run.waiting import BudgetExhausted, RunWaiting
from holdfast.runtime.agent_registry import find_loop
from holdfast.runtime.changes import ChangeSignal


def is_settled(record: RunRecord) -> bool:
    """Whether the run has ended, or waits for a person: `read_result` tells which."""
    return record.is_terminal or record.status is RunStatus.PARKED


def read_result(stored: StoredRun, agents: Mapping[str, AgentSource]) -> Result:
    """Return the result of a settled run. Raises as `wait_for_result` does.

    Args:
        agents: by name. Their codecs decode the messages and the output.
    """
    record = stored.record
    if record.status is RunStatus.PARKED:
        raise make_parked_error(record)
    loop = find_loop(agents, record.agent_name)
    checkpoint = decode_run(stored, loop.codec)
    outcome = checkpoint.outcome
    if record.status is RunStatus.CANCELLED:
        raise RunCancelled(f"run {record.run_id} was cancelled")
    if outcome is None or record.status is RunStatus.FAILED:
        raise RunFailed(record.run_id, record.reason)
    return Result(
        run_id=record.run_id,
        output=loop.load_output(outcome.output),
        usage=outcome.usage,
        steps=checkpoint.state.steps,
        phases=tuple(checkpoint.state.phases),
        messages=checkpoint.state.history,
    )


async def wait_for_result(
    store: RunStore,
    changes: ChangeSignal,
    agents: Mapping[str, AgentSource],
    run_id: str,
    *,
    through_waits: bool = False,
) -> Result:
    """Wait until a run is settled, and return its result. Arguments and errors as for `RunClient.result`."""
    with changes.listen() as changed:
        while not is_settled(record := await get_record(store, run_id)):
            if not through_waits:
                raise_if_waiting(record)
            await changed.wait()
    return read_result(await store.load(run_id), agents)


def read_waiting(record: RunRecord) -> RunWaiting:
    """Return what a waiting run waits for, as an error."""
    if BUDGET_TOPIC in record.wake_on:
        return BudgetExhausted(record.run_id, record.reason, record.wake_at)
    calls = decode(record.progress, Progress).calls.undecided
    if not calls and TURN_TOPIC in record.wake_on:
        return ConversationIdle(record.run_id)
    return RunWaiting(record.run_id, calls)


def raise_if_waiting(record: RunRecord) -> None:
    """Raise `RunWaiting` if the run waits for more than a time."""
    if record.status is RunStatus.WAITING and not (waiting := read_waiting(record)).only_for_time:
        raise waiting


def make_parked_error(record: RunRecord) -> RunParked:
    """Return the error that says why a run is parked."""
    reason, _, detail = record.reason.partition(": ")
    return RunParked(reason, detail)
