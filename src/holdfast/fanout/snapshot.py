"""The response of one model: partial, final, and as the snapshot that the checkpoint stores."""

from typing import Any, Literal

import msgspec

#: `interrupted`: the model continues when the fan-out is resumed.
ResponseStatus = Literal["completed", "failed", "interrupted"]


class ProposedWrite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change to one file that a model proposes. `Workspace.apply` makes it."""

    #: Relative to the workspace, with `/`.
    path: str
    content: str = ""
    delete: bool = False


class ResponseData(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that partial responses, responses and snapshots share."""

    #: The cell's id: the model's id, with the variant's name if there are variants.
    model_id: str
    text: str = ""
    #: Execution time of the model's run, over all attempts.
    latency_ms: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    proposed_writes: tuple[ProposedWrite, ...] = ()
    #: By the tool's name.
    tool_calls: dict[str, int] = {}


class PartialResponse(ResponseData, frozen=True, kw_only=True):
    """A model's response in progress, as of its last finished step."""

    #: The error that interrupted the run, if there was one.
    error: str | None = None


class ModelResponse(ResponseData, frozen=True, kw_only=True):
    """The final response of a model, or its state when the fan-out was stopped."""

    error: str | None = None
    #: The model has not finished: resume the fan-out.
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
    def create(cls, source: "Snapshot | ModelResponse | PartialResponse") -> "Snapshot":
        """Return the snapshot of a response. A snapshot is returned as it is."""
        if isinstance(source, Snapshot):
            return source
        return cls.from_response(source) if isinstance(source, ModelResponse) else cls.from_partial(source)

    @classmethod
    def from_response(cls, response: ModelResponse) -> "Snapshot":
        return cls(**_field_values(response), completed=response.ok)

    @classmethod
    def from_partial(cls, partial: PartialResponse) -> "Snapshot":
        """Return an interrupted snapshot: a process that loads it has to resume the model."""
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
