"""Mail between processes that are killed at the worst moment, and answers that processes give at once."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.core.execution.mail_worker import make_agent

from holdfast import App, Approve, RunWaiting
from holdfast.checkpoint.store import END
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.runtime.operations.mailing import AlreadyAnswered


class Scene:
    """A store, and a ledger of the payments that were made."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.ledger = url, folder / "ledger"
        self.ledger.touch()
        self.agents = [make_agent(self.ledger)]

    async def wait_for_approval(self, run_ids: Sequence[str]) -> None:
        """Execute new runs until each of them waits for the approval of a payment."""
        async with App(self.agents, self.url) as app:
            for run_id in run_ids:
                with pytest.raises(RunWaiting):
                    await app.run("mailed", "go", run_id=run_id)

    async def finish(self, run_id: str) -> list[list[object]]:
        """Send the mail that is missing and execute the run to its end. Return its messages and its tool results."""
        async with App(self.agents, self.url) as app:
            for number in (1, 2):
                await app.send(run_id, str(number), id=f"message{number}")
                await app.signal(run_id, ["first", "second"][number - 1], number, id=f"signal{number}")
            assert app.store is not None
            while True:
                try:
                    output: list[list[object]] = json.loads((await app.result(run_id)).output)
                    return output
                except RunWaiting as waiting:
                    if any(call.kind == "approval" for call in waiting.calls):
                        await app.answer(run_id, "0", Approve())
                    await app.store.wait_for_change(timedelta(seconds=0.05))

    def count_payments(self, run_id: str) -> int:
        return self.ledger.read_text().split().count(run_id)

    @asynccontextmanager
    async def start(self, command: str, *arguments: str) -> AsyncIterator[Process]:
        program = [
            sys.executable,
            "-m",
            "tests.core.execution.mail_process",
            command,
            self.url,
            str(self.ledger),
            *arguments,
        ]
        process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
        try:
            assert await read_line(process) == "ready\n"
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
def scene(durable_store_url: str, tmp_path: Path) -> Scene:
    return Scene(durable_store_url, tmp_path)


async def read_line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode()


def write_line(process: Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())


async def test_an_answer_survives_a_kill_right_after_it_returned(scene: Scene) -> None:
    await scene.wait_for_approval(["r"])
    async with scene.start("answer", "the killed one", "r") as process:
        write_line(process, "answer and die")
        assert await process.wait() == -signal.SIGKILL
    async with App(scene.agents, scene.url, worker=False) as app:
        with pytest.raises(AlreadyAnswered, match="the killed one answered first"):
            await app.answer("r", "0", Approve())
    texts, results = await scene.finish("r")
    assert (texts, results) == (["go", "1", "2"], ["paid", 1, 2])
    assert scene.count_payments("r") == 1


@pytest.mark.parametrize("prefix", ["answer", "signal", "message"])
async def test_mail_is_applied_once_if_its_worker_is_killed_right_after_consuming_it(scene: Scene, prefix: str) -> None:
    await scene.wait_for_approval(["r"])
    async with App(scene.agents, scene.url, worker=False) as app, scene.start("consume", prefix) as process:
        await app.send("r", "1", id="message1")
        await app.signal("r", "first", 1, id="signal1")
        await app.answer("r", "0", Approve())
        assert await process.wait() == -signal.SIGKILL
        assert app.store is not None
        assert not any(mail.mail_id.startswith(prefix) for mail in (await app.store.load("r", after=END)).mail)
    texts, results = await scene.finish("r")
    assert sorted(str(text) for text in texts) == ["1", "2", "go"]
    assert results[1:] == [1, 2]
    # An approved call of which it is not known whether it was started is in doubt.
    assert (results[0], scene.count_payments("r")) in [("paid", 1), (UNKNOWN_OUTCOME, 0)]


async def test_of_answers_that_processes_give_at_once_one_is_accepted_and_named_to_the_others(scene: Scene) -> None:
    run_ids, people = [f"r{number}" for number in range(6)], ["Ada", "Ben", "Cleo"]
    await scene.wait_for_approval(run_ids)
    processes = [scene.start("answer", person, *run_ids) for person in people]
    async with processes[0] as ada, processes[1] as ben, processes[2] as cleo:
        for process in (ada, ben, cleo):
            write_line(process, "answer")
        errors = [json.loads(await read_line(process)) for process in (ada, ben, cleo)]
    for number, run_id in enumerate(run_ids):
        by_person = {person: replies[number] for person, replies in zip(people, errors, strict=True)}
        [first] = [person for person, error in by_person.items() if not error]
        refused = [error for person, error in by_person.items() if person != first]
        assert [f"{first} answered first" in error for error in refused] == [True, True], by_person
        _, results = await scene.finish(run_id)
        assert (results, scene.count_payments(run_id)) == (["paid", 1, 2], 1)
