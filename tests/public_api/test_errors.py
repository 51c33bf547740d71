"""`holdfast.errors` has every error that works without an extra, and draws their tree."""

import re

from tests.test_imports import OPTIONAL, in_a_new_process

from holdfast import errors
from holdfast.cli.doctor import load_explanations
from holdfast.root_error import HoldfastError

#: Errors of extras, of commands and of tests; and those by which a run only waits, which `RunWaiting` stands for.
ELSEWHERE = {
    *("BodyTooLarge", "InvalidBody", "InvalidParameter", "PageNotFound", "ServerUnavailable", "UnsupportedMediaType"),
    "IdLocked",
    *("CommandError", "CrashTestFailed", "RecipeError", "UsageError"),
    *("ConversationIdle", "OutageWait", "RateLimitWait", "Suspend"),
}
[TREE] = re.findall(r"^HoldfastError\n.*?(?=\n\n)", errors.__doc__ or "", re.DOTALL | re.MULTILINE)


def test_every_error_is_exported() -> None:
    assert set(errors.__all__) == load_explanations().keys() - ELSEWHERE


def test_the_tree_has_every_error() -> None:
    assert {name for name in re.findall(r"\b[A-Z]\w+", TREE) if name != "HTTP"} == set(errors.__all__)


def test_what_stands_below_an_error_in_the_tree_is_one_of_its_kind() -> None:
    parents: list[type[Exception]] = []
    for line in TREE.splitlines():
        depth = len(re.match(r"[ │├└─]*", line)[0]) // 4  # type: ignore[index]
        names = [name for name in re.findall(r"\w+", line.split("is a ")[0]) if name in errors.__all__]
        kinds = [getattr(errors, name) for name in names]
        if re.search(r"[├└]", line) or depth == 0:
            parents[depth:] = kinds[:1] if "   " in line.strip("│├└─ ") else []
            parents = parents or [HoldfastError]
        above = parents[: depth + 1]
        for kind in kinds:
            assert issubclass(kind, tuple(above[-1:])), (kind, above)


def test_the_errors_need_no_extra() -> None:
    loaded = in_a_new_process(
        f"""
        import json, sys

        class NotInstalled:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {OPTIONAL - {"apsw"}!r}:
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, NotInstalled())
        from holdfast import errors, events, results
        print(json.dumps([len(module.__all__) > 5 for module in (errors, events, results)]))
        """
    )
    assert loaded == [True, True, True]
