"""What `run_sync` prints when a run resumes and when a signal ends the process."""

from datetime import UTC, datetime

import msgspec
import pytest
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.checkpoint.codec import encode
from holdfast.checkpoint.progress import AttemptRecord, Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.core.errors import Shutdown
from holdfast.runtime.blocking import exit_on_signal, report_resume
from holdfast.stores.memory import MemoryStore

NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def make_record(*attempts: int) -> RunRecord:
    store = MemoryStore()
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        record = await get_record(store, "r")
    records = tuple(AttemptRecord(number=number, worker_id="w", began_at=NOW) for number in attempts)
    progress = encode(Progress(steps=2, attempts=records))
    return msgspec.structs.replace(record, status=RunStatus.INTERRUPTED, owner_alive=False, progress=progress)


async def test_a_run_that_has_begun_and_has_no_worker_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    record = await make_record(1, 4)
    report_resume(record)
    assert capsys.readouterr() == ("", "holdfast: run r resumed after step 2, attempt 5\n")
    report_resume(msgspec.structs.replace(record, owner_alive=True))
    report_resume(msgspec.structs.replace(record, status=RunStatus.DONE))
    report_resume(await make_record())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "number", "can_start_again", "text"),
    [
        (Shutdown("stop", step=3), 2, True, "interrupted after step 3; start again to continue"),
        (Shutdown("stop"), 15, True, "interrupted; start again to continue"),
        (KeyboardInterrupt(), 2, False, "interrupted; without a run id or a store it starts from the beginning"),
    ],
)
def test_a_signal_exits_as_a_shell_expects(
    error: BaseException, number: int, can_start_again: bool, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        exit_on_signal(error, number, can_start_again=can_start_again)
    assert raised.value.code == 128 + number
    assert capsys.readouterr() == ("", f"holdfast: {text}\n")
