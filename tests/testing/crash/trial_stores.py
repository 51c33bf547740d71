"""Empty stores for trials."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.store_kinds import STORES

#: From the folder of a trial to the URL of an empty store.
TrialStore = Callable[[Path], AbstractContextManager[str]]

TRIAL_STORES: dict[str, TrialStore] = {kind: STORES[kind].open_empty for kind in ("sqlite", "postgres")}
