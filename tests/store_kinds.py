"""The table of stores for tests that run on each of them."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import psycopg
from tests.postgres_pool import open_empty_postgres

from holdfast.testing.store_processes.store_process import format_connection_name


class StoreKind(NamedTuple):
    #: From an empty folder to the URL of an empty store.
    open_empty: Callable[[Path], AbstractContextManager[str]]
    #: Damage a stored entry, given the URL, the run id and the body. `None` for a store that is not durable.
    damage: Callable[[str, str, bytes], None] | None = None
    #: Wait until a server has finished the requests of a killed process, given the URL and the pid.
    wait_until_idle: Callable[[str, int], None] | None = None


def _damage_sqlite(url: str, run_id: str, body: bytes) -> None:
    flip_bit(Path(url.removeprefix("sqlite:")), body)


def _damage_postgres(url: str, run_id: str, body: bytes) -> None:
    index = "position(%(body)s in body) + 4"
    with psycopg.connect(url) as connection:
        done = connection.execute(
            f"update holdfast.segment set body = set_byte(body, {index}, get_byte(body, {index}) # 1) from holdfast.run"
            " where run.id = segment.run and run.run_id = %(run_id)s and position(%(body)s in body) > 0".encode(),
            {"run_id": run_id, "body": body},
        )
        assert done.rowcount == 1


def _wait_until_postgres_idle(url: str, pid: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        left = "select pid from pg_stat_activity where application_name = %s"
        deadline = time.monotonic() + 60
        while connection.execute(left, (format_connection_name(pid),)).fetchall():
            assert time.monotonic() < deadline, "the server still serves a process that has ended"
            time.sleep(0.002)


def flip_bit(path: Path, content: bytes) -> None:
    """Flip one bit of `content` in the file."""
    stored = path.read_bytes()
    assert content in stored, f"{path} does not contain {content!r}"
    damaged = bytearray(content)
    damaged[5] ^= 1
    path.write_bytes(stored.replace(content, damaged))


def _open_memory(folder: Path) -> AbstractContextManager[str]:
    return nullcontext("memory:")


def _open_sqlite(folder: Path) -> AbstractContextManager[str]:
    return nullcontext(f"sqlite:{folder / 'runs.db'}")


def _open_postgres(folder: Path) -> AbstractContextManager[str]:
    return open_empty_postgres()


#: A new store of holdfast needs one line here.
STORES = {
    "memory": StoreKind(_open_memory),
    "sqlite": StoreKind(_open_sqlite, _damage_sqlite),
    "postgres": StoreKind(_open_postgres, _damage_postgres, _wait_until_postgres_idle),
}

DURABLE = [name for name, kind in STORES.items() if kind.damage is not None]


def get_kind(url: str) -> StoreKind:
    [kind] = [kind for name, kind in STORES.items() if url.startswith(name)]
    return kind
