"""The table of stores for tests that run on each of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from tests.postgres_pool import open_empty_postgres

from holdfast.testing.store_check.scratch_stores import ScratchSchema, flip_bit


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
    ScratchSchema(url, "holdfast").damage("holdfast", run_id, body)


def _wait_until_postgres_idle(url: str, pid: int) -> None:
    ScratchSchema(url, "holdfast").wait_until_idle(pid)


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
