"""The function of a workflow: its parameters and its result."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.agents.tool import Signature
from holdfast.core.errors import DefinitionError


class WorkflowFunction:
    """A function with typed parameters, which are the input of a run."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        """Read the signature.

        Raises:
            DefinitionError: the function is not an `async def`, or its parameters cannot be described as JSON.
        """
        if inspect.isasyncgenfunction(function):
            raise DefinitionError(
                f"workflow {name} is an async generator: return the result, and show progress with steps of its own"
            )
        if not inspect.iscoroutinefunction(function):
            raise DefinitionError(
                f"workflow {name} is a plain function: write `async def`, and move code that blocks into a tool, "
                "which may be a plain function"
            )
        self._name, self.function = name, function
        try:
            self._signature = Signature(function)
        except DefinitionError as exc:
            raise DefinitionError(str(exc).replace("tool ", "workflow ", 1)) from None
        self._parameters = inspect.signature(function).parameters

    @property
    def returns(self) -> Any:
        """The annotation of the result; `Any` without one."""
        return self._signature.returns

    def bind(self, prompt: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the function from the input of a run.

        Raises:
            DefinitionError: they do not fit the signature.
        """
        given = dict(inputs)
        if prompt != "":
            given[self._find_prompt_parameter(given)] = prompt
        try:
            return self._signature.convert_arguments(given)
        except ValueError as exc:
            signature = inspect.signature(self.function)
            raise DefinitionError(f"the input of workflow {self._name}{signature} does not fit: {exc}") from exc

    def _find_prompt_parameter(self, given: Mapping[str, Any]) -> str:
        """Return the parameter that gets the prompt: the one named so, or the only one that has no value."""
        free = [name for name, each in self._parameters.items() if name not in given and each.default is each.empty]
        if "prompt" in self._parameters:
            return "prompt"
        if not self._parameters:
            raise DefinitionError(f"workflow {self._name} has no parameters: give it no prompt")
        if len(free) != 1:
            raise DefinitionError(
                f"workflow {self._name} takes no prompt: give its arguments as inputs, {', '.join(self._parameters)}"
            )
        return free[0]

    async def call(self, arguments: dict[str, Any]) -> Any:
        """Call the function."""
        return await self.function(**arguments)
