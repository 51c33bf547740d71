"""A store wrapper that redacts every write."""

import re
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any

import msgspec

from holdfast.checkpoint.codec import Begin, Draft, decode, encode
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import Mail, NewRun, Receipt, Release
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.core.redaction import Redact
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import ABANDONED, PROGRESS
from holdfast.core.workflow.steps.step_errors import StepError
from holdfast.stores.wrapper import StoreWrapper

#: The fields of a run's info that hold free text. The others identify the run and are stored unchanged: stores find,
#: count and resume runs by them.
_REDACTED_FIELDS = ("prompt", "labels", "inputs")
#: Fields of holdfast itself, outside of user data: ids, names, kinds, times and digests. They are stored unchanged, so
#: that no name and no pattern of a redactor changes how a run resumes.
_SYSTEM_FIELDS = frozenset(
    {
        *("run_id", "call_id", "call", "tool", "step", "kind", "type", "topic", "other_topics", "tokens", "has_token"),
        *(
            "asked_at",
            "expires_at",
            "at",
            "next_at",
            "elapsed",
            "delay",
            "attempts",
            "times",
            "not_started",
            "in_doubt",
        ),
        *("turn_id", "joined", "digest", "recent_turns", "status", "effect", "end", "schema", "audience"),
        *("phase", "agent", "child_run_id", "path", "traceparent", "tracestate"),
        *("usage", "begun", "unknown", "tool_retries"),  # of the loops of adapters
    }
)
#: The same in messages, whose form depends on the agent's loop.
_MESSAGE_FIELDS = frozenset(
    {
        *("role", "item", "kind", "part_kind", "type", "status", "state", "finish_reason", "timestamp"),
        *("id", "call_id", "tool_call_id", "run_id", "conversation_id", "response_id", "request_id"),
        *("tool", "tool_name", "agent", "model", "model_name", "provider_name", "provider_response_id", "unknown"),
        *("signature", "encrypted_content", "usage", "tasks"),
    }
)
#: Fields that hold user data: nothing below them is a field of holdfast.
_DATA_FIELDS = frozenset({"arguments", "args", "content", "value", "metadata", "output", "traces", "asked"})
#: The same of the calls and results of `background_tools`, by which a model finds its tasks again.
_TASK_TOOLS = frozenset({"start_task", "list_tasks", "message_task", "wait_for_tasks", "cancel_task"})
_TASK_FIELDS = frozenset({"task_id", "task_ids", "agent", "status"})
_TASK_ID = re.compile("[0-9a-f]{20}")
#: What a model reads when a task has ended begins with this.
_TASK_NOTICE = re.compile("Background task [0-9a-f]{20} ")
#: Messages of adapters that hold encoded data and ids. A redactor cannot read them.
_OPAQUE_ROLES = frozenset({"langgraph", "langgraph_replies"})


class RedactingStore(StoreWrapper):
    """Wraps another `RunStore`. A resumed run reads its conversation redacted.

    Fields of holdfast itself are not redacted: ids, names of agents and tools, kinds, times, and what a workflow gets
    from `now`, `uuid4`, `random`, `first`, `start` and `status`. Nor is the state of graphs, which is encoded.
    """

    def __init__(self, store: RunStore, redact: Redact) -> None:
        super().__init__(store)
        self._redact = redact

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        return await self._store.create(self._redact_run(run), worker_id=worker_id, connection=connection)

    def _redact_run(self, run: NewRun) -> NewRun:
        entries = self._redact_entries(run.entries)
        # Redact before truncating: a truncated secret would no longer match the pattern.
        summary = decode(entries[0].body, Begin).info.summarize()
        return msgspec.structs.replace(
            run,
            labels=summary.indexed_labels,
            info=encode(summary),
            progress=self._redact_body(run.progress, _SYSTEM_FIELDS),
            entries=entries,
        )

    def append(self, claim: Claim, write: Append) -> Awaitable[None]:
        return self._store.append(claim, self._redact_write(write))

    async def transact(self, claim: Claim, function: Callable[[Any], Any], make_write: Callable[[Any], Append]) -> Any:
        def make_redacted_write(value: Any) -> Append:
            return self._redact_write(make_write(value))

        return await self._store.transact(claim, function, make_redacted_write)

    def _redact_write(self, write: Append) -> Append:
        return msgspec.structs.replace(
            write,
            entries=self._redact_entries(write.entries),
            progress=self._redact_body(write.progress, _SYSTEM_FIELDS),
        )

    async def release(self, claim: Claim, release: Release) -> None:
        redacted = msgspec.structs.replace(
            release,
            reason=self._redact(release.reason),
            entries=self._redact_entries(release.entries),
            progress=None if release.progress is None else self._redact_body(release.progress, _SYSTEM_FIELDS),
        )
        if (notice := release.notify) is not None:
            notice = msgspec.structs.replace(notice, mail=self._redact_mail(notice.mail))
            redacted = msgspec.structs.replace(redacted, notify=notice)
        await self._store.release(claim, redacted)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        return await self._store.post(run_id, self._redact_mail(mail))

    def _redact_mail(self, mail: Mail) -> Mail:
        if mail.topic.startswith("signal:"):  # its payload is user data, whatever the names in it
            body = msgspec.json.encode(self._redact(msgspec.json.decode(mail.body)))
        else:
            body = self._redact_body(mail.body, _SYSTEM_FIELDS)
        return msgspec.structs.replace(mail, body=body)

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        await self._store.put_draft(claim, None if draft is None else self._redact_draft(draft))

    def stored_info(self, info: RunInfo) -> RunInfo:
        """Return `info` as this store keeps it."""
        return msgspec.convert(self._redact_info(msgspec.to_builtins(info)), RunInfo)

    def _redact_entries(self, entries: Sequence[Entry]) -> list[Entry]:
        return [msgspec.structs.replace(entry, body=self._redact_entry(entry)) for entry in entries]

    def _redact_entry(self, entry: Entry) -> bytes:
        match entry.kind:
            case EntryKind.BEGIN:
                return self._redact_begin(entry.body)
            case EntryKind.MESSAGE:
                message = msgspec.json.decode(entry.body)
                return msgspec.json.encode(self._restore_message(message, self._redact(message)))
            case EntryKind.ADOPT:  # ids of calls
                return entry.body
            case EntryKind.PHASE:  # later phases and attempts find it by its name
                return self._redact_body(entry.body, _SYSTEM_FIELDS | {"name"})
            case EntryKind.EVENT:
                return self._redact_event(entry.body)
        return self._redact_body(entry.body, _SYSTEM_FIELDS)

    def _redact_event(self, body: bytes) -> bytes:
        is_own = msgspec.json.decode(body).get("name") in (PROGRESS, ABANDONED)
        return self._redact_body(body, _SYSTEM_FIELDS | {"name", "value"} if is_own else _SYSTEM_FIELDS)

    def _redact_begin(self, body: bytes) -> bytes:
        begin = msgspec.json.decode(body)
        return msgspec.json.encode({**begin, "info": self._redact_info(begin["info"])})

    def _redact_info(self, info: dict[str, Any]) -> dict[str, Any]:
        given = {name: info[name] for name in _REDACTED_FIELDS if name in info}
        found = zip(given.items(), self._redact(given).values(), strict=True)
        # A redactor may replace a whole field by its name: only the texts and keys below it are redacted.
        kept = {name: value if type(value) is type(data) else self._redact(data) for (name, data), value in found}
        return {**info, **kept}

    def _redact_draft(self, body: bytes) -> bytes:
        """Redact a draft. Its last words may be the beginning of a secret: they are left out until a space follows."""
        draft = msgspec.json.decode(body, type=Draft)
        text, reasoning = self._redact(_cut_last_word(draft.text)), self._redact(_cut_last_word(draft.reasoning))
        return msgspec.json.encode(msgspec.structs.replace(draft, text=text, reasoning=reasoning))

    def _redact_body(self, body: bytes, fields: Set[str]) -> bytes:
        """Redact an object, except its system `fields`."""
        data = msgspec.json.decode(body)
        return msgspec.json.encode(self._restore(data, self._redact(data), fields))

    def _restore_message(self, message: Any, redacted: Any) -> Any:
        """Return a redacted message with the fields that holdfast and the adapters need."""
        if not isinstance(message, dict) or message.get("role") in _OPAQUE_ROLES:
            return message if isinstance(message, dict) else redacted
        restored = self._restore(message, redacted, _MESSAGE_FIELDS)
        match message.get("role", message.get("item")):
            case "tool":
                self._restore_result(message, restored)
            case "user" if found := _TASK_NOTICE.match(str(message.get("text"))):
                restored["text"] = found[0] + self._redact(message["text"][found.end() :])
            case "reply" if "item" in message:  # its output is a list of items with ids
                restored["output"] = self._restore(message["output"], self._redact(message["output"]), _MESSAGE_FIELDS)
            case "reply":
                for call, kept in zip(message.get("tool_calls", ()), restored.get("tool_calls", ()), strict=True):
                    if call["name"] in _TASK_TOOLS and "arguments" in call:
                        kept["arguments"] = _keep_task_fields(call["arguments"], kept["arguments"])
        return restored

    def _restore_result(self, message: dict[str, Any], restored: dict[str, Any]) -> None:
        """Restore what holdfast itself has computed in the result of a call, and what only an adapter can read."""
        if message.get("computed") is True:
            restored["content"] = self._redact_computed(message.get("content"))
        elif message["tool"] in _TASK_TOOLS and not message.get("error") and "content" in message:
            restored["content"] = _keep_task_fields(message["content"], restored["content"])
        if "body" in message:  # of a graph
            restored["body"] = message["body"]

    def _redact_computed(self, content: Any) -> Any:
        """Redact the texts of an error of a step. Other values that holdfast has computed stay."""
        if not isinstance(content, dict) or "type_name" not in content:
            return content
        return msgspec.to_builtins(msgspec.convert(content, StepError).redact(self._redact))

    def _redact_json(self, text: str, redacted: str) -> str:
        """Redact arguments in the JSON of a model, so that keys and names in it are seen."""
        try:
            arguments = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return redacted
        if not isinstance(arguments, dict | list):
            return redacted
        found = self._redact(arguments)
        return text if found == arguments else msgspec.json.encode(found).decode()

    def _restore(self, data: Any, redacted: Any, fields: Set[str]) -> Any:
        """Return the redacted data with the system `fields`, the structure and the numbers of the original."""
        if not isinstance(data, str) and type(redacted) is not type(data):
            # A field of holdfast has a name that the redactor replaces: only the texts below it are redacted.
            redacted = self._redact(data) if isinstance(data, dict | list) else data
        if isinstance(data, dict) and isinstance(redacted, dict):
            # By place if nothing is missing: a redactor may have changed the names of fields and the ids among them.
            found = dict(zip(data, redacted.values(), strict=True)) if len(data) == len(redacted) else redacted
            if fields is _MESSAGE_FIELDS and "call_id" in data:
                fields = fields | {"name"}  # of a tool
            return {name: self._restore_field(name, data.get(name), value, fields) for name, value in found.items()}
        if isinstance(data, list) and isinstance(redacted, list) and len(data) == len(redacted):
            return [self._restore(each, value, fields) for each, value in zip(data, redacted, strict=True)]
        return redacted

    def _restore_field(self, name: str, data: Any, redacted: Any, fields: Set[str]) -> Any:
        if name in fields:
            return data
        if name == "tool_calls":
            return self._restore(data, redacted, {"id", "name", "effect"})
        if name == "message" and isinstance(data, dict):  # the recorded result of a call
            return self._restore_message(data, redacted)
        if name in ("arguments", "args") and isinstance(data, str):
            return self._redact_json(data, redacted)
        if name == "output" and _is_graph_output(data):
            return self._restore(data, redacted, {"type", "body"})
        return redacted if name in _DATA_FIELDS else self._restore(data, redacted, fields)


def _is_graph_output(output: Any) -> bool:
    """Whether it is the output of a graph, whose values are encoded."""
    return isinstance(output, dict) and output.keys() == {"text", "type", "body"} and output["type"] == "msgpack"


def _keep_task_fields(data: Any, redacted: Any) -> Any:
    """Return redacted arguments or results of `background_tools` with the ids, agents and states of tasks."""
    if isinstance(data, list) and isinstance(redacted, list):
        return list(map(_keep_task_fields, data, redacted))
    if isinstance(data, dict) and isinstance(redacted, dict):
        return redacted | {name: value for name, value in data.items() if name in _TASK_FIELDS}
    return data if isinstance(data, str) and _TASK_ID.fullmatch(data) else redacted


def _cut_last_word(text: str) -> str:
    *_, last = text.split()[-1:] or [""]
    return text if text[-1:].isspace() else text[: len(text) - len(last)]


def stored_info(store: RunStore, info: RunInfo) -> RunInfo:
    """Return `info` as `store` keeps it."""
    return store.stored_info(info) if isinstance(store, RedactingStore) else info
