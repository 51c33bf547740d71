"""A store in a child process, for tests that kill, stop and race processes.

The messages between the two processes take their types from the annotations of `RunStore`.
"""

import asyncio
import contextlib
import functools
import inspect
import os
import signal
import sys
import typing
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, cast

import msgspec

from holdfast.checkpoint import errors
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import ProcessIdentity
from holdfast.db.tables import Tables
from holdfast.stores.wrapper import StoreWrapper

#: A frame is the length of the message, in this many bytes, big-endian, and then the message.
LENGTH_BYTES = 4
#: The first frame to the child, an empty one: open the store.
OPEN_REQUEST = bytes(LENGTH_BYTES)


def format_connection_name(pid: int) -> str:
    """Return the name under which a child process connects to a database server."""
    return f"holdfast-child-{pid}"


class StoreOpened(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First message of the child: the store is open."""

    process: ProcessIdentity
    durable: bool


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """To the child: call this method of the store."""

    number: int
    method: str
    arguments: msgspec.Raw


class CallAccepted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From the child: the call is about to be made."""

    number: int


class CallReturned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From the child: the call returned this value."""

    number: int
    value: msgspec.Raw


class CallRaised(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From the child: the call raised this error."""

    number: int
    error: str
    message: str
    attributes: dict[str, Any]


Answer = StoreOpened | CallAccepted | CallReturned | CallRaised


@functools.cache
def get_arguments_type(method: str) -> type[msgspec.Struct]:
    """Return a struct type with the arguments of a store method and their declared types."""
    hints = typing.get_type_hints(getattr(RunStore, method))
    return msgspec.defstruct(method, [(name, hint) for name, hint in hints.items() if name != "return"])


@functools.cache
def get_result_type(method: str) -> Any:
    """Return the declared result type of a store method."""
    hint = typing.get_type_hints(getattr(RunStore, method))["return"]
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Awaitable else hint


def encode_frame(message: Call | Answer) -> bytes:
    packed = msgspec.msgpack.encode(message)
    return len(packed).to_bytes(LENGTH_BYTES, "big") + packed


class ProcessExited(Exception):
    """The child process ended before it answered. The effect of the call is unknown."""


class StoreCallFailed(Exception):
    """The store in the child process raised an error that is not one of holdfast's."""


class _PendingCall(msgspec.Struct):
    method: str
    answer: asyncio.Future[Any]
    started: bool = False


class ChildProcess:
    """A child process that calls a store, and that a test can kill, stop and continue."""

    identity: ProcessIdentity
    durable: bool

    def __init__(self, process: Process) -> None:
        self._process = process
        self._last_number = 0
        self._pending_calls: dict[int, _PendingCall] = {}
        self._call_started = asyncio.Condition()
        self._reader_task: asyncio.Future[None] | None = None
        #: The methods that were running when the process ended.
        self.interrupted_calls: Sequence[str] = ()

    @classmethod
    async def start(cls, factory: str, location: str) -> Self:
        """Start a process. Its store is not open yet."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast.testing.store_processes.store_process_main", factory, location),
            stdin=PIPE,
            stdout=PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        return cls(process)

    async def open(self) -> None:
        """Open the store in the process.

        Raises:
            ProcessExited: the store could not be opened.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(OPEN_REQUEST)
        opened = await _read_answer(self._process)
        if not isinstance(opened, StoreOpened):
            await self._reap()
            raise ProcessExited("the child process could not open its store: see its standard error")
        self.identity, self.durable = opened.process, opened.durable
        self._reader_task = asyncio.ensure_future(self._read_answers())

    async def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the store in the process.

        Raises:
            ProcessExited: the process ended before it answered.
            StoreCallFailed: the store raised an error that is not one of holdfast's.
        """
        if self._reader_task is None or self._reader_task.done():
            raise ProcessExited("the child process has ended")
        self._last_number += 1
        pending = _PendingCall(method, asyncio.get_running_loop().create_future())
        self._pending_calls[self._last_number] = pending
        packed = msgspec.Raw(msgspec.msgpack.encode(get_arguments_type(method)(**arguments)))
        assert self._process.stdin is not None
        self._process.stdin.write(encode_frame(Call(number=self._last_number, method=method, arguments=packed)))
        return await pending.answer

    async def wait_until_call_started(self) -> None:
        """Return when the process has started a call."""
        async with self._call_started:
            await self._call_started.wait_for(self._running_methods)

    async def kill(self) -> None:
        """Send SIGKILL. Return when the process has ended and all its answers are read."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._wait_for_exit()

    async def finish(self) -> None:
        """Wait until the process has finished its calls, closed its store and exited."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._wait_for_exit()
        assert self._process.returncode == 0, f"the child process ended with {self._process.returncode}"

    async def pause(self) -> None:
        """Send SIGSTOP. Return when the process has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(os.waitid, os.P_PID, self.identity.pid, os.WSTOPPED | os.WNOWAIT)

    def unpause(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def _running_methods(self) -> list[str]:
        return [pending.method for pending in self._pending_calls.values() if pending.started]

    async def _wait_for_exit(self) -> None:
        if self._reader_task is not None:
            await self._reader_task
        await self._reap()

    async def _reap(self) -> None:
        """Wait for the end of the process, then close its pipe."""
        await self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._process.stdin.wait_closed()

    async def _read_answers(self) -> None:
        while (answer := await _read_answer(self._process)) is not None:
            if isinstance(answer, CallAccepted):
                self._pending_calls[answer.number].started = True
                async with self._call_started:
                    self._call_started.notify_all()
            elif isinstance(answer, CallReturned | CallRaised):
                _resolve(self._pending_calls.pop(answer.number), answer)
        self.interrupted_calls = self._running_methods()
        for pending in self._pending_calls.values():
            if not pending.answer.done():
                pending.answer.set_exception(ProcessExited(f"the child process ended during {pending.method}"))


class _RemoteStore:
    """Makes the calls of a `RunStore` in a child process."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        signature = inspect.signature(getattr(RunStore, method))

        def call(*arguments: Any, **named: Any) -> Awaitable[Any]:
            bound = signature.bind(self, *arguments, **named).arguments
            return self._child.call(method, **{name: value for name, value in bound.items() if name != "self"})

        return call


class StoreProcess(StoreWrapper):
    """A `RunStore` whose calls are made in a child process.

    As a context manager it starts the process, and kills it at the end.
    """

    def __init__(self, factory: str, location: str, child: ChildProcess | None = None) -> None:
        self._factory, self._location = factory, location
        self._given_child = child
        self.durable = True
        self.transactions = "none"  # a function cannot be sent to another process

    async def open(self) -> None:
        self.child = self._given_child or await ChildProcess.start(self._factory, self._location)
        await self.child.open()
        self.durable = self.child.durable
        self._store = cast(RunStore, _RemoteStore(self.child))

    async def close(self) -> None:
        await self.child.finish()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.child.kill()

    def tables(self) -> Tables:
        """Raise `StoreError`: the tables of a store in another process cannot be reached from here."""
        raise errors.StoreError("the tables of a store in another process cannot be reached")


async def _read_answer(process: Process) -> Answer | None:
    """Read the next answer. Return `None` if the process ended, even in the middle of an answer."""
    assert process.stdout is not None
    try:
        length = await process.stdout.readexactly(LENGTH_BYTES)
        packed = await process.stdout.readexactly(int.from_bytes(length, "big"))
    except asyncio.IncompleteReadError:
        return None
    answer: Answer = msgspec.msgpack.decode(packed, type=Answer)
    return answer


def _resolve(pending: _PendingCall, answer: CallReturned | CallRaised) -> None:
    if pending.answer.done():
        return  # the caller was cancelled
    if isinstance(answer, CallReturned):
        pending.answer.set_result(msgspec.msgpack.decode(answer.value, type=get_result_type(pending.method)))
        return
    known = getattr(errors, answer.error, None)
    if known is None:
        pending.answer.set_exception(StoreCallFailed(f"{answer.error}: {answer.message}"))
        return
    # Bypass `__init__`: its arguments differ by error, and the message is complete already.
    error: Exception = known.__new__(known)
    error.args = (answer.message,)
    vars(error).update(answer.attributes)
    pending.answer.set_exception(error)
