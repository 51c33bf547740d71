"""What one model has come to: its response, what is known of it so far, and how either is kept."""

from typing import Any, Literal

import msgspec

#: How a model stands: it answered, it failed, or it goes on when the fan-out is resumed.
ResponseStatus = Literal["completed", "failed", "interrupted"]


class ProposedWrite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change to one file that a model proposes. It touches the disk only when somebody applies it."""

    #: Within the work folder, with `/`.
    path: str
    content: str = ""
    delete: bool = False


class ResponseData(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one model at any time."""

    #: Of the cell: the model's id, with its variant if there are variants.
    model_id: str
    text: str = ""
    #: Time the model's run was driven, over all its lives.
    latency_ms: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    proposed_writes: tuple[ProposedWrite, ...] = ()
    #: By the tool's name.
    tool_calls: dict[str, int] = {}


class PartialResponse(ResponseData, frozen=True, kw_only=True):
    """A model's response in progress, as of its last finished turn."""

    #: Why it does not go on at the moment, if it does not.
    error: str | None = None


class ModelResponse(ResponseData, frozen=True, kw_only=True):
    """What a model gave."""

    error: str | None = None
    #: It has not ended: resume the fan-out to go on with it.
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None and not self.interrupted


class Snapshot(ResponseData, frozen=True, kw_only=True):
    """One model in a fan-out's checkpoint."""

    error: str | None = None
    interrupted: bool = False
    completed: bool = False

    @classmethod
    def from_response(cls, response: ModelResponse) -> "Snapshot":
        return cls(**_field_values(response), completed=response.ok)

    @classmethod
    def from_partial(cls, partial: PartialResponse) -> "Snapshot":
        """In progress: whoever finds it in a checkpoint has to go on with it."""
        return cls(**_field_values(partial), interrupted=True)

    def to_response(self) -> ModelResponse:
        return ModelResponse(**{name: value for name, value in _field_values(self).items() if name != "completed"})

    def to_partial(self) -> PartialResponse:
        return PartialResponse(
            **{name: value for name, value in _field_values(self).items() if name not in ("completed", "interrupted")}
        )

    @property
    def status(self) -> ResponseStatus:
        if self.interrupted:
            return "interrupted"
        return "completed" if self.completed else "failed"


def _field_values(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
