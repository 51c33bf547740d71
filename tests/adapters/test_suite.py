"""The native loop and every adapter pass the adapter suite, and the documentation shows its results."""

import os
from pathlib import Path

import pytest

from holdfast.testing.adapter_suite import FEATURES, AdapterSuite, import_driver, make_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "adapters.md"


class OwnSuite(AdapterSuite):
    @pytest.fixture
    def crash_sample(self) -> int | None:
        return None if "HOLDFAST_TEST_THOROUGH" in os.environ else 3


class TestNativeLoop(OwnSuite):
    driver = "tests.adapters.drivers.native:DRIVER"


class TestPydanticAI(OwnSuite):
    driver = "tests.adapters.drivers.pydantic_ai:DRIVER"


class TestOpenAIAgents(OwnSuite):
    driver = "tests.adapters.drivers.openai_agents:DRIVER"


class TestLangGraph(OwnSuite):
    driver = "tests.adapters.drivers.langgraph:DRIVER"


def test_every_feature_has_a_test() -> None:
    tests = [getattr(AdapterSuite, name) for name in dir(AdapterSuite) if name.startswith("test_")]
    assert {test.feature for test in tests} == set(FEATURES)


def test_the_documentation_shows_what_each_adapter_supports() -> None:
    drivers = [import_driver(suite.driver) for suite in OwnSuite.__subclasses__()]
    assert make_table(drivers) in PAGE.read_text()
