"""Each check speaks up where it should, and only there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsepgd as sp
from sparsepgd import baselines, zoo
from sparsepgd.analysis.curves import Smallest
from sparsepgd.analysis.sanity import compare, examine, review, trial
from sparsepgd.errors import LabelError
from sparsepgd.runs import runs
from sparsepgd.runs.records import Row
from sparsepgd.search.contract import Attacker
from support.models import SmallConvNet, Tight, images, labelled
from support.small_runs import killed_after


class Wrapped(nn.Module):
    """A model with something done to its logits."""

    def __init__(self, change) -> None:
        super().__init__()
        self.model, self.change = SmallConvNet().eval(), change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.model(x))


class OfTheBatch(nn.Module):
    """Normalises with the statistics of the batch, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.model = SmallConvNet()
        self.model.net[1] = nn.BatchNorm2d(8, track_running_stats=False)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def codes(model, x: Tensor | None = None) -> list[str]:
    x = images(20) if x is None else x
    y = torch.arange(len(x)) % 5
    return [notice.code for notice in examine(model, x, y)[1]]


def once_flat(logits: Tensor) -> Tensor:
    return logits.round() + 0 * logits  # a staircase with a gradient of zero


@pytest.mark.parametrize("name", zoo.bundled_names())
def test_sound_models_raise_no_notice(name: str) -> None:
    x, y = zoo.bundled_images(40)
    assert examine(zoo.load(name), x, y) == (10, ())
    assert codes(SmallConvNet().eval()) == []


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (Wrapped(lambda logits: logits + torch.randn_like(logits)), "randomised"),
        (Wrapped(lambda logits: logits.softmax(1)), "probabilities"),
        (Wrapped(once_flat), "zero-gradient"),
        (Wrapped(lambda logits: logits * 1e30), "zero-gradient"),
        (Wrapped(lambda logits: logits - logits.mean(0)), "batch"),
        (Wrapped(lambda logits: logits[: len(logits) // 2].mean() * 0 + logits), "batch"),
        (OfTheBatch(), "batch"),
        (SmallConvNet(), "training-mode"),
        (nn.Sequential(SmallConvNet().eval(), nn.Dropout()), "training-mode"),
    ],
    ids=["noise", "softmax", "staircase", "saturated", "mean of the batch", "nan alone", "norm", "training", "dropout"],
)
def test_models_that_mislead_are_found(model: nn.Module, code: str) -> None:
    training = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    assert codes(model) == [code]
    assert [module.training for module in model.modules()] == training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_a_frozen_script_without_a_mode_is_examined() -> None:
    assert codes(torch.jit.freeze(torch.jit.script(SmallConvNet().eval()))) == []


def test_a_model_that_fails_on_one_image_is_found() -> None:
    def picky(x: Tensor) -> Tensor:
        if len(x) == 1:
            raise ValueError("Expected more than 1 value per channel")
        return x.flatten(1)[:, :5]

    (notice,) = examine(picky, images(20), torch.zeros(20, dtype=torch.int64))[1]
    assert notice.code == "batch"
    assert "fails on a batch of one image (Expected more than 1 value" in notice.message


def test_a_black_box_needs_no_gradient() -> None:
    model = SmallConvNet().eval()
    assert codes(lambda x: model(x).detach()) == []


@pytest.mark.parametrize(
    ("x", "found"),
    [
        (images(20) / 255, ["range"]),
        (torch.zeros(20, 3, 12, 12), ["range"]),
        (torch.full((20, 3, 12, 12), 0.5), ["range"]),
        (images(20) * 0.1, []),
    ],
    ids=["divided twice", "black", "grey", "dark"],
)
def test_images_in_an_odd_range_are_found(x: Tensor, found: list[str]) -> None:
    assert codes(SmallConvNet().eval(), x) == found


def test_labels_that_are_no_classes_are_an_error() -> None:
    with pytest.raises(LabelError, match="label 7 of image 1"):
        examine(SmallConvNet().eval(), images(2), torch.tensor([0, 7]))


ANNEAL = sp.SparseAnneal(sp.Budget(k=2), 100)
CASCADE = sp.SparseAutoAttack(sp.Budget(k=2), 100, 200, version="standard")


def rows(
    right: int, wrong: int = 0, by: dict[str, int] | None = None, backwards: int = 1, forwards: int = 1
) -> list[Row]:
    """So many images that the model got right and kept, got wrong, and lost to each attack."""
    kinds = [(True, None)] * right + [(False, None)] * wrong
    kinds += [(True, name) for name, count in (by or {}).items() for _ in range(count)]
    numbers = dict.fromkeys(("label", "clean_prediction", "prediction", "l0", "groups", "steps"), 0)
    return [
        Row(
            index=i,
            clean_correct=clean,
            fooled=by is not None,
            broken_by=by,
            forwards=forwards,
            backwards=backwards,
            loss=0,
            **numbers,
        )
        for i, (clean, by) in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "classes", "found"),
    [
        (10, 90, 10, True),
        (16, 84, 10, False),
        (0, 50, 10, True),
        (52, 48, 2, True),
        (80, 20, 2, False),
        (1, 4, 10, False),
    ],
)
def test_accuracy_near_chance_is_found(right: int, wrong: int, classes: int, found: bool) -> None:
    assert [notice.code for notice in review(rows(right, wrong), classes, ANNEAL)] == ["chance"] * found


@pytest.mark.parametrize(
    ("by", "backwards", "found"),
    [
        ({"spgd-unprojected": 10, "sparse-rs": 20}, 1, True),
        ({"spgd-unprojected": 10, "sparse-rs-2": 20}, 1, True),
        ({"spgd-unprojected": 10, "corner-search": 20}, 1, True),
        ({"spgd-unprojected": 10, "one-pixel": 20}, 1, True),
        ({"spgd-unprojected": 30, "sparse-rs": 5}, 1, False),
        ({"spgd-unprojected": 10, "sparse-rs": 5}, 1, False),  # 0.9 - 0.85 is a little more than 0.05
        ({"sparse-rs": 30}, 0, False),  # alone: there is no gradient to beat
        ({"sparse-rs": 10, "one-pixel": 20}, 0, False),
        ({"spgd-projected": 30}, 1, False),
    ],
)
def test_a_black_box_that_beats_the_gradient_is_found(by: dict[str, int], backwards: int, found: bool) -> None:
    notices = review(rows(100 - sum(by.values()), by=by, backwards=backwards), 10, CASCADE)
    assert [notice.code for notice in notices] == ["black-box-wins"] * found
    if found:
        assert "robust accuracy of 70.0%, the gradient attacks 90.0%" in notices[0].message
        assert "l0-trained models" in notices[0].message


def test_one_or_two_images_that_only_a_black_box_fools_mean_nothing() -> None:
    for count, found in ((2, []), (3, ["black-box-wins"])):
        few = rows(12 - count, by={"anneal": 8, "cluster-rs": count}, forwards=10)
        assert [notice.code for notice in review(few, 10, CASCADE)] == found


def test_where_nothing_is_left_no_more_queries_are_advised() -> None:
    for left in (0, 1):
        (notice,) = review(rows(left, by={"anneal": 8, "cluster-rs": 4}, forwards=10), 10, CASCADE)
        assert ("more --queries may lower it further" in notice.message) == bool(left)


def fooled_after(forwards: dict[str, Sequence[int]], n: int = 200) -> list[Row]:
    """n images, of which each attack fools one after each of these numbers of forward passes."""
    found = [rows(0, by={name: 1}, forwards=each)[0] for name, counts in forwards.items() for each in counts]
    every = [*found, *rows(n - len(found), forwards=1000)]
    return [row.model_copy(update={"index": i}) for i, row in enumerate(every)]


def too_short(attack: Attacker, forwards: dict[str, Sequence[int]], n: int = 200) -> list[str]:
    notices = review(fooled_after(forwards, n), 10, attack)
    return [notice.message for notice in notices if notice.code == "too-short"]


@pytest.mark.parametrize(("n", "late"), [(10, 3), (50, 3), (100, 3), (200, 4), (500, 6), (1000, 10), (10_000, 63)])
def test_a_run_in_whose_last_half_more_than_half_a_percent_was_fooled_is_too_short(n: int, late: int) -> None:
    """As many as fewer than 5 % of the samples would have if it were half a percent, and at least three."""
    assert too_short(ANNEAL, {"anneal": [90] * late}, n)
    assert too_short(ANNEAL, {"anneal": [90] * (late - 1)}, n) == []


def test_only_what_was_fooled_in_the_last_half_counts() -> None:
    assert too_short(ANNEAL, {"anneal": [50] * 60 + [51] * 3}) == []
    assert too_short(ANNEAL, {"anneal": [50] * 60 + [51] * 4}) == [
        "robust accuracy was still falling: by 2.0 points in the last half of the steps of anneal; use --steps 1000 or "
        "more"
    ]


def test_where_nothing_is_left_robust_accuracy_cannot_fall() -> None:
    assert too_short(ANNEAL, {"anneal": [90] * 197}) == []
    assert too_short(ANNEAL, {"anneal": [90] * 196}) != []


@pytest.mark.parametrize(
    ("attack", "name", "option"),
    [
        (replace(ANNEAL, steps=1000), "anneal", "--steps 4000"),
        (sp.SparsePGD(sp.Budget(k=2), 60), "spgd-unprojected", "--steps 1000"),
        (sp.SparseRS(sp.Budget(k=2), 200), "sparse-rs", "--queries 5000"),
        (sp.ClusterRS(sp.Budget(k=2), 2000), "cluster-rs", "--queries 8000"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_kind_of_search_may_be_too_short(attack: Attacker, name: str, option: str) -> None:
    (message,) = too_short(attack, {name: [attack.evaluations] * 9})
    assert f" by 4.5 points in the last half of the {option[2:].split()[0]} of {name}; use {option} or more" in message


def test_the_passes_of_the_members_before_do_not_count() -> None:
    before = 100 + 2 * 21  # SparseAnneal, and sPGD with 20 steps and a random start, twice
    assert too_short(CASCADE, {"cluster-rs": range(before + 1, before + 101)}) == []
    late = {"anneal": [20, 70, 80], "spgd-projected": [before] * 9, "cluster-rs": range(before + 98, before + 105)}
    assert too_short(CASCADE, late) == [
        "robust accuracy was still falling: by 1.0 points in the last half of the steps of anneal, by 2.0 points in "
        "the last half of the queries of cluster-rs; use --steps 1000 --queries 5000 or more"
    ]


def test_of_two_searches_of_one_length_the_one_that_found_more_late_is_named() -> None:
    paper = sp.SparseAutoAttack(sp.Budget(k=2), 99, 200)
    (message,) = too_short(paper, {"spgd-unprojected": [90] * 2, "spgd-projected": [190] * 8})
    assert "by 4.0 points in the last half of the steps of spgd-projected; use --steps 1000 or more" in message


@pytest.mark.parametrize(
    "attack",
    [
        replace(ANNEAL, early_stop=False),  # the passes say nothing
        Smallest(ANNEAL, ANNEAL.budget),
        baselines.CWL0(ANNEAL.budget, 100),
        sp.SparseAutoAttack(ANNEAL.budget, attacks=(baselines.GreedyFool(ANNEAL.budget), ANNEAL)),
    ],
    ids=["minimum-norm", "curve over k", "a loop of its own", "after a loop of its own"],
)
def test_where_the_length_until_success_is_not_known_nothing_is_said(attack: Attacker) -> None:
    assert too_short(attack, {attack.name: [95] * 40, "anneal": [95] * 40}) == []


@pytest.mark.parametrize(("name", "found"), [("small-plain", False), ("small-strades", True)])
def test_a_run_that_flatters_a_model_says_so_also_if_it_was_resumed(name: str, found: bool, tmp_path: Path) -> None:
    data, model = zoo.bundled_images(32), zoo.load(name)
    attack = sp.SparseAnneal(sp.Budget(k=20), 60)
    record = runs.run(None, attack, model, data)
    assert [notice.code for notice in record.warnings] == ["too-short"] * found
    with killed_after(1):
        runs.run(tmp_path, attack, model, data, chunk=16)
    assert runs.run(tmp_path, attack, model, data, chunk=16).warnings == record.warnings
    assert runs.run(tmp_path, attack, model, data).warnings == record.warnings  # only read


def test_attacks_are_compared_across_runs() -> None:
    assert [notice.code for notice in compare({"spgd-projected": 0.8, "sparse-rs": 0.6})] == ["black-box-wins"]
    assert compare({"spgd-projected": 0.8, "spgd-unprojected": 0.62, "sparse-rs": 0.6}) == ()
    assert compare({"sparse-rs": 0.1}) == compare({"saa": 0.1}) == ()
    for name in ("corner-search", "one-pixel", "one-pixel-smallest-k"):
        assert [notice.code for notice in compare({"spgd-projected": 0.8, name: 0.6})] == ["black-box-wins"]
    assert compare({"sparse-rs": 0.8, "corner-search": 0.6}) == ()


def test_notices_are_part_of_the_record() -> None:
    model, x = Wrapped(lambda logits: logits.softmax(1)).eval(), images(12)
    record = runs.run(None, sp.SparsePGD(sp.Budget(k=2), steps=2), model, (x, labelled(model, x)))
    assert [notice.code for notice in record.warnings] == ["probabilities"]


def test_what_the_record_says_is_not_said_by_the_trial_as_well() -> None:
    """Warnings are errors here."""
    model, x = Wrapped(lambda logits: logits.softmax(1)).eval(), images(12)
    attack = sp.SparsePGD(sp.Budget(k=2), 500)
    assert trial(attack, model, x, labelled(model, x)) == ()


def fooling(counts: dict[str, int], seen: list[Any] | None = None) -> Any:
    """In the place of `Attacker.for_rows`: every attack fools as many images as are said for its name."""

    def chosen(attack: Any, few: Tensor) -> Any:
        if seen is not None:
            seen.append((attack.name, len(few), attack.evaluations))
        return lambda *args: SimpleNamespace(fooled=few < counts.get(attack.name, 0))

    return chosen


@pytest.mark.parametrize(
    ("paper", "anneal", "found"), [(4, 4, 0), (4, 6, 0), (4, 7, 1), (0, 2, 0), (0, 3, 1), (5, 1, 0)]
)
def test_a_few_images_more_are_no_reason_to_doubt_the_papers_attack(
    paper: int, anneal: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Attacker, "for_rows", fooling({"anneal": anneal, "spgd-unprojected": paper}))
    notices = trial(sp.SparsePGD(sp.Budget(k=2), 900), SmallConvNet(), images(16), torch.zeros(16, dtype=torch.int64))
    assert [notice.code for notice in notices] == ["anneal-wins"] * found
    for notice in notices:
        assert f"SparseAnneal fools {anneal} of 16 images, spgd-unprojected only {paper} with as many" in notice.message
        assert notice.message.endswith("use --attack saa+")


@pytest.mark.parametrize("best", ["spgd-unprojected", "spgd-projected", "sparse-rs"])
def test_of_a_cascade_the_member_that_fools_most_counts(best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cascade, x, y = sp.SparseAutoAttack(sp.Budget(k=2), 900, 900), images(16), torch.zeros(16, dtype=torch.int64)
    monkeypatch.setattr(Attacker, "for_rows", fooling({"anneal": 8, best: 5}))
    (notice,) = trial(cascade, SmallConvNet(), x, y)
    assert f", {best} only 5 with" in notice.message
    monkeypatch.setattr(Attacker, "for_rows", fooling({"anneal": 8, best: 6}))
    assert trial(cascade, SmallConvNet(), x, y) == ()


@pytest.mark.parametrize(
    ("attack", "tried"),
    [
        (sp.SparsePGD(sp.Budget(k=2), 100), []),
        (sp.SparsePGD(sp.Budget(k=2), 300), [("anneal", 16, 12), ("spgd-unprojected", 16, 12)]),
        (sp.SparsePGD(sp.Budget(k=2), 10_000), [("anneal", 32, 40), ("spgd-unprojected", 32, 40)]),
        (sp.SparseRS(sp.Budget(k=2), 300), []),
        (sp.SparseRS(sp.Budget(k=2), 10_000), [("anneal", 32, 40), ("sparse-rs", 32, 80)]),
        (sp.SparseAnneal(sp.Budget(k=2), 10_000), []),
        (sp.SparseAutoAttack(sp.Budget(k=2), version="standard"), []),
        (baselines.CWL0(sp.Budget(k=2)), []),
    ],
    ids=lambda value: f"{value.name}-{value.evaluations}" if not isinstance(value, list) else "",
)
def test_the_trial_is_a_small_part_of_the_run_and_gives_all_as_many_passes(
    attack: Any, tried: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Attacker, "for_rows", fooling({"anneal": 16}, seen))
    trial(attack, SmallConvNet(), images(32), torch.zeros(32, dtype=torch.int64))
    assert seen == tried


def test_where_anneal_fools_next_to_nothing_the_others_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Attacker, "for_rows", fooling({"anneal": 2}, seen))
    trial(sp.SparseAutoAttack(sp.Budget(k=2)), SmallConvNet(), images(32), torch.zeros(32, dtype=torch.int64))
    assert [name for name, *_ in seen] == ["anneal"]


def test_a_black_box_run_on_a_model_without_gradients_has_no_trial() -> None:
    model, x = SmallConvNet().eval(), images(16)
    y = labelled(model, x)
    assert trial(sp.SparseRS(sp.Budget(k=30), 10_000), lambda x: model(x).detach(), x, y) == ()


def test_a_model_that_takes_few_images_at_a_time_is_examined_all_the_same() -> None:
    tight = Tight(3, SmallConvNet().eval())
    assert codes(tight) == []
    assert tight.refused > 0
    assert codes(Tight(3, Wrapped(once_flat).eval())) == ["zero-gradient"]


@pytest.mark.parametrize(
    ("name", "attack", "expected"),
    [
        ("small-strades", sp.SparsePGD(sp.Budget(k=20), 300), ["anneal-wins"]),
        ("small-strades", sp.SparseAutoAttack(sp.Budget(k=20), 300, 300), ["anneal-wins"]),
        ("small-strades", sp.SparseRS(sp.Budget(k=20), 700), ["anneal-wins"]),
        ("small-plain", sp.SparsePGD(sp.Budget(k=20), 300), []),
        ("small-strades", sp.SparsePGD(sp.Budget(k=20), 20), []),  # too short to be worth a trial
    ],
    ids=lambda value: getattr(value, "name", value) if not isinstance(value, list) else str(len(value)),
)
def test_a_model_that_only_the_papers_attacks_do_not_break_is_told_from_others(name, attack, expected) -> None:
    x, y = zoo.bundled_images(32)
    assert [notice.code for notice in trial(attack, zoo.load(name), x, y)] == expected
