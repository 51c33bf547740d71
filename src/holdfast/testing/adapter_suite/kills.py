"""Runs that are killed, in processes of their own, and continue here."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from holdfast.app import App
from holdfast.checkpoint.record import RunStatus
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.run.result import Result
from holdfast.core.run.run_events import ToolReturned
from holdfast.testing.adapter_suite.killed_main import RUN
from holdfast.testing.adapter_suite.script import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    CallLog,
    get_answer,
    import_driver,
    make_script,
    tests_feature,
)
from holdfast.testing.crash import crash_everywhere

#: Where processes are killed.
IN_BATCH, IN_MODEL_CALL, IN_ONCE_CALL = _POINTS = ("look Bonn", "request 1", "pay Nice")


class AdapterKillTests:
    """Tests that kill the process of a run, and check what the next process does."""

    driver: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def killed(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A folder with a store for each point, whose run was killed there."""
        folder = tmp_path_factory.mktemp("killed")
        command = [sys.executable, "-m", "holdfast.testing.adapter_suite.killed_main", cls.driver, str(folder)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with subprocess.Popen([*command, *_POINTS], stdout=subprocess.PIPE, text=True, env=environment) as parent:
            assert parent.stdout is not None
            for _ in _POINTS:
                os.kill(int(parent.stdout.readline()), signal.SIGKILL)
        assert parent.returncode == 0
        return folder

    @pytest.fixture
    def folder(self, killed: Path, tmp_path: Path) -> Path:
        """A copy of the stores for one test."""
        return Path(shutil.copytree(killed, tmp_path / "killed"))

    async def _resume(self, folder: Path, log: CallLog) -> Result:
        agent = import_driver(self.driver).make_agent(make_script(log))
        async with App([agent], f"sqlite:{folder / 'runs.db'}") as app:
            return await app.result(RUN)

    @tests_feature("batches")
    async def test_a_kill_in_a_batch_repeats_neither_the_model_call_nor_finished_calls(self, folder: Path) -> None:
        log = CallLog()
        result = await self._resume(folder / IN_BATCH, log)
        assert get_answer(self.driver, result) == "all is paid"
        # Whether the result of the third call was recorded depends on which of the calls was quicker.
        assert [each for each in log.calls if each != "reserve Faro"] == ["look Bonn", "pay Nice"]
        assert log.requests == [1, 2]

    @tests_feature("usage")
    async def test_usage_counts_over_a_resume(self, folder: Path) -> None:
        result = await self._resume(folder / IN_BATCH, CallLog())
        usage = result.usage
        assert (usage.requests, usage.input_tokens, usage.output_tokens) == (3, 3 * INPUT_TOKENS, 3 * OUTPUT_TOKENS)
        assert usage.tool_calls == 4

    @tests_feature("model calls")
    async def test_a_kill_in_a_model_call_repeats_that_call_only(self, folder: Path) -> None:
        log = CallLog()
        result = await self._resume(folder / IN_MODEL_CALL, log)
        assert (get_answer(self.driver, result), log.calls, log.requests) == ("all is paid", ["pay Nice"], [1, 2])

    @tests_feature("effects")
    async def test_a_once_call_in_doubt_is_reported_and_not_made_again(self, folder: Path) -> None:
        log = CallLog()
        agent = import_driver(self.driver).make_agent(make_script(log))
        async with App([agent], f"sqlite:{folder / IN_ONCE_CALL / 'runs.db'}") as app:
            result = await app.result(RUN)
            returned = {
                event.call_id: event.content async for event in app.events(RUN) if isinstance(event, ToolReturned)
            }
        assert (get_answer(self.driver, result), log.calls, log.requests) == ("all is paid", [], [2])
        assert returned["c4"] == UNKNOWN_OUTCOME

    @tests_feature("deploys")
    async def test_a_deploy_that_removes_a_tool(self, folder: Path) -> None:
        for policy in ("defer", "park", "report"):
            status, log = await self._resume_without_look(folder / IN_BATCH, folder / policy, policy)
            expected = {"defer": RunStatus.INTERRUPTED, "park": RunStatus.PARKED, "report": RunStatus.DONE}[policy]
            assert (policy, status) == (policy, expected)
            assert log.requests == ([1, 2] if policy == "report" else [])

    async def _resume_without_look(self, killed: Path, folder: Path, policy: str) -> tuple[RunStatus, CallLog]:
        """Return the status of a copy of the run after a worker has taken it, and what was called."""
        shutil.copytree(killed, folder)
        log = CallLog()
        left = [tool for tool in make_script(log).tools if tool.name != "look"]
        agent = import_driver(self.driver).make_agent(make_script(log, tools=left, missing_tools=policy))
        async with App([agent], f"sqlite:{folder / 'runs.db'}") as app:
            await app.recover()
            return (await app.get(RUN)).status, log

    @tests_feature("writes")
    @pytest.mark.timeout(300)
    def test_a_kill_at_any_write_and_in_any_tool_changes_nothing(
        self, monkeypatch: pytest.MonkeyPatch, crash_sample: int | None
    ) -> None:
        monkeypatch.setenv("HOLDFAST_ADAPTER_DRIVER", self.driver)
        agent = "holdfast.testing.adapter_suite.crash_agent:agent"
        crash_everywhere(agent, "go", sample=crash_sample, max_concurrency=1)

    @pytest.fixture
    def crash_sample(self) -> int | None:
        """How many crash points are tried: another random choice each time. Override it with `None` to try all."""
        return 3
