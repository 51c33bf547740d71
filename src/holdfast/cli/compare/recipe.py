"""Recipe: a comparison in a Markdown file. Front matter: models, tools, tasks, criteria. Body: the system prompt."""

import re
from pathlib import Path

import msgspec

from holdfast.batteries.definitions.repository import from_markdown
from holdfast.batteries.definitions.versions import MalformedDefinition
from holdfast.cli.compare.criteria import Criterion
from holdfast.root_error import HoldfastError

_TASK_NAME_PATTERN = re.compile(r"[A-Za-z0-9._-]{0,60}")


class RecipeError(HoldfastError):
    """A recipe cannot be read or is not valid.

    What to do: Correct the recipe as the message says.
    """


class VariantSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variant in a recipe."""

    name: str
    instructions: str | None = None
    prompt: str = ""


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt for every model."""

    name: str
    prompt: str
    #: In addition to the criteria of the recipe.
    success: tuple[Criterion, ...] = ()


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models, tasks, and the criteria of success."""

    models: tuple[str, ...] = ()
    #: As MODULE:ATTR.
    agents: tuple[str, ...] = ()
    variants: tuple[VariantSpec, ...] = ()
    #: `files` for the tools of the workspace, or MODULE:ATTR.
    tools: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    #: Criteria of every task.
    success: tuple[Criterion, ...] = ()
    limit: int = 16
    per_provider: int = 4
    #: The system prompt: the body of the file.
    instructions: str = ""

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            raise ValueError("two tasks have the same name")
        for name in names:
            if not _TASK_NAME_PATTERN.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid task name: use letters, digits, dots and dashes")


def read_recipe(path: Path | str) -> Recipe:
    """Read a recipe from a Markdown file.

    Raises:
        RecipeError: the file cannot be read, or is not a valid recipe.
    """
    try:
        return from_markdown(Path(path).read_text(), Recipe, "instructions")
    except (OSError, UnicodeDecodeError, MalformedDefinition) as exc:
        raise RecipeError(f"{path}: {exc}") from exc
    except ImportError as exc:
        raise RecipeError(f'{path}: recipes need PyYAML: pip install "holdfast[cli]"') from exc
