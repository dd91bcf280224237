"""The statements of docs/results.md, with their numbers from the records: what holds of the paper and what does not.

A statement that the records no longer bear out raises: it is to be written anew.
"""

import statistics
from collections.abc import Iterator

from records import (
    RESULTS,
    SECTIONS,
    Made,
    Measured,
    anchor,
    beside_official,
    budget_of,
    listed,
    load,
    made,
    read,
    stages,
    strongest,
)

from sparsepgd.reproduce.experiments import accuracy
from sparsepgd.reproduce.experiments.ratio import MEAN
from sparsepgd.reproduce.recipe import facts, table
from sparsepgd.reproduce.recipes import STRUCTURED, UNSTRUCTURED
from sparsepgd.tables import markdown

PAPER = {  # what the paper says of the models of our recipes: table, section, row
    "cifar10-plain": ("20", "k=20", "Vanilla"),
    "cifar10-sat": ("20", "k=20", "sAT"),
    "cifar10-strades": ("20", "k=20", "sTRADES"),
    "cifar10-strades-long": ("20", "k=20", "sTRADES"),
    "cifar10-strades-row": ("struct", "cifar10, 1 row", "sTRADES-row"),
    "cifar10-strades-patch": ("struct", "cifar10, 1 patch 5x5", "sTRADES-p5x5"),
}
LATER = {  # what the authors' later work says: data and k, row
    "cifar10-fast-ls": ("cifar10, k=20", "Fast-LS-l0"),
    "cifar10-strades-sn": ("cifar10, k=20", "sTRADES+S&N"),
    "gtsrb-strades": ("gtsrb at 32x32, k=12", "sTRADES"),
}
TRAINING, SPEED, VARIANTS, DETECTORS, SUBJECTS = (
    f"tables.md#{anchor(title)}"
    for title in ("Training", "Speed beside the official code", "Variants of sPGD", "Detectors", "Subjects")
)
ANNEAL = "anneal.md#results"
PATCH, ROW = "one 5x5 patch", "one row"
UNPROJECTED, PROJECTED, RANDOM = "spgd-unprojected", "spgd-projected", "sparse-rs"
PIXELS, PATCHES = "pixels-1600-spgd-projected", "patches-100-spgd-projected"  # lines of the record of detectors
EARLY = 100  # passes after which attacks are compared


def findings() -> Iterator[str]:
    """The first part of the page."""
    yield "## Our models beside the paper's\n"
    yield from _models()
    yield from _subjects()
    compared = list(_compared())
    yield "## What holds as the paper says\n"
    yield listed([*_holds(), *(words for holds, words in compared if holds)])
    yield "## What does not\n"
    yield listed([*_differs(), *(words for holds, words in compared if not holds)])
    yield "## What the paper did not see: SparseAnneal\n"
    yield listed(list(_unseen()))


def _models() -> Iterator[str]:
    rows, waiting, images = [], [], set()
    for recipe in (*PAPER, *LATER):
        record, budget = load(f"train-{recipe}"), budget_of(recipe)
        saa, lowest = _saa(recipe, budget), strongest(RESULTS, recipe, budget)
        images.add(f"{saa.images:,}")
        if saa.share and strongest(RESULTS, recipe, budget, "anneal") is None:
            waiting.append(_name(recipe))
        if recipe in PAPER:
            label, section, row = PAPER[recipe]
            theirs = [row, *(f"{_paper(label, section, row, column):.1f}" for column in ("clean", "sAA"))]
        else:
            theirs = [f"{LATER[recipe][1]}, later work", "-", f"{_later(recipe):.1f}"]
        epochs = sum(load(f"train-{one}")["epochs"] for one in stages(recipe))
        ours = [f"{100 * record['clean']:.1f}", f"{saa.percent:.1f}", str(lowest)]
        rows.append([_name(recipe), f"k = {budget[0]}, {budget[1]}", str(epochs), *ours, *theirs])
    header = ["our model", "budget", "epochs", "clean", "sAA", "the lowest of all attacks", "the paper's"]
    yield markdown([*header, "clean", "sAA"], rows) + "\n"
    yield _checked(
        all(record["recipe"].startswith("recipes/quick/") for record in read(RESULTS, "train").values()),
        f"Accuracy in percent; clean: all test images, sAA: {' or '.join(sorted(images))} images; prn18: "
        "PreActResNet-18 on CIFAR-10. Ours are trained by short recipes of our own (epochs of all stages), the paper's "
        "for 100 epochs; the paper's own recipe was not run here yet. SparseAnneal was not run yet on "
        f"{', '.join(waiting)}: their true robustness may be well below sAA. More: [training]({TRAINING}), "
        f"[k = 10, 15, 20]({made()['unstructured'].link}). Later work: {facts()['follow_up']['source']}.\n",
    )


def _subjects() -> Iterator[str]:
    """The small networks in the places of the paper's models, if they are trained."""
    places = {source: role for role, source in {**STRUCTURED, **UNSTRUCTURED}.items()}
    labels = {block.section: block.label for block in (*accuracy.PIXELS, *accuracy.STRUCTURED)}
    sections = {budget: section for section, budget in SECTIONS.items()}
    rows = []
    for name, record in read(RESULTS, "subject").items():
        role, budget = places[f"zoo:{name}"], budget_of(name)
        section = sections[budget]
        theirs = [table(labels[section]).value(section, role, column) for column in ("clean", "sAA")]
        saa, lowest = strongest(RESULTS, name, budget, "sAA"), strongest(RESULTS, name, budget)
        ours = [f"{100 * record['clean']:.1f}", str(saa or "-"), str(lowest or "-")]
        rows.append([name, section, *ours, role, *("-" if value is None else f"{value:.1f}" for value in theirs)])
    if rows:
        header = ["subject", "budget", "clean", "sAA", "the lowest of all attacks", "the paper's", "clean", "sAA"]
        yield markdown(header, rows) + "\n"
        yield (
            "Subjects: small networks in the places of the paper's models, each under the budget that it was trained "
            f"for, those without one under k = 20 ([how they were trained]({SUBJECTS})).\n"
        )


def _holds() -> Iterator[str]:
    plain, sat, strades, long = (
        _saa(f"cifar10-{name}").percent for name in ("plain", "sat", "strades", "strades-long")
    )
    theirs = {row: _paper("20", "k=20", row, "sAA") for row in ("Vanilla", "sAT", "sTRADES")}
    yield _checked(
        plain <= 1 and sat < strades and theirs["sAT"] < theirs["sTRADES"],
        f"Under sAA with 20 pixels nothing is left of a plain network ({plain:.1f} %, in the paper "
        f"{theirs['Vanilla']:.1f}). Training against sPGD helps, and sTRADES helps more than sAT: {strades:.1f} "
        f"(longer: {long:.1f}) and {sat:.1f}, in the paper {theirs['sTRADES']:.1f} and {theirs['sAT']:.1f} "
        f"([training]({TRAINING})).",
    )
    patch, row = _saa("cifar10-strades-patch", (1, "patch:5")), _saa("cifar10-strades-row", (1, "row"))
    patch0, row0 = _saa("cifar10-strades", (1, "patch:5")), _saa("cifar10-strades", (1, "row"))
    patches, rows = (
        [_paper("struct", section, model, "sAA") for model in (trained, "sTRADES-l0")]
        for section, trained in (("cifar10, 1 patch 5x5", "sTRADES-p5x5"), ("cifar10, 1 row", "sTRADES-row"))
    )
    yield _checked(
        patch.share > patch0.share + 0.1 and row.share > row0.share,
        f"Training against a structure protects from it better than training against pixels. A 5x5 patch: "
        f"{patch.percent:.1f} and {patch0.percent:.1f} (in the paper {patches[0]:.1f} and {patches[1]:.1f}). A row: "
        f"{row.percent:.1f} and {row0.percent:.1f}, which may be chance (in the paper {rows[0]:.1f} and "
        f"{rows[1]:.1f}). The second of each: {patch0.images} images ([Table III]({made()['structured'].link})).",
    )
    linf = {name: _after("anneal-others-prn18-linf", name, EARLY) for name in (UNPROJECTED, PROJECTED, RANDOM)}
    yield _checked(
        max(linf[UNPROJECTED], linf[PROJECTED]) < linf[RANDOM],
        f"sPGD needs fewer iterations than Sparse-RS. After {EARLY} it leaves {linf[UNPROJECTED]:.1f} (unprojected) "
        f"and {linf[PROJECTED]:.1f} (projected) of prn18-linf, Sparse-RS {linf[RANDOM]:.1f} ([table]({ANNEAL}), "
        f"[Figure 3a]({made()['iterations'].link})).",
    )
    name = "anneal-others-prn18-fast-ls"
    ls = {attack: _lowest(name, attack) for attack in (UNPROJECTED, PROJECTED, RANDOM)}
    rs, u, p = (_paper("20", "k=20", "sTRADES", column) for column in ("RS", "sPGD_u", "sPGD_p"))
    yield _checked(
        ls[RANDOM] < ls[UNPROJECTED] < ls[PROJECTED] and rs < u < p,
        f"On networks trained against pixels a long Sparse-RS is the strongest member of sAA. With "
        f"{_length(name, RANDOM):,} queries it leaves {ls[RANDOM]:.1f} of prn18-fast-ls, sPGD with "
        f"{_length(name, PROJECTED):,} steps {ls[UNPROJECTED]:.1f} (unprojected) and {ls[PROJECTED]:.1f} (projected); "
        f"in the paper {rs:.1f}, {u:.1f} and {p:.1f} of sTRADES ([table]({ANNEAL})).",
    )
    record = load("speed-prn18-strades")
    shares = {one.attack: [100 * left / one.images for left in one.left] for one in beside_official(record)}
    same = [f"{attack} {ours:.1f} and {theirs:.1f}" for attack, (theirs, ours) in shares.items()]
    yield _checked(
        all(abs(theirs - ours) < 0.5 for theirs, ours in shares.values()),
        f"At equal length our attacks leave as much of {record['model']} as the authors' code does. Ours and theirs: "
        f"{', '.join(same)} ([table]({SPEED})).",
    )
    maps, cells, line = detected(), table("yolo").cells["detection"], load("detection-yolov8n")["lines"][1]
    yield _checked(
        maps[PIXELS] < maps[PATCHES] < maps["clean"],
        f"Detectors fall too, and further with 1,600 single pixels than with as many in 4x4 patches. mAP50-95: "
        f"{maps['clean']:.1f} clean, {maps[PIXELS]:.1f} and {maps[PATCHES]:.1f} attacked (YOLOv8-n, {line['images']} "
        f"images, {line['evaluations'] - 1} steps); in the paper {cells['l0_1600']['clean']:.1f}, "
        f"{cells['l0_1600']['sPGD']:.1f} and {cells['patch4x4_100']['sPGD']:.1f} (YOLOv8-M; "
        f"[detectors]({DETECTORS})).",
    )


def _differs() -> Iterator[str]:
    linf = "anneal-others-prn18-linf"
    ours = {name: _lowest(linf, name) for name in (UNPROJECTED, PROJECTED)}
    code = {name: _lowest(linf, f"official {name}") for name in (UNPROJECTED, PROJECTED)}
    u, p = (_paper("20", "k=20", "GD", column) for column in ("sPGD_u", "sPGD_p"))
    yield _checked(
        ours[UNPROJECTED] < ours[PROJECTED] and code[UNPROJECTED] < code[PROJECTED] and p < u,
        f"On l_inf-trained networks the paper finds the projected gradient stronger (GD: {p:.1f} left, unprojected "
        f"{u:.1f}). On prn18-linf the unprojected one is: {ours[UNPROJECTED]:.1f} left, projected "
        f"{ours[PROJECTED]:.1f} ({_length(linf, PROJECTED)} steps). The authors' code shows the same there "
        f"({code[UNPROJECTED]:.1f} and {code[PROJECTED]:.1f}, {_length(linf, f'official {PROJECTED}')} steps), so the "
        f"network or the length is the reason, not our implementation ([table]({ANNEAL})).",
    )
    left, steps = _structures("small-strades", PATCH)
    best = min(value for name, value in left.items() if name.startswith("spgd"))
    rs, spgd = (_paper("struct", "cifar10, 1 patch 5x5", "sTRADES-l0", column) for column in ("RS", "sPGD_p"))
    yield _checked(
        left[RANDOM] < best and spgd < rs,
        f"With a 5x5 patch the paper finds sPGD much stronger than Sparse-RS ({spgd:.1f} and {rs:.1f} left). In short "
        f"runs on small-strades Sparse-RS is the stronger one: {left[RANDOM]:.1f} after {2 * steps} queries; sPGD "
        f"{left[f'{PROJECTED}, pace paper']:.1f} after {steps} steps, {best:.1f} with a faster pace. The paper's pace "
        f"is meant for 10,000 steps ([table]({ANNEAL})).",
    )
    redraws = load("deviations-prn18-strades")
    kept, never = (_variant("deviations-prn18-strades", variant) for variant in ("as shipped", "m: never redraw"))
    paper = table("ab_pgd").cells["robust accuracy"]["Fast-EG-l1"]
    yield _checked(
        abs(kept - never) < 2,
        f"Redraws gain little here, in the paper a lot ({paper['+ redraws']:.1f} left with them, "
        f"{paper['+ continuous mask']:.1f} without, 10,000 steps). {redraws['model']}: {kept:.1f} and {never:.1f} "
        f"({redraws['images']:,} images, {redraws['steps']} steps; [variants]({VARIANTS})).",
    )
    multiple = made()["training-multi-eps"]
    here, paper = multiple.row("here"), multiple.row("paper")
    cifar = {run["variant"]: 100 * run["robust"]["300"] for run in load("training-ablation")["runs"]}
    once, three, six = cifar["k pixels"], next(iter(cifar.values())), cifar["up to 6 k pixels"]
    yield _checked(
        here["6x"] < here["1x"] and once < six < three,
        f"Training with 6 k pixels is best in the paper ({paper['6x']:.1f}; with k {paper['1x']:.1f}), not here. On "
        f"digits of 8x8: {here['6x']:.1f}, with k {here['1x']:.1f} ([Table XIV]({multiple.link})). On CIFAR-10, "
        f"in training against SparseAnneal: {six:.1f}, with k {once:.1f}, with 3 k {three:.1f} "
        "([ablation](training.md#what-each-ingredient-gives)).",
    )
    gtsrb, theirs = _saa("gtsrb-strades", (12, "pixel")), _later("gtsrb-strades")
    _, _, sample = load("train-gtsrb-strades")["data"].partition("32x32: ")
    yield _checked(
        gtsrb.percent < theirs - 10,
        f"On GTSRB at 32x32 and k = 12 our sTRADES is far below the authors' later work: {gtsrb.percent:.1f} and "
        f"{theirs:.1f}. We have only a sample of the data: {sample} ([training]({TRAINING})).",
    )


def _compared() -> Iterator[tuple[bool, str]]:
    """Findings of the paper and whether they hold in the record with most images; nothing where there is none."""
    found = made()
    if (parts := found.get("components")) and any(parts.row("here").values()):
        here, paper = parts.row("here"), parts.row("paper")
        before, after = "+ decomposition", "+ continuous mask"
        yield (
            here[after] < here[before] - 5,
            f"The continuous mask makes sPGD stronger in the paper ({paper[before]:.1f} left without, "
            f"{paper[after]:.1f} with it). {parts.model}: {here[before]:.1f} and {here[after]:.1f} ({parts.images}, "
            f"{parts.steps:,} steps; [Table IX]({parts.link})).",
        )
    if (alpha := found.get("alpha")) and any(alpha.row("here").values()):
        here, paper = alpha.row("here"), alpha.row("paper")
        three = [", ".join(f"{row[value]:.1f}" for value in ("1/16", "1/4", "1")) for row in (here, paper)]
        yield (
            max(here.values()) - min(here.values()) < 5,
            f"The step size alpha matters little in the paper. Left at 1/16, 1/4 and 1 of {alpha.model}: {three[0]}; "
            f"in the paper {three[1]} ({alpha.images}, {alpha.steps:,} steps; [Table X]({alpha.link})).",
        )
    if one := found.get("ratio"):
        few = [share for k in (1, 2, 3) for _, share in ratios(one, k)]
        yield (
            min(few) > 0.95,
            f"Omega'_0, which sPGD bounds, stays close to Omega_0: in the paper their ratio is above 0.95 for k < 5. "
            f"{one.model}: at least {min(few):.2f} up to k = 3, "
            f"{', '.join(f'{share:.2f} with {name}' for name, share in ratios(one, 5))} at k = 5 ({one.images}; "
            f"[Figure 1]({one.link})).",
        )
    if one := found.get("watermarks"):
        falls = {}
        for row in one.values["numbers"]:
            if row["column"] == "sAA" and row["here"] is not None:
                falls.setdefault(row["section"], []).append(row["here"])
        yield (
            all(values == sorted(values, reverse=True) for values in falls.values()),
            f"Watermarks: the larger eps, the less is left under sAA. {one.model}, eps = 8, 16, 32 and 64 of 255: "
            + "; ".join(f"{name.partition(',')[0]} {_shares(values)}" for name, values in falls.items())
            + f" ({one.images}, {one.steps:,} steps; [Table IV]({one.link})).",
        )
    if one := found.get("runtime"):
        times = {row["column"]: row for row in one.values["numbers"] if row["section"] == "times the time of sPGD_u"}
        slower = [name for name in ("CS", "RS", "SF", "PGD0", "SAIF") if times[name]["here"] > 1]
        longer = [f"{name} {times[name]['here']:.1f} times as long" for name in slower]
        yield (
            len(slower) == 5,
            f"In the paper every other attack takes longer than sPGD. On {one.model} these do: "
            f"{', '.join(longer) or 'none'}; sAA as a "
            f"cascade {times['sAA']['here']:.1f} times, in the paper {times['sAA']['paper']:.1f} ({one.images}; "
            f"[Table V]({one.link})).",
        )
    if one := found.get("transfer"):
        whole = {name: _transferred(one, "all steps on the source", name) for name in ("sPGD_p", "sPGD_u", "RS")}
        early = _transferred(one, "early stop on the source", "sPGD_u")
        yield (
            max(whole["sPGD_p"], whole["sPGD_u"]) > whole["RS"],
            f"sPGD transfers better than Sparse-RS in the paper. Mean success rate on other networks: sPGD "
            f"{whole['sPGD_u']:.1f} (unprojected) and {whole['sPGD_p']:.1f} (projected), Sparse-RS {whole['RS']:.1f}; "
            f"if the attack stops as soon as the source is fooled, sPGD {early:.1f} (unprojected; {one.images}, "
            f"[Table VI]({one.link})).",
        )


def ratios(one: Made, k: int) -> list[tuple[str, float]]:
    """Figure 1 at one k, by size of patches and images."""
    rows = [row for row in one.values["numbers"] if row["section"] == MEAN and row["column"] == f"k={k}"]
    return [(row["row"], row["here"]) for row in rows]


def _shares(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _transferred(one: Made, section: str, attack: str) -> float:
    rows = [row for row in one.values["numbers"] if (row["section"], row["row"]) == (section, attack)]
    return statistics.mean(row["here"] for row in rows)


def _unseen() -> Iterator[str]:
    name, other, paper = "anneal-prn18-fast-ls", "anneal-others-prn18-fast-ls", load("saa-prn18-fast-ls-2000")
    saa, ours, runs = _saa("cifar10-fast-ls").percent, _lowest(name, "anneal"), load(name)["runs"]
    yield _checked(
        ours < saa / 2,
        f"sAA, the paper's ensemble, overrates networks trained against sPGD. It leaves **{saa:.1f} %** of "
        f"prn18-fast-ls after {2 * paper['steps'] + paper['queries']:,} passes. SparseAnneal leaves "
        f"{_after(name, 'anneal', EARLY):.1f} % after {EARLY} (the mean of {len(runs)} seeds) and **{ours:.1f} %** at "
        f"the lowest, after {_length(name, 'anneal'):,} (the best seed; {runs[0]['images']:,} images; "
        f"[table]({ANNEAL})).",
    )
    apgd, cluster = _lowest(other, "l1-apgd"), _lowest(other, "cluster-rs")
    near = [strongest(RESULTS, f"cifar10-{one}", (20, "pixel")) for one in ("strades-long", "strades-sn")]
    fallen = [f"{_name(low.recipe)} from {_saa(low.recipe).percent:.1f} to {low}" for low in near if low]
    yield _checked(
        max(apgd, cluster) < saa and all(low and low.attack != "sAA" for low in near),
        f"Other attacks confirm it: l1-APGD leaves {apgd:.1f} of this network, Cluster-RS {cluster:.1f}. Other "
        f"networks fall as well: {', '.join(fallen)} ([training]({TRAINING})).",
    )
    plain = load("anneal-prn18-plain")
    left = {run["attack"]: _lowest("anneal-prn18-plain", run["attack"]) for run in plain["runs"]}
    first, second = sorted(left, key=lambda one: left[one])[:2]
    yield _checked(
        first == "anneal",
        f"Plain networks: with k = {plain['k']} it leaves {left[first]:.1f} of prn18-plain, {second} "
        f"{left[second]:.1f}, sPGD {min(left[UNPROJECTED], left[PROJECTED]):.1f} ([table]({ANNEAL})).",
    )
    if gaps := _gaps():
        (_, model, saa, plus), one = max(gaps), made()["unstructured"]
        yield (
            f"Table I with our models, k = 20: saa+ leaves less than sAA of {sum(each[0] > 0 for each in gaps)} of "
            f"{len(gaps)}, most of all of {model}, {plus:.1f} instead of {saa:.1f} ({one.images}, {one.steps:,} steps, "
            f"{one.queries:,} queries; [table]({one.link}))."
        )
    patch, row = (_structures("prn18-fast-ls", pattern)[0] for pattern in (PATCH, ROW))
    best, best0 = (min(value for one, value in each.items() if one != "anneal") for each in (patch, row))
    yield _checked(
        patch["anneal"] < best and row["anneal"] < best0,
        f"Structures: with a 5x5 patch it leaves {patch['anneal']:.1f} of prn18-fast-ls, sPGD and Sparse-RS at best "
        f"{best:.1f}; with a row {row['anneal']:.1f} and {best0:.1f}, at equal cost ([table]({ANNEAL})).",
    )
    linf, spgd = _lowest("anneal-prn18-linf", "anneal"), _lowest("anneal-others-prn18-linf", UNPROJECTED)
    mark, _ = _structures("small-strades", "a watermark: a disc of 18x18 within 16/255")
    yield _checked(
        spgd < linf and min(mark.values()) < mark["anneal"],
        f"It is not always the strongest. Of prn18-linf it leaves {linf:.1f}, sPGD (unprojected) {spgd:.1f}. With a "
        f"watermark it leaves {mark['anneal']:.1f} of small-strades, sPGD with a faster pace {min(mark.values()):.1f} "
        f"(measured before its first step was made larger for small eps). So `saa+`, the standard evaluation, runs "
        f"sPGD with both gradients after it ([table]({ANNEAL})).",
    )


def _gaps() -> list[tuple[float, str, float, float]]:
    """By how much saa+ is lower than sAA at k = 20, with the model and both, where Table I has them."""
    one, found = made().get("unstructured"), []
    for role, model in one.places.items() if one else ():
        saa, plus = (one.value("k=20", role, column) for column in ("sAA", "saa+"))
        if saa is not None and plus is not None:
            found.append((saa - plus, model, saa, plus))
    return found


def detected() -> dict[str, float]:
    """mAP50-95 in percent, by the line of the record."""
    return {line["line"]: 100 * line["boxes"]["map50_95"] for line in load("detection-yolov8n")["lines"]}


def _checked(true: bool, statement: str) -> str:
    if not true:
        raise ValueError(f"the records say otherwise now; write this statement anew: {statement}")
    return statement


def _name(recipe: str) -> str:
    return recipe.replace("cifar10", "prn18")


def _paper(label: str, section: str, row: str, column: str) -> float:
    return table(label).cells[section][row][column]


def _later(recipe: str) -> float:
    section, row = LATER[recipe]
    return float(facts()["follow_up"]["sAA"][section][row])


def _saa(recipe: str, budget: tuple[int, str] = (20, "pixel")) -> Measured:
    found = strongest(RESULTS, recipe, budget, "sAA")
    if found is None:
        raise ValueError(f"no record of sAA on {recipe} with {budget}")
    return found


def _lowest(record: str, attack: str) -> float:
    """Of all seeds, in percent."""
    return min(100 * run["left"] / run["images"] for run in load(record)["runs"] if run["attack"] == attack)


def _length(record: str, attack: str) -> int:
    return max(run["length"] for run in load(record)["runs"] if run["attack"] == attack)


def _after(record: str, attack: str, passes: int) -> float:
    """The mean over the seeds after so many passes, in percent."""
    runs = [run for run in load(record)["runs"] if run["attack"] == attack]
    left = [min(left for count, left in run["passes"] if count <= passes) / run["images"] for run in runs]
    return 100 * statistics.mean(left)


def _structures(model: str, pattern: str) -> tuple[dict[str, float], int]:
    """What each attack leaves, in percent, and after how many steps."""
    record = load(f"anneal-structures-{model}")
    runs = [run for run in record["runs"] if run["pattern"] == pattern]
    return {run["attack"]: 100 * run["left"] / record["images"] for run in runs}, runs[0]["steps"]


def _variant(record: str, variant: str) -> float:
    """What a variant of sPGD, unprojected, leaves, in percent."""
    values = load(record)
    (row,) = (row for row in values["rows"] if (row["variant"], row["gradient"]) == (variant, "unprojected"))
    return 100 * statistics.mean(row["robust"]) / values["images"]
