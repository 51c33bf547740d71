"""A store in a process of its own, for tests in which processes die, stop and race."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from typing import Any, Self

import msgspec

from holdfast.checkpoint import errors
from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.liveness import ProcessIdentity
from holdfast.checkpoint.record import Ending, NewRun, RunFilter, RunRecord, StoredRun
from holdfast.testing.store_wire import (
    LENGTH_BYTES,
    OPEN,
    Answer,
    Begun,
    Call,
    Hello,
    Raised,
    Returned,
    arguments_of,
    frame,
    result_of,
)


class ProcessGone(Exception):
    """The child process ended before it answered. Whether the call had an effect is not known."""


class CallFailed(Exception):
    """The store in the child process raised something that is no error of holdfast's."""


class _Waiting(msgspec.Struct):
    method: str
    answer: asyncio.Future[Any]
    begun: bool = False


class ChildProcess:
    """A child process that makes calls on a store, and can be killed, stopped and continued meanwhile."""

    identity: ProcessIdentity
    durable: bool

    def __init__(self, process: Process) -> None:
        self._process = process
        self._last_number = 0
        self._waiting: dict[int, _Waiting] = {}
        self._begun = asyncio.Condition()
        self._listener: asyncio.Future[None] | None = None
        #: The methods that were under way when the process ended.
        self.cut_short: Sequence[str] = ()

    @classmethod
    async def start(cls, factory: str, location: str) -> Self:
        """A new process, whose store is not open yet."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast.testing.store_child", factory, location),
            stdin=PIPE,
            stdout=PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        return cls(process)

    async def open(self) -> None:
        """Returns once the store in the process is open.

        Raises:
            ProcessGone: it could not be opened.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(OPEN)
        hello = await _next_answer(self._process)
        if not isinstance(hello, Hello):
            await self._reap()
            raise ProcessGone("the child process could not open its store; its standard error says why")
        self.identity, self.durable = hello.process, hello.durable
        self._listener = asyncio.ensure_future(self._listen())

    async def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the store over there.

        Raises:
            ProcessGone: the process ended before it answered.
            CallFailed: something was raised that is no error of holdfast's.
        """
        if self._listener is None or self._listener.done():
            raise ProcessGone("the child process is gone")
        self._last_number += 1
        waiting = _Waiting(method, asyncio.get_running_loop().create_future())
        self._waiting[self._last_number] = waiting
        packed = msgspec.Raw(msgspec.msgpack.encode(arguments_of(method)(**arguments)))
        assert self._process.stdin is not None
        self._process.stdin.write(frame(Call(number=self._last_number, method=method, arguments=packed)))
        return await waiting.answer

    async def until_begun(self) -> None:
        """Return when a call is under way over there."""
        async with self._begun:
            await self._begun.wait_for(self._under_way)

    async def kill(self) -> None:
        """SIGKILL. Returns once the process is gone and everything it said was heard."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._end()

    async def finish(self) -> None:
        """Let the process make the calls it has heard, close its store and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._end()
        assert self._process.returncode == 0, f"the child process ended with {self._process.returncode}"

    async def stop(self) -> None:
        """SIGSTOP. Returns once the process stands still."""
        self._process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(os.waitid, os.P_PID, self.identity.pid, os.WSTOPPED | os.WNOWAIT)

    def cont(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def _under_way(self) -> list[str]:
        return [waiting.method for waiting in self._waiting.values() if waiting.begun]

    async def _end(self) -> None:
        if self._listener is not None:
            await self._listener
        await self._reap()

    async def _reap(self) -> None:
        """Wait for the end of a process that has said its last, and let go of its pipes."""
        await self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._process.stdin.wait_closed()

    async def _listen(self) -> None:
        while (answer := await _next_answer(self._process)) is not None:
            if isinstance(answer, Begun):
                self._waiting[answer.number].begun = True
                async with self._begun:
                    self._begun.notify_all()
            elif isinstance(answer, Returned | Raised):
                _settle(self._waiting.pop(answer.number), answer)
        self.cut_short = self._under_way()
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(ProcessGone(f"the child process ended during {waiting.method}"))


class StoreProcess:
    """An open store in a child process: every call is made over there.

    It is a `CheckpointStore` itself. As a context manager it starts the process, and kills it at the end.
    """

    durable = True

    def __init__(self, factory: str, location: str, child: ChildProcess | None = None) -> None:
        self._factory, self._location = factory, location
        self._started = child

    async def open(self) -> None:
        self.child = self._started or await ChildProcess.start(self._factory, self._location)
        await self.child.open()
        self.durable = self.child.durable

    async def close(self) -> None:
        await self.child.finish()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.child.kill()

    async def enlist(self, worker: Worker) -> None:
        await self.child.call("enlist", worker=worker)

    async def discharge(self, worker_id: str) -> None:
        await self.child.call("discharge", worker_id=worker_id)

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        claim: Claim | None = await self.child.call("create", run=run, worker_id=worker_id)
        return claim

    async def append(self, claim: Claim, write: Write) -> None:
        await self.child.call("append", claim=claim, write=write)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored: StoredRun = await self.child.call("load", run_id=run_id, after=after)
        return stored

    async def settle(self, claim: Claim, ending: Ending) -> None:
        await self.child.call("settle", claim=claim, ending=ending)

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        await self.child.call("remove", run_id=run_id, claim=claim)

    async def records(self, wanted: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        for record in await self.child.call("records", wanted=wanted):
            yield record

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        claim: Claim = await self.child.call(
            "claim", run_id=run_id, worker_id=worker_id, statuses=list(statuses), steal=steal
        )
        return claim

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        claims: Sequence[Claim] = await self.child.call(
            "claim_next", worker_id=worker_id, agents=list(agents), limit=limit
        )
        return claims

    async def request_cancel(self, run_id: str) -> None:
        await self.child.call("request_cancel", run_id=run_id)

    async def cancels(self, worker_id: str) -> Sequence[str]:
        cancels: Sequence[str] = await self.child.call("cancels", worker_id=worker_id)
        return cancels

    async def changed(self, within: timedelta) -> bool:
        changed: bool = await self.child.call("changed", within=within)
        return changed

    async def purge(self, *, limit: int = 100) -> int:
        purged: int = await self.child.call("purge", limit=limit)
        return purged


async def _next_answer(process: Process) -> Answer | None:
    """What the process says next; `None` if it ended, perhaps in the middle of a word."""
    assert process.stdout is not None
    try:
        length = await process.stdout.readexactly(LENGTH_BYTES)
        packed = await process.stdout.readexactly(int.from_bytes(length, "big"))
    except asyncio.IncompleteReadError:
        return None
    answer: Answer = msgspec.msgpack.decode(packed, type=Answer)
    return answer


def _settle(waiting: _Waiting, answer: Returned | Raised) -> None:
    if waiting.answer.done():
        return  # nobody waits any more
    if isinstance(answer, Returned):
        waiting.answer.set_result(msgspec.msgpack.decode(answer.value, type=result_of(waiting.method)))
        return
    known = getattr(errors, answer.error, None)
    if known is None:
        waiting.answer.set_exception(CallFailed(f"{answer.error}: {answer.message}"))
        return
    # Not by calling it: each error has arguments of its own, and its text is written already.
    error: Exception = known.__new__(known)
    error.args = (answer.message,)
    vars(error).update(answer.attributes)
    waiting.answer.set_exception(error)
