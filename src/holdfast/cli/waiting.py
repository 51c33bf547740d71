"""Calls that wait, as the commands print them, each with the command that answers it."""

import shlex
from typing import Self

from holdfast.core.waiting import WaitingCall
from holdfast.db.url import redact_url
from holdfast.runtime.pending import PendingCall


class PrintedCall(PendingCall, frozen=True, kw_only=True):
    """A call that waits. `--json` prints these fields."""

    #: The command that answers the call. Empty for a timer.
    command: str

    @classmethod
    def make(cls, call: WaitingCall, store: str) -> Self:
        return cls.from_call(call, command=format_answer_command(call, store))

    @property
    def action(self) -> str:
        """What `command` does."""
        return {"approval": "approve", "signal": "signal"}.get(self.kind, "answer")


def format_answer_command(call: WaitingCall, store: str) -> str:
    """Return the command that ends the wait of a call; empty for a timer."""
    match call.kind:
        case "approval":
            return format_command("approve", store, call.run_id, call.call_id)
        case "question" | "result":
            return format_command("answer", store, call.run_id, call.call_id, "VALUE")
        case "signal":
            return format_command("signal", store, call.run_id, call.topic.partition(":")[2], "JSON")
    return ""


def format_command(name: str, store: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """Return a command as the user types it."""
    store_option = ["--store", redact_url(store)] if store else []
    if any(argument.startswith("-") for argument in arguments):  # such as a run id that looks like an option
        return shlex.join(["holdfast", name, *options, *store_option, "--", *arguments])
    return shlex.join(["holdfast", name, *options, *arguments, *store_option])
