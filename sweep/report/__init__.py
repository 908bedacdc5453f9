"""From a frontier to something a person reads: charts, Markdown tables, a planning document.

Pure functions over polars frames: nothing here prints, reads a configuration or evaluates a point.
"""

from __future__ import annotations

from sweep.report.charts import frontier_chart as frontier_chart
from sweep.report.charts import save as save
from sweep.report.charts import where_time_goes as where_time_goes
from sweep.report.document import write_report as write_report
from sweep.report.markdown import layout_label as layout_label
from sweep.report.markdown import model_label as model_label
from sweep.report.markdown import table as table
