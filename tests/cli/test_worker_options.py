"""The options of holdfast worker: what it takes, when it exits, and /healthz."""

import re
import signal
import urllib.error
import urllib.request

import pytest
from tests.cli.shell import TIMEOUT, Shell, line_with

from holdfast import App, WorkerSettings
from holdfast.cli.commands.serving import configure_worker, parse_size, read_memory
from holdfast.cli.output import UsageError


def probe(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def test_a_worker_takes_as_many_runs_as_it_may_and_exits_with_0(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note send", "--run-id", "r1")
    worker = shell.start("worker", "sample:app", "--max-runs", "1", "--concurrency", "1")
    line_with(worker.stderr, "drained")
    assert worker.wait(TIMEOUT) == 0
    assert shell.states() == {"r1": "done"}


def test_a_worker_over_its_memory_drains_and_exits_with_0(shell: Shell) -> None:
    worker = shell.start("worker", "sample:app", "--max-memory", "1M")
    line_with(worker.stderr, "over 1 MB of memory")
    line_with(worker.stderr, "drained")
    assert worker.wait(TIMEOUT) == 0


def test_a_worker_takes_only_runs_of_the_agents_that_it_is_given_and_answers_probes_until_it_drains(
    shell: Shell,
) -> None:
    shell.ok("submit", "other", "note", "--run-id", "left")
    worker = shell.start("worker", "sample:app", "--agents", "sampler, phased", "--health-port", "0")
    found = re.search(r"http://127\.0\.0\.1:\d+/healthz", line_with(worker.stderr, "/healthz"))
    assert found is not None
    line_with(worker.stderr, "serving phased, sampler;")
    assert probe(found[0]) == (200, "ok\n")
    shell.ok("submit", "sampler", "note gate note", "--run-id", "taken")
    shell.wait_for_effect("gate c2-1")
    status, metrics = probe(found[0].replace("healthz", "metrics"))
    assert (status, 'holdfast_runs{agent="sampler",status="running"} 1' in metrics) == (200, True)
    worker.send_signal(signal.SIGTERM)
    line_with(worker.stderr, "stopping after the current step")
    assert probe(found[0]) == (503, "draining: this worker takes no more runs\n")
    shell.open_gate()
    assert worker.wait(TIMEOUT) == 0
    assert shell.states() == {"left": "queued", "taken": "interrupted"}


def test_a_size_of_memory_is_a_number_with_a_unit() -> None:
    assert [parse_size(text) for text in ("1", "2K", "800M", "1.5 GiB")] == [1, 2048, 800 << 20, 3 << 29]
    for text in ("much", "0M", "-1G", "1T"):
        with pytest.raises(UsageError, match="give a size such as 800M or 2G"):
            parse_size(text)
    assert read_memory() > 1 << 20


def test_agents_that_the_app_does_not_have_are_refused() -> None:
    app = App([], None)
    with pytest.raises(UsageError, match="no agent missing: the App has none"):
        configure_worker(app, agents="missing", concurrency=None, max_runs=None)
    assert configure_worker(app, agents="", concurrency=3, max_runs=7).worker_settings == WorkerSettings(
        concurrency=3, max_runs=7
    )
