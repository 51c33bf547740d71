"""The response of one model: partial, final, and as the snapshot that a checkpoint file stores."""

from typing import Any, Literal

import msgspec

#: `interrupted`: the model continues when the fan-out is resumed.
ResponseStatus = Literal["completed", "failed", "interrupted"]

# A snapshot's JSON leaves out the fields that are empty, except those with a factory: `omit_defaults` keeps these.


class WriteSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change to one file that a model proposes. `Workspace.apply` makes it."""

    #: Relative to the workspace, with `/`.
    path: str
    content: str = msgspec.field(default_factory=str)
    delete: bool = False


class ResponseData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that partial responses, responses and snapshots share."""

    #: The cell's id: the model's id, with the variant's name if there are variants.
    model_id: str
    text: str = ""
    #: Execution time of the model's run, over all attempts.
    latency_ms: int = msgspec.field(default_factory=int)
    input_tokens: int = msgspec.field(default_factory=int)
    output_tokens: int = msgspec.field(default_factory=int)
    reasoning_tokens: int = 0
    cost_usd: float = msgspec.field(default_factory=float)
    proposed_writes: tuple[WriteSnapshot, ...] = ()
    #: By the tool's name.
    tool_calls: dict[str, int] = {}
    #: Why the model failed or was interrupted; empty if there was no error.
    error: str = ""


class PartialResponse(ResponseData, frozen=True, kw_only=True):
    """A model's response in progress, as of its last finished step."""

    #: `ResponseSnapshot.from_partial` names the model.
    model_id: str = ""


class ModelResponse(ResponseData, frozen=True, kw_only=True):
    """The final response of a model, or its state when the fan-out was stopped."""

    #: The model has not finished: resume the fan-out.
    interrupted: bool = msgspec.field(default_factory=bool)

    @property
    def ok(self) -> bool:
        return not self.error and not self.interrupted

    @property
    def status(self) -> ResponseStatus:
        if self.interrupted:
            return "interrupted"
        return "failed" if self.error else "completed"


class ResponseSnapshot(ResponseData, frozen=True, kw_only=True):
    """One model in a checkpoint file."""

    interrupted: bool = msgspec.field(default_factory=bool)
    completed: bool = msgspec.field(default_factory=bool)

    @classmethod
    def from_response(cls, response: ModelResponse) -> "ResponseSnapshot":
        return cls(**_field_values(response), completed=response.ok)

    @classmethod
    def from_partial(cls, model_id: str, partial: PartialResponse) -> "ResponseSnapshot":
        """Return an interrupted snapshot: a process that loads it has to resume the model."""
        return cls(**{**_field_values(partial), "model_id": model_id}, interrupted=True)

    def to_response(self) -> ModelResponse:
        return ModelResponse(**{name: value for name, value in _field_values(self).items() if name != "completed"})


def _field_values(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
