"""A comparison of the command line: its tasks, its files under `.holdfast/compare`, and its results."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.compare.criteria import Check, check_response
from holdfast.cli.compare.recipe import Recipe, Task
from holdfast.cli.compare.report import Preference, Report, append_preference, build_report
from holdfast.cli.listeners import ProgressListener
from holdfast.cli.loading import load_object
from holdfast.cli.opening import open_store
from holdfast.cli.output import CommandError, UsageError, format_error
from holdfast.fanout import Fanout, FanoutSettings, ModelResponse, Variant, Workspace
from holdfast.fanout.checkpoint_file import remove_file, write_atomically
from holdfast.ids import make_id
from holdfast.runtime.operations.verdicts import PICK, read_verdict

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
    #: The run of the fan-out.
    run_id: str = ""


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
    #: The run of each task, by its name.
    runs: dict[str, str] = {}

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

    def find_interrupted(self) -> list[str]:
        """Return the runs of the tasks of the newest comparison that have not finished."""
        stored = self.load()
        runs = stored.runs if stored is not None else {}
        return [run_id for task, run_id in runs.items() if TaskFiles(self._name, task).load_results() is None]


class TaskFiles:
    """The results of one task."""

    def __init__(self, name: str, task: str = "") -> None:
        _check_name(name)
        stem = f"{name}.{task}" if task else name
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


def _check_name(name: str) -> None:
    if not _NAME_PATTERN.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid name: use letters, digits, dots and dashes")


async def remove_runs(run_ids: Sequence[str], store_url: str) -> None:
    """Remove fan-outs and the runs of their models."""
    async with open_store(store_url, create=True) as store:
        for run_id in run_ids:
            await store.remove(run_id)


class Comparison:
    """The models, tasks and files of one comparison."""

    def __init__(
        self,
        recipe: Recipe,
        workspace: Path | None,
        name: str,
        store: str,
        runs: Mapping[str, str],
        *,
        retry_failed: bool,
        verbose: bool,
    ) -> None:
        """Make a comparison.

        Args:
            runs: the runs of the tasks that are resumed, by the name of the task. The others get new ones.
        """
        self._recipe, self._workspace, self._name, self._store = recipe, workspace, name, store
        self._retry_failed, self._verbose = retry_failed, verbose
        self.runs = {task.name: runs.get(task.name) or f"compare-{make_id()}" for task in recipe.tasks}
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
                settings=FanoutSettings(
                    fanout_id=self.runs[task.name],
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

    def save_results(self, task: Task, responses: Sequence[ModelResponse]) -> None:
        """Store the responses of a task whose models have all finished."""
        folder = str(self._workspace.resolve()) if self._workspace is not None else ""
        results = TaskResults(prompt=task.prompt, folder=folder, responses=list(responses), run_id=self.runs[task.name])
        self.task_files(task).save_results(results)

    def load_finished(self, task: Task, cells: Sequence[str]) -> TaskResults | None:
        """Return the results of a task that has finished."""
        results = self.task_files(task).load_results()
        if results is None or results.prompt != task.prompt:
            return None
        return results if [response.model_id for response in results.responses] == list(cells) else None

    async def evaluate(self, task: Task, responses: Sequence[ModelResponse], run_id: str) -> Report:
        """Check the responses against the criteria of the recipe and of the task, and read what a person has picked.

        Args:
            run_id: the run of the fan-out.
        """
        criteria = [*self._recipe.success, *task.success]
        checks: dict[str, list[Check]] = {}
        for response in responses:
            if criteria and response.ok:
                checks[response.model_id] = await check_response(response, criteria, self._workspace or Path())
        async with open_store(self._store, create=True) as store:
            pick = await read_verdict(store, run_id, PICK)
        return build_report(task.prompt, responses, checks, run_id=run_id, pick=pick)


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
