"""holdfast serve"""

import re
import signal
import socket
import urllib.error
import urllib.request

import pytest
from tests.cli.shell import Shell, line_with


def test_serve_executes_what_the_api_takes_and_drains_on_sigterm(shell: Shell) -> None:
    server = shell.start("serve", "sample:app", "--port", "0")
    assert server.stdout is not None
    token = server.stdout.readline().strip()
    line = line_with(server.stderr, "serving compacting, other, phased, sampler at http")
    [url] = re.findall(r"http://127\.0\.0\.1:\d+/api", line)
    login = {"authorization": f"Bearer {token}"}
    request = urllib.request.Request(
        f"{url}/runs",
        data=b'{"agent": "sampler", "input": "note send"}',
        headers={"content-type": "application/json", "idempotency-key": "r1", **login},
    )
    assert urllib.request.urlopen(request).status == 202
    with urllib.request.urlopen(urllib.request.Request(f"{url}/runs/r1/result?wait=50", headers=login)) as response:
        assert b'"output":"done: note send"' in response.read()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{url}/runs")
    server.send_signal(signal.SIGTERM)
    line_with(server.stderr, "drained")
    assert server.wait() == 0


def test_serve_takes_its_token_from_the_environment(shell: Shell) -> None:
    done = shell.run("serve", "sample:app", HOLDFAST_TOKEN="short")
    assert (done.returncode, "the token is too short" in done.stderr) == (1, True)


def test_a_port_in_use_is_one_line(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = shell.run("serve", "sample:app", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "cannot be used: Address already in use; choose another one" in done.stderr
    assert "Traceback" not in done.stderr
