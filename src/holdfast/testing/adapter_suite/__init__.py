"""What every adapter promises, as tests. An adapter is finished when it passes.

Write a driver, which makes agents of the framework from scripts, and subclass the suite in a test module::

    class TestMyAdapter(AdapterSuite):
        driver = "my_package.my_driver:DRIVER"

The test of a feature that the driver calls unsupported has to fail. The suite needs pytest and pytest-asyncio.
"""

import pkgutil
from typing import ClassVar

import pytest

# A failed assert then shows its values, as in a test module. Must run before the modules are imported.
for _module in pkgutil.iter_modules(__path__):
    pytest.register_assert_rewrite(f"{__name__}.{_module.name}")

# ruff: noqa: E402
from holdfast.testing.adapter_suite.cases import CaseTests
from holdfast.testing.adapter_suite.kills import AdapterKillTests
from holdfast.testing.adapter_suite.script import (
    FEATURES,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    AdapterDriver,
    AgentScript,
    ScriptedCall,
    ScriptedTool,
    import_driver,
    make_table,
)

__all__ = [
    "FEATURES",
    "INPUT_TOKENS",
    "OUTPUT_TOKENS",
    "AdapterDriver",
    "AdapterSuite",
    "AgentScript",
    "ScriptedCall",
    "ScriptedTool",
    "import_driver",
    "make_table",
]


class AdapterSuite(AdapterKillTests, CaseTests):
    """The promises of every adapter."""

    #: The import path of the driver, as `module:attribute`.
    driver: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _expect_failure_if_unsupported(self, request: pytest.FixtureRequest) -> None:
        """Mark the test of a feature that the driver calls unsupported: it has to fail."""
        feature = request.function.feature
        reason = import_driver(self.driver).unsupported.get(feature)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=f"{feature}: {reason}", strict=True))
