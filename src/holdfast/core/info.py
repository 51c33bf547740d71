"""Who and what a run is."""

import re
import secrets
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from holdfast.core.errors import DefinitionError, InvalidRunId

MAX_RUN_ID_LENGTH = 200
#: Not every store can keep these in a text column.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_RUN_ID_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,200}")


def check_run_id(run_id: str) -> str:
    """`run_id` itself, if it can be one.

    Raises:
        InvalidRunId: it is empty, too long, or has a character outside `A-Z a-z 0-9 . _ : -`.
    """
    if not isinstance(run_id, str) or not _RUN_ID_PATTERN.fullmatch(run_id):
        raise InvalidRunId(
            f"{run_id!r:.80} cannot be a run id: use 1 to {MAX_RUN_ID_LENGTH} of the characters A-Z a-z 0-9 . _ : -"
        )
    return run_id


def new_run_id() -> str:
    """A fresh id, short enough to type."""
    return secrets.token_hex(8)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or _UNSTORABLE.search(value):
        raise DefinitionError(f"{name} is {value!r:.80}: it has to be text without NUL or half surrogate pairs")


class RunLabels(TypedDict, total=False):
    """Optional keywords that describe a new run."""

    caller_id: str
    channel_id: str
    guild_id: str
    labels: Mapping[str, str]


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and circumstances of one run. The same before and after a resume."""

    run_id: str
    agent_name: str
    agent_id: str = ""
    caller_id: str = ""
    channel_id: str = ""
    guild_id: str = ""
    model_tier: str = ""
    parent_run_id: str | None = None
    #: The agents above this run, from the first: it is a child as deep as this is long.
    lineage: tuple[str, ...] = ()
    #: Free text labels, for filtering and accounting.
    labels: dict[str, str] = {}
    #: What the run was asked; `inputs["prompt"]` is the prompt.
    inputs: dict[str, Any] = {}

    def __post_init__(self) -> None:
        """Refuse what could not be read back.

        Raises:
            InvalidRunId: the run id cannot be one.
            DefinitionError: another field is no text, or text that no store can keep.
        """
        check_run_id(self.run_id)
        if self.parent_run_id is not None:
            check_run_id(self.parent_run_id)
        for name in ("agent_name", "agent_id", "caller_id", "channel_id", "guild_id", "model_tier"):
            _check_text(name, getattr(self, name))
        for label, value in self.labels.items():
            _check_text("a label", label)
            _check_text(f"the label {label}", value)

    @property
    def prompt(self) -> str:
        return str(self.inputs.get("prompt", ""))
