"""holdfast doctor"""

import json
import sqlite3
from typing import Any

from tests.cli.shell import Shell, kill
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.cli.doctor import Doctor
from holdfast.stores.memory import MemoryStore
from holdfast.testing.store_processes.store_under_test import add_worker, make_run


def findings(shell: Shell, *args: str, code: int) -> dict[str, Any]:
    done = shell.run("doctor", *args, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return {finding["check"]: finding for finding in json.loads(done.stdout)}


def test_a_store_that_is_fine(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note", "--run-id", "r1")
    found = findings(shell, "sample:app", code=0)
    assert list(found) == [
        "store", "schema", "size", "integrity", "runs", "workers", "damage", "in doubt", "agents", "preflight",
    ]  # fmt: skip
    assert {finding["level"] for finding in found.values()} == {"ok"}
    assert found["schema"]["detail"] == "version 2, the newest"
    assert found["runs"]["detail"].startswith("1 queued; ")
    assert "ok       agents: every run has an agent" in shell.ok("doctor", "sample:app").splitlines()


def test_a_store_that_is_not_there_or_not_ours(shell: Shell) -> None:
    assert findings(shell, code=1)["store"]["detail"].startswith("there is no store at runs.db")
    (shell.folder / "runs.db").write_text("not a database, " * 100)
    assert findings(shell, code=1)["store"]["level"] == "wrong"


def test_a_damaged_run_is_named_and_the_others_are_fine(shell: Shell) -> None:
    for run_id in ("r1", "r2"):
        shell.ok("submit", "sampler", "note", "--run-id", run_id)
    with sqlite3.connect(shell.folder / "runs.db") as database:
        damage = "UPDATE segments SET body = x'7b7d' WHERE run_key = (SELECT run_key FROM runs WHERE run_id = 'r2')"
        database.execute(damage)
    database.close()
    found = findings(shell, code=1)
    assert (found["damage"]["level"], found["damage"]["runs"]) == ("wrong", ["r2"])
    assert "r2 is damaged" in found["damage"]["detail"]
    assert found["integrity"]["level"] == "ok"  # of the file itself
    assert "run r2 is damaged" in shell.run("show", "r2").stderr
    assert shell.ok("rm", "-f", "r2") == "run r2 is removed\n"
    assert shell.states() == {"r1": "queued"}


def test_dead_workers_doubt_and_parked_runs_are_warnings(shell: Shell) -> None:
    process = shell.start("run", "sample:agent", "send gate", "--run-id", "r1")
    shell.wait_for_effect("gate c2-1")
    shell.wait_for_entry("r1", "c2-1")
    kill(process)
    found = findings(shell, "sample:app", code=0)
    assert (found["workers"]["level"], found["workers"]["detail"]) == (
        "warning",
        "0 alive with 0 runs, 1 dead with 1 runs",
    )
    assert found["in doubt"]["level"] == "ok"  # the gate may be called again, what was sent is recorded
    assert findings(shell, code=0)["in doubt"]["detail"] == "r1: gate c2-1"  # only its code says so
    process = shell.start("run", "sample:agent", "transfer", "--run-id", "r2")
    shell.wait_for_effect("transfer c1-1")
    kill(process)
    shell.run("resume", "sample:agent", "r2", "-q")
    found = findings(shell, "sample:app", code=0)
    assert (found["in doubt"]["level"], found["in doubt"]["detail"]) == ("warning", "r2: transfer c1-1")
    assert found["parked"]["detail"].startswith("r2: in doubt: call c1-1 of transfer")


def test_a_deploy_that_would_strand_runs_is_found_before(shell: Shell) -> None:
    process = shell.start("run", "sample:agent", "gate", "--run-id", "r1")
    shell.wait_for_effect("gate c1-1")
    shell.wait_for_entry("r1", "c1-1")
    kill(process)
    shell.ok("submit", "other", "note", "--run-id", "r2")
    process = shell.start("run", "sample:phased", "note gate", "--run-id", "r3")
    shell.wait_for_effect("gate c2-1")
    kill(process)
    assert findings(shell, "sample:app", code=0)["preflight"]["level"] == "ok"
    found = findings(shell, "slimmer:app", code=1)
    assert (found["preflight"]["level"], found["preflight"]["runs"]) == ("wrong", ["r1", "r3"])
    assert "it would stay interrupted: it calls ['gate'], which the agent lacks" in found["preflight"]["detail"]
    assert "and is in 'polish', but agent phased has ['draft']" in found["preflight"]["detail"]
    assert (found["agents"]["level"], found["agents"]["runs"]) == ("wrong", ["r2"])
    assert shell.states() == {"r1": "interrupted", "r2": "queued", "r3": "interrupted"}  # looked at, not touched


def test_a_file_that_others_may_read_is_a_warning(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note", "--run-id", "r1")
    (shell.folder / "runs.db").chmod(0o644)
    found = findings(shell, code=0)
    assert found["settings"]["level"] == "warning"
    assert f"chmod 600 {shell.folder / 'runs.db'}" in found["settings"]["detail"]


async def test_of_many_queued_and_ended_runs_a_sample_is_read_and_of_the_others_all() -> None:
    store = MemoryStore()
    await store.open()
    worker = await add_worker(store)
    for number in range(20):
        await store.create(make_run(f"queued-{number}", agent_name="known"))
        claim = await store.create(make_run(f"parked-{number}", agent_name="unknown"), worker_id=worker)
        assert claim is not None
        await store.release(claim, Release(status=RunStatus.PARKED))
    # No journal of these runs can be read.
    found = {each.check: each for each in await Doctor(store, {}, sample=5).run()}
    damaged = found["damage"].runs
    assert [run_id for run_id in damaged if run_id.startswith("queued")] == [f"queued-{n}" for n in (3, 7, 11, 15, 19)]
    assert len(damaged) == 25
    assert len(found["agents"].runs) == 40, "the records of all runs are read"
    everything = {each.check: each for each in await Doctor(store, None, sample=None).run()}
    assert len(everything["damage"].runs) == 40


async def test_doctor_says_how_many_journals_it_has_read(shell: Shell) -> None:
    store = MemoryStore()
    async with App([Agent(name="a", model=ScriptedModel())], store, worker=False) as app:
        for _ in range(6):
            await app.submit("a", "hello")
        [damage] = [each for each in await Doctor(store, None, sample=2).run() if each.check == "damage"]
    assert damage.detail == ("every run can be read (the journals of 2 of 6 queued and ended runs; --all reads all)")
    shell.ok("submit", "sampler", "note")
    assert findings(shell, "--all", code=0)["damage"]["detail"] == "every run can be read"


ORDERS = """
from holdfast import App, tool
from holdfast.workflows import wait_for, workflow

@tool
async def pay(euro: str) -> str:
    print("paid", euro)
    return f"receipt {euro}"

@workflow
async def order(euro: str) -> str:
    print("entered")
    receipt = await pay(euro)
    await wait_for("delivered")
    return receipt

app = App([order], "sqlite:runs.db")
"""


def test_a_deploy_that_would_repeat_a_payment_is_found_by_re_entry(shell: Shell) -> None:
    (shell.folder / "orders.py").write_text(ORDERS)
    (shell.folder / "orders_new.py").write_text(ORDERS.replace("await pay(euro)", "await pay(euro + '0')"))
    done = shell.run("run", "orders:order", "7", "--run-id", "r1")
    assert "paid 7" in done.stdout
    assert shell.states() == {"r1": "waiting"}
    found = findings(shell, "orders:app", "--reenter", code=0)
    assert found["re-entry"]["detail"] == "1 workflow runs fit this code"
    assert "re-entry" not in findings(shell, "orders_new:app", code=0)
    found = findings(shell, "orders_new:app", "--reenter", code=1)
    assert (found["re-entry"]["level"], found["re-entry"]["runs"]) == ("wrong", ["r1"])
    assert "it would be parked: changed arguments" in found["re-entry"]["reasons"]["r1"]
    said = shell.run("doctor", "orders_new:app", "--reenter")
    assert "wrong    re-entry: r1: it would be parked" in said.stdout
    assert said.stderr == "entered\n", "what the code prints, and no log of an attempt"
    assert findings(shell, "orders_new:app", "--reenter", "--agent", "other", code=0)["re-entry"]["level"] == "ok"
    assert shell.states() == {"r1": "waiting"}  # looked at, not touched
    done = shell.run("doctor", "--reenter")
    assert done.returncode == 2
    assert "--reenter needs the code" in done.stderr
    assert shell.run("doctor", "orders:app", "--reenter", "--limit", "0").returncode == 2
