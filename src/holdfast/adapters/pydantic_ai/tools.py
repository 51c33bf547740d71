"""Policies for the tools of a pydantic-ai agent, and holdfast tools as a pydantic-ai toolset."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import Tool as PydanticAITool
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.exceptions import ToolFailed as ModelVisibleError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import FunctionToolset

from holdfast.core.approval import ApprovalRequest
from holdfast.core.effects import Effect, InDoubt, Reconcile
from holdfast.core.errors import DefinitionError, ToolFailed, format_error
from holdfast.core.execution.attempts import call_tool
from holdfast.core.execution.run import RunExecution
from holdfast.core.retry import Retry
from holdfast.core.tool import Approval, Tool, check_approval, check_tool_retry
from holdfast.core.tool_context import current_call
from holdfast.core.waiting import Suspend

#: The effect of each tool by name, or as a function of its definition. `None`: the tool's metadata decides.
Effects = Mapping[str, Effect | str] | Callable[[ToolDefinition], Effect | str | None]


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """The policy for calls of one tool."""

    effect: Effect = Effect.ONCE
    reconcile: Reconcile | None = None
    in_doubt: InDoubt = "report"
    retry: Retry | None = None
    approval: Approval = False


#: For a call of a tool that does not exist.
UNKNOWN_TOOL_POLICY = ToolPolicy(Effect.PURE)


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that the open reply asks for."""

    part: ToolCallPart
    definition: ToolDefinition | None
    policy: ToolPolicy
    #: It starts only after calls before it have ended.
    starts_after_others: bool = False

    @property
    def call_id(self) -> str:
        return self.part.tool_call_id

    @property
    def effect(self) -> Effect:
        return self.policy.effect

    @property
    def tool(self) -> str:
        return self.part.tool_name

    @property
    def arguments(self) -> dict[str, Any]:
        return self.part.args_as_dict()

    @property
    def starts_later(self) -> bool:
        """It does not start with the batch, so the adapter state records when it starts."""
        waits_for_answer = self.definition is not None and self.definition.kind in ("external", "unapproved")
        return waits_for_answer or self.policy.approval is not False or self.starts_after_others


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicies:
    """The policies for an agent's tools. The default effect is `once`."""

    effects: Effects = field(default_factory=dict)
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict)
    in_doubt: Mapping[str, InDoubt] = field(default_factory=dict)
    retry: Mapping[str, Retry] = field(default_factory=dict)
    approvals: Mapping[str, Approval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, policy in self.retry.items():
            check_tool_retry(name, Effect.PURE, policy)
        for name, approval in self.approvals.items():
            check_approval(name, approval)
        if callable(self.effects):
            return
        for name, given in self.effects.items():
            if _parse_effect(name, given) is not Effect.ONCE and name in self.reconcile:
                raise DefinitionError(f"tool {name} is {given}: only a once tool has anything to reconcile")
            check_tool_retry(name, _parse_effect(name, given), self.retry.get(name))

    def get_policy(self, definition: ToolDefinition, holdfast_tools: Mapping[str, Tool]) -> ToolPolicy:
        """Return the policy of a tool. A holdfast tool has its own.

        Raises:
            DefinitionError: the effect is none, or a `once` tool is to be retried.
        """
        name = definition.name
        if (own := holdfast_tools.get(name)) is not None:
            return ToolPolicy(own.effect, own.reconcile, own.in_doubt, approval=_make_approval(own))
        metadata: Mapping[str, Any] = definition.metadata or {}
        effect = self.effects(definition) if callable(self.effects) else self.effects.get(name)
        effect = metadata.get("effect", Effect.ONCE) if effect is None else effect
        in_doubt = self.in_doubt.get(name) or metadata.get("in_doubt", "report")
        effect = _parse_effect(name, effect)
        retry = check_tool_retry(name, effect, self.retry.get(name))
        return ToolPolicy(effect, self.reconcile.get(name), in_doubt, retry, self.approvals.get(name, False))


def _parse_effect(name: str, value: Any) -> Effect:
    try:
        return Effect(value)
    except ValueError:
        raise DefinitionError(f"tool {name}: effect is {value!r}, not one of {[*Effect]}") from None


def _make_approval(tool: Tool) -> Approval:
    """Return the approval setting of a holdfast tool, for arguments as the model gave them."""
    if not tool.may_need_approval:
        return False

    def request(arguments: dict[str, Any]) -> ApprovalRequest | bool:
        try:
            return tool.request_approval(tool.check(arguments)) or False
        except ValueError:
            return False  # they do not fit: the tool is not called

    return request


def make_toolset(tools: Mapping[str, Tool], run: RunExecution) -> FunctionToolset[Any]:
    """Return the tools as a toolset of pydantic-ai, for one run."""
    return FunctionToolset(
        [
            PydanticAITool.from_schema(
                _make_function(tool, run),
                name=tool.name,
                description=tool.schema.description,
                json_schema=tool.schema.parameters,
                takes_ctx=False,
            )
            for tool in tools.values()
        ]
    )


def _make_function(tool: Tool, run: RunExecution) -> Callable[..., Awaitable[Any]]:
    async def call(**given: Any) -> Any:
        try:
            tool.check(given)
        except ValueError as exc:
            raise ModelRetry(f"The arguments do not fit: {exc}. The tool was not called.") from exc
        try:
            # Checked again for each attempt: the tool may have changed the arguments of an earlier one.
            return await call_tool(run, tool, current_call().call_id, lambda: tool.call(tool.check(given)))
        except Exception as exc:  # user code may raise anything: it is reported to the model or the caller
            if isinstance(exc, Suspend) or run.is_resumable_after(exc):
                raise  # the tool waits, from a child run, or the tool parks the run or announces a shutdown
            if tool.on_error == "raise":
                raise ToolFailed(tool.name, exc) from exc
            raise ModelVisibleError(format_error(exc)) from exc

    return call
