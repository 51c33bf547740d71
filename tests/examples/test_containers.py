"""examples/deploy/compose.yaml and its image: hardened, and every command in them starts. No container is started."""

import asyncio
import re
import shlex
import signal
import socket
import sys
import tomllib
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from tests.adapters.openai_server import OpenAIServer, Turn
from tests.examples.test_deploy import DEPLOY, SHUTDOWN_S

from holdfast.cli.commands.serving import parse_size

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()

#: The ports in the file, which other programs of this machine may use.
PORTS = (8000, 8081, 8300)


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_a_read_only_root_no_capability_and_an_ordinary_user(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    user, _, group = service["user"].partition(":")
    assert int(user) > 0
    assert int(group) > 0


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"migrate"}))
def test_a_container_that_stays_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert SERVICES[name]["restart"] in ("always", "unless-stopped")


def test_only_this_machine_reaches_the_published_ports() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert "ports" not in SERVICES["database"]


def test_two_workers_are_recycled_and_have_time_to_drain() -> None:
    worker = SERVICES["worker"]
    assert worker["deploy"]["replicas"] == 2
    assert worker["restart"] == "always"
    assert float(worker["stop_grace_period"].removesuffix("s")) > SHUTDOWN_S
    [memory] = [word.partition("=")[2] for word in worker["command"] if word.startswith("--max-memory=")]
    assert parse_size(memory) < parse_size(worker["deploy"]["resources"]["limits"]["memory"])


def test_the_image_runs_as_an_ordinary_user_who_owns_none_of_its_files() -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == [SERVICES["worker"]["user"]]
    assert "--chown" not in DOCKERFILE
    for source in re.findall(r"^COPY (?!--from)(\S+)", DOCKERFILE, re.MULTILINE):
        assert (DEPLOY / source).exists()


def test_the_image_installs_extras_that_exist() -> None:
    extras = set(re.findall(r'"holdfast\[([\w,-]+)\]"', DOCKERFILE)[0].split(","))
    assert extras <= tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()


def test_no_secret_is_in_the_files() -> None:
    for service in SERVICES.values():
        for name, value in service["environment"].items():
            assert not re.search("PASSWORD|TOKEN|KEY", name) or value.startswith("${"), name
    assert COMPOSE["secrets"]["ui_token"] == {"file": "ui_token"}


# -- the commands, as processes --------------------------------------------------------------------------------------


@dataclass
class Commands:
    """Starts the commands of the file in the folder of the example, with free ports and a store of the test."""

    environment: dict[str, str]
    token_file: Path
    ports: dict[int, int]

    def adapt(self, words: list[str]) -> list[str]:
        command = " ".join(shlex.quote(word) for word in words).replace("/run/secrets/ui_token", str(self.token_file))
        for port, free in self.ports.items():
            command = command.replace(str(port), str(free))
        program, *arguments = shlex.split(command)
        return [str(Path(sys.executable).with_name(program)), *arguments]

    async def start(self, words: list[str]) -> Process:
        return await asyncio.create_subprocess_exec(*self.adapt(words), cwd=DEPLOY, env=self.environment)

    @asynccontextmanager
    async def running(self, words: list[str]) -> AsyncIterator[Process]:
        process = await self.start(words)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                await process.wait()

    async def run(self, words: list[str]) -> int:
        return await (await self.start(words)).wait()

    async def wait_until_healthy(self, name: str, process: Process) -> None:
        """Repeat the health check of a service, as Docker does."""
        while await self.run(SERVICES[name]["healthcheck"]["test"][1:]) != 0:
            assert process.returncode is None, f"{name} has ended with code {process.returncode}"
            await asyncio.sleep(0.2)


def find_free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in opened]


@pytest.fixture
def commands(url: str, tmp_path: Path) -> Commands:
    token_file = tmp_path / "ui_token"
    token_file.write_text("the token of the page\n")
    environment = {
        "PATH": str(Path(sys.executable).parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOLDFAST_STORE": url,
        "API_TOKEN": "the token of the API",
    }
    return Commands(environment, token_file, dict(zip(PORTS, find_free_ports(len(PORTS)), strict=True)))


async def test_the_commands_start_become_healthy_execute_a_run_and_end(commands: Commands) -> None:
    turns: list[Turn] = [
        [("call_1", "find_order", {"order": "7"})],
        [("call_2", "refund", {"order": "7", "amount": 20})],
        "Done.",
    ]
    async with OpenAIServer(turns=turns).serving() as model, AsyncExitStack() as stack:
        commands.environment["OPENAI_BASE_URL"] = model.url
        assert await commands.run(SERVICES["migrate"]["command"]) == 0
        processes = {}
        for name in ("worker", "web", "ui"):
            processes[name] = await stack.enter_async_context(commands.running(SERVICES[name]["command"]))
        for name, process in processes.items():
            await commands.wait_until_healthy(name, process)
        site = f"http://127.0.0.1:{commands.ports[8000]}/api"
        async with httpx.AsyncClient(base_url=site, timeout=60) as client:
            assert (await client.get("/runs")).status_code == 401
            client.headers["Authorization"] = "Bearer the token of the API"
            body = {"agent": "refunds", "input": "Refund 20 euros of order 7, card 4111 1111 1111 1111."}
            run_id = (await client.post("/runs", json=body)).json()["run_id"]
            answer = await client.get(f"/runs/{run_id}/result", params={"wait": 50})
            assert answer.json()["output"].strip() == "Done."
            [run] = (await client.get("/runs")).json()["runs"]
        assert run["prompt"] == "Refund 20 euros of order 7, card [redacted]."
        for name, process in processes.items():
            process.send_signal(signal.SIGTERM)
            assert await process.wait() in (0, -signal.SIGTERM if name == "web" else 0), name
