"""A comparison written down: models, tools, tasks and criteria as front matter, the system prompt below it."""

import re
from pathlib import Path

import msgspec

from holdfast.batteries.definitions.markdown import from_markdown
from holdfast.batteries.definitions.store import MalformedDefinition
from holdfast.compare.criteria import Criterion
from holdfast.fanout.errors import RecipeError

_TASK_NAME_PATTERN = re.compile(r"[A-Za-z0-9._-]{0,60}")


class VariantSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variant, as a recipe has it."""

    name: str
    instructions: str | None = None
    prompt: str = ""


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that every model is asked."""

    name: str
    prompt: str
    #: Beside those of the whole recipe.
    success: tuple[Criterion, ...] = ()


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is asked what, and what counts as success."""

    models: tuple[str, ...] = ()
    #: Agents of your own, as MODULE:ATTR.
    agents: tuple[str, ...] = ()
    variants: tuple[VariantSpec, ...] = ()
    #: `files`, for the tools of a work folder; or MODULE:ATTR, for tools of your own.
    tools: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    #: For every task.
    success: tuple[Criterion, ...] = ()
    limit: int = 16
    per_provider: int = 4
    #: The system prompt: what stands below the front matter.
    instructions: str = ""

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            raise ValueError("two tasks have the same name")
        for name in names:
            if not _TASK_NAME_PATTERN.fullmatch(name):
                raise ValueError(f"{name!r} is no name for a task: use letters, digits, dots and dashes")


def read_recipe(path: Path | str) -> Recipe:
    """The recipe in a Markdown file.

    Raises:
        RecipeError: it cannot be read or understood.
    """
    try:
        return from_markdown(Path(path).read_text(), Recipe, "instructions")
    except (OSError, UnicodeDecodeError, MalformedDefinition) as exc:
        raise RecipeError(f"{path}: {exc}") from exc
    except ImportError as exc:
        raise RecipeError(f'{path}: recipes need PyYAML: pip install "holdfast[cli]"') from exc
