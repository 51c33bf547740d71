"""Warns when the body of a workflow reads the time or a random value itself: it differs in each attempt."""

import dis
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from itertools import pairwise
from types import CodeType, ModuleType
from typing import Any


class WorkflowWarning(UserWarning):
    """The body of a workflow calls a function whose value differs in each attempt, such as `datetime.now`."""


_TIME_FUNCTIONS = frozenset({"time", "time_ns", "monotonic", "perf_counter"})
_DATE_METHODS = frozenset({"now", "utcnow", "today"})
_UUID_FUNCTIONS = frozenset({"uuid1", "uuid4"})
#: These are a part of the body. Other functions within it may be steps: `call("name", function)`.
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})

_UNKNOWN = object()

#: By which the instructions of a call differ.
_VERSION = tuple(sys.version_info[:2])


def warn_about_body(function: Callable[..., Any], name: str) -> None:
    """Issue a `WorkflowWarning` for each line of the function that calls such a function."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return
    namespace: dict[str, Any] = function.__globals__
    for called, advice, line in _list_calls(code, namespace):
        warnings.warn_explicit(
            f"workflow {name} calls {called}() in its body, and the value differs in each attempt: use {advice}",
            WorkflowWarning,
            code.co_filename,
            line,
            module=function.__module__,
            registry=namespace.setdefault("__warningregistry__", {}),
        )


def _list_calls(code: CodeType, namespace: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield the name, the advice and the line of each call."""
    target: Any = _UNKNOWN
    is_called = False  # the name before an attribute says so if it was imported
    instructions = list(dis.get_instructions(code))
    for each, following in pairwise(instructions):
        if each.opname == "LOAD_GLOBAL":
            target, is_called = namespace.get(each.argval, _UNKNOWN), bool(each.arg and each.arg & 1)
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD") and target is not _UNKNOWN:
            target, is_called = _get_attribute(target, each.argval), is_called or _is_method_call(each, following)
        else:
            target = _UNKNOWN
            continue
        if is_called and (found := _find_advice(target)) is not None:
            line = each.positions.lineno if each.positions is not None else None
            yield (*found, line or code.co_firstlineno)
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name in _COMPREHENSIONS:
            yield from _list_calls(constant, namespace)


def _get_attribute(target: Any, name: str) -> Any:
    """Return an attribute of a module or of a class of dates. Others are not looked at: they may run code."""
    if isinstance(target, ModuleType):
        return vars(target).get(name, _UNKNOWN)
    if isinstance(target, type) and issubclass(target, date):
        return getattr(target, name, _UNKNOWN)
    return _UNKNOWN


def _is_method_call(instruction: dis.Instruction, following: dis.Instruction) -> bool:
    """Whether the attribute is loaded to be called, and not to be passed on."""
    if _VERSION < (3, 12):
        return instruction.opname == "LOAD_METHOD"
    pushes_null = _VERSION >= (3, 13) and following.opname == "PUSH_NULL"
    return pushes_null or bool(instruction.arg and instruction.arg & 1)


def _find_advice(function: Any) -> tuple[str, str] | None:
    """Return the name of a function whose value differs in each attempt, and what to use instead."""
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", None)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, date) and name in _DATE_METHODS:
        return f"{owner.__name__}.{name}", "`await now()`"
    if module == "time" and name in _TIME_FUNCTIONS:
        return f"time.{name}", "`await now()`"
    if module == "uuid" and name in _UUID_FUNCTIONS:
        return f"uuid.{name}", "`await uuid4()`"
    if type(owner).__module__ == "random" or module in ("random", "secrets"):
        return f"{module or 'random'}.{name}", "`await random()`, or a step"
    return None
