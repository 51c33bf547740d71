"""A chat with an agent on a terminal: live text, and inline answers to the calls that wait."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.store import END
from holdfast.cli.listeners import ProgressListener
from holdfast.cli.output import Output, format_value, one_line, sanitize
from holdfast.cli.printing import format_answer_command
from holdfast.cli.run_session import SignalHandler
from holdfast.core.errors import TurnFailed
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import (
    DraftRetracted,
    Event,
    ReplyAdded,
    RetryScheduled,
    TextDelta,
    ToolCalled,
    ToolReturned,
)
from holdfast.core.run.turns import INPUT_TOPICS
from holdfast.core.run.waiting import Answer, Approve, Deny, RunWaiting, Value, WaitingCall, describe_waits
from holdfast.runtime.operations.conversations import Conversation, Turn
from holdfast.runtime.operations.mailing import AlreadyAnswered, NotWaiting

#: How many earlier turns are shown when a person returns.
_SHOWN_TURNS = 5
_EARLIER_LENGTH = 500


class LeaveChat(Exception):
    """The person leaves: the end of the input, or Ctrl-C at a prompt."""


class ChatDisplay(ProgressListener):
    """Prints the text of replies as it arrives, and a line for each tool call. Only of the run that it follows."""

    def __init__(self) -> None:
        self.output = Output()
        #: The agent's name, and the run id of the conversation. Set before it begins.
        self.name = self.run_id = ""
        #: The last thing that was printed is text of a reply, without a newline.
        self._in_text = False
        #: The text of the last reply, if it was printed.
        self.last_reply: str | None = None

    async def on_event(self, info: RunInfo, event: Event) -> None:
        if info.run_id != self.run_id:
            return
        match event:
            case TextDelta():
                self._print_delta(event.text)
            case DraftRetracted():
                self.print_note("the reply was cut off, and is asked for again", "yellow")
            case ReplyAdded():
                self._end_reply(event.text)
            case ToolCalled():
                self.print_note(f"{event.tool} …")
            case ToolReturned() if event.error:
                self.print_note(f"{event.tool} failed: {format_value(event.content)}", "yellow")
            case RetryScheduled():
                self.print_note(f"{event.tool or 'the model'} failed, retry in {event.delay}: {event.error}", "yellow")

    def _print_delta(self, text: str) -> None:
        if not self._in_text:
            self._print_name()
            self._in_text = True
        sys.stdout.write(sanitize(text))
        sys.stdout.flush()

    def _end_reply(self, text: str) -> None:
        if self._in_text:
            self.end_line()
        elif text:
            self.print_reply(text)
        self.last_reply = text or None

    def print_reply(self, text: str) -> None:
        self._print_name()
        sys.stdout.write(sanitize(text) + "\n")
        sys.stdout.flush()

    def _print_name(self) -> None:
        sys.stdout.write(self.format_speaker(self.name, 32))

    def format_speaker(self, name: str, colour: int) -> str:
        """Return the beginning of a line of this speaker, in an ANSI colour on a terminal."""
        shown = f"{sanitize(name)}:"
        return f"\x1b[1;{colour}m{shown}\x1b[0m " if self.output.console is not None else f"{shown} "

    def end_line(self) -> None:
        """End the line of a reply that was not finished."""
        if self._in_text:
            print(flush=True)
        self._in_text = False

    def print_note(self, text: str, style: str = "dim") -> None:
        self.end_line()
        self.output.print_line(f"  {one_line(text, 500)}", style)

    def print_status(self, text: str, style: str = "") -> None:
        self.end_line()
        super().print_status(text, style)


class LineReader:
    """Reads lines from stdin without a thread, so that Ctrl-C at a prompt leaves at once."""

    def __init__(self, handler: SignalHandler) -> None:
        self._handler = handler
        self._buffer = b""

    async def read(self, prompt: str) -> str:
        """Return the next line.

        Raises:
            LeaveChat: the input has ended, or Ctrl-C was pressed.
        """
        if self._handler.stopped:
            raise LeaveChat
        print(prompt, end="", flush=True)
        if not sys.stdin.isatty():
            line: str = await asyncio.to_thread(sys.stdin.readline)
            if not line:
                raise LeaveChat
            return line.rstrip("\n")
        return await self._read_from_terminal()

    async def _read_from_terminal(self) -> str:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str | None] = loop.create_future()

        def finish(line: str | None = None) -> None:
            if not done.done():
                done.set_result(line)

        def on_readable() -> None:
            data = os.read(sys.stdin.fileno(), 65536)
            self._buffer += data
            if not data or b"\n" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\n")
                finish(line.decode(errors="replace") if data else None)

        if b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            return line.decode(errors="replace")
        loop.add_reader(sys.stdin, on_readable)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, finish)
        try:
            line_or_end = await done
        finally:
            loop.remove_reader(sys.stdin)
            self._handler.install()
        if line_or_end is None:
            print(flush=True)
            raise LeaveChat
        return line_or_end


class ChatSession:
    """One visit of a person to a conversation."""

    def __init__(
        self, app: App, conversation: Conversation[Any], display: ChatDisplay, reader: LineReader, store: str
    ) -> None:
        self._app, self._conversation, self._display = app, conversation, display
        self._reader, self._store = reader, store
        display.run_id = conversation.run_id

    async def run(self) -> None:
        """Chat until the person leaves."""
        await self._return()
        prompt = self._display.format_speaker("you", 36)
        while True:
            if text := (await self._reader.read(prompt)).strip():
                await self._follow(await self._conversation.post(text))

    async def _return(self) -> None:
        """Show where the conversation stands, and finish what an earlier visit left."""
        turns = await self._conversation.history()
        for turn in turns[-_SHOWN_TURNS:]:
            self._print_earlier(turn)
        if turns and turns[-1].status == "running":
            await self._follow(turns[-1].turn_id)
        for turn_id in await self._list_unread():
            await self._follow(turn_id)

    async def _list_unread(self) -> Sequence[str]:
        """Return the messages that no turn has answered yet."""
        assert self._app.store is not None, "a conversation has a store"
        try:
            mail = (await self._app.store.load(self._conversation.run_id, after=END)).mail
        except RunNotFound:  # nothing was sent yet
            return ()
        return [each.mail_id for each in mail if each.topic in INPUT_TOPICS]

    def _print_earlier(self, turn: Turn[Any]) -> None:
        self._display.output.print_line(f"you: {one_line(turn.prompt, _EARLIER_LENGTH)}", "dim")
        match turn.status:
            case "done":
                self._display.print_reply(format_value(turn.output))
            case "failed" | "interrupted":
                self._display.print_note(f"{turn.status}: {turn.error}", "red")

    async def _follow(self, turn_id: str) -> None:
        """Show a turn until its end, and let the person answer its calls that wait."""
        self._display.last_reply = None
        while True:
            try:
                turn = await self._conversation.result(turn_id)
            except RunWaiting as waiting:
                await self._answer(waiting)
            except TurnFailed as exc:
                self._display.end_line()
                self._display.print_note(str(exc), "red")
                return
            else:
                break
        output = format_value(turn.output)
        if self._display.last_reply != output:  # another process has executed the turn, or it is no text
            self._display.print_reply(output)

    # -- calls that wait ----------------------------------------------------------------------------------------

    async def _answer(self, waiting: RunWaiting) -> None:
        """Let the person answer the calls. If there are none for a person, wait until the run may continue."""
        self._display.end_line()
        calls = [call for call in waiting.calls if call.needs_answer]
        if any(call.kind == "child" for call in waiting.calls):
            children = f"{self._conversation.run_id[:100]}:"
            calls += [call for call in await self._app.pending() if call.run_id.startswith(children)]
        for call in calls:
            answer = await self._ask(call)
            try:
                await self._app.answer(call.run_id, call.call_id, answer, via="chat", digest=call.digest)
            except (AlreadyAnswered, NotWaiting) as exc:
                self._display.print_note(str(exc), "yellow")
        if not calls:
            await self._wait_for_others(waiting)

    async def _wait_for_others(self, waiting: RunWaiting) -> None:
        self._display.print_note(f"waits for {describe_waits(waiting.calls)}", "yellow")
        for call in waiting.calls:
            if command := format_answer_command(call, self._store):
                self._display.print_note(f"in another terminal: {command}", "yellow")
        seen = {call.id for call in waiting.calls}
        with self._app.changes.listen() as changed:
            while True:
                run = await self._app.get(self._conversation.run_id)
                if run.status != "waiting" or {f"{run.steps + 1}:{call.call_id}" for call in run.pending_calls} - seen:
                    return
                await changed.wait()

    async def _ask(self, call: WaitingCall) -> Answer:
        output = self._display.output
        if call.kind != "approval":
            output.print_line(f"  {call.reason or call.tool}", "bold yellow")
            return Value(_parse_value(await self._reader.read("  answer: ")))
        reason = f"  ({call.reason})" if call.reason else ""
        output.print_line(f"  approve {call.tool}?{reason}", "bold yellow")
        arguments: dict[str, Any] = call.arguments if isinstance(call.arguments, dict) else {}
        for name, value in arguments.items():
            output.print_line(f"    {name} = {format_value(value)}")
        while True:
            match (await self._reader.read("  [y]es, [n]o, [e]dit: ")).strip().lower():
                case "y" | "yes":
                    return Approve()
                case "n" | "no":
                    return Deny(reason=(await self._reader.read("  reason: ")).strip())
                case "e" | "edit":
                    return Approve(arguments=await self._edit(arguments))

    async def _edit(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Ask for each argument. An empty line keeps it."""
        edited = {}
        for name, value in arguments.items():
            text = (await self._reader.read(f"    {name} [{one_line(format_value(value), 60)}]: ")).strip()
            edited[name] = value if not text else text if isinstance(value, str) else _parse_value(text)
        return edited


def _parse_value(text: str) -> Any:
    """Return JSON as its value, other text as it is."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
