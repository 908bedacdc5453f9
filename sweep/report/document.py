"""The report of a sweep: one Markdown page with its tables, charts and data beside it.

Every section stands between `<!-- codesign:begin NAME -->` and `<!-- codesign:end NAME -->`, image links are relative
and nothing depends on the clock, so that a planning document can take sections over and a second run changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sweep.accuracy import TIE_DENSE_NATS, TIE_MOE_NATS
from sweep.columns import BANDS, FACTORS
from sweep.report import tags
from sweep.report.charts import BOUND_COLOURS, PART_COLOURS, UNCONFIRMED, frontier_chart, save, where_time_goes
from sweep.report.markdown import (
    BOUND_LABELS,
    cell,
    grid,
    header,
    integer,
    layout_label,
    model_label,
    number,
    percent,
    table,
    tokens,
    told_apart,
)
from sweep.report.page import html_page
from sweep.report.selection import (
    accuracy_floors,
    at_least,
    best_at,
    few,
    interactivity_floors,
    objective_name,
    thin,
)

CSV_ROWS = 20_000  # rows of frontier.csv; a larger frontier is thinned there, frontier.parquet has all of it
TABLE_ROWS = 12  # rows of the table of one group
GROUPS = 18  # tables on one page
_CONTEXT_KEYS = ("workload.context", "workload.isl", "workload.osl")
_AXIS_GROUPS = ("hardware", "precision", "layout", "workload", "serving", "efficiency")
_ASKED_KEYS = ("grid", "zip", "where", "layout", "layouts", "objectives", "by", "defaults")
_FIGURES_VERIFIED = ("confirmed", "published", "official", "measured", "verified", "datasheet", "vendor")
_POINT_COLUMNS = (
    "model", "hardware", "precision", "serving", "prefill.hardware", "prefill.layout", "layout", "n_prefill",
    "n_decode", "workload.batch", "workload.context", "workload.isl", "workload.osl",
    "accuracy", "tok_s_gpu", "tok_s_user", "ttft_s", "bound", "robust",
    "loss_source",
)  # fmt: skip
RANGE_ROWS = 24  # of the table of ranges left


def write_report(
    directory: str | Path,
    frontier: pl.DataFrame,
    manifest: Mapping[str, Any],
    *,
    config_yaml: str,
    by: Sequence[str],
    objectives: Sequence[str],
    accuracy_label: str,
    version: str,
) -> Path:
    """Write `report.md`, `frontier.csv`, `frontier.html`, `frontier.svg/png`, `time.svg/png` into `directory`.

    Args:
        frontier: the frontier points of all groups, one row each; columns that are absent are left out of the tables.
        manifest: counts and provenance of the sweep; every key may be absent.
        config_yaml: the resolved configuration, quoted in the report.
        by: columns that have a frontier per value (none: one frontier overall).
        objectives: what was optimised.
        accuracy_label: what the accuracy axis stands for.
        version: version of the code.
    Returns:
        The path of `report.md`. Each file appears under its name only once it is complete. A report without points
        has no charts; those of an earlier report in the same directory are removed.
    """
    page = _Page(Path(directory), frontier, manifest, config_yaml, list(by), list(objectives), accuracy_label, version)
    return page.write()


class _Page:
    def __init__(
        self, directory: Path, frontier: pl.DataFrame, manifest: Mapping[str, Any], config_yaml: str, by: list[str],
        objectives: list[str], accuracy_label: str, version: str,
    ) -> None:  # fmt: skip
        self.directory, self.manifest, self.config_yaml = directory, manifest, config_yaml
        self.objectives, self.accuracy_label, self.version = objectives, accuracy_label, version
        self.by = [name for name in by if name in frontier.columns]
        self.line = "hardware" if "hardware" in frontier.columns else (self.by[0] if self.by else "hardware")
        if self.line not in frontier.columns:
            frontier = frontier.with_columns(pl.lit("all").alias(self.line))
        if "hardware_status" not in frontier.columns and self.line == "hardware":
            frontier = self._with_status(frontier)
        self.everywhere, self.somewhere, frontier = ranges_apart(frontier)
        self.names = tags.statuses([manifest])
        self.plain = frontier  # as it is stored: names without tags
        if self.line == "hardware":
            frontier = tags.tagged(frontier, self.names)
        self.frontier = frontier
        self.extra = told_apart(frontier)
        known = (*_POINT_COLUMNS, *(f"layout.{key}" for key in ("gpus", "tpa", "kvp", "dpa", "tpf", "ep", "pp")))
        self.other_axes = [  # whatever else was swept, so that no two rows of a table look alike
            c
            for c in frontier.columns
            if c.split(".")[0] in _AXIS_GROUPS and "." in c and c not in known and frontier[c].n_unique() > 1
        ]
        self.every_slice: list[str] = []
        self.contexts, self.all_contexts = self._slices()
        self.headline_slice = self.contexts[len(self.contexts) // 2] if self.contexts else None
        self.floors = accuracy_floors(frontier, by=self.line, count=4)
        self.accuracy_floor = self.floors[len(self.floors) // 2] if len(self.floors) > 1 else None
        self.complete_csv = frontier.height <= CSV_ROWS

    def write(self) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        charts = self._charts()
        self._csv()
        self._html()
        sections: list[tuple[str, str]] = [
            ("summary", self._summary()),
            ("counts", self._counts()),
        ]
        if not self.frontier.is_empty():
            sections += [
                ("frontier-chart", self._frontier_chart(charts)),
                ("best", self._best()),
                ("time", self._time_chart(charts)),
                ("binds", self._binds()),
                ("frontier", self._tables()),
            ]
        sections += [("notes", self._notes()), ("asked", self._asked()), ("provenance", self._provenance())]
        body = "\n\n".join(
            f"<!-- codesign:begin {name} -->\n{text.strip()}\n<!-- codesign:end {name} -->"
            for name, text in sections
            if text
        )
        return _write(self.directory / "report.md", f"# Frontier report\n\n{body}\n")

    # ---- what the page is about -------------------------------------------------------------------------------------

    def _with_status(self, frontier: pl.DataFrame) -> pl.DataFrame:
        status = {}
        for name, figures in dict(self.manifest.get("provenance") or {}).items():
            flag = str(figures.get("status") or "").lower() if isinstance(figures, Mapping) else ""
            status[str(name)] = flag
        if not any(flag in UNCONFIRMED for flag in status.values()):
            return frontier
        hardware = pl.col("hardware").cast(pl.String)
        return frontier.with_columns(hardware.replace_strict(status, default="").alias("hardware_status"))

    def _slices(self) -> tuple[list[str], int]:
        """The few contexts that the page shows when frontiers are kept per context, and how many there are."""
        keys = [key for key in _CONTEXT_KEYS if key in self.by and self.frontier[key].n_unique() > 1]
        if not keys or self.frontier.is_empty():
            return [], 0
        groups = self.frontier.select(keys).unique().sort(keys)
        names = [_context_name(row) for row in groups.iter_rows(named=True)]
        label = pl.DataFrame({**{k: groups[k] for k in keys}, "_slice": names})
        self.frontier = self.frontier.join(label, on=keys, how="left", maintain_order="left")
        self.every_slice = names
        return few(names), len(names)

    def _shown(self, name: str | None) -> pl.DataFrame:
        return self.frontier if name is None else self.frontier.filter(pl.col("_slice") == name)

    def _elsewhere(self) -> str:
        return "`frontier.csv` and `frontier.parquet`" if self.complete_csv else "`frontier.parquet`"

    # ---- files ------------------------------------------------------------------------------------------------------

    def _csv(self) -> None:
        frame = self.plain.drop("_slice", "_apart", strict=False)
        if not self.complete_csv:
            groups = frame.partition_by(self.by, maintain_order=True) if self.by else [frame]
            share = max(CSV_ROWS // max(len(groups), 1), 1)
            frame = pl.concat([_even(group, share) for group in groups])
        nested = [c for c, t in frame.schema.items() if t.is_nested()]
        # of the bands those of the report's tables; the others follow from the factors
        ends = [e for b in BANDS.values() if b.of not in _POINT_COLUMNS for e in (b.low, b.high)]
        _write(self.directory / "frontier.csv", frame.drop(nested).drop(ends, strict=False).write_csv())

    def _html(self) -> None:
        """The interactive page; none without points."""
        path = self.directory / "frontier.html"
        if self.frontier.is_empty() or not {"tok_s_user", "tok_s_gpu"} <= set(self.frontier.columns):
            path.unlink(missing_ok=True)
            return
        choices = self.manifest.get("choices")
        groups = ("model", "hardware", "precision", "layout", "workload", "efficiency")
        fixed = {k: str(v) for k, v in (choices if isinstance(choices, Mapping) else {}).items() if k in groups}
        over = f", per {_and(self.by)}" if self.by else ""
        frame = self.frontier
        if self.line == "hardware":  # names without tags: the page says which are announced, and commands need them
            frame = frame.with_columns(self.plain["hardware"].cast(pl.String))
        text = html_page(
            frame,
            title=str(self.manifest.get("title") or "Frontier"),
            subtitle=f"{integer(self.manifest.get('points'))} design points; non-dominated in "
            f"{_and(self.objectives)}{over}. Between two points of a line there is no configuration. "
            f"Accuracy: {self.accuracy_label}, a proxy.",
            provenance=self._identity(),
            objectives=[objective_name(o) for o in self.objectives],
            by=self.by,
            line=self.line,
            slice_column="_slice" if "_slice" in self.frontier.columns else None,
            slices=self.every_slice,
            fixed=fixed,
        )  # fmt: skip
        _write(path, text)

    def _charts(self) -> dict[str, str]:
        """Draw what can be drawn; returns chart names with their descriptions."""
        names = ("frontier", "time")
        if self.frontier.is_empty():
            for name in names:
                for suffix in ("svg", "png"):
                    (self.directory / f"{name}.{suffix}").unlink(missing_ok=True)
            return {}
        drawn = {}
        frame = self.frontier
        row = None
        if self.contexts:
            order = pl.Enum(self.contexts)
            frame = frame.filter(pl.col("_slice").is_in(self.contexts)).sort(
                pl.col("_slice").cast(order), maintain_order=True
            )
            row = "_slice" if len(self.contexts) > 1 else None
        floors = self.floors if row is None else [None, *self.floors[1:][-2:]]
        points = integer(self.manifest.get("points"))
        subtitle = [
            f"non-dominated in {_and(self.objectives)}" + (f", per {_and(self.by)}" if self.by else ", over all")
        ]
        if "accuracy" in frame.columns:
            subtitle.append(f"accuracy: {self.accuracy_label}")
            if self.somewhere:
                subtitle.append(f"hollow points: outside the accuracy proxy's ranges of {', '.join(self.somewhere)}")
            if self.everywhere:
                subtitle.append(f"all points: outside its ranges of {', '.join(self.everywhere)}")
        chart = frontier_chart(
            frame, line=self.line, colour="bound" if "bound" in frame.columns else self.line, floors=floors, row=row,
            title=f"Output throughput against interactivity, {points} points", subtitle=subtitle,
            x_title="interactivity [tok/s/user]", y_title="output throughput [tok/s/GPU]", apart="_apart",
        )  # fmt: skip
        save(chart, self.directory / "frontier")
        drawn["frontier"] = f"Output tok/s/GPU against tok/s/user, one step line per {self.line}"
        if all(f"{part}_s" in frame.columns for part in BOUND_COLOURS):
            where = f" ({self.headline_slice})" if self.headline_slice else ""
            chart = where_time_goes(
                self._shown(self.headline_slice), line=self.line, accuracy_floor=self.accuracy_floor,
                title=f"Where the time of an output token goes{where}",
                subtitle=[
                    f"the point with the most output per GPU of each {self.line}, at matched speed and accuracy",
                    f"accuracy: {self.accuracy_label}" if "accuracy" in frame.columns else "",
                ],
            )  # fmt: skip
            save(chart, self.directory / "time")
            drawn["time"] = f"Six parts of the time per output token, best point of each {self.line} at matched speed"
        return drawn

    # ---- sections ---------------------------------------------------------------------------------------------------

    def _summary(self) -> str:
        m = self.manifest
        text = ["## Summary", ""]
        if self.frontier.is_empty():
            text.append("**The frontier is empty: no design point of this sweep is feasible.**")
            reasons = _reasons(m)
            if reasons:
                most, count = reasons[0]
                text.append(f"The most frequent reason is `{most}` ({integer(count)} points); all are counted below.")
            return "\n".join(text)
        groups = self.frontier.select(self.by).n_unique() if self.by else 1
        over = f"{groups} frontiers (per {_and(self.by)})" if groups > 1 else "one frontier"
        text.append(
            f"{integer(m.get('points'))} design points were evaluated, {integer(m.get('feasible'))} are feasible, and "
            f"{integer(self.frontier.height)} lie on {over} of {_and(self.objectives)}." + self._meaning()
        )
        if m.get("loss_source") == "mixed":
            text += ["", "**Measured and predicted losses stand side by side: see the notes.**"]
        text += ["", *(f"* {line}" for line in self._headlines())]
        return "\n".join(text)

    def _headlines(self) -> Iterable[str]:
        frame = self._shown(self.headline_slice)
        for floor in interactivity_floors(at_least(frame, self.accuracy_floor), by=self.line, count=3):
            best = best_at(frame, floor, by=self.line, accuracy_floor=self.accuracy_floor)
            if best.is_empty():
                continue
            line = f"At {floor:,.6g} tok/s/user or faster{self._conditions()}, {self._winner(best)}"
            statuses = best["hardware_status"].to_list() if "hardware_status" in best.columns else [""] * best.height
            confirmed = [i for i, status in enumerate(statuses) if str(status).lower() not in UNCONFIRMED]
            if confirmed and confirmed[0] > 0:
                line += f". Of confirmed hardware, {self._winner(best[confirmed])}"
            yield line + "."

    def _winner(self, best: pl.DataFrame) -> str:
        row = best.row(0, named=True)
        words = [model_label(row, self.extra), *_present(row, "precision"), layout_label(row)]
        if row.get("workload.batch") is not None:
            words.append(f"batch {integer(row['workload.batch'])}")
        rate = cell(row, "tok_s_gpu")
        text = f"**{row[self.line]}** gives the most: {rate} output tok/s/GPU ({', '.join(words)})"
        if best.height > 1:
            second = best.row(1, named=True)
            text += f", {number(row['tok_s_gpu'] / second['tok_s_gpu'], 3)} times {second[self.line]}"
        if row.get("bound") is not None:
            part = BOUND_LABELS.get(str(row["bound"]), str(row["bound"]))
            plural = part.endswith(("reads", "activations"))
            text += f"; {part} {'take' if plural else 'takes'} the largest part of the step"
        return text

    def _conditions(self) -> str:
        text = "" if self.accuracy_floor is None else f" with an accuracy of at least {100 * self.accuracy_floor:g} %"
        return text + (f", {self.headline_slice}" if self.headline_slice else "")

    def _meaning(self) -> str:
        """What the accuracy of a table stands for."""
        return f" Accuracy: {self.accuracy_label}." if "accuracy" in self.frontier.columns else ""

    def _counts(self) -> str:
        m = self.manifest
        lines = [
            ("in the grid, before filters", m.get("points_before_where")),
            ("evaluated", m.get("points")),
            ("feasible", m.get("feasible")),
            ("on a frontier", self.frontier.height if m.get("frontier") is None else m.get("frontier")),
            ("rows stored", m.get("store_rows")),
        ]
        total = m.get("points")
        rows = [
            [name, value if isinstance(value, str) else integer(value), _share(value, total) if i else ""]
            for i, (name, value) in enumerate(lines)
            if value is not None
        ]
        text = ["## Points", "", grid(["", "points", "of evaluated [%]"], rows, left=[True, False, False])]
        reasons = _reasons(m)
        if reasons:
            text += [
                "",
                "Why points are infeasible (a point may have several reasons):",
                "",
                grid(
                    ["reason", "points", "of evaluated [%]"],
                    [[f"`{name}`", integer(count), _share(count, total)] for name, count in reasons],
                    left=[True, False, False],
                ),
            ]
        return "\n".join(text)

    def _frontier_chart(self, charts: Mapping[str, str]) -> str:
        text = ["## Frontier", "", f"![{charts['frontier']}](frontier.svg)", ""]
        text.append(
            "Each panel shows the designs at least that accurate. Between two points of a line there is no "
            "configuration, hence the steps: the height above a speed is the best that runs at that speed or faster. "
            "All GPUs are counted."
        )
        if "hardware_status" in self.frontier.columns:
            text[-1] += " Dashed lines: hardware that is announced, estimated or hypothetical."
        if self.contexts:
            text += ["", self._which_contexts()]
        return "\n".join(text)

    def _which_contexts(self) -> str:
        if len(self.contexts) == self.all_contexts:
            return f"Shown for each context: {', '.join(self.contexts)}."
        names = ", ".join(self.contexts)
        return (
            f"Shown for {len(self.contexts)} of {self.all_contexts} contexts ({names}: the smallest, "
            f"the middle and the largest with a feasible point); the others are in {self._elsewhere()}."
        )

    def _best(self) -> str:
        text = [
            f"## Best throughput at a speed, per {self.line}",
            "",
            "Output tok/s/GPU of the best point at least that fast and that accurate; an en dash: no such point."
            + self._meaning(),
        ]
        slices: list[str | None] = [*self.contexts]
        for name in slices or [None]:
            frame = self._shown(name)
            floors = interactivity_floors(at_least(frame, self.accuracy_floor), by=self.line, count=4)
            if not floors:
                continue
            rows = []
            for accuracy in self.floors:
                found = {floor: best_at(frame, floor, by=self.line, accuracy_floor=accuracy) for floor in floors}
                values = {
                    f: dict(zip(b[self.line].to_list(), b["tok_s_gpu"].to_list(), strict=True))
                    for f, b in found.items()
                }
                names = sorted({key for column in values.values() for key in column})
                names.sort(key=lambda key: [-(values[f].get(key) or 0.0) for f in floors])
                for key in names:
                    label = "any" if accuracy is None else f"≥ {100 * accuracy:g}"
                    rows.append([label, str(key), *(number(values[f].get(key)) for f in floors)])
            heads = ["accuracy [%]", self.line, *(f"≥ {floor:,.6g} tok/s/user" for floor in floors)]
            text += ["", *([f"**{name}**", ""] if name else [])]
            text.append(grid(heads, rows, left=[False, True, *([False] * len(floors))]))
            if name != self.headline_slice:
                continue
            for floor in interactivity_floors(at_least(frame, self.accuracy_floor), by=self.line, count=2):
                best = best_at(frame, floor, by=self.line, accuracy_floor=self.accuracy_floor)
                if best.is_empty():
                    continue
                text += ["", f"The points behind it at {floor:,.6g} tok/s/user or faster{self._conditions()}:", ""]
                text.append(self._points(best, without=[]))
                text += self._ties(best)
        return "\n".join(text)

    def _ties(self, best: pl.DataFrame) -> list[str]:
        """Which other designs of the frontier the best points tie with in accuracy."""
        lines = []
        for row, names in tied_designs(self.frontier, best, self.extra):
            if names:
                some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
                lines.append(f"* {model_label(row, self.extra)} ({row.get('precision', '')}) ties with {some}")
        if not lines:
            return []
        doubt = f"{TIE_DENSE_NATS:g} nats; {TIE_MOE_NATS:g} between dense and mixture of experts"
        return ["", f"Ties in loss ({doubt}):", "", *dict.fromkeys(lines)]

    def _points(self, frame: pl.DataFrame, *, without: Sequence[str]) -> str:
        same = [c for c in ("robust", "loss_source") if c in frame and self.frontier[c].drop_nulls().n_unique() < 2]
        columns = [c for c in _POINT_COLUMNS if c not in (*without, *same)]
        if self.line not in columns and self.line not in without:
            columns.insert(0, self.line)
        others = [c for c in self.other_axes if c not in without]
        at = columns.index("accuracy") if "accuracy" in columns else len(columns)
        columns[at:at] = others
        return table(frame, columns, mark_extrapolated=True, told_apart_by=self.extra)

    def _time_chart(self, charts: Mapping[str, str]) -> str:
        if "time" not in charts:
            return ""
        image = f"![{charts['time']}](time.svg)"
        return f"## Where the time goes\n\n{image}\n\nThe six parts add up to the time per output token."

    def _binds(self) -> str:
        if "bound" not in self.frontier.columns:
            return ""
        counts = self.frontier.group_by(self.line, pl.col("bound").cast(pl.String)).len()
        shares = {(row[0], row[1]): row[2] for row in counts.iter_rows()}
        names = sorted({key for key, _ in shares})
        totals = {name: sum(n for (key, _), n in shares.items() if key == name) for name in names}
        parts = [part for part in PART_COLOURS if part != "prefill" or "prefill_s" in self.frontier.columns]
        rows = [
            [
                str(name),
                *(percent(shares.get((name, part), 0) / totals[name], 0) for part in parts),
                integer(totals[name]),
            ]
            for name in names
        ]
        heads = [self.line, *(f"{BOUND_LABELS[part]} [%]" for part in parts), "points"]
        return "\n".join(
            [
                "## What binds",
                "",
                f"Share of the frontier points of each {self.line} by what takes the largest part of the step:",
                "",
                grid(heads, rows, left=[True, *([False] * (len(heads) - 1))]),
            ]
        )

    def _tables(self) -> str:
        text = ["## Frontier points", ""]
        frame = self.frontier
        if self.contexts:
            frame = frame.filter(pl.col("_slice").is_in(self.contexts))
            text.append(self._which_contexts())
        keys = self.by
        groups = frame.partition_by(keys, maintain_order=True) if keys else [frame]
        groups.sort(key=lambda g: tuple(_sortable(g[k][0]) for k in keys))
        left_out = len(groups) - GROUPS
        if left_out > 0:
            # Those with the most frontier points say the most; shown in their own order.
            largest = sorted(range(len(groups)), key=lambda i: (-groups[i].height, i))[:GROUPS]
            groups = [groups[i] for i in sorted(largest)]
            text.append(
                f"The {GROUPS} groups with the most points of {GROUPS + left_out}; the others are in "
                f"{self._elsewhere()}."
            )
        rows = min(TABLE_ROWS, max(72 // max(len(groups), 1), 6))
        text.append(
            f"At most {rows} points of each frontier, spread over {_and(self.objectives)}; all of them are in "
            f"{self._elsewhere()}." + self._meaning()
        )
        if self.somewhere:
            text.append(f"† outside the ranges of {', '.join(self.somewhere)}, which not all points leave.")
        for group in groups:
            if keys:
                text += ["", f"### {', '.join(_key_name(k, group[k][0]) for k in keys)}"]
            text += ["", self._points(thin(group, self.objectives, rows), without=[k for k in keys if k != "model"])]
        return "\n".join(text)

    def _notes(self) -> str:
        m = self.manifest
        frame = self.frontier
        label = self.accuracy_label or str(m.get("accuracy_label") or "accuracy proxy")
        policy = str(m.get("token_policy") or "iso_token").replace("_", "-")
        same = "the same number of training tokens" if policy == "iso-token" else "the same training compute"
        proxy = (
            f"**Accuracy is a proxy** ({label}), computed from scaling laws, not measured. Nothing here was trained: "
            f"designs are compared at {same} ({policy}). It orders designs of one recipe; do not compare it with "
            "scores of others."
        )
        notes = [proxy]
        if "loss_sigma" in frame.columns and not frame.is_empty() and frame["loss_sigma"].drop_nulls().len():
            sigma = number(frame["loss_sigma"].median(), 2)
            notes.append(
                f"One standard deviation of the loss is {sigma} nats/token (median over "
                "the frontier): designs closer than that are tied."
            )
        notes += self._doubts()
        preset = m.get("efficiency")
        if preset:
            meaning = {
                "ideal": "every kernel and link at its peak: an upper bound, not a forecast",
                "measured": "peaks scaled by measured kernel efficiencies, where there are measurements",
            }.get(str(preset))
            notes.append(f"Efficiency preset: `{preset}`" + (f" ({meaning})." if meaning else "."))
        notes += self._bands()
        notes += self._unverified()
        used = self.plain["hardware"].cast(pl.String).unique().to_list() if "hardware" in self.plain.columns else []
        priced = tags.prices(m, used)
        if priced:
            notes.append("Prices and powers behind cost and energy:" + "".join(f"\n  * {line}" for line in priced))
        mixed = [k for k in _CONTEXT_KEYS if k in frame.columns and k not in self.by]
        if mixed:
            notes.append(
                f"Frontiers are not kept apart by {_and(mixed)}: a short one is faster than a long one, so that of "
                "several the short ones win."
            )
        notes.append(
            "`output tok/s/GPU` counts generated tokens only and every GPU of the layout; `tok/s/user` is 1/TPOT; MFU "
            "and MBU are shares of dense peaks."
        )
        return "\n".join(["## How far to trust this", "", *(f"* {note}" for note in notes), self._ranges()])

    def _doubts(self) -> list[str]:
        """Ranges left, points that stay under other laws, ties, and where losses come from."""
        m, frame = self.manifest, self.frontier
        notes = []
        if "extrapolation" in frame.columns and not frame.is_empty():
            outside = int((frame["extrapolation"] > 0).sum())
            text = (
                f"{integer(outside)} of {integer(frame.height)} frontier points ({_share(outside, frame.height)} %) "
                "lie outside at least one range in which the proxy was calibrated"
            )
            if self.everywhere:
                text += f"; all of them outside {_plain_and(self.everywhere)}"
            if self.somewhere:
                text += (
                    f"; some outside {_plain_and(self.somewhere)}: these are drawn hollow, marked † in tables, and "
                    "listed by model below"
                )
            notes.append(text + ".")
        about = m.get("extrapolation")
        if isinstance(about, Mapping) and about.get("overtrained"):
            notes.append(
                f"{integer(about['overtrained'])} models have above 4000 training tokens per parameter and are held in "
                "4 bits: what the format costs them is a lower bound."
            )
        robust = m.get("robust")
        if isinstance(robust, Mapping) and robust.get("computed"):
            laws = ", ".join(f"{integer(n)} under {name}" for name, n in dict(robust.get("laws") or {}).items())
            notes.append(
                f"Robust: {integer(robust['robust'])} of {integer(frame.height)} points stay on the frontier whichever "
                f"law of accuracy is used ({laws}; column `robust`). A design is robustly better only if it is."
            )
        elif isinstance(robust, Mapping):
            notes.append(f"Which points stay on the frontier under other laws was not computed: {robust.get('why')}.")
        tied = m.get("epsilon")
        if isinstance(tied, Mapping):
            notes.append(
                f"{integer(tied.get('tied'))} more points are beaten by less than the doubt about their loss "
                f"({_plain_and([f'{e:g}' for e in tied.get('nats') or ()])} nats); they stand in `epsilon.parquet`."
            )
        source = m.get("loss_source")
        if source == "measured":
            notes.append("Losses are measured, not predicted: those of the table in the configuration.")
        elif source == "mixed":
            notes.append(
                "**Measured and predicted losses stand side by side on these frontiers** (column `loss_source`). They "
                "are of different test sets: the order of a measured design and a predicted one means nothing."
            )
        return notes

    def _ranges(self) -> str:
        """A table of the ranges that each model leaves, where models differ in it."""
        frame = self.frontier
        if not self.somewhere or "ranges_left" not in frame.columns or "model" not in frame.columns:
            return ""
        counts = (
            frame.group_by(pl.col("model").cast(pl.String), pl.col("ranges_left").cast(pl.String))
            .len()
            .sort(["model", "len", "ranges_left"], descending=[False, True, False])
        )
        rows = [[str(name), left or "–", integer(n)] for name, left, n in counts.head(RANGE_ROWS).iter_rows()]
        more = counts.height - len(rows)
        text = ["", "Validity ranges left, by model:", "", grid(["model", "ranges left", "points"], rows,
                                                                left=[True, True, False])]  # fmt: skip
        return "\n".join([*text, *([f"\nand {more} more lines in `frontier.parquet`."] if more > 0 else [])])

    def _bands(self) -> list[str]:
        """How far measured points were from predicted ones, per kind of machine."""
        frame = self.frontier
        factors = [name for name in FACTORS[:6] if name in frame.columns]
        if len(factors) < 2 or self.line not in frame.columns:
            return []
        known = frame.filter(pl.col("band_low").is_not_null()).select(self.line, *factors).unique()
        spans: dict[tuple[str, ...], list[str]] = {}
        for name, *edges in known.sort(self.line, *factors).iter_rows():
            spans.setdefault(tuple(f"{edge:.2f}" for edge in edges), []).append(str(name))
        if not spans:
            return []
        metrics = ("time per token", "throughput per GPU", "first token")
        text = "; ".join(
            ", ".join(f"{what} {low} to {high}" for what, low, high in zip(metrics, e[::2], e[1::2], strict=False))
            + f" ({_and(sorted(set(names)))})"
            for e, names in spans.items()
        )
        return [
            "Behind a figure stands in brackets what 8 of 10 measurements lie between, by serving points that the "
            f"constants were not fitted on. As factors on the prediction: {text}. A first token also gets the seconds "
            "of a frontend, no queue; prices and energy err as throughput does, and by what is wrong with the price "
            "per GPU-hour or the power, which the band leaves out. Two points that differ by less share most of their "
            "error, and are better told apart than the band suggests."
        ]

    def _unverified(self) -> list[str]:
        provenance = self.manifest.get("provenance")
        if not isinstance(provenance, Mapping):
            return []
        used = set(self.plain["hardware"].cast(pl.String).to_list()) if "hardware" in self.plain.columns else set()
        lines = []
        for name in sorted(provenance, key=str):
            figures = provenance[name]
            if not isinstance(figures, Mapping) or (used and str(name) not in used):
                continue
            open_ones: dict[str, list[str]] = {}
            for key, status in figures.items():
                if key not in tags.PRICES and not str(status).lower().startswith(_FIGURES_VERIFIED):
                    open_ones.setdefault(str(status), []).append(str(key))
            if open_ones:
                lines.append(
                    f"{name}: "
                    + "; ".join(f"{status} ({', '.join(keys)})" for status, keys in sorted(open_ones.items()))
                )
        if not lines:
            known = used and used <= set(map(str, provenance))
            return ["All hardware figures used are confirmed by their sources."] if known else []
        return ["Hardware figures that are not confirmed:" + "".join(f"\n  * {line}" for line in lines)]

    def _asked(self) -> str:
        text = ["## What was asked", ""]
        text.append(
            f"Objectives: {_and(self.objectives)}. Frontiers: {'per ' + _and(self.by) if self.by else 'one, over all'}."
        )
        asked = _top_level(self.config_yaml, _ASKED_KEYS)
        if asked:
            text += ["", "```yaml", asked, "```"]
        if self.config_yaml.strip():
            text += ["", "<details>", "<summary>The whole configuration</summary>", "", "```yaml"]
            text += [self.config_yaml.strip(), "```", "", "</details>"]
        return "\n".join(text)

    def _identity(self) -> str:
        """Version, configuration and size of the sweep, in one line."""
        m = self.manifest
        parts = [f"codesign-sweep {self.version or m.get('version') or ''}".strip()]
        if m.get("config_sha256"):
            parts.append(f"config {str(m['config_sha256'])[:12]}")
        if m.get("points") is not None:
            work = f"{integer(m['points'])} points"
            if m.get("seconds") is not None:
                work += f" in {number(m['seconds'])} s"
            if m.get("points_per_s") is not None:
                work += f" ({number(m['points_per_s'])} points/s)"
            parts.append(work)
        parts.append(f"{integer(self.frontier.height)} frontier points")
        return " · ".join(parts)

    def _provenance(self) -> str:
        sha = str(self.manifest.get("config_sha256") or "")[:12]
        text = self._identity().replace(f"config {sha}", f"config `{sha}`") if sha else self._identity()
        csv = "all points" if self.complete_csv else f"about {integer(CSV_ROWS)} of the points, evenly thinned"
        page = "" if self.frontier.is_empty() else " · interactive: [frontier.html](frontier.html)"
        return f"---\n\n{text} · data: [frontier.csv](frontier.csv) ({csv}){page}"


# ---- doubt ----------------------------------------------------------------------------------------------------------


def ranges_apart(frame: pl.DataFrame) -> tuple[list[str], list[str], pl.DataFrame]:
    """Validity ranges that all points leave, those that some do, and the frame with `_apart`: which leave one of these.

    At 36e12 training tokens every point leaves the range of tokens: marking that would mark everything.
    """
    if frame.is_empty() or not {"ranges_left", "extrapolation"} & set(frame.columns):
        return [], [], frame
    if "ranges_left" not in frame.columns:
        least = frame["extrapolation"].min()
        apart = frame["extrapolation"] > least
        return [], ["some kind (an older file)"] if apart.any() else [], frame.with_columns(_apart=apart)
    kinds = frame["ranges_left"].cast(pl.String).unique(maintain_order=True).to_list()
    sets = {kind: [n for n in (kind or "").split(", ") if n] for kind in kinds}
    everywhere = [n for n in sets[kinds[0]] if all(n in names for names in sets.values())]
    somewhere = list(dict.fromkeys(n for names in sets.values() for n in names if n not in everywhere))
    apart_kinds = [kind for kind, names in sets.items() if set(names) - set(everywhere)]
    return everywhere, somewhere, frame.with_columns(_apart=pl.col("ranges_left").cast(pl.String).is_in(apart_kinds))


def tied_designs(
    frame: pl.DataFrame, best: pl.DataFrame, extra: Mapping[str, Sequence[str]]
) -> list[tuple[dict[str, Any], list[str]]]:
    """For each row of `best` the other designs (model and precision) of the frame that tie with it, best loss first."""
    needed = {"model", "loss", "params_total", "params_active"}
    if not needed <= set(frame.columns):
        return []
    keys = [c for c in frame.columns if c == "precision" or c.split(".")[0] == "model"]
    designs = frame.unique(keys, maintain_order=True).sort("loss", maintain_order=True)
    moe = pl.col("params_total") > 1.5 * pl.col("params_active")
    found = []
    for row in best.iter_rows(named=True):
        is_moe = row["params_total"] > 1.5 * row["params_active"]
        doubt = pl.when(moe == is_moe).then(TIE_DENSE_NATS).otherwise(TIE_MOE_NATS)
        ties = designs.filter((pl.col("loss") - row["loss"]).abs() < doubt)
        names = [
            f"{model_label(other, extra)} ({other.get('precision', '')})"
            for other in ties.iter_rows(named=True)
            if any(other[k] != row[k] for k in keys)
        ]
        found.append((row, list(dict.fromkeys(names))))
    return found


# ---- small words ----------------------------------------------------------------------------------------------------


def _and(names: Sequence[str]) -> str:
    words = [header(objective_name(name)).split(" [")[0] for name in names]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def _plain_and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _present(row: Mapping[str, Any], *columns: str) -> list[str]:
    return [str(row[c]) for c in columns if row.get(c) is not None]


def _context_name(row: Mapping[str, Any]) -> str:
    words = {"workload.context": "context {}", "workload.isl": "{} in", "workload.osl": "{} out"}
    return ", ".join(words[key].format(tokens(value)) for key, value in row.items() if key in words)


def _key_name(key: str, value: Any) -> str:
    if key in _CONTEXT_KEYS:
        return _context_name({key: value})
    if key in ("hardware", "model", "precision"):
        return str(value)
    return f"{header(key)} {value:g}" if isinstance(value, float) else f"{header(key)} {value}"


def _sortable(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def _share(count: Any, total: Any) -> str:
    if isinstance(count, str) or count is None or not total:
        return ""
    return number(100 * float(count) / float(total), 3)


def _reasons(manifest: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Counts by reason, the largest first; reasons that nobody met are left out."""
    counts = manifest.get("infeasible")
    if not isinstance(counts, Mapping):
        return []
    return sorted(((str(k), int(n)) for k, n in counts.items() if n), key=lambda item: (-item[1], item[0]))


def _top_level(text: str, keys: Sequence[str]) -> str:
    """The blocks of a YAML document under some of its top-level keys, as they stand in it."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines():
        if line[:1] not in ("", " ", "-", "#"):
            inside = line.split(":")[0].strip() in keys
        if inside:
            kept.append(line.rstrip())
    return "\n".join(kept).strip()


def _even(frame: pl.DataFrame, rows: int) -> pl.DataFrame:
    """Rows at even distances, first and last among them."""
    if frame.height <= rows:
        return frame
    step = (frame.height - 1) / max(rows - 1, 1)
    return frame[[round(i * step) for i in range(rows)]]


def _write(path: Path, text: str) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path
