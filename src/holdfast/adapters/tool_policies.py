"""The policies for the tools of a framework: as the user gives them, else as the tool's metadata says."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import ToolPolicy
from holdfast.core.errors import DefinitionError

#: By the name of the tool, or a function of the framework's tool. `None`: the tool's metadata decides.
ToolPolicies = Mapping[str, ToolPolicy] | Callable[[Any], ToolPolicy | None]

NO_POLICIES: Final[Mapping[str, ToolPolicy]] = {}
ONCE: Final = ToolPolicy()
#: Also for a call of a tool that does not exist.
PURE: Final = ToolPolicy(Effect.PURE)


def check_policies(tools: ToolPolicies) -> ToolPolicies:
    """Return the option `tools` of `durable`.

    Raises:
        DefinitionError: it is neither a function nor a mapping to policies.
    """
    if callable(tools):
        return tools
    if not isinstance(tools, Mapping):
        raise DefinitionError(f"tools is {tools!r:.80}: give a ToolPolicy by the name of the tool, or a function")
    for name, policy in tools.items():
        check_policy(name, policy)
    return tools


def check_policy(name: str, given: Any) -> ToolPolicy:
    """Return the policy that was given for a tool of a framework.

    Raises:
        DefinitionError: it is not a policy, or has the effect `transaction`.
    """
    if not isinstance(given, ToolPolicy):
        raise DefinitionError(f"tools: the policy of {name} is {given!r:.80}: give a ToolPolicy")
    if given.effect is Effect.TRANSACTION:
        raise DefinitionError(
            f"tool {name}: effect is transaction: only tools of holdfast's own agents and workflows have it"
        )
    return given


def find_policy(
    tools: ToolPolicies,
    name: str,
    tool: Any,
    metadata: Mapping[str, Any] | None = None,
    *,
    default: ToolPolicy = ONCE,
) -> ToolPolicy:
    """Return the policy of a framework's tool. One that the user gives takes the place of the tool's metadata.

    Args:
        tools: as the user gives them.
        name: of the tool.
        tool: the framework's object. `None`: a function is not asked.
        metadata: of the tool; `effect` and `in_doubt` are read.
        default: if neither the user nor the metadata says anything.

    Raises:
        DefinitionError: the metadata has a wrong value, or the function returned no policy.
    """
    given = None
    if not callable(tools):
        given = tools.get(name)
    elif tool is not None:
        given = tools(tool)
    if given is not None:
        return check_policy(name, given)
    stated = {key: metadata[key] for key in ("effect", "in_doubt") if key in metadata} if metadata else {}
    try:
        return check_policy(name, ToolPolicy(**stated)) if stated else default
    except DefinitionError as exc:
        raise DefinitionError(f"the metadata of tool {name}: {exc}") from None
