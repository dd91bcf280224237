"""Recipes from plan to table: what is shown, that a second run only reads, what is refused."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import sparsepgd as sp
from sparsepgd import tables, zoo
from sparsepgd.errors import UnsupportedError
from sparsepgd.reproduce.experiments.accuracy import Block, grid, together
from sparsepgd.reproduce.experiments.curves import WITHIN
from sparsepgd.reproduce.jobs import OURS, SAA, Subject, scale
from sparsepgd.reproduce.parts import Case, Number, Outcome, cases, cost
from sparsepgd.reproduce.recipe import reasons
from sparsepgd.reproduce.recipes import RECIPES, recipe
from sparsepgd.reproduce.show import grids, heading, markdown, write
from sparsepgd.runs import runs
from sparsepgd.zoo import places
from support.models import SmallConvNet, images, labelled
from support.tiny_jobs import tiny_job

SHIPPED = [name for name in RECIPES if name not in ("cifar100", "gtsrb", "detection")]


@pytest.fixture(autouse=True)
def _without_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an installation: weights/ of this checkout is not looked at."""
    monkeypatch.setattr(places, "checkout", lambda: None)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_plans_on_what_ships_and_shares_no_case_with_itself(name: str, tmp_path: Path) -> None:
    _, plan = recipe(name).prepare(tiny_job(tmp_path))
    assert len(plan.parts) > 0
    assert all(part.passes > 0 for part in plan.parts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "role"), [("cifar100", "Vanilla"), ("gtsrb", "PGD0-A")])
def test_what_does_not_ship_says_what_to_give(name: str, role: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=rf"no substitute for .*{role}.*--model ROLE=SOURCE --data"):
        recipe(name).prepare(tiny_job(tmp_path))
    with pytest.raises(UnsupportedError, match="the package has no detector; give one"):
        recipe("detection").prepare(tiny_job(tmp_path))


def test_unknown_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no recipe 'table1'; use one of unstructured"):
        recipe("table1")
    with pytest.raises(UnsupportedError, match=r"ViT: no two models of the same images, .*--model NAME=SOURCE"):
        recipe("transfer").prepare(tiny_job(tmp_path, models={"ViT": "zoo:small-plain"}))
    with pytest.raises(UnsupportedError, match="scale 'huge'; use one of smoke, small, paper"):
        scale("huge")


TRAINED = ["training-gradient", "training-multi-eps", "training-tolerance", "training-structured"]


@pytest.mark.parametrize(
    ("name", "given"), [*((name, {"size": 9}) for name in TRAINED), ("transfer", {"data": "nonsense"})]
)
def test_recipes_that_train_on_digits_refuse_words_that_they_would_not_read(
    name: str, given: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=f"--{next(iter(given))} cannot be used;"):
        recipe(name).prepare(tiny_job(tmp_path, **given))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_recipe_takes_a_model_of_any_name(name: str, tmp_path: Path) -> None:
    """Of the paper's, which has numbers in some tables, and of one's own, which has none."""
    _, plan = recipe(name).prepare(
        tiny_job(tmp_path, models={"l1-APGD": "zoo:small-plain", "mine": "zoo:small-strades"})
    )
    assert {part.subject.role for part in plan.parts} == {"l1-APGD", "mine"}
    assert all(part.passes > 0 for part in plan.parts)


@pytest.mark.parametrize("name", ["unstructured", "structured", "imagenet", "watermarks", "runtime", "histogram"])
def test_sparse_anneal_stands_in_every_table_of_attacks(name: str, tmp_path: Path) -> None:
    _, plan = recipe(name).prepare(tiny_job(tmp_path, models={"Vanilla": "zoo:small-plain"}))
    found = [case for case in plan.parts if isinstance(case, Case)]
    rows = {(case.section, case.row) for case in found}
    assert {(case.section, case.row) for case in found if case.attack.name == "anneal"} == rows


def test_run_time_of_an_ensemble_is_that_of_its_cascade(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, images=1, models={"mine": "zoo:small-plain"})
    job, plan = recipe("runtime").prepare(job)
    found = {case.column: case.attack for case in plan.parts if isinstance(case, Case)}
    assert [found[name].name for name in ("sAA", "saa+", "anneal")] == ["saa", "saa+", "anneal"]
    few = [part for part in plan.parts if isinstance(part, Case) and part.column in ("sPGD_u", "sAA")]
    records = {part.column: part.run(job, None) for part in few}
    numbers = plan.finish([records.get(part.column, records["sPGD_u"]) for part in plan.parts]).numbers
    minutes = {one.column: one.here for one in numbers if one.section == "minutes for 1,000 images"}
    assert minutes["sAA"] == pytest.approx(records["sAA"].record.seconds / 60 * 1000)


def test_the_scale_of_the_paper_has_its_images(tmp_path: Path) -> None:
    counts = {name: recipe(name).images or scale("paper").images for name in RECIPES}
    assert {name: count for name, count in counts.items() if count != 10_000} == {
        "imagenet": 500, "gtsrb": 500, "structured-imagenet": 500, "watermarks": 500, "iterations-imagenet": 500,
        "ratio": 100, "runtime": 1000,
    }  # fmt: skip
    job = replace(tiny_job(tmp_path), scale=scale("paper"))
    job, plan = recipe("runtime").prepare(job)
    assert (job.scale.images, len(plan.parts[0].subject.x)) == (1000, 500), "all there are"
    many = Subject("V", "small", SmallConvNet, torch.zeros(1200, 3, 4, 4), torch.zeros(1200).long(), "random")
    lengths = {
        case.column: len(case.subject.x) for case in cases(tiny_job(tmp_path), many, ("CS", "RS"), sp.Budget(k=1), "")
    }
    assert lengths == {"CS": 1000, "RS": 1200}, "the slowest attack has fewer, as in the paper"


@pytest.mark.parametrize("name", TRAINED)
def test_ablations_of_training_are_made_on_given_images_with_the_papers_budget(name: str, tmp_path: Path) -> None:
    x, y = zoo.bundled_images(12)
    np.savez(tmp_path / "c.npz", x_test=x[:4], y_test=y[:4], x_train=x[4:], y_train=y[4:])
    job, plan = recipe(name).prepare(tiny_job(tmp_path, data=f"npz:{tmp_path / 'c.npz'}"))
    budget = sp.Budget(k=2, pattern=sp.Patches(3)) if name == "training-structured" else sp.Budget(k=20)
    assert {repr(part.attack.budget) for part in plan.parts} == {repr(budget)}
    assert "small_preact_resnet on npz:" in plan.parts[0].subject.name
    whole = replace(job, scale=replace(scale("paper"), images=2))
    assert "preact_resnet18 on npz:" in recipe(name).prepare(whole)[1].parts[0].subject.name
    with pytest.raises(UnsupportedError, match="the paper trains on CIFAR-10; give --data cifar10, or use --scale"):
        recipe(name).prepare(replace(tiny_job(tmp_path), scale=scale("paper")))
    if name == "training-tolerance":
        outcome = plan.finish([part.run(replace(job, scale=replace(job.scale, steps=2)), None) for part in plan.parts])
        assert {number.row for number in outcome.numbers} == {"sTRADES", "sTRADES, saa+"}
        assert [number.paper for number in outcome.numbers if number.row == "sTRADES"] == [51.7, 61.7, 60.0]


def test_a_second_run_reads_what_the_first_has_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, plan = recipe("components").prepare(tiny_job(tmp_path))
    first = plan.finish([part.run(job, None) for part in plan.parts])
    assert [number.column for number in first.numbers] == ["PGD0", "+ decomposition", "+ continuous mask", "+ redraws"]
    assert [number.paper for number in first.numbers] == [49.4, 58.0, 33.9, 18.1]
    assert any("Budget(k=5" in reason and "k=20" in reason for reason in first.reasons)

    def attacked(*_: object) -> None:
        raise AssertionError("attacked again")

    monkeypatch.setattr(runs, "attack_chunk", attacked)
    job, plan = recipe("components").prepare(tiny_job(tmp_path))
    assert plan.finish([part.run(job, None) for part in plan.parts]).numbers == first.numbers
    job, plan = recipe("components").prepare(tiny_job(tmp_path, seed=1))
    with pytest.raises(AssertionError, match="attacked again"):
        plan.parts[0].run(job, None)


def test_recipes_share_the_attacks_that_both_need(tmp_path: Path) -> None:
    """The histogram is made of runs of the table at k = 20."""
    job = tiny_job(tmp_path, images=1, models={"Vanilla": "zoo:small-plain"})
    _, plan = recipe("histogram").prepare(job)
    folders = {part.run(job, None).folder for part in plan.parts}
    _, table = recipe("unstructured").prepare(job)
    same = [part for part in table.parts if isinstance(part, Case) and part.section == "k=20" and part.column in OURS]
    assert {part.run(job, None).folder for part in same} == folders


def test_the_histogram_counts_successes_of_the_last_step(tmp_path: Path) -> None:
    """sPGD evaluates its random start and then `steps` points, so a success at the last has one evaluation more."""
    job = tiny_job(tmp_path, images=1, models={"Vanilla": "zoo:small-plain"})
    _, plan = recipe("histogram").prepare(replace(job, scale=replace(job.scale, steps=6, queries=6)))
    done = []
    for part in plan.parts:
        found = part.run(job, None)
        last = {"fooled": True, "clean_correct": True, "steps": part.attack.evaluations - 1}
        rows = tuple(row.model_copy(update=last) for row in found.record.rows)
        done.append(replace(found, record=found.record.model_copy(update={"rows": rows})))
    share = {(one.row, one.column): one.here for one in plan.finish(done).numbers if WITHIN in one.section}
    for attack in ("sPGD_p", "sPGD_u", "RS", "anneal"):
        assert (share[attack, "T=5"], share[attack, "T=6"]) == (0, 100)


def test_saa_from_its_members_is_what_the_cascade_leaves(tmp_path: Path) -> None:
    """Members get the same seed and image numbers in the cascade, so that nothing has to be run twice."""
    model, x = SmallConvNet(), images(12)
    y = labelled(model, x)
    subject = Subject("Vanilla", "small", lambda: model, x, y, "random")
    budget, job = sp.Budget(k=10), tiny_job(tmp_path)
    members = [Case("", "", column, subject, job.scale.attack(column, budget)) for column in SAA]
    found = together("", "", "sAA", [case.run(job, None) for case in members], None)
    cascade = sp.SparseAutoAttack(budget, job.scale.steps, job.scale.queries)(model, x, y)
    assert 0 < cascade.robust_accuracy < 1
    assert found.here == pytest.approx(100 * cascade.robust_accuracy)


def test_the_cost_counts_every_attack_on_every_image(tmp_path: Path) -> None:
    _, plan = recipe("alpha").prepare(tiny_job(tmp_path))
    price = cost(plan)
    assert (price.parts, price.passes) == (6, 6 * 2 * 2 * 4)  # variants, images, both ways, evaluations
    assert price.seconds == pytest.approx(price.passes * price.milliseconds / 1000)
    assert price.seconds > 0


def test_rows_of_a_table_are_models_and_columns_attacks(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, models={"Vanilla": "zoo:small-plain"}, images=1)
    block = Block("struct", "cifar10, 1 row", 1, ("RS", "sPGD_p", "sPGD_u"), "row")
    one = recipe("structured")
    plan = grid([block])(one, job)
    outcome = plan.finish([part.run(job, None) for part in plan.parts])
    assert [(number.column, number.paper) for number in outcome.numbers] == [
        ("clean", 93.9), ("RS", 22.5), ("sPGD_p", 1.0), ("sPGD_u", 1.3), ("sAA", 1.0), ("anneal", None), ("saa+", None),
    ]  # fmt: skip
    by = {number.column: number.here for number in outcome.numbers}
    assert by["sAA"] == min(by[column] or 0.0 for column in SAA)
    assert by["saa+"] == min(by["sAA"] or 0.0, by["anneal"] or 0.0)


def test_a_model_is_tried_where_the_paper_tries_it_and_nowhere_else(tmp_path: Path) -> None:
    source = "zoo:small-plain"
    job = tiny_job(tmp_path, models={"sTRADES-row": source, "sTRADES-l0": source})
    _, plan = recipe("structured").prepare(job)
    found = {(part.subject.role, part.section) for part in plan.parts if isinstance(part, Case)}
    rows, small, large = ("cifar10, 1 row", "cifar10, 2 patches 3x3", "cifar10, 1 patch 5x5")
    assert found == {("sTRADES-row", rows), *(("sTRADES-l0", section) for section in (rows, small, large))}


def test_what_is_not_finished_is_a_gap(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, models={"Vanilla": "zoo:small-plain"}, images=1)
    block = Block("struct", "cifar10, 1 row", 1, ("RS", "sPGD_p", "sPGD_u"), "row")
    plan = grid([block])(recipe("structured"), job)
    assert plan.gaps
    first, *others = plan.parts
    outcome = plan.finish([first.run(job, None), *(None for _ in others)])
    here = {number.column: number.here for number in outcome.numbers}
    assert [column for column, value in here.items() if value is None] == ["sPGD_p", "sPGD_u", "sAA", "anneal", "saa+"]
    assert [number.here for number in plan.finish([None] * len(plan.parts)).numbers] == [None] * 7
    assert [number.paper for number in outcome.numbers] == [93.9, 22.5, 1.0, 1.3, 1.0, None, None]


def test_ours_stands_above_the_papers_and_files_hold_both(tmp_path: Path) -> None:
    numbers = [Number("k=1", "Vanilla", "RS", 12.34, 56.7, 1.0, 25.0), Number("k=1", "Vanilla", "CS", 8.0, None)]
    outcome = Outcome("robust accuracy, %", numbers, ["another model"])
    (shown,) = grids(outcome)
    assert shown.header == ["", "RS", "CS"]
    assert shown.rows == [["Vanilla, here", "12.3", "8.0"], ["  95 %", "1-25", "-"], ["Vanilla, paper", "56.7", "-"]]
    page = markdown(recipe("unstructured"), outcome)
    assert "| Vanilla, paper | 56.7 | - |" in page
    assert "- another model" in page
    files = write(recipe("unstructured"), tiny_job(tmp_path), outcome)
    assert [file.name for file in files] == ["numbers.json", "table.md"]
    assert '"paper": 56.7' in files[0].read_text()


def test_a_table_that_is_too_wide_is_turned_so_that_no_number_is_cut() -> None:
    numbers = [Number("k=1", "Vanilla", f"a long name, {place}", 100.0, None) for place in range(9)]
    (whole,) = grids(Outcome("robust accuracy, %", numbers, []))
    narrow = whole.within(80)
    assert whole.within(whole.width) == whole
    assert (narrow.header, narrow.rows[8]) == (["", "Vanilla, here"], ["a long name, 8", "100.0"])
    assert narrow.within(10) == narrow  # turning it back would not help
    for one in (whole, narrow):
        file = StringIO()
        Console(width=300, file=file).print(tables.words(one.header, one.rows, ""))
        assert max(map(len, file.getvalue().splitlines())) == one.width


def test_a_heading_says_nothing_twice() -> None:
    assert heading("k=20", "robust accuracy, %") == "k=20: robust accuracy, %"
    assert heading("robust accuracy", "robust accuracy, %") == "robust accuracy, %"
    assert heading("mean iterations", "") == "mean iterations"


def test_subjects_take_the_places_of_the_papers_models_where_they_are_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("subject-plain", "subject-sat", "subject-anneal", "subject-loap-a"):
        for end in ("json", "safetensors"):
            content = places.package().folder.joinpath(f"small-plain.{end}").read_bytes()
            (tmp_path / "weights" / "subjects").mkdir(parents=True, exist_ok=True)
            (tmp_path / "weights" / "subjects" / f"{name}.{end}").write_bytes(content)
    monkeypatch.setattr(places, "checkout", lambda: tmp_path)
    taken = {}
    for table in ("unstructured", "structured", "cifar100"):
        job = tiny_job(tmp_path, images=1, models={"sTRADES": "zoo:small-strades"} if table == "cifar100" else {})
        _, plan = recipe(table).prepare(job)
        taken[table] = {part.subject.role: part.subject.name for part in plan.parts}
    names = {"Vanilla": "subject-plain", "sAT": "subject-sat", "SparseAnneal": "subject-anneal"}
    assert taken["unstructured"] == {**names, "sTRADES": "small-strades"}
    del names["sAT"]
    assert taken["structured"] == {**names, "LOAP+AT": "subject-loap-a", "sTRADES-l0": "small-strades"}
    assert taken["cifar100"] == {"sTRADES": "small-strades"}


def test_a_given_model_takes_the_named_place_and_no_other_runs(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, models={"sAT": "zoo:small-strades"})
    _, plan = recipe("unstructured").prepare(job)
    assert {part.subject.role for part in plan.parts if isinstance(part, Case)} == {"sAT"}
    assert not any(part.subject.stand_in for part in plan.parts if isinstance(part, Case))


def test_large_images_ask_the_small_model_the_same_question(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    (small,), (large,) = (job.subjects({"Vanilla": "zoo:small-plain"}, size) for size in (32, 224))
    assert large.x.shape == (2, 3, 224, 224)
    with torch.no_grad():
        assert torch.allclose(small.model(small.x), large.model(large.x), atol=1e-4)


def test_a_given_model_of_large_images_is_not_said_to_be_enlarged(tmp_path: Path) -> None:
    jobs = tiny_job(tmp_path), tiny_job(tmp_path, models={"Vanilla": "zoo:small-plain"})
    assert [any("enlarged 7 times" in why for why in reasons(recipe("imagenet"), job, [])) for job in jobs] == [
        True,
        False,
    ]
