"""telemetry: traces and metrics of runs through OpenTelemetry. An extra: `pip install "holdfast[otel]"`.

`App(agents, telemetry=OpenTelemetry())` uses the tracer and meter providers that the host has configured.
"""

from holdfast.extras import require_extra

with require_extra("otel"):
    from holdfast.batteries.telemetry.telemetry import OpenTelemetry

__all__ = ["OpenTelemetry"]
