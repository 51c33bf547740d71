"""The agent of the crash tests, for the processes that run it. The environment names its driver."""

import os

from holdfast.testing.adapter_suite.script import CallLog, import_driver, make_script

#: In the environment: the import path of the driver.
DRIVER_VARIABLE = "HOLDFAST_ADAPTER_DRIVER"

agent = import_driver(os.environ[DRIVER_VARIABLE]).make_agent(make_script(CallLog()))
