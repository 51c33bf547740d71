"""A comparison as the command keeps it: which tasks, what is left of an earlier one, and what came of it."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.code import find
from holdfast.cli.errors import CommandError, WrongUsage, one_line
from holdfast.cli.progress import Watcher
from holdfast.fanout import Fanout, ModelResponse, Variant, WorkFolder, load
from holdfast.fanout.atomic import remove, write_atomically
from holdfast.fanout.criteria import Check, judge
from holdfast.fanout.preferences import Preference, keep
from holdfast.fanout.recipe import Recipe, Task
from holdfast.fanout.report import Report, report

#: Beside the default store.
FOLDER = Path(".holdfast") / "compare"
PREFERENCES = "preferences.jsonl"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,60}")


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The responses to one prompt, kept so that one of them can be applied."""

    prompt: str
    #: The work folder; empty if there was none.
    folder: str
    responses: list[ModelResponse]


class Kept:
    """The files of one task of one comparison."""

    def __init__(self, name: str, task: str = "") -> None:
        if not _NAME.fullmatch(name):
            raise WrongUsage(f"{name!r} is no name for a comparison: use letters, digits, dots and dashes")
        stem = f"{name}.{task}" if task else name
        self.checkpoint = FOLDER / f"{stem}.checkpoint.json"
        self._results = FOLDER / f"{stem}.results.json"

    def results(self) -> Results | None:
        """What the task came to, if it came to its end."""
        try:
            return msgspec.json.decode(self._results.read_bytes(), type=Results)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise CommandError(f"{self._results} cannot be read: {exc}") from exc

    def keep(self, results: Results) -> None:
        write_atomically(self._results, msgspec.json.encode(results))

    def forget_results(self) -> None:
        remove(self._results)

    @property
    def is_interrupted(self) -> bool:
        return load(self.checkpoint) is not None


class Comparison:
    """Who is compared, by what, and how it is kept."""

    def __init__(self, recipe: Recipe, folder: Path | None, name: str, store: str, *, retry_failed: bool) -> None:
        self._recipe, self._folder, self._name, self._store = recipe, folder, name, store
        self._retry_failed = retry_failed
        self._models = _models(recipe)
        self._variants = [
            Variant(name=each.name, instructions=each.instructions, prompt=each.prompt) for each in recipe.variants
        ]
        self._tools = [tool for path in recipe.tools if path != "files" for tool in _tools(find(path))]
        self.tasks = recipe.tasks

    def kept(self, task: Task) -> Kept:
        return Kept(self._name, task.name)

    def fanout(self, task: Task, watcher: Watcher | None = None) -> Fanout:
        """The task as a fan-out.

        Raises:
            CommandError: a model is not known, or its key is missing.
        """
        kept = self.kept(task)

        def finish(responses: Sequence[ModelResponse]) -> None:
            kept.keep(Results(prompt=task.prompt, folder=self._folder_name, responses=list(responses)))

        try:
            return Fanout(
                task.prompt, self._models,
                variants=self._variants,
                instructions=self._recipe.instructions, tools=self._tools, folder=self._folder,
                limit=self._recipe.limit, per_provider=self._recipe.per_provider, store=self._store,
                checkpoint=kept.checkpoint, retry_failed=self._retry_failed, finish=finish, signals=False,
                delivery=watcher,
            )  # fmt: skip
        except ModuleNotFoundError as exc:
            raise CommandError(f'models by name need {exc.name}: pip install "holdfast[pydantic-ai]"') from exc
        except Exception as exc:  # an unknown provider, a missing key: pydantic-ai says which
            raise CommandError(one_line(exc)) from exc

    @property
    def _folder_name(self) -> str:
        return str(self._folder.resolve()) if self._folder is not None else ""

    def finished(self, task: Task, cells: Sequence[str]) -> list[ModelResponse] | None:
        """What the task has come to already, in the comparison that is resumed."""
        results = None if self.kept(task).is_interrupted else self.kept(task).results()
        if results is None or results.prompt != task.prompt:
            return None
        return results.responses if [each.model_id for each in results.responses] == list(cells) else None

    async def judged(self, task: Task, responses: Sequence[ModelResponse]) -> Report:
        criteria = [*self._recipe.success, *task.success]
        checks: dict[str, list[Check]] = {}
        for response in responses:
            if criteria and response.ok:
                checks[response.model_id] = await judge(response, criteria, self._folder or Path())
        return report(task.prompt, responses, checks)


async def watched(
    fanout: Fanout, watcher: Watcher, *, resume: bool, stopped_at_once: Callable[[], None]
) -> tuple[list[ModelResponse], bool]:
    """Run a fan-out; its responses, and whether it was stopped.

    A signal stops it after the turns under way, a second one ends the process.
    """
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        if not stops:
            stops.append(loop.create_task(fanout.stop()))
            watcher.say("stopping after the turns under way; once more stops at once", "yellow")
            return
        watcher.stop()
        stopped_at_once()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        return await fanout.run(resume=resume), bool(stops)
    finally:
        await asyncio.gather(*stops)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def apply(kept: Kept, cell: str) -> list[str]:
    """Make the writes that one response proposes, and remember that it was preferred. What was changed.

    Raises:
        CommandError: there are no results, or none of that model.
    """
    results = kept.results()
    if results is None:
        raise CommandError(
            "no comparison of this name has come to its end: --resume it, or name the task of its recipe with --task"
        )
    by_id = {response.model_id: response for response in results.responses}
    if cell not in by_id:
        raise WrongUsage(f"no response of {cell!r}: there are {', '.join(by_id)}")
    writes = by_id[cell].proposed_writes
    changed = WorkFolder(results.folder).apply(writes) if writes else []
    losers = tuple(each.model_id for each in results.responses if each.model_id != cell)
    keep(FOLDER / PREFERENCES, Preference(prompt=results.prompt, winner=cell, losers=losers))
    return changed


def _models(recipe: Recipe) -> Mapping[str, Any]:
    models = {name: name for name in recipe.models}
    return {**models, **{path: find(path) for path in recipe.agents}}


def _tools(found: Any) -> Sequence[Any]:
    return found if isinstance(found, list | tuple) else [found]
