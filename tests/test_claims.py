"""Claims: every study is whole, the rule decides, a page is only as old as its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines import claims
from sweep.claims.page import answer, flat, shown
from sweep.claims.study import VERDICTS, Claim, Finding, Number, banded, decide
from sweep.config import Library, conf_dir
from sweep.errors import BadInput
from tests.conftest import make_study

DOCS = Path(__file__).resolve().parent.parent / "docs"
RULE = Claim(
    name="x", number=1, statement="s", source="s", module="m", holds="a > 2", limits="a > 1", answer="a is {a}"
)


def number(value: float, low: float | None = None, high: float | None = None) -> dict[str, Number]:
    return {"a": Number(value=value, doc="", low=low, high=high)}


@pytest.mark.parametrize(("value", "verdict"), [(3.0, 0), (1.5, 1), (0.5, 2)])
def test_a_changed_number_changes_the_verdict(value: float, verdict: int) -> None:
    found = decide(RULE, number(value))
    assert found.word == VERDICTS[verdict]
    assert found.firm


def test_a_band_that_reaches_over_the_rule_is_said() -> None:
    assert not decide(RULE, number(2.1, low=1.9, high=2.4)).firm
    assert decide(RULE, number(3.0, low=2.5, high=3.6)).firm
    assert banded(2.0, 0.1)["low"] * banded(2.0, 0.1)["high"] == pytest.approx(4.0)


def test_numbers_of_predicted_times_carry_a_band() -> None:
    finding = Finding(numbers={"measured.x": Number(value=2.0, doc=""), "ideal.x": Number(value=2.0, doc="")})
    finding.widen(0.1, "measured.*")
    assert (finding.numbers["ideal.x"].low, finding.numbers["measured.x"].low) == (None, banded(2.0, 0.1)["low"])


def test_a_rule_over_a_number_that_nobody_measured_is_refused() -> None:
    with pytest.raises(BadInput, match="no number a"):
        decide(RULE, {"b": Number(value=1.0, doc="")})


def test_answers_carry_the_numbers() -> None:
    finding = Finding(numbers=number(0.12345))
    assert (
        answer(claims.Outcome(claim=RULE, finding=finding, verdict=decide(RULE, finding.numbers), seconds=0))
        == "a is 0.123"
    )
    assert shown(Number(value=float("inf"), doc="")) == "never"


def known() -> dict[str, Claim]:
    return claims.studies(Library([conf_dir()]))


@pytest.mark.parametrize("name", list(known()))
def test_every_study_composes_as_a_sweep(name: str) -> None:
    study = make_study(f"experiment=claim_{name}")
    assert study.grid
    assert "claim" not in study.resolved  # what is said of a sweep does not change what it computes


def test_numbers_are_one_to_ten() -> None:
    assert [claim.number for claim in known().values()] == list(range(1, 11))


def test_the_kept_page_is_of_all_claims_and_their_rules() -> None:
    """What docs/ says of each claim follows from the kept numbers by the rule that stands in the configuration."""
    kept = json.loads((DOCS / "claims.json").read_text())
    page = (DOCS / "claims.md").read_text()
    assert set(kept) == set(known())
    for name, claim in known().items():
        numbers = {
            key: Number(**{k: float("inf") if v is None and k == "value" else v for k, v in n.items()}, doc="")
            for key, n in kept[name]["numbers"].items()
        }
        assert decide(claim, numbers).word == kept[name]["verdict"]
        assert claim.statement in page
        for chart in (DOCS / "claims").glob(f"{name}*.svg"):
            assert f"claims/{chart.name}" in page


def test_a_study_gives_the_kept_numbers_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert claims.main(["only=gemm", f"out={tmp_path}", "output=json"]) == 0
    found = json.loads(capsys.readouterr().out)["gemm"]
    kept = json.loads((DOCS / "claims.json").read_text())["gemm"]
    assert found["verdict"] == kept["verdict"]
    assert found["numbers"].keys() == kept["numbers"].keys()
    for key, value in kept["numbers"].items():
        assert found["numbers"][key]["value"] == pytest.approx(value["value"], rel=1e-6)
    assert (tmp_path / "claims" / "gemm.svg").is_file()
    assert "2. In an FFN GEMM" in (tmp_path / "claims.md").read_text()
    assert claims.main(["only=roofline", f"out={tmp_path}"]) == 1  # would lose the page of gemm
    assert "gemm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["only=gem"], "only=gem: no such claim; nearest: gemm"),
        (["ony=gemm"], "ony=gemm: no such key; nearest: only"),
        (["output=xml"], "output=xml: allowed are text, json"),
    ],
)
def test_one_clear_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert claims.main(words) == 1
    assert capsys.readouterr().err.startswith(said)


def test_a_claim_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A study is a file; a broken one is one line."""
    shipped = (conf_dir() / "experiment" / "claim_gemm.yaml").read_text()
    (tmp_path / "experiment").mkdir()
    mine = tmp_path / "experiment" / "claim_mine.yaml"
    mine.write_text(shipped.replace("number: 2", "number: 11").replace("shrink.nk == 1 and", "shrink.nq == 1 and"))
    words = ["--config-dir", str(tmp_path), "only=mine", f"out={tmp_path / 'out'}"]
    assert claims.main(words) == 1
    assert "no number shrink.nq" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    mine.write_text(shipped.replace("number: 2", "numbr: 11"))
    assert claims.main(words) == 1
    assert capsys.readouterr().err.startswith("claim.numbr: no such key; nearest: number")


def test_flat_numbers_are_json() -> None:
    finding = Finding(numbers=number(float("inf")))
    outcome = claims.Outcome(claim=RULE, finding=finding, verdict=decide(RULE, finding.numbers), seconds=1.0)
    assert json.dumps(flat([outcome]), allow_nan=False)
