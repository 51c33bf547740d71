"""The function of a workflow: its parameters and its result."""

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from holdfast.core.agents.tool import Signature
from holdfast.core.errors import DefinitionError
from holdfast.core.json_value import to_json_value
from holdfast.core.workflow.function.body_check import warn_about_body
from holdfast.core.workflow.function.function_thread import FunctionThread
from holdfast.core.workflow.restart import Restart
from holdfast.core.workflow.workflow_run import WorkflowRun


class WorkflowFunction:
    """A function with typed parameters, which are the input of a run."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        """Read the signature.

        Raises:
            DefinitionError: the function is a generator, or its parameters cannot be described as JSON.
        """
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise DefinitionError(
                f"workflow {name} is a generator: return the result, and show progress with steps of its own"
            )
        warn_about_body(function, name)
        self._name, self.function = name, function
        #: It is a plain function, which is called in a thread.
        self.in_thread: bool = not any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        try:
            self._signature = Signature(function)
        except DefinitionError as exc:
            raise DefinitionError(str(exc).replace("tool ", "workflow ", 1)) from None
        self._parameters = inspect.signature(function).parameters

        self.returns: Any = _without_restart(self._signature.returns)

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

    def bind_phase(self, prompt: Any, known: Mapping[str, Any], *, needs_prompt: bool) -> dict[str, Any]:
        """Return the arguments of the function in a phase: those that have a known name, and its prompt.

        Args:
            known: the inputs of the run, and the outputs of the finished phases by name.
            needs_prompt: the prompt is that of the phase itself, and has to be an argument.

        Raises:
            DefinitionError: they do not fit the signature.
        """
        given = {name: known[name] for name in self._parameters if name in known}
        takes_prompt = "prompt" in self._parameters or len(self._list_free(given)) == 1
        return self.bind(prompt if takes_prompt or needs_prompt else "", given)

    def bind_restart(self, restart: Restart) -> dict[str, Any]:
        """Return the arguments of the next life as plain data.

        Raises:
            DefinitionError: they do not fit the signature. PayloadError: they have no JSON form.
        """
        try:
            given = self._signature.bind(restart.args, restart.kwargs)
        except TypeError as exc:
            raise DefinitionError(f"workflow {self._name} returned {restart!r:.200}: {exc}") from None
        arguments: dict[str, Any] = to_json_value(given, f"{restart!r:.200} of workflow {self._name}")
        self.bind("", arguments)
        return arguments

    def _find_prompt_parameter(self, given: Mapping[str, Any]) -> str:
        """Return the parameter that gets the prompt: the one named so, or the only one that has no value."""
        free = self._list_free(given)
        if "prompt" in self._parameters:
            return "prompt"
        if not self._parameters:
            raise DefinitionError(f"workflow {self._name} has no parameters: give it no prompt")
        if len(free) != 1:
            raise DefinitionError(
                f"workflow {self._name} takes no prompt: give its arguments as inputs, {', '.join(self._parameters)}"
            )
        return free[0]

    def _list_free(self, given: Mapping[str, Any]) -> list[str]:
        """Return the parameters that need a value and have none."""
        return [name for name, each in self._parameters.items() if name not in given and each.default is each.empty]

    async def call(self, run: WorkflowRun, arguments: dict[str, Any]) -> Any:
        """Call the function, whose steps `run` makes."""
        if self.in_thread:
            return await FunctionThread(run).call(self.function, arguments)
        return await self.function(**arguments)


def _without_restart(returns: Any) -> Any:
    """Return the type of the output: an annotation may say that the function also returns `Restart`."""
    if returns is Restart:
        return Any
    if get_origin(returns) not in (Union, UnionType):
        return returns
    return functools.reduce(operator.or_, [each for each in get_args(returns) if each is not Restart])
