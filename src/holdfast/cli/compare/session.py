"""A comparison of the command line: its tasks, its files under `.holdfast/compare`, and its results."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint.store import RunStore
from holdfast.cli.compare.criteria import Check, check_response
from holdfast.cli.compare.recipe import Recipe, Task
from holdfast.cli.compare.report import Preference, Report, append_preference, build_report
from holdfast.cli.listeners import ProgressListener
from holdfast.cli.loading import load_object
from holdfast.cli.opening import open_store
from holdfast.cli.output import CommandError, UsageError, format_error
from holdfast.fanout import Fanout, FanoutSettings, ModelResponse, Variant, Workspace, load
from holdfast.fanout.atomic_file import remove_file, write_atomically
from holdfast.fanout.fanout import discard
from holdfast.runtime.operations.verdicts import Pick, read_pick

#: Beside the default store.
COMPARE_DIR = Path(".holdfast") / "compare"
DEFAULT_NAME = "last"
PREFERENCES_FILE = "preferences.jsonl"

_NAME_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,60}")


class TaskResults(msgspec.Struct, frozen=True, kw_only=True):
    """The responses to one prompt, stored so that one of them can be applied."""

    prompt: str
    #: The workspace; empty if there was none.
    folder: str
    responses: list[ModelResponse]
    #: The run of the store that keeps the responses.
    run_id: str | None = None


class CompareArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a comparison, stored so that `--resume` needs none of them."""

    #: Empty if the prompts are in the recipe.
    prompt: str = ""
    models: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    recipe: str = ""
    task: str = ""
    folder: str = ""
    verbose: bool = False
    #: The URL of the store, without its password.
    store: str = ""
    #: The names of the tasks.
    tasks: tuple[str, ...] = ()

    @property
    def names_models_or_prompt(self) -> bool:
        return bool(self.prompt or self.models or self.agents or self.recipe)


class ArgumentsFile:
    """The arguments of the newest comparison of one name."""

    def __init__(self, name: str) -> None:
        _check_name(name)
        self._name = name
        self._path = COMPARE_DIR / f"{name}.arguments.json"

    def load(self) -> CompareArguments | None:
        """Return the arguments, or `None` if there was no comparison of this name."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=CompareArguments)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise CommandError(f"{self._path} cannot be read: {exc}") from exc

    def save(self, arguments: CompareArguments) -> None:
        write_atomically(self._path, msgspec.json.encode(arguments))

    def find_interrupted(self, tasks: Sequence[Task]) -> list[Path]:
        """Return the checkpoints of `tasks` and of the tasks of the newest comparison."""
        stored = self.load()
        names = dict.fromkeys([*(stored.tasks if stored is not None else ()), *(task.name for task in tasks)])
        files = [TaskFiles(self._name, task) for task in names]
        return [each.checkpoint_path for each in files if each.is_interrupted]


class TaskFiles:
    """The checkpoint and the results of one task."""

    def __init__(self, name: str, task: str = "") -> None:
        _check_name(name)
        stem = f"{name}.{task}" if task else name
        self.checkpoint_path = COMPARE_DIR / f"{stem}.checkpoint.json"
        self._results_path = COMPARE_DIR / f"{stem}.results.json"

    def load_results(self) -> TaskResults | None:
        """Return the results of the task, or `None` if it has not finished."""
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


def _check_name(name: str) -> None:
    if not _NAME_PATTERN.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid name: use letters, digits, dots and dashes")


async def discard_all(checkpoints: Sequence[Path], store: RunStore) -> None:
    """Remove the checkpoints and the runs of their models."""
    await store.open()
    try:
        for path in checkpoints:
            await discard(path, store)
    finally:
        await store.close()


class Comparison:
    """The models, tasks and files of one comparison."""

    def __init__(
        self, recipe: Recipe, workspace: Path | None, name: str, store: str, *, retry_failed: bool, verbose: bool
    ) -> None:
        self._recipe, self._workspace, self._name, self._store = recipe, workspace, name, store
        self._retry_failed, self._verbose = retry_failed, verbose
        self._models = _load_models(recipe)
        self._variants = [
            Variant(name=each.name, instructions=each.instructions, prompt=each.prompt) for each in recipe.variants
        ]
        self._tools = [tool for path in recipe.tools if path != "files" for tool in _to_sequence(load_object(path))]
        self.tasks = recipe.tasks

    def task_files(self, task: Task) -> TaskFiles:
        return TaskFiles(self._name, task.name)

    def build_fanout(self, task: Task, listener: ProgressListener | None = None) -> Fanout:
        """Build the fan-out of a task.

        Raises:
            CommandError: a model is unknown, or its key is missing.
        """
        try:
            return Fanout(
                task.prompt,
                self._models,
                variants=self._variants,
                instructions=self._recipe.instructions,
                tools=self._tools,
                workspace=self._workspace,
                store=self._store,
                checkpoint=self.task_files(task).checkpoint_path,
                on_complete=partial(self._save_results, task),
                settings=FanoutSettings(
                    max_concurrency=self._recipe.limit,
                    max_per_provider=self._recipe.per_provider,
                    retry_failed=self._retry_failed,
                    verbose=self._verbose,
                    handle_signals=False,
                    listener=listener,
                ),
            )
        except ModuleNotFoundError as exc:
            raise CommandError(f'models by name need {exc.name}: pip install "holdfast[pydantic-ai]"') from exc
        except Exception as exc:  # such as an unknown provider or a missing key
            raise CommandError(format_error(exc)) from exc

    def _save_results(self, task: Task, responses: Sequence[ModelResponse]) -> None:
        folder = str(self._workspace.resolve()) if self._workspace is not None else ""
        self.task_files(task).save_results(TaskResults(prompt=task.prompt, folder=folder, responses=list(responses)))

    def save_run_id(self, task: Task, run_id: str) -> None:
        """Add the run that keeps the responses to the results of a task, so that `--resume` finds what was picked."""
        files = self.task_files(task)
        if (results := files.load_results()) is not None:
            files.save_results(msgspec.structs.replace(results, run_id=run_id))

    def load_finished(self, task: Task, cells: Sequence[str]) -> TaskResults | None:
        """Return the results of a task that has finished."""
        files = self.task_files(task)
        results = None if files.is_interrupted else files.load_results()
        if results is None or results.prompt != task.prompt:
            return None
        return results if [response.model_id for response in results.responses] == list(cells) else None

    async def evaluate(self, task: Task, responses: Sequence[ModelResponse], run_id: str | None) -> Report:
        """Check the responses against the criteria of the recipe and of the task, and read what a person has picked.

        Args:
            run_id: the run of the store that keeps the responses.
        """
        criteria = [*self._recipe.success, *task.success]
        checks: dict[str, list[Check]] = {}
        for response in responses:
            if criteria and response.ok:
                checks[response.model_id] = await check_response(response, criteria, self._workspace or Path())
        pick = await self._read_pick(run_id) if run_id is not None else None
        return build_report(task.prompt, responses, checks, run_id=run_id, pick=pick)

    async def _read_pick(self, run_id: str) -> Pick | None:
        async with open_store(self._store, create=True) as store:
            return await read_pick(store, run_id)


def apply_response(files: TaskFiles, cell: str) -> list[str]:
    """Apply the proposed writes of one response and record it as preferred. Return the changed paths.

    Raises:
        CommandError: there are no results.
        UsageError: the results have no such model.
    """
    results = files.load_results()
    if results is None:
        raise CommandError(
            "no comparison of this name has finished: --resume it, or name the task of its recipe with --task"
        )
    by_id = {response.model_id: response for response in results.responses}
    if cell not in by_id:
        raise UsageError(f"no response of {cell!r}: the models are {', '.join(by_id)}")
    writes = by_id[cell].proposed_writes
    changed = Workspace(results.folder).apply(writes) if writes else []
    losers = tuple(each.model_id for each in results.responses if each.model_id != cell)
    append_preference(COMPARE_DIR / PREFERENCES_FILE, Preference(prompt=results.prompt, winner=cell, losers=losers))
    return changed


def _load_models(recipe: Recipe) -> Mapping[str, Any]:
    by_name = {name: name for name in recipe.models}
    return {**by_name, **{path: load_object(path) for path in recipe.agents}}


def _to_sequence(loaded: Any) -> Sequence[Any]:
    return loaded if isinstance(loaded, list | tuple) else [loaded]
