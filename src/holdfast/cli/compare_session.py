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

from holdfast.cli.errors import CommandError, UsageError, format_error
from holdfast.cli.loading import load_object
from holdfast.cli.progress import ProgressListener
from holdfast.compare.criteria import Check, check_response
from holdfast.compare.preferences import Preference, append_preference
from holdfast.compare.recipe import Recipe, Task
from holdfast.compare.report import Report, build_report
from holdfast.fanout import Fanout, FanoutSettings, ModelResponse, Variant, Workspace, load
from holdfast.fanout.atomic_file import remove_file, write_atomically

#: Beside the default store.
COMPARE_DIR = Path(".holdfast") / "compare"
PREFERENCES_FILE = "preferences.jsonl"

_NAME_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,60}")


class TaskResults(msgspec.Struct, frozen=True, kw_only=True):
    """The responses to one prompt, kept so that one of them can be applied."""

    prompt: str
    #: The work folder; empty if there was none.
    folder: str
    responses: list[ModelResponse]


class TaskFiles:
    """The files of one task of one comparison."""

    def __init__(self, name: str, task: str = "") -> None:
        if not _NAME_PATTERN.fullmatch(name):
            raise UsageError(f"{name!r} is no name for a comparison: use letters, digits, dots and dashes")
        stem = f"{name}.{task}" if task else name
        self.checkpoint_path = COMPARE_DIR / f"{stem}.checkpoint.json"
        self._results_path = COMPARE_DIR / f"{stem}.results.json"

    def load_results(self) -> TaskResults | None:
        """What the task came to, if it came to its end."""
        try:
            return msgspec.json.decode(self._results_path.read_bytes(), type=TaskResults)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise CommandError(f"{self._results_path} cannot be read: {exc}") from exc

    def save_results(self, results: TaskResults) -> None:
        write_atomically(self._results_path, msgspec.json.encode(results))

    def remove_results(self) -> None:
        remove_file(self._results_path)

    @property
    def is_interrupted(self) -> bool:
        return load(self.checkpoint_path) is not None


class Comparison:
    """Who is compared, by what, and how it is kept."""

    def __init__(self, recipe: Recipe, workspace: Path | None, name: str, store: str, *, retry_failed: bool) -> None:
        self._recipe, self._workspace, self._name, self._store = recipe, workspace, name, store
        self._retry_failed = retry_failed
        self._models = _load_models(recipe)
        self._variants = [
            Variant(name=each.name, instructions=each.instructions, prompt=each.prompt) for each in recipe.variants
        ]
        self._tools = [tool for path in recipe.tools if path != "files" for tool in _to_sequence(load_object(path))]
        self.tasks = recipe.tasks

    def task_files(self, task: Task) -> TaskFiles:
        return TaskFiles(self._name, task.name)

    def build_fanout(self, task: Task, listener: ProgressListener | None = None) -> Fanout:
        """The task as a fan-out.

        Raises:
            CommandError: a model is not known, or its key is missing.
        """
        kept = self.task_files(task)

        def finish(responses: Sequence[ModelResponse]) -> None:
            kept.save_results(TaskResults(prompt=task.prompt, folder=self._workspace_path, responses=list(responses)))

        try:
            return Fanout(
                task.prompt,
                self._models,
                variants=self._variants,
                instructions=self._recipe.instructions,
                tools=self._tools,
                workspace=self._workspace,
                store=self._store,
                checkpoint=kept.checkpoint_path,
                on_complete=finish,
                settings=FanoutSettings(
                    max_concurrency=self._recipe.limit,
                    max_per_provider=self._recipe.per_provider,
                    retry_failed=self._retry_failed,
                    handle_signals=False,
                    listener=listener,
                ),
            )
        except ModuleNotFoundError as exc:
            raise CommandError(f'models by name need {exc.name}: pip install "holdfast[pydantic-ai]"') from exc
        except Exception as exc:  # an unknown provider, a missing key: pydantic-ai says which
            raise CommandError(format_error(exc)) from exc

    @property
    def _workspace_path(self) -> str:
        return str(self._workspace.resolve()) if self._workspace is not None else ""

    def load_finished(self, task: Task, cells: Sequence[str]) -> list[ModelResponse] | None:
        """What the task has come to already, in the comparison that is resumed."""
        results = None if self.task_files(task).is_interrupted else self.task_files(task).load_results()
        if results is None or results.prompt != task.prompt:
            return None
        return results.responses if [each.model_id for each in results.responses] == list(cells) else None

    async def evaluate(self, task: Task, responses: Sequence[ModelResponse]) -> Report:
        criteria = [*self._recipe.success, *task.success]
        checks: dict[str, list[Check]] = {}
        for response in responses:
            if criteria and response.ok:
                checks[response.model_id] = await check_response(response, criteria, self._workspace or Path())
        return build_report(task.prompt, responses, checks)


async def run_fanout(
    fanout: Fanout, listener: ProgressListener, *, resume: bool, on_force_quit: Callable[[], None]
) -> tuple[list[ModelResponse], bool]:
    """Run a fan-out; its responses, and whether it was stopped.

    A signal stops it after the turns under way, a second one ends the process.
    """
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        if not stops:
            stops.append(loop.create_task(fanout.stop()))
            listener.print_status("stopping after the turns under way; once more stops at once", "yellow")
            return
        listener.stop()
        on_force_quit()
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


def apply_response(files: TaskFiles, cell: str) -> list[str]:
    """Make the writes that one response proposes, and remember that it was preferred. What was changed.

    Raises:
        CommandError: there are no results, or none of that model.
    """
    results = files.load_results()
    if results is None:
        raise CommandError(
            "no comparison of this name has come to its end: --resume it, or name the task of its recipe with --task"
        )
    by_id = {response.model_id: response for response in results.responses}
    if cell not in by_id:
        raise UsageError(f"no response of {cell!r}: there are {', '.join(by_id)}")
    writes = by_id[cell].proposed_writes
    changed = Workspace(results.folder).apply(writes) if writes else []
    losers = tuple(each.model_id for each in results.responses if each.model_id != cell)
    append_preference(COMPARE_DIR / PREFERENCES_FILE, Preference(prompt=results.prompt, winner=cell, losers=losers))
    return changed


def _load_models(recipe: Recipe) -> Mapping[str, Any]:
    models = {name: name for name in recipe.models}
    return {**models, **{path: load_object(path) for path in recipe.agents}}


def _to_sequence(found: Any) -> Sequence[Any]:
    return found if isinstance(found, list | tuple) else [found]
