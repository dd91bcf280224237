"""benchmarks/paper_runs.py: attacks of several recipes once each, resumed from small files, one record per recipe."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from support.scripts import script

FEW = ("-n", "2", "--steps", "3", "--queries", "6", "--passes", "12", "--device", "cpu", "--jobs", "2")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    return script("paper_runs", monkeypatch)


def words(driver: Any, monkeypatch: pytest.MonkeyPatch, out: Path, *more: str) -> tuple[Any, Any]:
    given = (*more, *FEW, "--out", str(out / "runs"), "--records", str(out), "--images", str(out))
    monkeypatch.setattr(sys, "argv", ["/far/away/paper_runs.py", *given])
    monkeypatch.setenv("COMMIT", "abc")
    args = driver.arguments()
    return args, driver.ordered(args)


def attacked(driver: Any, order: Any, name: str, skip: int = 0) -> Any:
    """In this process; all parts but the first `skip`."""
    parts = driver.planned(order, name)[1].parts
    return {driver.key(part): driver.attack(order, name, place) for place, part in enumerate(parts) if place >= skip}


def test_what_it_writes_is_what_the_page_reads(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the attacks is not finished. Finished ones are read from their small files, without folders of runs."""
    model = ("--name", "mine", "--model", "Fast-EG-l1=zoo:small-plain")
    args, order = words(driver, monkeypatch, tmp_path, "components", *model)
    done = attacked(driver, order, "components", skip=1)
    record = driver.record(order, args, "components", done)
    assert record["missing"] == 1
    assert record["places"] == {"Fast-EG-l1": "small-plain"}
    assert (record["steps"], record["queries"], record["images"]) == (3, 6, 2)
    assert str(tmp_path) not in record["command"]
    assert script("provenance", monkeypatch).missing(record) == record.get("unknown", []) == []
    shutil.rmtree(order.out / "cases")
    assert driver.record(order, args, "components", attacked(driver, order, "components", skip=1)) == record
    (tmp_path / "paper-components-mine.json").write_bytes(driver.dumped(record))
    assert json.loads((tmp_path / "paper-components-mine.json").read_text()) == record
    args.data, args.model = "npz:/far/away/x.npz", ["V=trained:runs/v", "R=zoo:small-plain"]
    assert driver.without_folders(b"npz:/far/away/x.npz runs/v small-plain", args) == b"npz:x.npz v small-plain"
    pages = script("pages", monkeypatch)
    text = pages.render("tables.md.j2", pages.Records.read(tmp_path))
    assert "a dash means that the run did not finish within the time limit" in text
    assert "| small-plain, here | - |" in text
    assert "| Fast-EG-l1, paper | 49.4 | 58.0 | 33.9 | 18.1 |" in text


def test_the_images_of_a_record_are_those_of_all_attacks_but_the_slow_ones(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("unstructured", "--model", "Vanilla=zoo:small-plain", "--few", "1")
    args, order = words(driver, monkeypatch, tmp_path, *given)
    last = len(driver.planned(order, "unstructured")[1].parts) - 1
    record = driver.record(order, args, "unstructured", attacked(driver, order, "unstructured", skip=last))
    assert (record["images"], record["few"]) == (2, {"CS": 1, "SF": 1})


def test_rows_that_are_not_asked_for_are_gaps(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ("--name", "mine", "--model", "Vanilla=zoo:small-plain", "--rows", "eps=8/255", "--size", "32")
    args, order = words(driver, monkeypatch, tmp_path, "watermarks", *model)
    assert order.job("watermarks").size == 32
    parts = driver.planned(order, "watermarks")[1].parts
    asked = [place for place, part in enumerate(parts) if driver.selected(order, part)]
    assert {parts[place].row for place in asked} == {"eps=8/255"}
    done = {driver.key(parts[asked[0]]): driver.attack(order, "watermarks", asked[0])}
    record = driver.record(order, args, "watermarks", done)
    assert record["missing"] == len(asked) - 1 < len(parts) - 1, "only what was asked for can be missing"
    assert record["reasons"][-1].startswith("a dash means that the run was not asked for or did not finish")


def test_numbers_of_columns_and_sections_that_are_not_asked_for_are_left_out(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--columns", "PGD0", "RS", "--sections", "k=10", "--rows", "Vanilla")
    models = ("--model", "Vanilla=zoo:small-plain", "GD=zoo:small-strades", "--name", "mine")
    args, order = words(driver, monkeypatch, tmp_path, "unstructured", *models, *asked)
    parts = driver.planned(order, "unstructured")[1].parts
    places = [place for place, part in enumerate(parts) if driver.selected(order, part)]
    assert {(parts[one].section, parts[one].row, parts[one].column) for one in places} == {
        ("k=10", "Vanilla", "PGD0"), ("k=10", "Vanilla", "RS"),
    }  # fmt: skip
    done = {driver.key(parts[one]): driver.attack(order, "unstructured", one) for one in places}
    numbers = driver.record(order, args, "unstructured", done)["numbers"]
    assert [(one["section"], one["row"], one["column"]) for one in numbers] == [
        ("k=10", "Vanilla", column) for column in ("clean", "RS", "PGD0")
    ]
    assert all(one["here"] is not None for one in numbers)


def test_figures_are_drawn_from_records(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("histogram", "ratio", "pictures")
    args, order = words(driver, monkeypatch, tmp_path, *names, "--model", "Vanilla=zoo:small-plain", "--name", "mine")
    for name in names:
        record = driver.record(order, args, name, attacked(driver, order, name))
        (tmp_path / f"paper-{name}-mine.json").write_bytes(driver.dumped(record))
    pages = script("pages", monkeypatch)
    records = pages.Records.read(tmp_path)
    for name, data in pages.paper.drawn(records).items():
        (tmp_path / name).write_bytes(data)
    shown = [name for one in records.papers for name in pages.paper.pictures(one)]
    assert len(shown) == 3
    assert all((tmp_path / name).read_bytes().lstrip().startswith(b"<?xml") for name in shown)
    assert all(f"](images/{name})" in pages.render("tables.md.j2", records) for name in shown)


def test_success_on_targets_is_known_without_images(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ("--model", "V=zoo:small-plain", "R=zoo:small-strades")
    args, order = words(driver, monkeypatch, tmp_path, "transfer", *models, "--name", "small")
    done = attacked(driver, order, "transfer")
    shutil.rmtree(order.out / "cases")
    again = attacked(driver, order, "transfer")
    assert [one.value for one in again.values()] == [one.value for one in done.values()]
    record = driver.record(order, args, "transfer", again)
    assert {number["column"] for number in record["numbers"]} == {"V->R", "R->V"}
    assert record["models"].keys() == {"small-plain", "small-strades"}


def test_run_time_is_measured_by_one_process(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own: attacks that shared a device have other seconds."""
    with pytest.raises(SystemExit):
        words(driver, monkeypatch, tmp_path, "runtime")
    monkeypatch.setattr(sys.modules[__name__], "FEW", (*FEW[:-1], "1"))
    order = words(driver, monkeypatch, tmp_path, "runtime")[1]
    assert order.alone
    assert order.out == tmp_path / "runs" / "alone"


def test_models_have_places_where_recipes_have_them(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ("--model", "Fast-EG-l1=zoo:small-plain", "sTRADES-l0=zoo:x")
    order = words(driver, monkeypatch, tmp_path, "--data", "npz:x", *models)[1]
    assert order.job("unstructured").models == {"Fast-EG-l1": "zoo:small-plain"}
    assert order.job("alpha").models == {"Fast-EG-l1": "zoo:small-plain"}
    assert order.job("structured").models == {"sTRADES-l0": "zoo:x"}
    assert order.job("watermarks").data == "npz:x"
    order = words(driver, monkeypatch, tmp_path, "--data", "npz:x")[1]
    assert (order.job("watermarks").data, order.job("unstructured").data) == ("bundled", "npz:x"), "subjects are small"


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [("runtime", "time is measured by one process"), ("training-gradient", "networks are trained by one process")],
)
def test_what_one_process_must_do_is_refused_for_several(
    recipe: str, reason: str, driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    with pytest.raises(SystemExit):
        words(driver, monkeypatch, tmp_path, recipe)
    assert f"{reason}; use --jobs 1 for {recipe}" in capsys.readouterr().err
