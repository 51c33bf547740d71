"""The tests of the contract of stores, by topic. `holdfast.testing.store_suite` joins them."""

import pkgutil
import sys

import pytest

from holdfast.testing import store_processes

# A failed assert then shows its values, as in a test module. It has to be said before the modules are imported.
for _path, _package in ((__path__, __name__), (store_processes.__path__, store_processes.__name__)):
    for _module in pkgutil.iter_modules(_path, f"{_package}."):
        if _module.name not in sys.modules:
            pytest.register_assert_rewrite(_module.name)
