"""The pages of results say what the records say, and nothing where there is no record."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparsepgd import zoo
from sparsepgd.reproduce import recipe
from support.scripts import ROOT, output, script


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    return script("pages", monkeypatch)


def tables(pages: Any, folder: Path) -> str:
    """docs/tables.md from the records of a folder."""
    return str(pages.render("tables.md.j2", pages.Records.read(folder)))


def results(pages: Any, **other: Any) -> str:
    """docs/results.md with other records beside ours, or in their places."""
    return str(pages.render("results.md.j2", pages.Records(pages.Records.read() | other)))


def number(section: str, row: str, column: str, here: float | None, paper: float | None = None) -> dict[str, Any]:
    low, high = (None, None) if here is None else (here - 9.0, here + 9.0)
    return {"section": section, "row": row, "column": column, "here": here, "paper": paper, "low": low, "high": high}


def small_record() -> dict[str, Any]:
    made = {"unit": "robust accuracy, %", "places": {"sTRADES": "mine"}, "missing": 0}
    table = [number("k=20", "sTRADES", "clean", 82.0, 89.8), number("k=20", "sTRADES", "RS", None, 61.8)]
    table.append(number("k=20", "sTRADES", "sAA", 61.0, 61.7))
    curve = [number("RS", "sTRADES", f"T={length}", here) for length, here in ((5, 80.0), (1000, 64.0))]
    return {
        "command": "python benchmarks/paper_runs.py",
        "scale": "small",
        "images": 100,
        "data": "bundled",
        "seed": 3,
        "hardware": "a device",
        "torch": "2.11.0+cu130",
        "processes": 12,
        "seconds": 123.4,
        "models": {"mine": {"epochs": 24, "clean_accuracy": 0.885}},
        "recipes": {
            "unstructured": {
                **made, "source": "Table I", "about": "pixels", "numbers": table, "reasons": ["short", "few images"],
            },
            "iterations": {
                **made, "source": "Figure 3a", "about": "over T", "numbers": curve, "reasons": ["short", "no numbers"],
            },
        },
        "not finished": ["sparsity"],
        "notices": [
            "mine, spgd: masked", "mine, rs: masked", "mine, rs: few queries",
            "mine, rs: in 6 steps sPGD from near the clean image fools 5 of 16 images",
        ],
    }  # fmt: skip


RECORDS: dict[str, dict[str, Any]] = {
    "saa-mine": {
        "model": "mine", "images": 1000, "k": 20, "steps": 10_000, "queries": 10_000, "seconds": 812.0,
        "accuracy": {"clean": 0.82, "spgd-unprojected": 0.7, "sparse-rs": 0.615}, "hardware": "a device",
    },
    "detection-mine": {
        "model": "yolo",
        "lines": [
            {"line": "clean", "images": 4, "size": 640, "boxes": {"map50": 0.5, "map50_95": 0.25}},
            {"line": "rs", "images": 4, "size": 640, "boxes": {"map50": 0.125, "map50_95": 0.1}, "evaluations": 9},
        ],
    },
}  # fmt: skip


def test_the_pages_are_what_the_records_say() -> None:
    output(ROOT / "benchmarks" / "pages.py", "--check", cwd=ROOT)  # fails otherwise


def test_every_template_is_on_a_page_or_in_another(pages: Any) -> None:
    files = {file.name: file.read_text() for file in pages.TEMPLATES.iterdir()}
    named = {name for page in pages.PAGES for _, name, _ in pages.WRITTEN.findall(page.read_text())}
    named |= {name for text in files.values() for name in re.findall(r'{% (?:include|from) "(.+?)"', text)}
    assert named == files.keys()


def test_a_wrong_number_in_a_page_is_noticed(pages: Any) -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    wrong = page.replace("Cluster-RS to 35.8 %", "Cluster-RS to 35.7 %")
    assert pages.written(wrong, pages.Records.read()) == page != wrong


def test_what_stands_around_a_written_part_stays_and_a_line_with_spaces_continues_the_one_above(
    pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part.md.j2").write_text(
        "{{ [1000, 12.34, None] | joined }}\n  {{ 0.5 | percent }} %\n{{ 1234.5 | f(',.0f') }}\n"
    )
    monkeypatch.setattr(pages, "TEMPLATES", tmp_path)
    mark = "<!-- written by benchmarks/pages.py from benchmarks/templates/part.md.j2, do not edit -->\n"
    page = pages.written(f"before\n{mark}old\n<!-- end of part -->\nafter\n", pages.Records())
    assert page == f"before\n{mark}1,000, 12.3, - 50.0 %\n1,234\n<!-- end of part -->\nafter\n"


def test_the_first_page_is_short_names_all_of_the_paper_and_its_links_lead_to_tables(pages: Any) -> None:
    text, tables = ((ROOT / "docs" / name).read_text() for name in ("results.md", "tables.md"))
    titles = ("Our models beside the paper's", "Each table and figure of the paper", "Figures")
    parts = re.split(f"## (?:{'|'.join(titles)})\n", re.sub(r"\]\([^)]*\)", "]", text))
    lists, models, index, figures = (len(re.findall(r"\w\S*", part)) for part in parts)
    assert lists < 750, "about two screens"
    assert max(models, figures) < 450
    assert index < 900
    first, _, index, _ = parts
    items = [part.strip() for part in re.findall(r"^- (.*)", first, re.M)]
    assert [item for item in items if len(item.replace("%", "").split()) > 60] == []
    numbers = [recipe.table(label).number for label in recipe.facts()["tables"]]
    assert len(numbers) == 19
    rows = [[cell.strip(" []") for cell in line.split("|")[1:-1]] for line in index.splitlines() if "|" in line][2:]
    names = ["Figure 1", "Figure 2", "Figure 3a", "Figure 3b", "Figure 3c", "Figure 4", "Figures 5 to 7"]
    assert sorted(row[0] for row in rows) == sorted([*(f"Table {number}" for number in numbers), *names])
    assert [row for row in rows if max(map(len, row[:4])) > 60 or not row[4].endswith(".")] == []
    links = set(re.findall(r"\(tables\.md#([^)]+)\)", text))
    assert len(links) > 15
    assert links <= {pages.origins.anchor(title) for title in re.findall(r"^#+ (.+)$", tables, re.M)}


def test_the_row_of_detectors_has_every_attack_that_was_measured_beside_the_paper(pages: Any) -> None:
    cells = (("clean", 43.0), ("RS", None, 17.1), ("sPGD", 5.0, 15.5))
    row = [number("detection", "l0_1600", *cell) for cell in cells]
    gap = [number("detection", "l0_3200", *cell) for cell in (("clean", 43.0), ("RS", None), ("sPGD", None))]
    values = {"numbers": [*row, *gap], "places": {"detection": "mine"}, "recipe": "detection", "images": 4}
    records = pages.Records({"paper-detection-mine": values})
    found = pages.lookups.pairs(records.made("detection"), "detection", "l0_1600")
    assert (found.theirs, found.ours) == ("sPGD 15.5", "5.0")
    waiting = ["segmentation", "3,200 pixels", "100 patches", "200 patches"]
    assert pages.lookups.not_detected(records) == waiting


def test_every_trained_model_is_in_the_table_of_models_under_the_strongest_attack(
    pages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, models = pages.Records.read(), pages.models
    rows = models.models(records)
    trained, small = (records.of(kind) for kind in ("train", "subject"))
    assert [sum(row[at] != "" for row in rows) for at in (4, 7)] == [len(trained), len(small)]
    assert ["k=20", "sAT", 84.5, 36.2] in [row[:4] for row in rows]
    low = records.strongest("cifar10-fast-ls", (20, "pixel"))
    (row,) = (row for row in rows if row[1].startswith("Fast-LS-l0"))
    assert row[6] == f"{low.percent:.1f}", "measured by saa+"
    share = pages.origins.Measured("subject-none", (20, "pixel"), 0.5, "sAA", 1000, "")
    monkeypatch.setattr(models, "_low", lambda records, recipe, attack=None: None)
    assert models._lowest(records, share) == "50.0 \\*", "SparseAnneal has not been run"
    monkeypatch.setattr(models, "_low", lambda records, recipe, attack=None: share)
    assert models._lowest(records, share) == "50.0 (sAA)"
    assert models._lowest(records, replace(share, images=500)) == "50.0 (sAA) †"


def test_a_measurement_over_few_images_counts_only_if_it_cannot_be_chance(pages: Any) -> None:
    many, near, far = (
        pages.origins.Measured("m", (20, "pixel"), share, attack, images, "")
        for share, attack, images in ((0.5, "saa+", 1000), (0.45, "anneal", 100), (0.3, "anneal", 100))
    )
    for found, expected in (([many, near], many), ([many, far], far), ([near], near), ([], None)):
        records = pages.Records()
        records.measured = found
        assert records.strongest("m", (20, "pixel")) == expected


def test_a_statement_that_the_records_do_not_bear_out_is_not_written(pages: Any) -> None:
    ours = pages.Records.read()
    stronger = {
        name: ours[name]
        | {"runs": [run | {"left": run["right"], "passes": [[0, run["right"]]]} for run in ours[name]["runs"]]}
        for name in ("anneal-prn18-fast-ls", "anneal-steps-15-prn18-fast-ls")
    }
    rows = [number("robust accuracy", "m", str(at), value) for at, value in enumerate((18.0, 19.0))]
    alpha = {"recipe": "alpha", "numbers": rows, "source": "Table X", "about": "sPGD projected: alpha", "images": 1000}
    assert "(lowest of 6 runs;" in results(pages)
    for other in (stronger, {"paper-alpha": alpha}):
        with pytest.raises(ValueError, match="the records say otherwise now"):
            results(pages, **other)


def test_the_record_of_run_times_with_most_images_finds_its_row_and_its_list(pages: Any) -> None:
    words = "every other attack takes longer than sPGD ([Table V](tables.md#table-v-run-time-of-all-attacks-k-20))"
    for slowest, place in ((1.5, "agree"), (0.5, "differ")):
        times = {
            "CS": slowest,
            "RS": 4.0,
            "SF": 2.0,
            "PGD0": 2.0,
            "SAIF": 2.0,
            "sPGD_p": 1.0,
            "sPGD_u": 1.0,
            "sAA": 3.0,
        }
        rows = [number("times the time of sPGD_u", "sTRADES", *cell, 2.0) for cell in (*times.items(), ("anneal", 9.0))]
        made = {"source": "Table V", "about": "run time of all attacks, k = 20", "recipe": "runtime", "numbers": rows}
        made |= {"places": {"sTRADES": "mine"}, "images": 1000, "steps": 300, "queries": 1000}
        text = results(pages, **{"paper-runtime-mine": made})
        (list_of,) = (part for part in text.split("\n## ") if words in part)
        assert place in list_of.partition("\n")[0]
        assert f"SF 2.0, PGD0 2.0, SAIF 2.0, sAA 2.0 | {slowest}, 4.0, 2.0, 2.0, 2.0, 3.0, SparseAnneal 9.0 |" in text
        assert "mine (1,000 images and 300 steps). The lengths differ: for 300 steps of sPGD, RS has 1,000 qu" in text


def test_the_strongest_measurement_counts_and_all_stages_are_paid_for(pages: Any) -> None:
    records, stages = pages.Records.read(), pages.origins.stages
    sat = records.strongest("cifar10-sat", (20, "pixel"))
    assert (sat.images, sat.share <= 0.339) == (1000, True), "not the 51.0 of 100 images and 1,000 queries"
    assert records.strongest("cifar10-fast-ls", (20, "pixel")).attack == "all runs"
    assert records.strongest("cifar10-none", (20, "pixel")) is None
    long = records.strongest("cifar10-strades-long", (20, "pixel"))
    assert (long.attack, long.images, long.interval[1] < 0.639) == ("spgd-near", 300, True), "too low for chance"
    assert stages("cifar10-strades-long") == ["cifar10-plain", "cifar10-strades", "cifar10-strades-long"]
    assert stages("cifar10-strades-sn") == ["cifar10-plain", "cifar10-fast-ls", "cifar10-strades-sn"]
    assert records.all_stages("cifar10-fast-ls") == {"epochs": 15 + 60, "seconds": 46.2 + 195.0}
    assert records.all_stages("cifar10-anneal") == records["train-cifar10-anneal"]["all stages"]


def test_official_code_without_a_first_call_of_its_own_is_marked(pages: Any, tmp_path: Path) -> None:
    for name, warm_up, shown in (("a", None, "| fp16 | 4.0 * |"), ("b", 9.0, "| fp16, compiled | 4.0 |")):
        row = {"name": "spgd-projected", "images": 8, "seconds": [1.0], "robust": [3], "warm_up": 2.0}
        row |= {"precision": "fp16", "compiled": name == "b"}
        theirs = {**row, "name": "official spgd-projected", "seconds": [4.0], "warm_up": warm_up}
        content = {"model": "mine", "hardware": "a device", "attacks": [row, theirs]}
        (tmp_path / "speed-mine.json").write_text(json.dumps(content))
        assert shown in tables(pages, tmp_path), name


def test_records_with_the_same_settings_are_one_table(pages: Any, tmp_path: Path) -> None:
    small = small_record()
    settings = {name: value for name, value in small.items() if name not in ("recipes", "notices", "not finished")}
    made = {"recipe": "unstructured", "source": "Table I", "about": "pixels", "unit": "robust accuracy, %", **settings}
    made |= {"places": {"sTRADES": "mine", "sAT": "other"}, "steps": 300, "queries": 1000}
    dash = "a dash means that the run was not asked for"
    table = [number("k=20", row, column, None) for row in ("sTRADES", "sAT") for column in ("CS", "RS")]
    first, second = ([{**one, "here": 50.0} if one["row"] == row else one for one in table] for row in made["places"])
    longer = {**made, "steps": 900, "numbers": second, "reasons": ["long"]}
    for name, record in (
        ("a", {**made, "numbers": first, "reasons": ["short", dash]}),
        ("b", {**made, "numbers": [*second, number("k=20", "sAT", "SF", 40.0)], "reasons": ["other", dash]}),
        ("c", longer),
    ):
        (tmp_path / f"paper-{name}.json").write_text(json.dumps(record))
    text = tables(pages, tmp_path)
    assert "247 s in 12 processes. Records: `paper-b.json`, `paper-a.json`." in text
    assert "| mine, here | 50.0 | 50.0 | - |" in text
    assert "| other, here | 50.0 | 50.0 | 40.0 |" in text
    assert text.count("**k=20**") == 2
    assert f"- other\n- {dash}\n- short\n" in text, "mine has no SF"


def test_no_two_models_have_one_name(pages: Any) -> None:
    """Right answers on the first 1,000 test images tell the models of the records apart."""
    clean: dict[str, set[int]] = {}
    for name in ("deviations", "anneal"):
        for record in pages.Records.read().of(name).values():
            counts = {run["right"] for run in record.get("runs", ()) if run.get("images") == 1000}
            counts |= {record["clean"]} if record["images"] == 1000 and "clean" in record else set()
            clean.setdefault(record["model"], set()).update(counts)
    assert {model: counts for model, counts in clean.items() if len(counts) > 1} == {}
    assert {"prn18-strades-10", "prn18-linf-6", "prn18-fast-ls"} <= clean.keys()


def test_a_section_is_there_if_its_record_is(pages: Any, tmp_path: Path) -> None:
    assert re.findall("^#+ (.*)", tables(pages, tmp_path), re.M) == ["All tables", "The models"]
    titles = {"saa-mine": "Sparse-AutoAttack", "detection-mine": "Detectors"}
    for name, record in RECORDS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
        text = tables(pages, tmp_path)
        found = [title for title in titles.values() if f"## {title}\n" in text]
        assert found == [title for other, title in titles.items() if (tmp_path / f"{other}.json").is_file()]
    assert (
        "| mine | 1,000, k = 20 | 10,000 steps, 10,000 queries | clean 82.0, spgd-unprojected 70.0, sparse-rs" in text
    )
    assert "| rs | 12.5 | 10.0 | 9 |" in text


def test_a_record_that_names_no_command_gets_none(pages: Any, tmp_path: Path) -> None:
    record = {"model": "mine", "data": "bundled", "n": 2, "how": "h", "seed": 0, "torch": "2", "device": "cpu"}
    line = {"attack": "rs", "robust_accuracy": 0.5, "interval": [0, 1], "forwards": 1, "backwards": 0, "seconds": 1}
    content = {**record, "budget": "b", "lines": [{**line, "clean_accuracy": 1, "median_groups": 1}]}
    (tmp_path / "compare-mine.json").write_text(json.dumps(content))
    assert "| `compare-mine.json` | - | - | cpu | commit, command, hardware |" in tables(pages, tmp_path)
    (tmp_path / "compare-mine.json").write_text(json.dumps({**content, "numbers since": "abc"}))
    assert "| `compare-mine.json` | - | at the latest abc | cpu |" in tables(pages, tmp_path)


def test_tables_of_the_paper_stand_beside_ours_with_reasons(pages: Any, tmp_path: Path) -> None:
    (tmp_path / "small-mine.json").write_text(json.dumps(small_record()))
    text = tables(pages, tmp_path)
    assert "| k=20 | mine | 88.5 | 61.0 | sTRADES | 89.8 | 61.7 |" in text
    assert "| mine, here | 82.0 | - | 61.0 |" in text, "ours under its own name"
    assert "| 95 % | 73-91 | - | 52-70 |" in text
    assert "| sTRADES, paper | 89.8 | 61.8 | 61.7 |" in text
    assert [text.count(f"\n- {reason}\n") for reason in ("short", "few images", "no numbers")] == [2, 1, 1]
    assert "seed 3, a device, torch 2.11.0, 123 s in 12 processes" in text
    assert "Epochs of training: mine 24;" in text
    assert "- mine, spgd; mine, rs: masked\n- mine, rs: few queries\n" in text
    assert "6 steps" not in text, "a trial that is not made any more"
    assert "](images/results-small-mine-iterations.svg)" in text
    drawn = pages.paper.drawn(pages.Records.read(tmp_path))
    assert list(drawn) == ["results-small-mine-iterations.svg"]
    assert drawn["results-small-mine-iterations.svg"].lstrip().startswith(b"<?xml")


def test_models_are_shown_as_their_cards_say(pages: Any, tmp_path: Path) -> None:
    text = tables(pages, tmp_path)
    for name in zoo.bundled_names():
        card = zoo.card(name)
        assert f"| {name} | {card.architecture} | {card.method} | {card.epochs} |" in text
        assert f"| {100 * card.clean_accuracy:.1f} |" in text
