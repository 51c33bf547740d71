"""After an erase and a vacuum no byte of a conversation is in the files of its store."""

import secrets
from collections.abc import Sequence
from pathlib import Path

import apsw
import psycopg
from tests.postgres_server import LocalServer

from holdfast import Agent, App, Reply, User
from holdfast.core import Message, ToolSchema


async def echo(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    return Reply(text=[message.text for message in messages if isinstance(message, User)][-1])


AGENT = Agent(name="a", model=echo)


async def talk(app: App, marker: str) -> None:
    """A conversation with the marker in its key, its ids, its messages, its answers and its unread mail."""
    chat = app.conversation(AGENT, f"key-{marker}", labels={"topic": marker})
    for number in range(8):
        await chat.send(f"{marker} {number} " + "x" * 500, id=f"{marker}-{number}")


async def erase(app: App, marker: str) -> None:
    """Erase one conversation; another one stays."""
    chat = app.conversation(AGENT, f"key-{marker}")
    await chat.post(f"{marker} unread")
    await chat.erase()
    assert await chat.history() == []


def find(marker: str, files: Sequence[Path]) -> list[str]:
    """The files that contain the marker."""
    return [file.name for file in files if marker.encode() in file.read_bytes()]


async def test_no_byte_is_left_in_the_files_of_sqlite(tmp_path: Path) -> None:
    erased, kept = secrets.token_hex(12), secrets.token_hex(12)
    url = f"sqlite:{tmp_path / 'runs.db'}"
    async with App([AGENT], url) as app:
        for marker in (erased, kept):
            await talk(app, marker)
        assert find(erased, list(tmp_path.iterdir()))
        await erase(app, erased)
    connection = apsw.Connection(str(tmp_path / "runs.db"))
    connection.execute("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)")
    files = list(tmp_path.iterdir())
    assert find(erased, files) == []
    assert find(kept, files)
    connection.close()
    async with App([AGENT], url) as app:
        assert len(await app.conversation(AGENT, f"key-{kept}").history()) == 8


async def test_no_byte_is_left_in_the_tables_of_postgresql(server: LocalServer, url: str) -> None:
    erased, kept = secrets.token_hex(12), secrets.token_hex(12)
    async with App([AGENT], url) as app:
        for marker in (erased, kept):
            await talk(app, marker)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("checkpoint")
            assert find(erased, list_files(server))
            await erase(app, erased)
    with psycopg.connect(url, autocommit=True) as connection:
        for command in ("analyze", "vacuum full", "checkpoint"):
            connection.execute(command)
    assert find(erased, list_files(server)) == []
    assert find(kept, list_files(server))


def list_files(server: LocalServer) -> list[Path]:
    """The files of the server's tables. Its write-ahead log keeps old bytes until it is recycled."""
    return [file for file in (server.folder / "data" / "base").rglob("*") if file.is_file()]
