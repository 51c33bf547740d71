"""The identity of a run: its id, its agent and the labels of its caller."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import msgspec

from holdfast.core.errors import DefinitionError, InvalidRunId
from holdfast.core.run.prompt import Prompt, dump_inputs, dump_prompt, make_request_key, summarize_prompt

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
    *("conversation", "key"),
)
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


def new_run_id() -> str:
    """Return a random id, short enough to type."""
    return secrets.token_hex(8)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or _UNSTORABLE.search(value):
        raise DefinitionError(f"{name} is {value!r:.80}: it has to be text without NUL or half surrogate pairs")


def _copy_labels(labels: Any) -> dict[str, str]:
    if labels is not None and not isinstance(labels, Mapping):
        raise DefinitionError(f"labels is {labels!r:.80}: give a mapping from text to text")
    return dict(labels or {})


class RunLabels(TypedDict, total=False):
    """Optional keywords that describe a new run."""

    caller_id: str
    channel_id: str
    guild_id: str
    #: For filtering and accounting.
    labels: Mapping[str, str] | None


class RunOptions(RunLabels, total=False):
    """Optional keywords of a new run: its labels, and its place in the queue."""

    #: From -10 to 10; 0 by default. Workers take due runs of a higher priority first.
    priority: int
    #: Runs with the same key share the concurrency limit of that key: see `ConcurrencyLimit`.
    key: str


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


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of one run. A resume does not change it."""

    run_id: str
    agent_name: str
    agent_id: str = ""
    caller_id: str = ""
    channel_id: str = ""
    guild_id: str = ""
    model_tier: str = ""
    parent_run_id: str | None = None
    #: The agents of the runs above this one, root first.
    lineage: tuple[str, ...] = ()
    #: For filtering and accounting.
    labels: dict[str, str] = {}
    #: Plain JSON data. `inputs["prompt"]` is the prompt: text, or a list of content parts.
    inputs: dict[str, Any] = {}
    #: The key of a conversation, which waits for the next message instead of ending. Empty for other runs.
    conversation: str = ""
    #: Workers take due runs of a higher priority first.
    priority: int = 0
    #: Runs with the same key share its concurrency limit. Empty: none.
    key: str = ""

    def __post_init__(self) -> None:
        """Refuse text that a store could not return unchanged.

        Raises:
            InvalidRunId: the run id is not valid.
            DefinitionError: another field is not text, or is text that no store can keep.
        """
        check_run_id(self.run_id)
        if self.parent_run_id is not None:
            check_run_id(self.parent_run_id)
        for name in _TEXT_FIELDS:
            _check_text(name, getattr(self, name))
        if len(self.key) > MAX_KEY_LENGTH:
            raise DefinitionError(f"key is {self.key!r:.80}: it has at most {MAX_KEY_LENGTH} characters")
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
        agent: "AgentSource",
        prompt: Prompt,
        *,
        run_id: str | None = None,
        parent_run_id: str | None = None,
        lineage: tuple[str, ...] = (),
        inputs: Mapping[str, Any] | None = None,
        **labels: Unpack[RunOptions],
    ) -> Self:
        """Return the identity of a new run of `agent`, with a random id unless `run_id` is given.

        Raises:
            InvalidRunId: the run id is not valid.
            DefinitionError: another field is not text, or is text that no store can keep; the prompt or an input has no
                JSON form; or the agent does not accept the content parts of the prompt.
        """
        details = AgentDetails.from_source(agent)
        return cls(
            run_id=new_run_id() if run_id is None else run_id,
            agent_name=agent.name,
            agent_id=details.agent_id,
            model_tier=details.model_tier,
            parent_run_id=parent_run_id,
            lineage=lineage,
            inputs={**dump_inputs(inputs), "prompt": dump_prompt(agent.name, details.loop, prompt)},
            caller_id=labels.get("caller_id", ""),
            channel_id=labels.get("channel_id", ""),
            guild_id=labels.get("guild_id", ""),
            labels=_copy_labels(labels.get("labels")),
            priority=labels.get("priority", 0),
            key=labels.get("key", ""),
        )

    @property
    def run_labels(self) -> RunLabels:
        """The labels, for a run that inherits them. A child needs no priority and no key: its parent starts it."""
        return {
            "caller_id": self.caller_id,
            "channel_id": self.channel_id,
            "guild_id": self.guild_id,
            "labels": self.labels,
        }

    @property
    def content(self) -> str | list[Any]:
        """The prompt: text, or a list of content parts as plain data."""
        prompt: str | list[Any] = self.inputs.get("prompt", "")
        return prompt

    @property
    def prompt(self) -> str:
        """The prompt as text: a short note stands for each content part that is not text."""
        return summarize_prompt(self.content)

    @property
    def request_key(self) -> str:
        """Equal for runs with the same prompt and inputs."""
        return make_request_key(self.content, {name: value for name, value in self.inputs.items() if name != "prompt"})
