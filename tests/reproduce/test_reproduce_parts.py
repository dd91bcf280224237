"""The parts that are not plain attacks: groups of sPGD, transfer, the decomposed mask, training, pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sparsepgd as sp
from sparsepgd.reproduce.experiments.ablation import Decomposed
from sparsepgd.reproduce.experiments.curves import ladder
from sparsepgd.reproduce.experiments.ratio import Ratios, last_groups
from sparsepgd.reproduce.experiments.transfer import Transferred, success
from sparsepgd.reproduce.fresh import Training
from sparsepgd.reproduce.jobs import Subject, passes
from sparsepgd.reproduce.parts import Case
from sparsepgd.reproduce.recipes import recipe
from sparsepgd.reproduce.show import grids
from sparsepgd.threat.norms import group_l0
from support.models import Linear, SmallConvNet, images, labelled
from support.tiny_jobs import tiny_job


def subject(seed: int = 0) -> Subject:
    model, x = SmallConvNet(seed=seed), images(6)
    return Subject("V", f"small-{seed}", lambda: model, x, labelled(model, x), "random")


def test_the_groups_that_spgd_ends_with_cover_its_changes() -> None:
    one = subject()
    attack = sp.SparsePGD(sp.Budget(k=3, pattern=sp.Patches(3)), 5, "projected")
    x_adv, v = last_groups(attack, one, one.x, one.y, 0, seed=0)
    assert v.flatten(1).sum(1).tolist() == [3.0] * 6
    changed = (x_adv != one.x).any(1, keepdim=True)
    covered = attack.budget.resolve((3, 12, 12)).expand(v) > 0
    assert bool(changed.any())
    assert not bool((changed & ~covered).any())
    assert bool((group_l0(x_adv - one.x, attack.budget.pattern) <= 3).all())


def test_the_ratio_is_one_for_a_single_patch_and_never_more(tmp_path: Path) -> None:
    one, job = subject(), tiny_job(tmp_path)
    for k in (1, 12):
        attack = sp.SparsePGD(sp.Budget(k=k, pattern=sp.Patches(3)), 5, "projected")
        found = Ratios(one, attack).run(job, None)
        assert len(found) == 6
        assert max(found) <= 1
        assert found == [1.0] * 6 if k == 1 else min(found) < 1  # twelve of a hundred places overlap
        assert Ratios(one, attack).run(job, None) == found


def test_what_fools_the_source_fools_it_as_a_target(tmp_path: Path) -> None:
    """And an untouched image fools nobody: the denominator is what the target gets right."""
    one, job = subject(), tiny_job(tmp_path)
    done = Case("", "", "", one, sp.SparsePGD(sp.Budget(k=8), 20)).run(job, None)
    fooled = sum(row.fooled for row in done.record.rows)
    assert fooled > 0
    assert success(one, done) == pytest.approx(fooled / 6)
    other = subject(seed=3)
    agreed = Subject("R", "other", lambda: other.model, one.x, labelled(other.model, one.x), "random")
    assert success(agreed, done) <= 1


def test_transfer_has_every_pair_with_and_without_early_stop(tmp_path: Path) -> None:
    _, plan = recipe("transfer").prepare(tiny_job(tmp_path))
    parts = [part for part in plan.parts if isinstance(part, Transferred)]
    assert {(part.section, part.subject.role) for part in parts} == {
        (section, source) for section in ("all steps on the source", "early stop on the source") for source in "VR"
    }
    stops = {part.section: part.attack.early_stop for part in parts}  # type: ignore[attr-defined]
    assert stops == {"all steps on the source": False, "early stop on the source": True}


def test_a_model_of_another_name_is_a_source_and_a_target_of_all_others(tmp_path: Path) -> None:
    given = dict.fromkeys(("V", "R", "V2", "ViT"), "zoo:small-plain")
    _, plan = recipe("transfer").prepare(tiny_job(tmp_path, models=given))
    pairs = {pair for part in plan.parts if isinstance(part, Transferred) for pair in part.targets}
    assert pairs == {"V->V", "V->R", "R->V", "ViT->V", "V->ViT", "ViT->R", "R->ViT"}


def test_without_a_continuous_mask_the_attack_keeps_its_budget_and_finds_the_pixel_from_some_starts() -> None:
    """Only where the first, frozen magnitudes of the best pixel point the right way: the weakness of this variant."""
    weight = torch.zeros(3, 8, 8)
    weight[:, 2, 5] = 4.0
    model, x = Linear(weight, -5.0), torch.full((20, 3, 8, 8), 0.1)
    result = Decomposed(sp.Budget(k=1), 30, "projected")(model, x, torch.zeros(20, dtype=torch.int64))
    assert 2 <= int(result.fooled.sum()) < 20
    assert result.l0[result.fooled].unique().tolist() == [1]
    whole = sp.SparsePGD(sp.Budget(k=1), 30, "unprojected")(model, x, torch.zeros(20, dtype=torch.int64))
    assert int(whole.fooled.sum()) > int(result.fooled.sum())


def test_a_network_is_trained_once_and_read_afterwards(tmp_path: Path) -> None:
    training, job = Training("digits-vgg", "plain", sp.Budget(k=3), 0, {}), tiny_job(tmp_path)
    first, second = (training.subject(job, "V", "vgg").model for _ in range(2))
    fresh = training.fresh()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), fresh.parameters(), strict=True))
    assert len(list((tmp_path / "trained").iterdir())) == 1


def test_networks_for_images_of_other_sizes_have_folders_of_their_own(tmp_path: Path) -> None:
    training = Training("small_preact_resnet", "plain", sp.Budget(k=3), 0, {}, "folder:photos")
    jobs = (tiny_job(tmp_path, size=size) for size in (None, 32, 64))
    assert len({training._folder(job) for job in jobs}) == 3


def test_the_lengths_that_are_looked_at_end_with_the_last() -> None:
    assert ladder(300) == [5, 10, 20, 50, 100, 200, 300]
    assert ladder(20) == [5, 10, 20]


def test_iterations_of_spgd_are_read_from_one_run_and_those_of_rs_from_several(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, images=2, models={"Vanilla": "zoo:small-plain"})
    _, plan = recipe("iterations").prepare(job)
    outcome = plan.finish([part.run(job, None) for part in plan.parts])
    for section in ("sPGD_p", "sPGD_u", "RS", "anneal"):
        line = [one.here for one in outcome.numbers if one.section == section and one.here is not None]
        assert line == sorted(line, reverse=True) or section == "RS"
    (axis,) = outcome.figures["iterations"]().axes
    assert [line.get_label() for line in axis.lines if line.get_marker() == "o"] == ["sPGD_p", "sPGD_u", "anneal", "RS"]


def test_the_end_of_the_papers_curve_is_a_mark_even_if_the_runs_are_shorter(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, images=2, models={"sTRADES": "zoo:small-plain"})
    _, plan = recipe("iterations").prepare(job)
    outcome = plan.finish([part.run(job, None) for part in plan.parts])
    (axis,) = outcome.figures["iterations"]().axes
    marks = [line for line in axis.lines if line.get_marker() == "D"]
    assert [list(line.get_xdata()) for line in marks] == [[10_000.0]] * 3 + [[]]
    assert [list(line.get_ydata()) for line in marks[:3]] == [[84.6], [81.7], [61.8]], "as printed in Table I"
    assert marks[3].get_label() == "the paper"
    (grid,) = (one for one in grids(outcome) if one.title == "RS")
    assert [row[-1] for row in grid.rows] == ["-", "61.8"]


def test_pictures_show_an_image_for_each_kind_that_succeeds(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, images=1)
    _, plan = recipe("pictures").prepare(job)
    done = [part.run(job, None) for part in plan.parts]
    won = [one for one in done if any(row.fooled for row in one.record.rows)]
    cases = [part for part in plan.parts if isinstance(part, Case)]
    kinds = [case.column for case, one in zip(cases, done, strict=True) if one in won]
    assert len(kinds) >= 2
    drawn = [axis for axis in plan.finish(done).figures["panels-Vanilla"]().axes if axis.images]
    titles = [axis.get_title("left") for axis in drawn]
    assert len(drawn) == 2 * len(won)
    assert [title for title in titles if "→" not in title] == kinds, "each picture is named after its kind"
    assert sum("→" in title for title in titles) == len(won)


def test_the_denominator_of_a_transfer_is_what_the_target_gets_right(tmp_path: Path) -> None:
    one, job = subject(), tiny_job(tmp_path)
    done = Case("", "", "", one, sp.SparsePGD(sp.Budget(k=8), 20)).run(job, None)
    fooled = torch.tensor([row.fooled for row in done.record.rows])
    wrong = one.y.clone()
    wrong[:3] = (wrong[:3] + 1) % 5  # the target is wrong on these from the start
    half = Subject("R", "other", lambda: one.model, one.x, wrong, "random")
    assert int(fooled[3:].sum()) > 0
    assert success(half, done) == pytest.approx(int(fooled[3:].sum()) / 3)
    never = Subject("R", "other", lambda: one.model, one.x, (one.y + 1) % 5, "random")
    assert success(never, done) == 0


def test_a_black_box_of_any_name_has_no_backward_passes() -> None:
    budget = sp.Budget(k=3)
    box, white = sp.SparseRS(budget, queries=40), sp.SparsePGD(budget, steps=40)
    assert passes(box) == box.evaluations
    assert passes(white) == 2 * white.evaluations

    class Mine(sp.SparseRS):
        name = "mine"

    assert passes(Mine(budget, queries=40)) == box.evaluations
