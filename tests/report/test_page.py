"""The page as a file: self-contained, small, escaped, complete."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import sparsepgd as sp
from sparsepgd import zoo
from sparsepgd.report import pictures
from sparsepgd.report.entries import collect, records_of
from sparsepgd.report.page import PAGE, duration, refresh_page, render, write_page
from sparsepgd.report.pictures import gallery
from sparsepgd.runs.records import About
from sparsepgd.runs.runs import run
from support.models import labelled
from support.reported_runs import CLASSES, COMMAND, COUNT, MARKUP, make, make_ensemble, make_of_numbers, spgd


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("page") / "run")


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return render(collect([folder]))


def test_the_page_needs_no_other_file(page: str) -> None:
    links = re.findall(r'\b(?:src|href)\s*=\s*"([^"]*)"', page)
    assert links
    assert {link for link in links if not link.startswith(("data:", "#"))} == set()
    outside = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert outside == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, not places
    assert "default-src 'none'" in page  # the browser forbids it too
    assert "@import" not in page


def test_names_from_data_are_text(page: str) -> None:
    assert MARKUP not in page
    assert page.count("<script") == 2  # the data and the script of the page
    assert html.escape(f"model {MARKUP}") in page
    assert html.escape(COMMAND, quote=False) in html.unescape(html.escape(page, quote=False)).replace("&#39;", "'")


def test_the_page_tells_what_was_measured_and_how_to_repeat_it(folder: Path, page: str) -> None:
    record = collect([folder])[0].record
    for share in (*record.robust_interval, *record.clean_interval, record.robust_accuracy, record.clean_accuracy):
        assert f"{100 * share:.1f}" in page
    for words in ("attack.budget.k", "attack.steps", "model.sha256", record.environment["torch"], "seed"):
        assert words in page
    old = render(collect([make(folder.parent / "silent", about=About())]))
    assert "started from Python" in old
    assert "class 3" in old


def test_one_image_and_one_step_are_counted_without_an_s(tmp_path: Path) -> None:
    page = render(collect([make(tmp_path, spgd(steps=1), count=1)]))
    lead = page.split('<p class="lead">')[1].split("</p>")[0]
    assert lead.strip().startswith(f"1 image of {html.escape(f'data {MARKUP}')} · k = 6 pixels · 1 step · seed 0")


def test_warnings_stand_before_the_figures(folder: Path, tmp_path: Path) -> None:
    written = json.loads((folder / "run.json").read_text())
    for file in folder.glob("*.safetensors"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "run.json").write_text(json.dumps(written | {"warnings": []}))
    assert "Before you trust" not in render(collect([tmp_path]))
    written["warnings"] = [{"code": "batch", "message": f"look {MARKUP}"}]
    (tmp_path / "run.json").write_text(json.dumps(written))
    warned = render(collect([tmp_path]))
    assert warned.index(html.escape(f"look {MARKUP}")) < warned.index('id="overview"')


def test_records_without_confidences_and_names_are_shown(folder: Path, tmp_path: Path) -> None:
    written = json.loads((folder / "run.json").read_text())
    del written["about"]
    for row in written["rows"]:
        del row["clean_confidence"], row["confidence"]
    for file in folder.glob("*.safetensors"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "run.json").write_text(json.dumps(written))
    assert '"sure_after": null' in render(collect([tmp_path]))


def test_the_same_runs_give_the_same_page(folder: Path, page: str) -> None:
    assert render(collect([folder])) == page


def test_runs_side_by_side_share_the_clean_pictures(folder: Path, tmp_path: Path) -> None:
    second = make_ensemble(tmp_path / "second")
    both = gallery(collect([folder, second]))
    assert (len(both["images"]), len(both["shots"]), len(both["sets"])) == (COUNT, 2 * COUNT, 1)
    page = render(collect([folder, second]))
    assert page.count('class="head"') == 2
    differing = re.findall(r'<tr class="differ"><th scope="row">([^<]*)', page)
    assert {"attack.name", "model.name", "attack.steps"} <= set(differing)
    assert "seed" not in differing


def test_runs_that_attack_the_same_are_counted_together(tmp_path: Path) -> None:
    folders = [make(tmp_path / "a"), make(tmp_path / "b", sp.SparseRS(sp.Budget(k=6), queries=30))]
    entries = collect(folders)
    pairs = zip(*(entry.record.rows for entry in entries), strict=True)
    left = sum(all(row.clean_correct and not row.fooled for row in pair) for pair in pairs)
    assert re.search(
        rf"<b>A \+ B</b> together, the robust accuracy of .* is <b>{100 * left / COUNT:.1f} %</b>", render(entries)
    )


class LinearTen(nn.Module):
    """Ten classes of CIFAR-10 pictures, quick."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3072, 10)
        with torch.no_grad():
            self.last.weight.copy_(torch.randn(10, 3072, generator=torch.Generator().manual_seed(0)) / 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x.flatten(1))


def test_five_hundred_images_stay_under_five_megabytes(tmp_path: Path) -> None:
    x, _ = zoo.bundled_images()
    model = LinearTen().eval()
    about = About(class_names=zoo.CIFAR10_CLASSES)
    run(tmp_path / "run", sp.SparsePGD(sp.Budget(k=20), steps=3), model, (x, labelled(model, x)), about=about)
    page = write_page(collect([tmp_path / "run"]), tmp_path / "page.html")
    assert 1_000_000 < page.stat().st_size < 5_000_000


def test_large_images_are_made_smaller_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "run", count=10, size=100)
    monkeypatch.setattr(pictures, "ROOM", 60_000)
    found = gallery(collect([folder]))
    assert sum(len(image["clean"]) for image in found["images"]) < 40_000
    assert "made smaller, from 100x100 to at most" in found["notes"][0]
    assert all(shot["changes"].startswith("data:image/png") for shot in found["shots"] if shot["changes"])


def test_only_the_first_images_of_many_are_shown_and_that_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MOST", 5)
    found = gallery(collect([folder]))
    assert (len(found["images"]), len(found["shots"])) == (5, 5)
    assert found["notes"] == [f"The first 5 of {COUNT} images are shown."]


def test_the_table_says_that_it_is_cut_whichever_run_is_the_long_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = make(tmp_path / "short", count=10)
    monkeypatch.setattr(pictures, "MOST", 15)
    for folders in ([short, folder], [folder, short]):
        assert "The first 15 of each run are shown." in render(collect(folders))
    assert "of each run are shown" not in render(collect([short]))


def test_data_sets_stand_in_the_gallery_in_the_order_of_their_runs(folder: Path, tmp_path: Path) -> None:
    other, again = make(tmp_path / "other", size=10), make(tmp_path / "again", spgd(steps=2))
    assert [one["width"] for one in gallery(collect([folder, other, again]))["sets"]] == [12, 10]


def test_every_row_of_the_table_has_its_picture(folder: Path, tmp_path: Path) -> None:
    """Row and picture have one number, also where a run without pictures comes first."""
    entries = collect([make_of_numbers(tmp_path / "run", 9), folder])
    page, shots = render(entries), gallery(entries)["shots"]
    rows = re.findall(r'<tr id="row-(\d+)".*?href="#shot-(\d+)"[^>]*>#(\d+)</a>', page)
    assert rows == [(str(i), str(i), str(i)) for i in range(len(shots))]
    assert page.count('<th scope="row">#') == COUNT


def test_names_of_classes_reach_the_gallery(folder: Path) -> None:
    found = gallery(collect([folder]))
    assert set(found["sets"][0]["labels"].values()) <= set(CLASSES)


def test_a_page_is_written_again_only_when_it_shows_other_runs(folder: Path, tmp_path: Path) -> None:
    """Whatever the times: a page of other runs may be younger than these."""
    page, second = tmp_path / PAGE, make_ensemble(tmp_path / "second")
    both, other = ([folder, second], [second])
    refresh_page(records_of(both), page)
    written, content = page.stat().st_mtime_ns, page.read_bytes()
    refresh_page(records_of(both), page)
    assert page.stat().st_mtime_ns == written
    refresh_page(records_of(other), page)
    assert page.read_bytes() != content
    refresh_page(records_of(both), page)
    assert page.read_bytes() == content
    record = json.loads((second / "run.json").read_text())
    (second / "run.json").write_text(json.dumps(record | {"warnings": [{"code": "new", "message": "look out"}]}))
    refresh_page(records_of(both), page)
    assert "look out" in page.read_text()


def test_runs_inside_the_folder_of_a_run_are_shown_too_but_not_on_its_own_page(folder: Path, tmp_path: Path) -> None:
    outer = make(tmp_path / "outer")
    make_ensemble(outer / "inner")
    assert len(collect([outer])) == 2
    refresh_page(records_of([outer]), outer / PAGE)
    assert "runs side by side" not in (outer / PAGE).read_text()


@pytest.mark.parametrize(("shape", "thing", "point"), [((9,), "input", "feature"), ((2, 12), "signal", "place")])
def test_what_is_no_image_has_a_page_without_pictures(
    tmp_path: Path, shape: tuple[int, ...], thing: str, point: str
) -> None:
    entries = collect([make_of_numbers(tmp_path / "run", *shape)])
    page, record = render(entries), entries[0].record
    assert f"{100 * record.robust_accuracy:.1f}" in page
    for words in (f"{COUNT} {thing}s of table", f"median {point}s", f"Which {point}s are changed", "Accuracy by class"):
        assert words in page
    silent = "<(script|style|dialog).*?</\\1>", "<section id=.gallery.*?</section>", "<[^>]*>"
    assert not re.search(r"\b(images?|pixels?)\b", re.sub("|".join(silent), "", page, flags=re.S))
    assert re.search(r'<section id="gallery"[^>]* hidden>', page)
    assert 'href="#gallery"' not in page
    assert "data:image/" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.S)


def test_pictures_and_numbers_side_by_side(folder: Path, tmp_path: Path) -> None:
    entries = collect([make_of_numbers(tmp_path / "run", 9), folder])
    found, page = gallery(entries), render(entries)
    assert len(found["runs"]) == 2
    assert len(found["images"]) == len(found["shots"]) == COUNT
    assert {shot["run"] for shot in found["shots"]} == {1}
    assert 'href="#gallery"' in page
    assert "Where pixels are changed" in page
    assert "Which features are changed" in page


@pytest.mark.parametrize(("seconds", "words"), [(1.26, "1.3 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations_are_short(seconds: float, words: str) -> None:
    assert duration(seconds) == words
