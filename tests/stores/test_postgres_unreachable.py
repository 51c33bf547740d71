"""A server that is not there."""

import socket
from datetime import timedelta
from pathlib import Path

import pytest
from tests.stores.postgres_support import fail_after_timeout

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.db.postgres_tables import PostgresTables
from holdfast.db.tables import Schema, TablesUnavailable
from holdfast.stores.postgres import PostgresStore

#: So long that the test fails if it is waited for.
TIMEOUT = timedelta(hours=1)


async def test_a_port_that_refuses_is_reported_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and no server listens
        url = f"postgresql://me:secret@127.0.0.1:{taken.getsockname()[1]}/nowhere"
        async with fail_after_timeout():
            with pytest.raises(StoreUnavailable, match=r"cannot be reached: check its address.*refused") as raised:
                await PostgresStore(url, timeout=TIMEOUT).open()
            assert "secret" not in str(raised.value)
            with pytest.raises(TablesUnavailable, match="refused"):
                await PostgresTables(url, timeout=TIMEOUT).open(Schema(name="test", migrations=()))


@pytest.mark.parametrize("host", ["nowhere.invalid", "/nowhere"])
async def test_a_host_that_does_not_exist_is_reported_at_once(host: str, tmp_path: Path) -> None:
    async with fail_after_timeout():
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await PostgresStore(f"postgresql://me@/runs?host={host}", timeout=TIMEOUT).open()
