"""The interactive page: what is written into it, and that it answers to a person in a real browser, offline."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sweep.report.page import html_page
from sweep.report.selection import at_least, envelope
from tests.test_report import OBJECTIVES, frontier, write

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def page(frame: pl.DataFrame, **more: Any) -> str:
    settings = {"title": "A <b> & title", "subtitle": "invented", "provenance": "codesign-sweep 9.9", **more}
    return html_page(frame, objectives=OBJECTIVES, by=["hardware"], fixed={"efficiency": "ideal"}, **settings)


def sliced() -> pl.DataFrame:
    """Two contexts, announced hardware among the machines."""
    frame = frontier(by=("hardware", "workload.context"), contexts=(2048, 65536))
    status = pl.when(pl.col("hardware") == "future").then(pl.lit("announced")).otherwise(pl.lit("confirmed"))
    return frame.with_columns(
        status.alias("hardware_status"),
        pl.when(pl.col("workload.context") == 2048).then(pl.lit("short")).otherwise(pl.lit("long")).alias("_slice"),
    )


def told(text: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found
    data = json.loads(found[1], parse_constant=pytest.fail)
    assert isinstance(data, dict)
    return data


def test_the_page_needs_nothing_but_itself() -> None:
    text = page(frontier())
    for tag in ("<link", "<img", "@import", "fetch(", "src=", "XMLHttpRequest", "import("):
        assert tag not in text
    addresses = set(re.findall(r"https?://[^\s\"')]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "<title>A &lt;b&gt; &amp; title</title>" in text
    assert text == page(frontier())


def test_the_points_are_in_it_to_six_digits() -> None:
    frame = frontier()
    data = told(page(frame))
    assert data["n"] == frame.height
    for name in ("tok_s_user", "tok_s_gpu", "accuracy", "workload.batch"):
        assert data["columns"][name]["at"] == pytest.approx(frame[name].to_list(), rel=1e-5)
    machines = data["columns"]["hardware"]
    assert [machines["words"][i] for i in machines["at"]] == frame["hardware"].to_list()
    assert data["fixed"] == ["efficiency=ideal"]
    assert "usd_per_mtok" not in data["axes"]  # nobody gave a price


def test_names_cannot_break_out_of_the_page() -> None:
    frame = frontier().with_columns(pl.lit("</script><script>alert(1)//").alias("model"))
    text = page(frame)
    assert text.count("</script>") == 2
    assert told(text)["columns"]["model"]["words"][0] == "</script><script>alert(1)//"


def test_a_large_frontier_is_thinned_and_says_so() -> None:
    frame = frontier()
    data = told(page(frame, points=12))
    assert data["n"] <= 12 + 9  # the best of each objective and machine always stays
    assert f"of {frame.height} frontier points, thinned" in data["provenance"]
    for name in OBJECTIVES:
        assert max(data["columns"][name]["at"]) == pytest.approx(frame[name].max(), rel=1e-5)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright (an extra of the tests)")
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (apt-get install chromium)")
    with api.sync_playwright() as p:
        opened = p.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


def test_a_person_can_ask_the_page(browser: Any, tmp_path: Path) -> None:
    frame = sliced()
    file = tmp_path / "frontier.html"
    file.write_text(page(frame, slice_column="_slice", slices=["short", "long"]), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1200, "height": 1000})
    asked: list[str] = []
    wrong: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda message: wrong.append(message.text))
    tab.goto(file.as_uri())

    def lines() -> dict[str, list[int]]:
        marks = tab.eval_on_selector_all(
            "#plot [data-point]", "all => all.map(m => [m.getAttribute('aria-label'), +m.dataset.point])"
        )
        found: dict[str, list[int]] = {}
        for label, i in marks:
            found.setdefault(label.split(":")[0], []).append(i)
        return found

    def expected(floor: float | None, slice_: str, names: set[str]) -> dict[str, set[tuple[float, float]]]:
        part = at_least(frame.filter(pl.col("_slice") == slice_), floor)
        steps = envelope(part, "tok_s_user", "tok_s_gpu", ["hardware"])
        found = {}
        for name in names:
            own = steps.filter(pl.col("hardware") == name)
            if own.height:
                found[name] = {(float(f"{a:.6g}"), float(f"{b:.6g}")) for a, b in own["tok_s_user", "tok_s_gpu"].rows()}
        return found

    data = told(file.read_text(encoding="utf-8"))
    xs, ys = (data["columns"][c]["at"] for c in ("tok_s_user", "tok_s_gpu"))

    def seen() -> dict[str, set[tuple[float, float]]]:
        return {name: {(xs[i], ys[i]) for i in points} for name, points in lines().items()}

    everything = {"slow", "fast", "future"}
    assert seen() == expected(None, "long", everything)
    assert tab.locator("#rows tr").count() == sum(map(len, lines().values()))
    assert tab.locator("#plot path[stroke-dasharray='6 4']").get_attribute("data-line") == "future"
    assert "future (announced)" in tab.inner_text("#legend")

    tab.select_option("#slice", "short")
    assert seen() == expected(None, "short", everything)
    tab.click("#legend button[data-name=fast]")  # hides a line
    assert seen() == expected(None, "short", everything - {"fast"})
    tab.click("#legend button[data-name=fast]")

    tab.evaluate("const f = document.getElementById('floor'); f.value = 100; f.dispatchEvent(new Event('input'))")
    accuracies = [a for a in data["columns"]["accuracy"]["at"] if a is not None]
    floor = min(accuracies) + (max(accuracies) - min(accuracies)) / 2
    assert seen() == expected(floor, "short", everything)
    assert "%" in tab.inner_text("#floor-text")

    box = tab.locator("#plot [data-point]").nth(1).bounding_box()
    at = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.mouse.move(*at)
    assert "batch:" in tab.inner_text("#tip") and tab.locator("#tip").is_visible()
    tab.mouse.click(*at)
    command = tab.inner_text("#detail code")
    assert (
        command.startswith("codesign explain model=") and "workload.batch=" in command and "efficiency=ideal" in command
    )

    tab.select_option("#x", "ttft_s")  # less is better: the envelope turns round
    assert tab.locator("#plot [data-point]").count() >= 1
    tab.select_option("#line", "model")
    tab.uncheck("#logx")
    tab.check("#bybound")
    assert "weight reads" in tab.inner_text("#bounds")
    tab.click("#head th >> nth=0")
    assert tab.screenshot()[:4] == b"\x89PNG"
    assert wrong == []
    assert all(url.startswith("file:") for url in asked) and len(asked) == 1


def test_the_report_writes_names_that_commands_take(tmp_path: Path) -> None:
    write(tmp_path, frontier())  # the manifest of these tests says that one machine is announced
    data = told((tmp_path / "frontier.html").read_text(encoding="utf-8"))
    assert set(data["columns"]["hardware"]["words"]) - {None} == {"slow", "fast", "future"}
    assert data["dashed"] == {"future": "announced"}
