"""Figures as files and in the page: the same ones, in one look."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

import sparsepgd as sp
from sparsepgd.report import charts, classes
from sparsepgd.report.entries import Entry, collect
from sparsepgd.report.page import Drawing, draw_all, write_figures
from sparsepgd.report.style import INK, LINE, MUTED, PAPER, SERIES, figure_style, plain
from sparsepgd.runs.records import About
from support.reported_runs import (
    CLASSES,
    MARKUP,
    make,
    make_ensemble,
    make_of_numbers,
    make_over_k,
    make_watermark,
    spgd,
)


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    place = tmp_path_factory.mktemp("figures")
    return collect([make(place / "one"), make_ensemble(place / "two"), make_over_k(place / "three")])


def test_every_figure_is_written_as_svg_and_png(entries: list[Entry], tmp_path: Path) -> None:
    files = write_figures(entries, tmp_path / "out")
    names = {file.stem for file in files}
    assert {"outcomes", "over-steps", "over-queries", "over-k", "steps-needed", "smallest-k", "magnitudes"} <= names
    assert {f"{kind}-{letter}" for kind in ("per-class", "heat-map", "confusion") for letter in "ABC"} <= names
    assert "cascade-B" in names
    assert len(files) == 2 * len(names) == 2 * 17
    for file in files:
        if file.suffix == ".svg":
            assert ElementTree.parse(file).getroot().tag.endswith("svg")
        else:
            with Image.open(file) as picture:
                assert min(picture.size) > 300
                assert len(set(picture.convert("L").resize((80, 80)).get_flattened_data())) > 10  # not empty


def test_all_figures_keep_to_the_palette(entries: list[Entry], tmp_path: Path) -> None:
    allowed = {INK, MUTED, LINE, PAPER, *SERIES, "#ffffff", "#000000"}
    for file in write_figures(entries[:1], tmp_path / "out"):
        if file.suffix == ".svg":
            found = set(re.findall(r"#[0-9a-f]{6}\b", re.sub(r"base64,[^\"]*", "", file.read_text())))
            assert found - allowed == set(), file.name
            assert found & set(SERIES) or file.stem in ("heat-map", "confusion"), file.name  # those hold pictures


def test_figures_in_the_page_take_its_colours_and_letters(entries: list[Entry]) -> None:
    drawings = list(draw_all(entries))
    for drawing in drawings:
        text = drawing.inline()
        assert not {INK, MUTED, LINE, PAPER, *SERIES} & set(re.findall(r"#[0-9a-f]{6}", text))
        assert "var(--muted)" in text
        assert "DejaVu" not in text
        assert "<text" in text
    names = [name for drawing in drawings for name in re.findall(r'\bid="([^"]+)"', drawing.inline())]
    assert len(names) == len(set(names))


def test_names_are_drawn_as_they_are(entries: list[Entry]) -> None:
    (confusion,) = (one for one in draw_all(entries[:1]) if one.name == "confusion")
    text = confusion.inline()
    assert MARKUP not in text
    root = ElementTree.fromstring(text)
    words = {"".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("}text")}
    assert {plain(name, 14).replace(r"\$", "$").strip() for name in CLASSES if name in set(shown(entries[0]))} <= words
    assert any("$" in word for word in words) or "$x$ = $y" not in shown(entries[0])


def shown(entry: Entry) -> list[str]:
    rows = entry.record.rows
    return [entry.class_name(number) for row in rows for number in (row.label, row.prediction, row.clean_prediction)]


def test_curves_appear_only_where_there_is_something_to_draw(entries: list[Entry]) -> None:
    def names(some: list[Entry]) -> set[str]:
        return {drawing.name for drawing in draw_all(some)}

    assert "over-k" not in names(entries[:1])  # one k is no curve
    assert "over-k" in names(entries[:2])  # two k
    assert not {"over-steps", "over-queries", "steps-needed"} & names(entries[2:])  # steps of many attacks
    assert "over-k" in names(entries[2:])


def named(entries: list[Entry], name: str) -> Drawing:
    (drawing,) = (one for one in draw_all(entries) if one.name == name)
    return drawing


def test_one_curve_leads_through_all_members_of_a_cascade(entries: list[Entry]) -> None:
    drawing, (_, entry, _) = named(entries, "cascade-B"), entries
    before = 100 * entry.record.clean_accuracy
    for axis, member in zip(drawing.figure.axes, entry.members, strict=True):
        heights = axis.lines[0].get_ydata()
        assert axis.get_title(loc="left") == member.name
        assert (heights[0], heights[-1]) == pytest.approx((before, 100 * member.robust_accuracy))
        before = heights[-1]
    titles = re.findall("<title>([^<]*)</title>", drawing.inline())
    assert [title.split(" broke ")[0] for title in titles] == [member.name for member in entry.members]


def test_the_smallest_k_of_every_broken_image_is_counted(entries: list[Entry]) -> None:
    entry = entries[2]
    heights, edges, _ = named(entries, "smallest-k").figure.axes[0].patches[0].get_data()
    needed = [row.groups for row in entry.record.rows if row.fooled]
    assert {round(left + 0.5): count for left, count in zip(edges, heights, strict=False)} == {
        k: needed.count(k) for k in range(1, 7)
    }


def test_no_image_is_missing_from_a_histogram_whose_bins_contain_several_k(entries: list[Entry]) -> None:
    record = entries[2].record
    attack = record.configuration["attack"]
    longer = {**attack, "budget": {**attack["budget"], "k": 45}}  # two k per bin, the last alone in its bin
    rows = tuple(row.model_copy(update={"groups": 45}) for row in record.rows)
    record = record.model_copy(update={"configuration": {**record.configuration, "attack": longer}, "rows": rows})
    heights, edges, _ = charts.smallest_k([replace(entries[2], record=record)]).axes[0].patches[0].get_data()
    assert heights[-1] == sum(row.fooled for row in rows) > 0
    assert edges[-2] < 45 < edges[-1]


def test_a_minimum_norm_attack_without_early_stop_has_the_smallest_k(tmp_path: Path) -> None:
    attack = sp.SparseAnneal(sp.Budget(k=6), steps=8)
    folders = [make(tmp_path / str(stop), replace(attack, early_stop=stop)) for stop in (True, False)]
    stopped, searched = collect(folders)
    assert (stopped.smallest_k, searched.smallest_k) == (False, True)
    names = {drawing.name for drawing in draw_all([replace(searched, position=0)])}
    assert {"over-k", "over-steps"} <= names
    assert ("smallest-k" in names) == any(row.fooled for row in searched.record.rows)


def test_magnitudes_are_those_of_the_changed_values(entries: list[Entry], tmp_path: Path) -> None:
    entry = entries[0]
    x_adv = entry.x.clone()
    x_adv[:, 0, 0, 0] = 1.0  # as far as allowed
    x_adv[:, 1, 0, 0] = entry.x[:, 1, 0, 0] * 0.5 + 0.25
    changed = Entry(0, "one", entry.record, entry.x, x_adv)
    differ = (x_adv != entry.x)[entry.searched]
    assert len(changed.sizes) == int(differ.sum())
    assert changed.extreme == pytest.approx(int(differ[:, 0].sum()) / int(differ.sum()))
    heights, edges, _ = named([changed], "magnitudes").figure.axes[0].patches[0].get_data()
    assert sum(heights) == pytest.approx(100)
    assert (edges[0], edges[-1]) == (0, 1)
    (mark,) = collect([make_watermark(tmp_path / "mark")])
    assert named([mark], "magnitudes").figure.axes[0].patches[0].get_data()[1][-1] == pytest.approx(16 / 255)
    assert mark.extreme > 0.5
    same = Entry(0, "one", entry.record, entry.x, entry.x)
    assert "magnitudes" not in {drawing.name for drawing in draw_all([same])}


@pytest.mark.parametrize("shape", [(2, 12), (classes.BARS + 100,)])
def test_bars_are_the_shares_of_inputs_that_change_a_feature(shape: tuple[int, ...], tmp_path: Path) -> None:
    (entry,) = collect([make_of_numbers(tmp_path / "run", *shape)])
    (drawing,) = (one for one in draw_all([entry]) if one.name == "changed")
    heights, edges, _ = drawing.figure.axes[0].patches[0].get_data()
    differ = (entry.x != entry.x_adv)[entry.searched]
    share = 100 * (differ if len(shape) == 1 else differ.any(1)).double().mean(0)
    assert (edges[0], edges[-1]) == (-0.5, len(share) - 0.5)
    assert max(heights) == pytest.approx(float(share.max()))
    if len(share) <= classes.BARS:
        assert list(heights) == pytest.approx(share.tolist())
    assert len(heights) == min(len(share), classes.BARS)
    assert {file.stem for file in write_figures([entry], tmp_path / "out")} >= {"changed", "outcomes", "confusion"}


def test_only_runs_with_the_same_groups_share_an_axis_of_k(entries: list[Entry], tmp_path: Path) -> None:
    (mark,) = collect([make_watermark(tmp_path / "mark")])  # k counts shapes there
    assert "over-k" not in {drawing.name for drawing in draw_all([entries[0], mark])}
    (drawing,) = (one for one in draw_all([mark, *entries]) if one.name == "over-k")
    assert len(drawing.figure.axes[0].get_legend().get_texts()) == 3


def test_an_axis_of_k_has_whole_numbers(entries: list[Entry], tmp_path: Path) -> None:
    (more,) = collect([make(tmp_path / "more", spgd(k=20))])
    ticks = charts.over_k([entries[0], more]).axes[0].get_xticks()
    assert list(ticks) == [round(tick) for tick in ticks]


def test_a_long_legend_leaves_the_curves_their_room(entries: list[Entry]) -> None:
    many = [replace(entries[0], position=i, label=f"run {i} with a label as long as a line") for i in range(9)]

    def height(some: list[Entry]) -> float:
        with figure_style():
            figure = charts.over_steps(some)
            figure.draw_without_rendering()
        return float(figure.axes[0].get_window_extent().height)

    assert height(many) > 0.9 * height(many[:2])


def test_names_that_would_be_cut_alike_have_their_numbers(entries: list[Entry]) -> None:
    names = ("no overtaking by lorries", "no overtaking by anybody", "stop", "stop")
    record = entries[0].record
    entry = replace(entries[0], record=record.model_copy(update={"about": About(class_names=names)}))
    shown = classes.count_classes(entry)
    assert shown.numbers == (0, 1, 2, 3)
    assert shown.short_names(15) == ["0 no overtakin…", "1 no overtakin…", "2 stop", "3 stop"]
    ticks = classes.per_class(entry).axes[0].get_yticklabels()
    assert len(ticks) == len({row.label for row in record.rows})  # two classes of one name are two


def test_letters_of_matrices_are_as_large_for_few_classes_as_for_many(entries: list[Entry]) -> None:
    few, record = entries[0], entries[0].record
    rows = tuple(row.model_copy(update={"label": row.index}) for row in record.rows)
    many = replace(few, record=record.model_copy(update={"rows": rows}))
    assert len(classes.count_classes(many).names) > 2 * len(classes.count_classes(few).names)
    for stacked in (False, True):
        assert classes.confusion(few, stacked).get_figwidth() == classes.confusion(many, stacked).get_figwidth()
