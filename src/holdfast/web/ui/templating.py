"""Jinja templates with automatic escaping, and the filters of the pages."""

from typing import Any

import jinja2

from holdfast.web.ui.views import formatting
from holdfast.web.ui.views.rich_text import show_text

#: A change of the files of the page gets a new URL.
ASSET_VERSION = "1"


def make_environment() -> jinja2.Environment:
    """Return the environment of all templates."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.web.ui"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
    )
    filters: dict[str, Any] = {
        "age": formatting.show_age,
        "time": formatting.show_time,
        "duration": formatting.format_duration,
        "number": formatting.format_number,
        "cost": formatting.format_cost,
        "amount": formatting.format_amount,
        "size": formatting.format_size,
        "value": formatting.format_value,
        "arguments": formatting.format_arguments,
        "cut": formatting.cut_text,
        "rich": show_text,
    }
    environment.filters.update(filters)
    environment.globals["whole_call"] = formatting.format_whole_call
    environment.globals["count"] = formatting.format_count
    environment.globals["asset_version"] = ASSET_VERSION
    return environment
