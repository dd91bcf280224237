"""The statements of docs/results.md, with their numbers from the records: what holds of the paper and what does not.

A statement that the records no longer bear out raises: it is to be written anew. A claim says itself whether it holds.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from records import RESULTS, Made, Measured, anchor, beside_official, every_made, listed, load, made, strongest
from results_models import SUBJECTS, TRAINING, later, name_of

from sparsepgd.analysis.summary import wilson
from sparsepgd.reproduce.experiments.ratio import MEAN
from sparsepgd.reproduce.recipe import table

ANNEAL = "anneal.md#results"
SPEED, VARIANTS = (
    f"tables.md#{anchor(title)}" for title in ("Speed compared with the official code", "Variants of sPGD")
)
PIXELS, PATCH, ROW = (20, "pixel"), (1, "patch:5"), (1, "row")
UNPROJECTED, PROJECTED, RANDOM = "spgd-unprojected", "spgd-projected", "sparse-rs"
EARLY = 100  # passes after which attacks are compared
FAST_LS = ("anneal-prn18-fast-ls", "anneal-steps-15-prn18-fast-ls")  # SparseAnneal on it, two revisions
OTHERS_LS, LINF, PLAIN = "anneal-others-prn18-fast-ls", "anneal-prn18-linf-7954156", "anneal-prn18-plain-16"


def findings() -> Iterator[str]:
    """The three lists."""
    yield "## Where our results agree with the paper\n"
    yield "Percentages in these lists are robust accuracy.\n"
    yield listed([*(one() for one in HOLDS), *_claims(True)])
    yield "## Where they differ\n"
    yield listed([*(one() for one in DIFFERS), *_claims(False)])
    yield "## What is new: SparseAnneal\n"
    yield listed([one() for one in NEW])


def _training() -> str:
    plain, sat, strades = (_saa(f"cifar10-{name}").percent for name in ("plain", "sat", "strades"))
    theirs = {row: _paper("20", "k=20", row, "sAA") for row in ("Vanilla", "sAT", "sTRADES")}
    return _checked(
        plain <= 1 and sat < strades and theirs["sAT"] < theirs["sTRADES"],
        f"With 20 pixels, sAA reduces a plain network to {plain:.1f} % (paper: {theirs['Vanilla']:.1f} %). Training "
        f"against sPGD helps, sTRADES more than sAT: {strades:.1f} % and {sat:.1f} % (paper: {theirs['sTRADES']:.1f} % "
        f"and {theirs['sAT']:.1f} %; [training]({TRAINING})).",
    )


def _structures() -> str:
    patch, row = _saa("cifar10-strades-patch", PATCH), _saa("cifar10-strades-row", ROW)
    patch0, row0 = _saa("cifar10-strades", PATCH), _saa("cifar10-strades", ROW)
    patches, rows = (
        " and ".join(f"{_paper('struct', section, model, 'sAA'):.1f} %" for model in (trained, "sTRADES-l0"))
        for section, trained in (("cifar10, 1 patch 5x5", "sTRADES-p5x5"), ("cifar10, 1 row", "sTRADES-row"))
    )
    low, high = (wilson(round(one.share * one.images), one.images)[i] for i, one in enumerate((row, row0)))
    chance = ", which may be chance" if low < high else ""
    return _checked(
        patch.share > patch0.share + 0.1 and row.share > row0.share,
        "Training against a structure protects better than training against pixels: under a 5x5 patch "
        f"{patch.percent:.1f} % and {patch0.percent:.1f} % (paper: {patches}), under a row {row.percent:.1f} % and "
        f"{row0.percent:.1f} %{chance} (paper: {rows}; [Table III]({made()['structured'].link})).",
    )


def _short_and_long() -> str:
    early = {name: _after(LINF, name, EARLY) for name in (UNPROJECTED, PROJECTED, RANDOM)}
    late = {name: _lowest(OTHERS_LS, name) for name in (UNPROJECTED, PROJECTED, RANDOM)}
    rs, u, p = (_paper("20", "k=20", "sTRADES", column) for column in ("RS", "sPGD_u", "sPGD_p"))
    return _checked(
        max(early[UNPROJECTED], early[PROJECTED]) < early[RANDOM]
        and late[RANDOM] < late[UNPROJECTED] < late[PROJECTED]
        and rs < u < p,
        f"sPGD needs fewer iterations than Sparse-RS ({load(LINF)['model']} after {EARLY}: "
        f"{early[UNPROJECTED]:.1f} % and {early[RANDOM]:.1f} %), but a long run of Sparse-RS is stronger on trained "
        f"networks (prn18-fast-ls: {late[UNPROJECTED]:.1f} % and {late[RANDOM]:.1f} %; paper, sTRADES: {u:.1f} % and "
        f"{rs:.1f} %; [table]({ANNEAL})).",
    )


def _official_code() -> str:
    record = load("speed-prn18-strades")
    shares = {one.attack: [100 * left / one.images for left in one.left] for one in beside_official(record)}
    same = [f"{attack} {ours:.1f} % and {theirs:.1f} %" for attack, (theirs, ours) in shares.items()]
    return _checked(
        all(abs(theirs - ours) < 0.5 for theirs, ours in shares.values()),
        f"With equally many steps or queries, our attacks are as strong as the authors' code. Ours and theirs on "
        f"{record['model']}: {', '.join(same)} ([table]({SPEED})).",
    )


def _gradients() -> str:
    ours = {name: _lowest(LINF, name) for name in (UNPROJECTED, PROJECTED)}
    code = {name: _lowest(LINF, f"official {name}") for name in (UNPROJECTED, PROJECTED)}
    u, p = (_paper("20", "k=20", "GD", column) for column in ("sPGD_u", "sPGD_p"))
    return _checked(
        ours[UNPROJECTED] < ours[PROJECTED] and code[UNPROJECTED] < code[PROJECTED] and p < u,
        f"On l_inf-trained networks, the projected gradient is stronger in the paper ({p:.1f} %, unprojected {u:.1f} %)"
        f" but weaker on {load(LINF)['model']} ({ours[PROJECTED]:.1f} % and {ours[UNPROJECTED]:.1f} %). The "
        f"authors' code agrees ({code[PROJECTED]:.1f} % and {code[UNPROJECTED]:.1f} %), so the network or the number "
        f"of steps is the reason ([table]({ANNEAL})).",
    )


def _patches() -> str:
    left, steps = _structured("small-strades", "one 5x5 patch")
    best = min(value for name, value in left.items() if name.startswith("spgd"))
    rs, spgd = (_paper("struct", "cifar10, 1 patch 5x5", "sTRADES-l0", column) for column in ("RS", "sPGD_p"))
    return _checked(
        left[RANDOM] < best and spgd < rs,
        f"With a 5x5 patch, sPGD is stronger than Sparse-RS in the paper ({spgd:.1f} % and {rs:.1f} %). In short runs "
        f"on small-strades it is weaker, even with larger step sizes: {best:.1f} % after {steps} steps, "
        f"{left[RANDOM]:.1f} % after {2 * steps} queries ([table]({ANNEAL})).",
    )


def _redraws() -> str:
    record = load("deviations-prn18-strades")
    kept, never = (_variant("deviations-prn18-strades", variant) for variant in ("as shipped", "m: never redraw"))
    paper = table("ab_pgd").cells["robust accuracy"]["Fast-EG-l1"]
    return _checked(
        abs(kept - never) < 2,
        f"Redrawing the mask helps a lot in the paper: Fast-EG-l1 has {paper['+ redraws']:.1f} % with redraws and "
        f"{paper['+ continuous mask']:.1f} % without them. It helps little here: {kept:.1f} % and {never:.1f} % on "
        f"{record['model']} after {record['steps']} steps ([variants]({VARIANTS})).",
    )


def _multi_eps() -> str:
    one = made()["training-multi-eps"]
    here, paper = one.row("here"), one.row("paper")
    cifar = {run["variant"]: 100 * run["robust"]["300"] for run in load("training-ablation")["runs"]}
    once, three, six = cifar["k pixels"], next(iter(cifar.values())), cifar["up to 6 k pixels"]
    return _checked(
        here["6x"] < here["1x"] and once < six < three,
        f"Training with 6 k pixels is best in the paper ({paper['6x']:.1f} %, with k {paper['1x']:.1f} %), not here: "
        f"{here['6x']:.1f} % and {here['1x']:.1f} % on digits ([Table XIV]({one.link})); against SparseAnneal on "
        f"CIFAR-10 {six:.1f} %, with 3 k {three:.1f} % ([ablation](training.md#what-each-ingredient-gives)).",
    )


def _gtsrb() -> str:
    ours, theirs = _saa("gtsrb-strades", (12, "pixel")).percent, later("GTSRB, k=12", "sTRADES") or 0
    return _checked(
        ours < theirs - 10,
        f"On GTSRB at 32x32 with k = 12, our sTRADES model has {ours:.1f} %, that of the authors' later work "
        f"{theirs:.1f} %. We have only a sample of the training images ([training]({TRAINING})).",
    )


def _overestimated() -> str:
    saa, long = _saa("cifar10-fast-ls").percent, load("saa-prn18-fast-ls-2000")
    runs = [run for name in FAST_LS for run in load(name)["runs"] if run["attack"] == "anneal"]
    ours = min(_lowest(name, "anneal") for name in FAST_LS)
    return _checked(
        ours < saa / 2,
        "sAA overestimates the robustness of networks trained against sPGD. On prn18-fast-ls it reports "
        f"**{saa:.1f} %** after {2 * long['steps'] + long['queries']:,} steps and queries. SparseAnneal reaches "
        f"{_after(FAST_LS[0], 'anneal', EARLY):.1f} % after {EARLY} steps on average and **{ours:.1f} %** after "
        f"{max(run['length'] for run in runs):,} (lowest of {len(runs)} runs; [table]({ANNEAL})).",
    )


def _confirmed() -> str:
    saa, apgd, cluster = (
        _saa("cifar10-fast-ls").percent,
        *(_lowest(OTHERS_LS, one) for one in ("l1-apgd", "cluster-rs")),
    )
    low = [_measured(f"cifar10-{name}", PIXELS) for name in ("strades-long", "strades-sn")]
    fallen = [f"{name_of(one.recipe)} from {_saa(one.recipe).percent:.1f} % to {one.percent:.1f} %" for one in low]
    images = " and ".join(dict.fromkeys(f"on {one.images:,} images" for one in low))
    return _checked(
        max(apgd, cluster) < saa and all(one.attack != "sAA" for one in low),
        f"Other attacks confirm this: l1-APGD reduces this network to {apgd:.1f} %, Cluster-RS to {cluster:.1f} %. "
        f"The strongest attacks so far, {images}, reduce {' and '.join(fallen)} ([training]({TRAINING})).",
    )


def _trained_against() -> str:
    own, before = (_measured(f"cifar10-{name}", PIXELS).percent for name in ("anneal-searched", "anneal"))
    low = min(_lowest(name, "anneal") for name in FAST_LS)
    small = [_measured(f"subject-{name}", PIXELS) for name in ("sat", "strades", "anneal", "search")]
    single = _measured("cifar10-anneal-searched", PIXELS, "saa+").percent
    again = min(100 * one["robust_accuracy"] for one in load("seed-cifar10-anneal-searched-1")["saa+"])
    return _checked(
        min(own, again) > before > 1.5 * low and small == sorted(small, key=lambda one: one.share),
        f"Training against SparseAnneal helps. The lowest of prn18-anneal is {own:.1f} %, of a single run of `saa+` "
        f"{single:.1f} % (second training seed: {again:.1f} %), without random search in training {before:.1f} %; "
        "of the small networks, "
        f"{', '.join(f'{one.recipe} {one.percent:.1f} %' for one in reversed(small))} "
        f"([training]({TRAINING}), [subjects]({SUBJECTS})).",
    )


def _several_budgets() -> str:
    budgets = PIXELS, ROW, PATCH
    union, patch = (
        [_measured(f"subject-anneal-{name}", budget, "saa+").percent for budget in budgets]
        for name in ("union", "patch")
    )
    return _checked(
        union[0] > patch[0] + 10,
        "One small network, trained against 20 pixels, a row and a 5x5 patch together, has "
        f"{', '.join(f'{one:.1f} %' for one in union[:2])} and {union[2]:.1f} % under `saa+` of the three; trained "
        f"against the patch alone, {', '.join(f'{one:.1f} %' for one in patch[:2])} and {patch[2]:.1f} % "
        f"([subjects]({SUBJECTS})).",
    )


def _on_other_networks() -> str:
    left, right = ({one: _lowest(name, one) for one in (*SHORT, "cluster-rs", "saa+")} for name in (PLAIN, LINF))
    best = min(left[UNPROJECTED], left[PROJECTED])
    return _checked(
        left["saa+"] < left["cluster-rs"] < left["anneal"] < best
        and right["saa+"] < right["anneal"] < right[UNPROJECTED] + 0.5 < right[PROJECTED],
        f"On other networks SparseAnneal gains less: {load(PLAIN)['model']} with k = {load(PLAIN)['k']} has "
        f"{left['anneal']:.1f} %, under sPGD {best:.1f} % and under Cluster-RS {left['cluster-rs']:.1f} %; "
        f"{load(LINF)['model']} has {right['anneal']:.1f} % and under sPGD {right[UNPROJECTED]:.1f} %. `saa+` reaches "
        f"{left['saa+']:.1f} % and {right['saa+']:.1f} % ([table]({ANNEAL})).",
    )


def _on_structures() -> str:
    patch, row = (_structured("prn18-fast-ls", pattern)[0] for pattern in ("one 5x5 patch", "one row"))
    mark, _ = _structured("small-strades", "a watermark: a disc of 18x18 within 16/255")
    best = [min(value for one, value in each.items() if one != "anneal") for each in (patch, row, mark)]
    ours = [each["anneal"] for each in (patch, row, mark)]
    return _checked(
        all(mine < other for mine, other in zip(ours, best, strict=True)),
        f"At equal cost, SparseAnneal is stronger on structures than the best of sPGD and Sparse-RS: on prn18-fast-ls "
        f"{ours[0]:.1f} % and {best[0]:.1f} % with a 5x5 patch, {ours[1]:.1f} % and {best[1]:.1f} % with a row; on "
        f"small-strades {ours[2]:.1f} % and {best[2]:.1f} % with a watermark ([table]({ANNEAL})).",
    )


SHORT = ("anneal", UNPROJECTED, PROJECTED)
HOLDS = (_training, _structures, _short_and_long, _official_code)
DIFFERS = (_gradients, _patches, _redraws, _multi_eps, _gtsrb)
NEW = (_overestimated, _confirmed, _trained_against, _several_budgets, _on_other_networks, _on_structures)


@dataclass(frozen=True)
class Claim:
    """A finding of the paper that the record of a recipe with most images bears out or not."""

    recipe: str
    group: str
    words: str
    source: str
    holds: Callable[[Made], bool]


def _claims(holds: bool) -> Iterator[str]:
    """One statement a group on the claims that hold, or on those that do not; nothing where there is no record."""
    for group in dict.fromkeys(claim.group for claim in CLAIMS):
        mine = [(claim, made()[claim.recipe]) for claim in CLAIMS if claim.group == group and claim.recipe in made()]
        found = [f"that {one.words} ([{one.source}]({by.link}))" for one, by in mine if one.holds(by) is holds]
        if found:
            words = " and ".join(part for part in (", ".join(found[:-1]), found[-1]) if part)
            yield f"{group} we {'also' if holds else 'do not'} find {words}."


def _tasks() -> list[tuple[str, Made]]:
    """Detection and segmentation, which may be in records of their own."""
    return [(task, one) for one in every_made()["detection"] for task in one.places]


def _beats_others(_: Made) -> bool:
    found = [one.cells(task, "l0_1600") for task, one in _tasks()]
    return all(scores["sPGD"] < min(scores["RS"], scores["SAIF"]) for scores in found)


def _continuous_mask(one: Made) -> bool:
    here = one.row("here")
    return here["+ continuous mask"] < here["+ decomposition"] - 5


def _alpha(one: Made) -> bool:
    here = one.row("here").values()
    return max(here) - min(here) < 5


def _close(one: Made) -> bool:
    return min(share for k in (1, 2, 3) for share in ratios(one, k)) > 0.95


def _transfers(one: Made) -> bool:
    mean = transferred(one)
    return max(mean["sPGD_p"], mean["sPGD_u"]) > mean["RS"]


def _slower(one: Made) -> bool:
    (times,) = (one.cells("times the time of sPGD_u", role) for role in one.places)
    return all(times[name] > 1 for name in ("CS", "RS", "SF", "PGD0", "SAIF"))


def _few_pixels(one: Made) -> bool:
    here = one.cells("imagenet100, k=200", "Vanilla")
    return here["sAA"] < 10 and here["sPGD_p"] < here["RS"]


def _on_large(one: Made) -> bool:
    sections = dict.fromkeys(row["section"] for row in one.values["numbers"])
    found = [one.cells(section, "Vanilla") for section in sections]
    return all(here["sPGD_p"] < here["RS"] for here in found if here.keys() >= {"sPGD_p", "RS"})


def _falls(one: Made) -> bool:
    falls: dict[str, list[float]] = {}
    for row in one.values["numbers"]:
        if row["column"] == "sAA" and row["here"] is not None:
            falls.setdefault(row["section"], []).append(row["here"])
    return all(values == sorted(values, reverse=True) for values in falls.values())


def _single_pixels(_: Made) -> bool:
    pairs = [[one.cells(task, row)["sPGD"] for row in ("l0_1600", "patch4x4_100")] for task, one in _tasks()]
    return all(pixels < patches for pixels, patches in pairs)


CIFAR, LARGE, TASKS = "On small images", "On images of 224x224", "In detection and segmentation"
CLAIMS = (
    Claim("components", CIFAR, "the continuous mask makes sPGD stronger", "Table IX", _continuous_mask),
    Claim("alpha", CIFAR, "the step size alpha matters little", "Table X", _alpha),
    Claim("ratio", CIFAR, "Omega'_0 stays close to Omega_0 for k < 5", "Figure 1", _close),
    Claim("transfer", CIFAR, "sPGD transfers better than Sparse-RS", "Table VI", _transfers),
    Claim("runtime", CIFAR, "every other attack takes longer than sPGD", "Table V", _slower),
    Claim("imagenet", LARGE, "200 pixels are enough to fool a plain network", "Table II", _few_pixels),
    Claim("structured-imagenet", LARGE, "sPGD is stronger than Sparse-RS on structures", "Table III", _on_large),
    Claim("watermarks", LARGE, "watermarks with a larger eps are stronger", "Table IV", _falls),
    Claim("detection", TASKS, "pixels reduce mAP more than patches", "Table VII", _single_pixels),
    Claim("detection", TASKS, "sPGD is stronger than Sparse-RS and SAIF", "Table VII", _beats_others),
)


def ratios(one: Made, k: int) -> list[float]:
    """Figure 1 at one k, by size of patches and images."""
    rows = [row for row in one.values["numbers"] if row["section"] == MEAN and row["column"] == f"k={k}"]
    return [row["here"] for row in rows]


def transferred(one: Made, section: str = "all steps on the source") -> dict[str, float]:
    """The mean success rate on other networks, by attack."""
    attacks = dict.fromkeys(row["row"] for row in one.values["numbers"] if row["section"] == section)
    return {attack: statistics.mean(one.cells(section, attack).values()) for attack in attacks}


def _checked(true: bool, statement: str) -> str:
    if not true:
        raise ValueError(f"the records say otherwise now; write this statement anew: {statement}")
    return statement


def _paper(label: str, section: str, row: str, column: str) -> float:
    return table(label).cells[section][row][column]


def _measured(recipe: str, budget: tuple[int, str], attack: str | None = None) -> Measured:
    found = strongest(RESULTS, recipe, budget, attack)
    if found is None:
        raise ValueError(f"no record of {attack or 'any attack'} on {recipe} with {budget}")
    return found


def _saa(recipe: str, budget: tuple[int, str] = PIXELS) -> Measured:
    return _measured(recipe, budget, "sAA")


def _lowest(record: str, attack: str) -> float:
    """Of all seeds, in percent."""
    return 100 * min(float(run["left"] / run["images"]) for run in load(record)["runs"] if run["attack"] == attack)


def _after(record: str, attack: str, passes: int) -> float:
    """The mean over the seeds after so many passes, in percent."""
    runs = [run for run in load(record)["runs"] if run["attack"] == attack]
    left = [min(left for count, left in run["passes"] if count <= passes) / run["images"] for run in runs]
    return 100 * statistics.mean(left)


def _structured(model: str, pattern: str) -> tuple[dict[str, float], int]:
    """What each attack leaves, in percent, and after how many steps."""
    record = load(f"anneal-structures-{model}")
    runs = [run for run in record["runs"] if run["pattern"] == pattern]
    return {run["attack"]: 100 * run["left"] / record["images"] for run in runs}, runs[0]["steps"]


def _variant(record: str, variant: str) -> float:
    """What a variant of sPGD, unprojected, leaves, in percent."""
    values = load(record)
    (row,) = (row for row in values["rows"] if (row["variant"], row["gradient"]) == (variant, "unprojected"))
    return 100 * statistics.mean(row["robust"]) / values["images"]
