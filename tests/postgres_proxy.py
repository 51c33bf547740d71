"""Between a client and a PostgreSQL server: connections that are cut at a chosen moment, and a transaction pooler."""

import asyncio
import contextlib
import enum
import random
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

READY = b"Z"
TERMINATE = b"X"
SYNC = b"S"
SIMPLE_QUERY = b"Q"


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The type of the next message and the whole of it, as it is after the start of a connection."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack(">i", head[1:])[0] - 4)


async def read_startup(reader: asyncio.StreamReader) -> bytes:
    """The first message of a client, which has no type."""
    size = await reader.readexactly(4)
    return size + await reader.readexactly(struct.unpack(">i", size)[0] - 4)


class _Front:
    """What both kinds have in common: a port on the loopback interface, and the server behind it."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._listening: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    def lead_to(self, server: Path) -> None:
        """Where new connections go from now on."""
        self._server = server

    def url(self, database: str) -> str:
        assert self._listening is not None
        port = self._listening.sockets[0].getsockname()[1]
        return f"postgresql://postgres@127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield
        finally:
            self._listening.close()
            for task in list(self._clients):
                task.cancel()
            if self._clients:
                await asyncio.wait(self._clients)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._clients.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class Harm(enum.Enum):
    """What is done to a connection on which a certain message comes."""

    #: It never reaches the server.
    CUT_BEFORE_IT = enum.auto()
    #: It reaches the server, which works on and does not notice that the client is gone.
    CUT_AFTER_IT = enum.auto()
    #: It reaches the server and is answered, so it is committed, but the answer never comes.
    LOSE_THE_ANSWER = enum.auto()
    #: It never reaches the server, and nothing is cut.
    FALL_SILENT = enum.auto()


class CuttingProxy(_Front):
    """Passes everything on, and does harm to the next message that holds certain bytes."""

    def __init__(self, server: Path) -> None:
        super().__init__(server)
        #: New connections are cut at once.
        self.refusing = False
        #: When connections were made, by the event loop's clock.
        self.made: list[float] = []
        #: Set when the harm is done.
        self.landed = asyncio.Event()
        self._next: tuple[Harm, bytes] | None = None
        self._then_refuse = False
        self._left_open: list[asyncio.StreamWriter] = []

    def harm(self, harm: Harm, message: bytes, *, and_refuse: bool = False) -> None:
        """Do that to the next message that holds these bytes; refuse new connections from then on."""
        self._next, self._then_refuse = (harm, message), and_refuse
        self.landed.clear()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with super().running():
            yield
        for writer in self._left_open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made.append(asyncio.get_running_loop().time())
        if self.refusing:
            return
        server_reader, server_writer = await asyncio.open_unix_connection(self._server)
        passage = _Passage(reader, writer, server_reader, server_writer)
        ways = [asyncio.ensure_future(self._to_server(passage)), asyncio.ensure_future(self._to_client(passage))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            if passage.harm is Harm.CUT_AFTER_IT:
                self._left_open.append(server_writer)
            else:
                server_writer.transport.abort()
            # Last: at the end of the test this is cancelled, too.
            await asyncio.gather(*ways, return_exceptions=True)

    async def _to_server(self, passage: "_Passage") -> None:
        passage.server_writer.write(await read_startup(passage.reader))
        while True:
            kind, message = await read_message(passage.reader)
            if self._next is not None and self._next[1] in message:
                passage.harm, self._next = self._next[0], None
            if passage.harm is Harm.CUT_BEFORE_IT:
                return self._land()
            if passage.harm is Harm.FALL_SILENT:
                self._land()
                await asyncio.Event().wait()
            passage.server_writer.write(message)
            await passage.server_writer.drain()
            if passage.harm is Harm.CUT_AFTER_IT and kind == SYNC:
                return self._land()

    async def _to_client(self, passage: "_Passage") -> None:
        while True:
            kind, message = await read_message(passage.server_reader)
            if passage.harm is None:
                passage.writer.write(message)
                await passage.writer.drain()
            elif passage.harm is Harm.LOSE_THE_ANSWER and kind == READY:
                return self._land()

    def _land(self) -> None:
        self.refusing = self._then_refuse
        self.landed.set()


@dataclass
class _Passage:
    """One connection through the proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server_reader: asyncio.StreamReader
    server_writer: asyncio.StreamWriter
    harm: Harm | None = None


class TransactionPooler(_Front):
    """Gives every transaction of every client to another of a few sessions, as a pooler in transaction mode does.

    What a session hears outside of a transaction goes to its next client, never to the one that listened on it.
    """

    def __init__(self, server: Path, database: str, sessions: int = 4) -> None:
        super().__init__(server)
        self._database, self._count = database, sessions
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._greeting = b""
        #: By client, the sessions that its transactions were given to.
        self.used: list[set[int]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        sessions = [await self._session() for _ in range(self._count)]
        random.shuffle(sessions)
        for session in sessions:
            self._free.put_nowait(session)
        async with super().running():
            yield
        for _, writer in sessions:
            writer.transport.abort()

    async def _session(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self._server)
        words = b"user\0postgres\0database\0" + self._database.encode() + b"\0client_encoding\0UTF8\0\0"
        writer.write(struct.pack(">ii", len(words) + 8, 196608) + words)
        greeting = b""
        while True:
            kind, message = await read_message(reader)
            greeting += message
            if kind == READY:
                self._greeting = greeting
                return reader, writer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_startup(reader)
        writer.write(self._greeting)
        used: set[int] = set()
        self.used.append(used)
        while True:
            kind, message = await read_message(reader)
            if kind == TERMINATE:
                return
            session = await self._free.get()
            used.add(id(session))
            await _transaction(message, kind, reader, writer, *session)
            self._free.put_nowait(session)


async def _transaction(
    message: bytes,
    kind: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    server_reader: asyncio.StreamReader,
    server_writer: asyncio.StreamWriter,
) -> None:
    """Pass on what belongs to one transaction, of which the first message is here already."""
    while True:
        while kind not in (SYNC, SIMPLE_QUERY):
            server_writer.write(message)
            kind, message = await read_message(reader)
        server_writer.write(message)
        while True:
            kind, message = await read_message(server_reader)
            writer.write(message)
            if kind == READY:
                break
        if message[-1:] == b"I":
            return
        kind, message = await read_message(reader)
