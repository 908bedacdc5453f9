"""`python -m pipelines.validate` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from pipelines import validate
from tests.calibration.test_endtoend import DATA

COLUMNS = [
    *("row_id", "answered", "reason", "tpot_s", "tpot_low_s", "tpot_high_s", "ttft_s", "tok_s_gpu", "floor_tpot_s"),
    *("ttft_low_s", "ttft_high_s", "tok_s_gpu_low", "tok_s_gpu_high"),
]


def test_page_predictions_and_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page"
    assert validate.main([f"data={DATA}", f"out={out}", "output=json"]) == 0
    top = json.loads(capsys.readouterr().out)
    rows = pl.read_csv(DATA, infer_schema=False)
    found = pl.read_csv(out / "predictions.csv")
    assert found.columns == COLUMNS
    assert found["row_id"].to_list() == rows["row_id"].to_list()
    assert found["answered"].sum() == top["answered"]
    given = found.filter("answered")
    assert given["tpot_s"].null_count() == 0 and given["reason"].null_count() == len(given)
    assert found.filter(~pl.col("answered"))["tpot_s"].null_count() == len(found) - len(given)
    page = (out / "validation.md").read_text()
    for heading in ("## Not answered", "## Faster than the roofline", "## The 20 worst", "### By machine"):
        assert heading in page
    assert (out / "tpot_by_machine.svg").stat().st_size > 10_000
    assert (out / "tpot_by_machine.png").read_bytes()[:4] == b"\x89PNG"


def test_strange_rows_are_unanswered_not_fatal(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        "row_id,model,hardware,n_gpus,precision,tp,isl,osl,concurrency_or_batch\n"
        "a,Llama-3.1-8B,H100-SXM,1,bf16,1,100,100,4\n"
        "b,Unheard-Of-7B,H100-SXM,1,bf16,1,100,100,4\n"
        "c,Llama-3.1-8B,TI-83,1,bf16,1,100,100,4\n"
        "d,,,,,,,,\n"
        "e,Llama-3.1-8B,H100-SXM,many,bf16,x,1e9,,∞\n"
        "f,Llama-3.1-8B,H100-SXM,1,bf16,1,1e7,100,4\n"
    )
    assert validate.main([f"data={path}", f"out={tmp_path / 'out'}"]) == 0
    found = pl.read_csv(tmp_path / "out" / "predictions.csv")
    assert found["answered"].to_list() == [True, False, False, False, False, True]
    assert found["reason"][1] == "model not in the catalogue: Unheard-Of-7B"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "data=: give a CSV"),
        (["data=nowhere.csv"], "no such file"),
        (["data={headless}"], "no column model"),
        (["data={rows}", "output=xml"], "allowed are text, json"),
    ],
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    headless = tmp_path / "headless.csv"
    headless.write_text("a,b\n1,2\n")
    out = tmp_path / "out"
    asked = [w.format(headless=headless, rows=DATA) for w in words]
    assert validate.main([*asked, f"out={out}"]) == 1
    assert said in capsys.readouterr().err
    assert not out.exists()
