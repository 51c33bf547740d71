"""From an object to words by which another process finds it, and back."""

import importlib
import importlib.util
import operator
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast.run.errors import DefinitionError


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a module."""

    module: str
    attribute: str
    #: Where the module is from, if that is known: test modules can seldom be imported by their name.
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


def place_of(given: Any) -> Place:
    """Where another process finds `given`: an object at the top of a module, or `"module:attribute"`.

    Raises:
        DefinitionError: it cannot be found that way.
    """
    if isinstance(given, str):
        module, colon, attribute = given.partition(":")
        if not colon or not module or not attribute:
            raise DefinitionError(f"{given!r} is no place: write 'module:attribute'")
        return Place(module=module, attribute=attribute)
    # The program that was started is the last choice: it would have to be run again to be imported.
    for name, module_object in sorted(sys.modules.items(), key=lambda each: each[0] == "__main__"):
        for attribute, value in list(vars(module_object).items()) if isinstance(module_object, ModuleType) else ():
            if value is given:
                return Place(module=name, attribute=attribute, file=getattr(module_object, "__file__", None))
    raise DefinitionError(
        f"another process cannot find {given!r:.80}: it has to be a name at the top of a module; "
        "or make it in a function at the top of a module and give that"
    )


def load(place: Place) -> Any:
    """What is at the place, in this process.

    Raises:
        DefinitionError: there is no such module or name.
    """
    try:
        return operator.attrgetter(place.attribute)(_module(place))
    except (ModuleNotFoundError, AttributeError) as exc:
        raise DefinitionError(f"nothing to crash at {place}: {exc}") from exc


def _module(place: Place) -> ModuleType:
    if place.file is None:
        return importlib.import_module(place.module)
    if place.module != "__main__":
        try:
            module = importlib.import_module(place.module)
            if Path(getattr(module, "__file__", None) or "").resolve() == Path(place.file).resolve():
                return module
        except ModuleNotFoundError:
            pass  # a module that its test runner has loaded from its file: so do we
    name = "__crash_tested__" if place.module == "__main__" else place.module
    spec = importlib.util.spec_from_file_location(name, place.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
