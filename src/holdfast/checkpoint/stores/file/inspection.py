"""How the folder stands: its version, its size, and which journals no listing has, because they cannot be read."""

import contextlib
from pathlib import Path

from holdfast.checkpoint.inspection import Inspection
from holdfast.checkpoint.stores.file.access import Access
from holdfast.checkpoint.stores.file.disk import of_one_file, store_error
from holdfast.checkpoint.stores.file.layout import VERSION, Layout
from holdfast.checkpoint.stores.file.reading import Damaged


def inspect(layout: Layout, access: Access) -> Inspection:
    """Look at every file once. A folder that may only be read keeps the older version it has."""
    size = 0
    for path in layout.folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # runs come to their end while we look
            size += path.stat().st_size if path.is_file() else 0
    return Inspection(
        version=layout.version() or VERSION, known_version=VERSION, size=size, problems=_problems(layout, access)
    )


def _problems(layout: Layout, access: Access) -> list[str]:
    problems = []
    for name in layout.run_names():
        try:
            access.head(name)
        except FileNotFoundError:
            continue
        except Damaged as damage:
            problems.append(f"{layout.journal(name)} is damaged: {damage}")
        except OSError as error:
            if not of_one_file(error):
                raise
            problems.append(str(store_error(error, Path(layout.journal(name)))))
    return problems
