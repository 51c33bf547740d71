"""A server that is not there."""

import socket
from datetime import timedelta

import pytest

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.stores.postgres import PostgresStore


async def test_a_port_that_refuses_is_given_up_after_the_timeout() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"postgresql://me:secret@127.0.0.1:{taken.getsockname()[1]}/nowhere"
        store = PostgresStore(url, timeout=timedelta(milliseconds=300))
        with pytest.raises(StoreUnavailable, match=r"did not answer within 0.3 s: .*refused") as raised:
            await store.open()
        assert "secret" not in str(raised.value)
