"""Check that a type checker knows the types of the whole public API: `python -m tests.public_api.complete_types`.

`pyright --verifytypes` reports every module whose name has no underscore. This program reads the report and keeps what
is about the names of the reference.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.public_api.names import ROOT, load_public_names

#: Its library publishes no types for pyright: the package `langgraph` has no `py.typed`.
WITHOUT_TYPES = "holdfast.adapters.langgraph."
CHECKER = Path(sys.executable).with_name("basedpyright")


def main() -> None:
    """Print what is incomplete, and exit with 1 if there is something."""
    public = {found.canonical_path for found in load_public_names().values()}
    public = {name for name in public if not name.startswith(WITHOUT_TYPES)}
    symbols = [symbol for symbol in _read_report() if _is_part_of(symbol["name"], public)]
    incomplete = [symbol for symbol in symbols if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]]
    for symbol in incomplete:
        print(symbol["name"], *(problem["message"] for problem in symbol["diagnostics"]), sep="\n    ")
    print(f"{len(symbols)} public symbols, {len(incomplete)} with incomplete types")
    sys.exit(1 if incomplete or not symbols else 0)


def _read_report() -> list[dict[str, Any]]:
    command = [str(CHECKER), "--verifytypes", "holdfast", "--ignoreexternal", "--outputjson"]
    # The checker asks the first `python` on the path where packages are.
    environment = {**os.environ, "PATH": f"{CHECKER.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    report = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    symbols: list[dict[str, Any]] = json.loads(report)["typeCompleteness"]["symbols"]
    return symbols


def _is_part_of(symbol: str, names: set[str]) -> bool:
    parts = symbol.split(".")
    return any(".".join(parts[:count]) in names for count in range(2, len(parts) + 1))


if __name__ == "__main__":
    main()
