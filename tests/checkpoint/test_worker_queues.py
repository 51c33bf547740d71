"""Processes, queues and slots of workers, as plain functions."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint.workers import (
    CountedRow,
    LimitName,
    Processes,
    RunCount,
    Slots,
    WorkerHeartbeat,
    WorkerIdentity,
    _ask_ps,
    backoff,
    choose_fairly,
    count_live_workers,
    find_process,
    is_process_alive,
    list_limit_names,
    make_limit,
    measure_queues,
    merge_rows,
    this_process,
)
from holdfast.core.run.status import RunStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def test_a_process_is_itself_and_lives_until_it_has_ended() -> None:
    own = this_process()
    assert (own, own.pid) == (find_process(os.getpid()), os.getpid())
    assert own.host.startswith(socket.gethostname())
    if sys.platform == "linux":
        boot, namespace = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")
        assert own.host == f"{socket.gethostname()}/{boot}/{namespace}"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = find_process(child.pid)
    assert found is not None
    assert is_process_alive(found)
    assert is_process_alive(msgspec.structs.replace(found, started="at another time")) is False
    assert is_process_alive(msgspec.structs.replace(found, host="elsewhere")) is None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_process_alive(found) is False, "a zombie executes nothing"
    assert find_process(child.pid) is None
    child.communicate()
    assert is_process_alive(found) is False
    assert find_process(child.pid) is None


def test_ps_shows_when_a_process_started_and_which_one_is_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = _ask_ps(child.pid)
    assert started is not None
    assert re.fullmatch(r"\w+ \w+ +\d+ [\d:]+ \d{4}", started), started
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert _ask_ps(child.pid) is None, "a zombie executes nothing"
    child.communicate()
    assert _ask_ps(child.pid) is None


def test_the_process_itself_lives_whatever_the_system_shows() -> None:
    processes = Processes()
    assert processes.is_alive(processes.identify_own()) is True


def test_live_workers_are_counted_by_agent() -> None:
    def beat(name: str, *agents: str, alive: bool = True) -> WorkerHeartbeat:
        identity = WorkerIdentity(worker_id=name, process=this_process(), agents=agents)
        return WorkerHeartbeat(worker=identity, alive=alive, last_at=NOW)

    assert count_live_workers([beat("1", "a", "b"), beat("2", "a"), beat("3", "b", alive=False)]) == {"a": 2, "b": 1}


@pytest.mark.parametrize(("strikes", "seconds"), [(0, 0), (1, 0), (2, 5), (3, 30), (4, 30), (100, 30)])
def test_the_backoff_grows_with_the_strikes(strikes: int, seconds: int) -> None:
    assert backoff(strikes) == timedelta(seconds=seconds)


def test_rows_of_one_agent_and_status_are_added_and_runs_of_dead_owners_are_interrupted() -> None:
    queued, running, interrupted, done = (
        RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.INTERRUPTED, RunStatus.DONE
    )  # fmt: skip
    merged = merge_rows(
        [
            CountedRow("b", queued, False, 2, 1, ago(5)),
            CountedRow("a", running, True, 3, 3, ago(9)),
            CountedRow("a", running, False, 4, 2, ago(7)),
            CountedRow("a", interrupted, False, 1, 1, ago(8)),
            CountedRow("b", queued, False, 1, 0, None),
            CountedRow("b", queued, False, 1, 1, ago(4)),
            CountedRow("a", done, False, 6, 6, ago(99)),
        ]
    )
    assert merged == [
        RunCount(agent_name="a", status=done, count=6),
        RunCount(agent_name="a", status=interrupted, count=5, due=3, oldest=ago(8)),
        RunCount(agent_name="a", status=running, count=3),
        RunCount(agent_name="b", status=queued, count=4, due=2, oldest=ago(5)),
    ]
    assert measure_queues(merged, NOW) == {"a": (3, 8.0), "b": (2, 5.0)}
    assert measure_queues([], NOW) == {}


def test_a_run_counts_under_its_agent_and_its_key_unless_it_shares_the_slot_of_its_parent() -> None:
    assert list_limit_names("a", "", shares_parent_slot=False) == (("agent", "a"),)
    assert list_limit_names("a", "k", shares_parent_slot=False) == (("agent", "a"), ("key", "k"))
    assert list_limit_names("a", "k", shares_parent_slot=True) == ()
    assert (make_limit("agent", "x", 2).agent, make_limit("key", "x", 2).key) == ("x", "x")
    assert make_limit("agent", "x", 2).max_runs == make_limit("key", "x", 2).max_runs == 2


def test_a_run_takes_a_slot_of_each_limit_or_none() -> None:
    agent, key, other = ("agent", "a"), ("key", "k"), ("agent", "unlimited")
    slots = Slots({agent: 3, key: 2}, [(agent, key), (agent,)])
    assert [slots.is_full(each) for each in (agent, key, other)] == [False, False, False]
    assert slots.try_take((agent, key, other))
    assert not slots.try_take((key, other)), "the key is full"
    assert slots.used == {agent: 3, key: 2, other: 1}
    assert slots.try_take((other,))


def test_the_queues_of_callers_take_turns() -> None:
    agent = (("agent", "a"),)
    queues: list[list[tuple[Sequence[LimitName], str]]] = [
        [((), "a1"), ((), "a2"), ((), "a3")],
        [(agent, "b1"), (agent, "b2"), ((), "b3")],
        [((), "c1")],
    ]

    def choose(limit: int) -> list[str]:
        return choose_fairly(queues, Slots({agent[0]: 1}, []), limit)

    assert choose(10) == ["a1", "b1", "c1", "a2", "b3", "a3"], "b2 has no slot"
    assert (choose(0), choose(1), choose(4)) == ([], ["a1"], ["a1", "b1", "c1", "a2"])
