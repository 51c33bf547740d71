"""Policies for the tools of a pydantic-ai agent, and holdfast tools as a pydantic-ai toolset."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import Tool as PydanticAITool
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.exceptions import ToolFailed as ModelVisibleError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import FunctionToolset

from holdfast.adapters.tool_policies import ToolPolicies, check_policy, find_policy
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Approval, Tool, ToolPolicy
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import ToolFailed, format_error
from holdfast.core.execution.attempt import Attempt
from holdfast.core.execution.calling.call_retries import call_tool
from holdfast.core.run.waiting import ApprovalRequest, Suspend


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


def get_policy(policies: ToolPolicies, definition: ToolDefinition, holdfast_tools: Mapping[str, Tool]) -> ToolPolicy:
    """Return the policy of a tool. A holdfast tool has its own, and is retried within its call."""
    own = holdfast_tools.get(definition.name)
    if own is None:
        return find_policy(policies, definition.name, definition, definition.metadata)
    return replace(check_policy(own.name, own.policy), retry=None, approval=_make_approval(own))


def _make_approval(tool: Tool) -> Approval:
    """Return the approval setting of a holdfast tool, for arguments as the model gave them."""
    if tool.policy.approval is False:
        return False

    def request(arguments: dict[str, Any]) -> ApprovalRequest | bool:
        try:
            return tool.policy.request_approval(tool.check(arguments)) or False
        except ValueError:
            return False  # they do not fit: the tool is not called

    return request


def make_toolset(tools: Mapping[str, Tool], run: Attempt) -> FunctionToolset[Any]:
    """Return the tools as a toolset of pydantic-ai, for one run."""
    return FunctionToolset(
        [
            PydanticAITool.from_schema(
                _make_function(tool, run),
                name=tool.name,
                description=tool.schema.description,
                json_schema=tool.schema.parameters,
                takes_ctx=False,
                sequential=tool.sequential,
            )
            for tool in tools.values()
        ]
    )


def _make_function(tool: Tool, run: Attempt) -> Callable[..., Awaitable[Any]]:
    async def call(**given: Any) -> Any:
        try:
            tool.check(given)
        except ValueError as exc:
            raise ModelRetry(f"The arguments do not fit: {exc}. The tool was not called.") from exc
        try:
            # Checked again for each attempt: the tool may have changed the arguments of an earlier one.
            return await call_tool(run, tool, current_call().call_id, lambda: tool.call(tool.check(given)))
        except Exception as exc:  # user code may raise anything: it is reported to the model or the caller
            if isinstance(exc, Suspend) or run.stop_state.is_resumable_after(exc):
                raise  # the tool waits, from a child run, or the tool parks the run or announces a shutdown
            if tool.on_error == "raise":
                raise ToolFailed(tool.name, exc) from exc
            raise ModelVisibleError(format_error(exc)) from exc

    return call
