"""From a frontier to something a person reads: charts, Markdown tables, a planning document.

Pure functions over polars frames: nothing here prints, reads a configuration or evaluates a point.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sweep.report.markdown import layout_label as layout_label
from sweep.report.markdown import model_label as model_label
from sweep.report.markdown import table as table

if TYPE_CHECKING:
    from sweep.report.charts import frontier_chart as frontier_chart
    from sweep.report.charts import save as save
    from sweep.report.charts import where_time_goes as where_time_goes
    from sweep.report.document import write_report as write_report

_DRAWN = {"frontier_chart": "charts", "save": "charts", "where_time_goes": "charts", "write_report": "document"}


def __getattr__(name: str) -> Any:
    """What draws charts is imported when it is asked for: it takes longer than a small sweep."""
    if name not in _DRAWN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_DRAWN[name]}"), name)
