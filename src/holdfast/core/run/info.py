"""RunIndex, RunInfo, RunOptions: the identity of a run, and the keywords that a caller gives it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import msgspec

from holdfast.core.errors import DefinitionError, InvalidRunId
from holdfast.core.run.prompt import (
    Prompt,
    check_input,
    dump_inputs,
    dump_prompt,
    make_request_digest,
    summarize_prompt,
)
from holdfast.ids import make_id

if TYPE_CHECKING:
    from holdfast.core.agents.agent import AgentSource
    from holdfast.core.loop import Loop

MAX_RUN_ID_LENGTH = 200
MAX_KEY_LENGTH = 200
MIN_PRIORITY, MAX_PRIORITY = -10, 10
#: Not every store can keep these in a text column.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_TEXT_FIELDS = (
    *("agent_name", "agent_id", "caller_id", "channel_id", "guild_id", "model_tier"),
    *("conversation", "concurrency_key", "loop", "tenant"),
)
#: Characters of a prompt that listings show.
PROMPT_SUMMARY_LENGTH = 200
#: `RunInfo.loop` of an agent without a loop of its own.
NATIVE_LOOP_NAME = "native"

#: `RunInfo.loop` of workflows.
WORKFLOW_LOOP_NAME = "workflow"
_RUN_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,200}")


def check_run_id(run_id: str) -> str:
    """Return `run_id` if it is valid.

    Raises:
        InvalidRunId: it is empty, too long, or has a character outside `A-Z a-z 0-9 . _ : -`.
    """
    if not isinstance(run_id, str) or not _RUN_ID_PATTERN.fullmatch(run_id):
        raise InvalidRunId(
            f"{run_id!r:.80} cannot be a run id: use 1 to {MAX_RUN_ID_LENGTH} of the characters A-Z a-z 0-9 . _ : -"
        )
    return run_id


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or _UNSTORABLE.search(value):
        raise DefinitionError(f"{name} is {value!r:.80}: it has to be text without NUL or lone surrogates")


def _copy_labels(labels: Any) -> dict[str, str]:
    if labels is not None and not isinstance(labels, Mapping):
        raise DefinitionError(f"labels is {labels!r:.80}: give a mapping from text to text")
    return dict(labels or {})


#: The label by which stores find the forks of a run. It is not among the labels of the run.
FORK_LABEL = "holdfast.forked_from"


class RequestOptions(TypedDict, total=False):
    """Optional keywords of a new run that clients may give: they describe it, and give its place in the queue."""

    channel_id: str
    guild_id: str
    #: For filtering and accounting.
    labels: Mapping[str, str] | None
    #: From -10 to 10; 0 by default. Workers take due runs of a higher priority first.
    priority: int
    #: Runs with the same key share the concurrency limit of that key: see `ConcurrencyLimit`.
    concurrency_key: str


class RunOptions(RequestOptions, total=False):
    """Optional keywords of a new run. Where there are credentials, the caller id comes from them.

    The one list of options: App, clients, command line and HTTP API take their keywords from it.
    """

    caller_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDetails:
    """The optional attributes of an `AgentSource`. A source states those it needs; the rest have these defaults."""

    #: Stored with each run; tells versions of one agent apart.
    agent_id: str = ""
    model_tier: str = ""
    #: Shown to a model that may call the agent as a tool.
    description: str = ""
    #: Executes the agent's conversations. `None`: the native loop.
    loop: "Loop | None" = None

    @classmethod
    def from_source(cls, source: "AgentSource") -> Self:
        return cls(**{name: getattr(source, name) for name in cls.__slots__ if hasattr(source, name)})


class RunIndex(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a run's identity that stores read: they find, count, order and limit runs by it."""

    run_id: str
    agent_name: str
    caller_id: str = ""
    parent_run_id: str | None = None
    #: For filtering and accounting.
    labels: dict[str, str] = {}
    #: Workers take due runs of a higher priority first.
    priority: int = 0
    #: Runs with the same key share its concurrency limit. Empty: none.
    concurrency_key: str = ""
    #: The tenant whose run it is. Empty: none.
    tenant: str = ""
    #: A child that workers claim although its parent has not ended.
    background: bool = False

    @property
    def shares_parent_slot(self) -> bool:
        """Whether it executes in the slot of its parent, and counts towards no concurrency limit."""
        return self.parent_run_id is not None and not self.background


class RunInfo(RunIndex, frozen=True, kw_only=True, omit_defaults=True):
    """The identity of one run. The journal begins with it; a resume does not change it."""

    agent_id: str = ""
    model_tier: str = ""
    channel_id: str = ""
    guild_id: str = ""
    #: The name of the loop whose messages the run has. Empty: the run was submitted without its agent.
    loop: str = ""
    #: Text, or a list of content parts as plain data.
    prompt: str | list[Any] = ""
    #: Plain JSON data.
    inputs: dict[str, Any] = {}
    #: The key of a conversation, which waits for the next message instead of ending. Empty for other runs.
    conversation: str = ""
    #: The agents of the runs above this one, root first.
    lineage: tuple[str, ...] = ()
    #: The run that this one is a fork of, and the step, or of a conversation the turn, at which it was forked.
    forked_from: str | None = None
    forked_at: int = 0
    #: The run that has started this one as a detached run. It is not the parent: this one outlives it.
    started_by: str | None = None
    #: Equal for runs with the same prompt and inputs. Only in the summary that listings read; empty if a run was
    #: submitted by SQL.
    request_digest: str = ""

    def __post_init__(self) -> None:
        """Refuse text that a store could not return unchanged. A prompt that is neither text nor a list becomes empty.

        Raises:
            InvalidRunId: the run id is not valid.
            DefinitionError: another field is not text, or is text that no store can keep.
        """
        check_run_id(self.run_id)
        for related in (self.parent_run_id, self.forked_from, self.started_by):
            if related is not None:
                check_run_id(related)
        for name in _TEXT_FIELDS:
            if (value := getattr(self, name)) != "":
                _check_text(name, value)
        prompt: Any = self.prompt
        if not isinstance(prompt, str | list):
            msgspec.structs.force_setattr(self, "prompt", "")
        if len(self.concurrency_key) > MAX_KEY_LENGTH:
            raise DefinitionError(
                f"concurrency_key is {self.concurrency_key!r:.80}: it has at most {MAX_KEY_LENGTH} characters"
            )
        if type(self.priority) is not int or not MIN_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise DefinitionError(
                f"priority is {self.priority!r:.80}: give a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}"
            )
        for label, value in self.labels.items():
            _check_text("a label", label)
            _check_text(f"the label {label}", value)

    @classmethod
    def create(
        cls,
        agent: "AgentSource | str",
        prompt: Prompt,
        *,
        run_id: str | None = None,
        parent_run_id: str | None = None,
        lineage: tuple[str, ...] = (),
        inputs: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Self:
        """Return the identity of a new run of `agent`, with a random id unless `run_id` is given.

        Args:
            agent: or its name, if only the process that executes the run has the agent.

        Raises:
            InvalidRunId: the run id is not valid.
            DefinitionError: another field is not text, or is text that no store can keep; the prompt or an input has no
                JSON form; or the agent does not accept the content parts of the prompt.
        """
        name, loop_name = (agent, "") if isinstance(agent, str) else (agent.name, NATIVE_LOOP_NAME)
        details = AgentDetails() if isinstance(agent, str) else AgentDetails.from_source(agent)
        given: dict[str, Any] = {**options, "labels": _copy_labels(options.get("labels"))}
        dumped, plain_inputs = dump_prompt(name, details.loop, prompt), dump_inputs(inputs)
        check_input(details.loop, dumped, plain_inputs)
        return cls(
            run_id=make_id() if run_id is None else run_id,
            agent_name=name,
            agent_id=details.agent_id,
            model_tier=details.model_tier,
            loop=loop_name if details.loop is None else details.loop.name,
            parent_run_id=parent_run_id,
            lineage=lineage,
            prompt=dumped,
            inputs=plain_inputs,
            **given,
        )

    @property
    def inherited_options(self) -> RunOptions:
        """The options of a run that this one starts. It needs no priority and no key: it uses the slot of this one."""
        return {
            "caller_id": self.caller_id,
            "channel_id": self.channel_id,
            "guild_id": self.guild_id,
            "labels": self.labels,
        }

    @property
    def starter(self) -> str | None:
        """The run that has started this one in the background: it is notified of the end. `None` for other runs."""
        return self.parent_run_id if self.background else self.started_by

    @property
    def prompt_text(self) -> str:
        """The prompt as text: a short note stands for each content part that is not text."""
        return summarize_prompt(self.prompt)

    @property
    def indexed_labels(self) -> dict[str, str]:
        """The labels by which stores find the run: its own, and one that no caller can set for what it is a fork of."""
        return {**self.labels, FORK_LABEL: self.forked_from} if self.forked_from is not None else self.labels

    def summarize(self) -> Self:
        """Return the small part that listings show: the prompt is cut, content parts and inputs are left out."""
        return msgspec.structs.replace(
            self,
            prompt=self.prompt_text[:PROMPT_SUMMARY_LENGTH],
            inputs={},
            request_digest=make_request_digest(self.prompt, self.inputs),
        )
