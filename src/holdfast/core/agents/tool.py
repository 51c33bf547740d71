"""Tools: typed Python functions that a model may call. The schema and the argument check come from the signature."""

import copy
import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, get_args, overload

import msgspec

from holdfast.core.agents.calls import Effect, EffectName, InDoubt, OnError, Reconcile, Undo
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool_context import current_call, find_workflow
from holdfast.core.agents.tool_threads import call_in_thread
from holdfast.core.errors import DefinitionError
from holdfast.core.json_value import JsonValue
from holdfast.core.run.waiting import ApprovalRequest
from holdfast.core.validation import check_callable, check_choice, check_text, check_type

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    #: The parameters and the result of a function. A type checker takes `Tool` without them as any tool.
    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)
    T = TypeVar("T")
else:
    from typing import ParamSpec, TypeVar

    P, R_co, T = ParamSpec("P"), TypeVar("R_co", covariant=True), TypeVar("T")


class Signature:
    """The parameters of one function as a JSON schema."""

    __slots__ = ("_fields", "_parameters", "_positional", "_struct", "returns", "schema")

    def __init__(self, function: Callable[..., Any], *, hidden: str | None = None) -> None:
        """Read the signature.

        Args:
            hidden: a parameter that no caller gives.

        Raises:
            DefinitionError: a parameter has no annotation, cannot be given by name, or has a type without a JSON form.
        """
        name = getattr(function, "__name__", repr(function))
        hints = _read_hints(function, name)
        signature = inspect.signature(function)
        given = [each for each in signature.parameters.values() if each.name != hidden]
        self._parameters = signature.replace(parameters=given)
        self._fields = _read_fields(self._parameters, hints, name)
        each = self._parameters.parameters.values()
        self._positional = [parameter.name for parameter in each if parameter.kind is not parameter.KEYWORD_ONLY]
        #: The annotation of the result; `Any` without one.
        self.returns: Any = hints.get("return", Any)
        try:
            self._struct = msgspec.defstruct(name, self._fields, kw_only=True, forbid_unknown_fields=True)
            self.schema: dict[str, Any] = _flatten_schema(msgspec.json.schema(self._struct))
        except (TypeError, ValueError, RuntimeError) as exc:
            raise DefinitionError(f"tool {name}: its parameters cannot be described as JSON: {exc}") from exc

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without defaults.

        Raises:
            TypeError: they do not fit the parameters.
        """
        if not kwargs and len(args) == len(self._positional) == len(self._fields):
            return dict(zip(self._positional, args, strict=True))  # `bind` is a tenth of a step
        return dict(self._parameters.bind(*args, **kwargs).arguments)

    def convert_arguments(self, given: Any) -> dict[str, Any]:
        """Return a copy of `given` as keyword arguments of the function.

        Raises:
            ValueError: they do not fit the signature; the message is for the model.
        """
        try:
            checked = msgspec.convert(msgspec.to_builtins(given), self._struct)
        except msgspec.ValidationError as exc:
            raise ValueError(str(exc)) from exc
        return msgspec.structs.asdict(checked)


def _read_hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    # The annotations of a partial are on its function, those of another callable object on its class.
    annotated = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except NameError as exc:
        raise DefinitionError(f"tool {name}: an annotation cannot be resolved: {exc}") from exc


def _read_fields(signature: inspect.Signature, hints: Mapping[str, Any], name: str) -> list[Any]:
    fields: list[Any] = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DefinitionError(f"tool {name}: parameter {parameter} cannot be given by name")
        if parameter.name not in hints:
            raise DefinitionError(f"tool {name}: annotate the parameter {parameter.name}")
        hint = hints[parameter.name]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, _make_default(parameter.default)))
    return fields


def _make_default(value: Any) -> Any:
    # msgspec wants a factory for mutable defaults. Each call gets a copy, as a tool's author expects.
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=functools.partial(copy.copy, value))
    return msgspec.field(default=value)


def _flatten_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Put the object at the top: providers accept no reference there."""
    definitions = dict(schema.get("$defs", {}))
    reference = schema.get("$ref", "")
    top = dict(definitions.pop(reference.rpartition("/")[2], schema))
    top.pop("title", None)
    if definitions:
        top["$defs"] = definitions
    return top


#: The parameter of a `transaction` tool that gets the connection. Neither a model nor a workflow gives it.
CONNECTION = "connection"

#: Whether the calls of a tool need a person's approval: all, none, or what a function of the arguments says.
Approval = bool | ApprovalRequest | Callable[[dict[str, Any]], "bool | ApprovalRequest"]


@dataclass(frozen=True, slots=True, init=False)
class ToolPolicy:
    """What may happen to the calls of one tool: after a crash, after an error, and before they are made."""

    effect: Effect
    reconcile: Reconcile | None
    in_doubt: InDoubt
    retry: Retry | None
    approval: Approval

    def __init__(
        self,
        effect: Effect | str = Effect.ONCE,
        *,
        reconcile: Reconcile | None = None,
        in_doubt: InDoubt = "report",
        retry: Retry | None = None,
        approval: Approval = False,
    ) -> None:
        """Make a policy.

        Args:
            effect: the effect of calling the tool twice. By default it must not happen twice.
            reconcile: finds, after a crash, the outcome of a call whose result was never recorded.
            in_doubt: for such a call with an unknown outcome: report it to the model, or park the run for a person.
            retry: repeat a call that raised a transient error, before the error is reported. Not for `once` tools. The
                writes of a failed `transaction` call are rolled back before.
            approval: a person has to approve each call, or those for which this function of the arguments returns
                True or an `ApprovalRequest`.

        Raises:
            DefinitionError: an option has a wrong value, or two contradict each other.
        """
        check_choice("effect", effect, [each.value for each in Effect])
        effect = Effect(effect)
        if reconcile is not None:
            check_callable("reconcile", reconcile)
            if effect is not Effect.ONCE:
                raise DefinitionError(f"effect is {effect}: only a once tool has anything to reconcile")
        check_choice("in_doubt", in_doubt, get_args(InDoubt))
        _check_retry(effect, retry)
        if not isinstance(approval, bool | ApprovalRequest):
            check_callable("approval", approval)
        for name, value in zip(self.__slots__, (effect, reconcile, in_doubt, retry, approval), strict=True):
            object.__setattr__(self, name, value)

    def request_approval(self, arguments: dict[str, Any]) -> ApprovalRequest | None:
        """Return what a person has to approve before a call with these arguments; `None` if it needs no approval."""
        wanted = self.approval
        if wanted is False:
            return None
        if not isinstance(wanted, bool | ApprovalRequest):
            wanted = wanted(arguments)
        if isinstance(wanted, ApprovalRequest):
            return wanted
        return ApprovalRequest() if wanted else None


def _check_retry(effect: Effect, retry: Any) -> None:
    if retry is None:
        return
    check_type("retry", retry, Retry, "a holdfast Retry")
    if effect is Effect.ONCE:
        raise DefinitionError(
            "effect is once: it cannot be retried; make it idempotent or pure if repeating it is safe"
        )


class ToolSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as the model sees it."""

    name: str
    description: str
    #: JSON schema of the arguments, an object.
    parameters: dict[str, Any]


class Tool(Generic[P, R_co]):
    """A function with a name, a schema and a policy. Immutable; `@tool` makes one."""

    __slots__ = (
        "_signature",
        "errors",
        "function",
        "in_thread",
        "name",
        "on_error",
        "policy",
        "schema",
        "sequential",
        "timeout",
        "undo",
    )

    def __init__(
        self,
        function: Callable[P, R_co],
        *,
        name: str | None = None,
        description: str | None = None,
        effect: Effect | str = Effect.ONCE,
        reconcile: Reconcile | None = None,
        in_doubt: InDoubt = "report",
        on_error: OnError = "report",
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        approval: Approval = False,
        errors: Iterable[type[Exception]] = (),
        undo: Undo | None = None,
        sequential: bool = False,
    ) -> None:
        """Make a tool of `function`, sync or async. A sync one runs in a thread.

        `effect`, `reconcile`, `in_doubt`, `retry` and `approval` are those of a `ToolPolicy`.

        Args:
            description: for the model; without it the function's docstring.
            on_error: report an exception to the model, or fail the run with it.
            timeout: of one try. A call that takes longer is reported as an error. An async one is cancelled; a
                thread cannot be.
            errors: exceptions that a workflow gets as they are, recreated from their arguments. It gets others as
                `StepFailed`.
            undo: undoes a call, for a workflow that fails after it. It gets the call and its result, and may be
                repeated: use `current_call().idempotency_key`.
            sequential: the calls of a reply that asks for this tool are made one after the other, in their order.

        Raises:
            DefinitionError: the signature cannot be described, or the options contradict each other.
        """
        check_callable("the function of a tool", function)
        for option, text in (("name", name), ("description", description)):
            if text is not None:
                check_text(f"{option} of a tool", text)
        self.function: Callable[..., Any] = function
        self.name: str = name or str(getattr(function, "__name__", ""))
        if not self.name or self.name == "<lambda>":
            raise DefinitionError(f"{function!r} has no name: give the tool one with name=")
        check_choice(f"tool {self.name}: on_error", on_error, get_args(OnError))
        try:
            self.policy: ToolPolicy = ToolPolicy(
                effect, reconcile=reconcile, in_doubt=in_doubt, retry=retry, approval=approval
            )
        except DefinitionError as exc:
            raise DefinitionError(f"tool {self.name}: {exc}") from None
        self.on_error = on_error
        self.timeout: timedelta | None = _check_timeout(self.name, timeout)
        self.errors: tuple[type[Exception], ...] = _check_errors(self.name, errors)
        if undo is not None:
            check_callable(f"tool {self.name}: undo", undo)
        self.undo = undo
        check_type(f"tool {self.name}: sequential", sequential, bool, "True or False")
        self.sequential = sequential
        is_transaction = self.policy.effect is Effect.TRANSACTION
        self._signature = Signature(function, hidden=CONNECTION if is_transaction else None)
        if is_transaction and CONNECTION not in inspect.signature(function).parameters:
            raise DefinitionError(f"tool {self.name}: effect is transaction: give it a parameter `{CONNECTION}`")
        #: Whether a call runs in a thread, which cannot be cancelled. An object with an async `__call__` does not.
        self.in_thread: bool = not any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        self.schema: ToolSchema = ToolSchema(
            name=self.name,
            description=description if description is not None else inspect.getdoc(function) or "",
            parameters=self._signature.schema,
        )

    @overload
    def __call__(
        self: "Tool[P, Coroutine[Any, Any, T]]", *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the tool: in the function of a workflow as a durable step, elsewhere as a plain call of its function.

        A durable step is an awaitable, also that of a sync tool.
        """
        workflow = find_workflow()
        if workflow is None:
            return self.function(*args, **kwargs)
        return workflow.call_tool(self, args, kwargs, None)

    def keyed(self, key: str) -> Callable[..., Any]:
        """Return a function that calls the tool with a key: a workflow finds the step by it, not by its arguments."""
        return functools.partial(self._call_with_key, key)

    def _call_with_key(self, key: str, /, *args: Any, **kwargs: Any) -> Any:
        workflow = find_workflow()
        if workflow is None:
            return self.function(*args, **kwargs)
        return workflow.call_tool(self, args, kwargs, key)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, as `Signature.bind` does."""
        return self._signature.bind(args, kwargs)

    @property
    def returns(self) -> Any:
        """The annotation of its result; `Any` without one."""
        return self._signature.returns

    def check(self, arguments: JsonValue) -> dict[str, Any]:
        """Return the keyword arguments for the function.

        Raises:
            ValueError: they do not fit the signature; the message is for the model.
        """
        return self._signature.convert_arguments(arguments)

    @property
    def effect(self) -> Effect:
        """The effect of calling it twice."""
        return self.policy.effect

    def call(self, arguments: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """Call the function, in a thread if it is sync, and return its result."""
        if self.policy.effect is Effect.TRANSACTION:
            return self._call_in_transaction(arguments)
        if self.in_thread:
            return self._call_in_thread(arguments)
        coroutine: Coroutine[Any, Any, Any] = self.function(**arguments)
        return coroutine

    async def _call_in_transaction(self, arguments: dict[str, Any]) -> Any:
        transaction = current_call().transaction
        if transaction is None:
            raise DefinitionError(f"tool {self.name}: effect is transaction: only a run calls it with a connection")
        return await transaction.call(self.function, arguments)

    async def _call_in_thread(self, arguments: dict[str, Any]) -> Any:
        result = await call_in_thread(self.function, arguments)
        # A plain function may have wrapped an async one.
        return await result if inspect.isawaitable(result) else result

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, effect={self.effect.value!r})"


def _check_timeout(name: str, timeout: Any) -> timedelta | None:
    if timeout is not None and (not isinstance(timeout, timedelta) or timeout <= timedelta(0)):
        raise DefinitionError(f"tool {name}: timeout is {timeout!r}: give a positive timedelta")
    return timeout


def _check_errors(name: str, errors: Any) -> tuple[type[Exception], ...]:
    given = tuple(errors)
    for each in given:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise DefinitionError(f"tool {name}: errors has {each!r:.80}: give classes of exceptions")
    return given


@overload
def tool(function: Callable[P, R_co], /) -> Tool[P, R_co]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | EffectName = Effect.ONCE,
    reconcile: Reconcile | None = None,
    in_doubt: InDoubt = "report",
    on_error: OnError = "report",
    retry: Retry | None = None,
    timeout: timedelta | None = None,
    approval: Approval = False,
    errors: Iterable[type[Exception]] = (),
    undo: Undo | None = None,
    sequential: bool = False,
) -> Callable[[Callable[P, R_co]], Tool[P, R_co]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a `Tool` of a function, as a decorator with or without options. The options are those of `Tool`."""
    known = list(inspect.signature(Tool).parameters)[1:]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
            raise DefinitionError(f"@tool has no option {name}: {hint}")
    return functools.partial(Tool, **options) if function is None else Tool(function, **options)
