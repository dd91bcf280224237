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
    all_stages,
    anchor,
    beside_official,
    budget_of,
    every_made,
    listed,
    load,
    made,
    read,
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
OWN = {  # trained in a way that neither has, and what they are called
    "cifar10-anneal-searched": "prn18-anneal",
    "cifar10-anneal": "an earlier prn18-anneal, without random search in training",
}
TRAINING, SPEED, VARIANTS, DETECTORS, SUBJECTS = (
    f"tables.md#{anchor(title)}"
    for title in ("Training", "Speed compared with the official code", "Variants of sPGD", "Detectors", "Subjects")
)
ANNEAL = "anneal.md#results"
PATCH, ROW = "one 5x5 patch", "one row"
UNPROJECTED, PROJECTED, RANDOM = "spgd-unprojected", "spgd-projected", "sparse-rs"
DETECTION_ROWS = {  # rows of the table of detectors
    "l0_1600": "1,600 pixels", "l0_3200": "3,200 pixels", "patch4x4_100": "100 patches 4x4",
    "patch4x4_200": "200 patches 4x4",
}  # fmt: skip
EARLY = 100  # passes after which attacks are compared


def findings() -> Iterator[str]:
    """The first part of the page."""
    yield "## Our models beside the paper's\n"
    yield from _models()
    yield from _subjects()
    compared = list(_compared())
    yield "## Where our results agree with the paper\n"
    yield listed([*_holds(), *(words for holds, words in compared if holds)])
    yield "## Where they differ\n"
    yield listed([*_differs(), *(words for holds, words in compared if not holds)])
    yield "## What is new: SparseAnneal\n"
    yield listed(list(_unseen()))


def _models() -> Iterator[str]:
    rows, waiting, images = [], [], set()
    for recipe in (*PAPER, *LATER, *OWN):
        record, budget = load(f"train-{recipe}"), budget_of(recipe)
        saa, lowest = _saa(recipe, budget), strongest(RESULTS, recipe, budget)
        images.add(f"{saa.images:,}")
        if saa.share and not any(strongest(RESULTS, recipe, budget, one) for one in ("anneal", "saa+")):
            waiting.append(_name(recipe))
        if recipe in PAPER:
            label, section, row = PAPER[recipe]
            theirs = [row, *(f"{_paper(label, section, row, column):.1f}" for column in ("clean", "sAA"))]
        elif recipe in LATER:
            theirs = [f"{LATER[recipe][1]}, later work", "-", f"{_later(recipe):.1f}"]
        else:
            theirs = ["none", "-", "-"]
        epochs = all_stages(read(RESULTS, "train"), recipe)["epochs"]
        ours = [f"{100 * record['clean']:.1f}", f"{saa.percent:.1f}", str(lowest)]
        rows.append([_name(recipe), f"k = {budget[0]}, {budget[1]}", str(epochs), *ours, *theirs])
    header = ["our model", "budget", "epochs", "clean", "sAA", "lowest of all attacks", "the paper's model"]
    yield markdown([*header, "clean", "sAA"], rows) + "\n"
    yield _checked(
        all(record["recipe"].startswith("recipes/quick/") for record in read(RESULTS, "train").values()),
        f"Accuracy is in percent, clean accuracy on all test images, robust accuracy under sAA on "
        f"{' or '.join(sorted(images))} images. Models named prn18 are PreActResNet-18 on CIFAR-10. We trained ours "
        "with short recipes (the table counts the epochs of all stages); the paper trains for 100 epochs, and we have "
        f"not run its recipe yet. SparseAnneal has not been run yet on {', '.join(waiting)}, so their robust accuracy "
        f"may be well below the value under sAA. See also [training]({TRAINING}) and "
        f"[k = 10, 15, 20]({made()['unstructured'].link}). Later work is {facts()['follow_up']['source']}.\n",
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
        header = ["subject", "budget", "clean", "sAA", "lowest of all attacks", "the paper's model", "clean", "sAA"]
        yield markdown(header, rows) + "\n"
        yield (
            "Subjects are small networks that take the places of the paper's models. Each is evaluated with the budget "
            f"that it was trained for, or with k = 20 ([how they were trained]({SUBJECTS})).\n"
        )


def _plus(recipe: str) -> Measured:
    """A model with 20 pixels under saa+."""
    found = strongest(RESULTS, recipe, (20, "pixel"), "saa+")
    assert found is not None
    return found


def _holds() -> Iterator[str]:
    plain, sat, strades, long = (
        _saa(f"cifar10-{name}").percent for name in ("plain", "sat", "strades", "strades-long")
    )
    theirs = {row: _paper("20", "k=20", row, "sAA") for row in ("Vanilla", "sAT", "sTRADES")}
    yield _checked(
        plain <= 1 and sat < strades and theirs["sAT"] < theirs["sTRADES"],
        f"With 20 pixels, sAA reduces the accuracy of a plain network to {plain:.1f} % (paper: "
        f"{theirs['Vanilla']:.1f} %). Training against sPGD helps, and sTRADES helps more than sAT: robust accuracy is "
        f"{strades:.1f} % ({long:.1f} % after longer training) and {sat:.1f} % (paper: {theirs['sTRADES']:.1f} % and "
        f"{theirs['sAT']:.1f} %; [training]({TRAINING})).",
    )
    patch, row = _saa("cifar10-strades-patch", (1, "patch:5")), _saa("cifar10-strades-row", (1, "row"))
    patch0, row0 = _saa("cifar10-strades", (1, "patch:5")), _saa("cifar10-strades", (1, "row"))
    patches, rows = (
        [_paper("struct", section, model, "sAA") for model in (trained, "sTRADES-l0")]
        for section, trained in (("cifar10, 1 patch 5x5", "sTRADES-p5x5"), ("cifar10, 1 row", "sTRADES-row"))
    )
    yield _checked(
        patch.share > patch0.share + 0.1 and row.share > row0.share,
        f"Training against a structure protects against it better than training against pixels. Under a 5x5 patch, "
        f"robust accuracy is {patch.percent:.1f} % after training against patches and {patch0.percent:.1f} % after "
        f"training against pixels (paper: {patches[0]:.1f} % and {patches[1]:.1f} %). Under a row it is "
        f"{row.percent:.1f} % and {row0.percent:.1f} %, a difference that may be chance (paper: {rows[0]:.1f} % and "
        f"{rows[1]:.1f} %). The second number of each pair was measured on {patch0.images} images "
        f"([Table III]({made()['structured'].link})).",
    )
    linf = {name: _after("anneal-others-prn18-linf", name, EARLY) for name in (UNPROJECTED, PROJECTED, RANDOM)}
    yield _checked(
        max(linf[UNPROJECTED], linf[PROJECTED]) < linf[RANDOM],
        f"sPGD needs fewer iterations than Sparse-RS. After {EARLY} iterations on prn18-linf, robust accuracy is "
        f"{linf[UNPROJECTED]:.1f} % under sPGD with the unprojected gradient, {linf[PROJECTED]:.1f} % with the "
        f"projected one, and {linf[RANDOM]:.1f} % under Sparse-RS ([table]({ANNEAL}), [Figure "
        f"3a]({made()['iterations'].link})).",
    )
    name = "anneal-others-prn18-fast-ls"
    ls = {attack: _lowest(name, attack) for attack in (UNPROJECTED, PROJECTED, RANDOM)}
    rs, u, p = (_paper("20", "k=20", "sTRADES", column) for column in ("RS", "sPGD_u", "sPGD_p"))
    yield _checked(
        ls[RANDOM] < ls[UNPROJECTED] < ls[PROJECTED] and rs < u < p,
        "On networks trained against pixels, a long run of Sparse-RS is the strongest member of sAA. On "
        f"prn18-fast-ls, robust accuracy is {ls[RANDOM]:.1f} % after {_length(name, RANDOM):,} queries, and "
        f"{ls[UNPROJECTED]:.1f} % (unprojected) and {ls[PROJECTED]:.1f} % (projected) after "
        f"{_length(name, PROJECTED):,} steps of sPGD. In the paper it is {rs:.1f} %, {u:.1f} % and {p:.1f} % for "
        f"sTRADES ([table]({ANNEAL})).",
    )
    record = load("speed-prn18-strades")
    shares = {one.attack: [100 * left / one.images for left in one.left] for one in beside_official(record)}
    same = [f"{attack} {ours:.1f} and {theirs:.1f}" for attack, (theirs, ours) in shares.items()]
    yield _checked(
        all(abs(theirs - ours) < 0.5 for theirs, ours in shares.values()),
        f"With equally many steps or queries, our attacks are as strong as the authors' code. Robust accuracy of "
        f"{record['model']}, in percent, ours and theirs: {', '.join(same)} ([table]({SPEED})).",
    )
    one = made()["detection"]
    pixels, patches = (map_scores(one, "detection", row) for row in ("l0_1600", "patch4x4_100"))
    theirs = {row: table("yolo").cells["detection"][row] for row in ("l0_1600", "patch4x4_100")}
    yield _checked(
        pixels["sPGD"] < patches["sPGD"] < patches["clean"],
        f"Detectors are vulnerable too, more to 1,600 single pixels than to as many pixels in 4x4 patches. sPGD "
        f"reduces mAP50-95 of {one.places['detection']} from {pixels['clean']:.1f} to {pixels['sPGD']:.1f} and "
        f"{patches['sPGD']:.1f} ({one.images}, {one.steps} steps), in the paper from {theirs['l0_1600']['clean']:.1f} "
        f"to {theirs['l0_1600']['sPGD']:.1f} and {theirs['patch4x4_100']['sPGD']:.1f} (YOLOv8-M; "
        f"[Table VII]({one.link}); 3,200 pixels and 200 patches: [detectors]({DETECTORS})).",
    )


def _differs() -> Iterator[str]:
    linf = "anneal-others-prn18-linf"
    ours = {name: _lowest(linf, name) for name in (UNPROJECTED, PROJECTED)}
    code = {name: _lowest(linf, f"official {name}") for name in (UNPROJECTED, PROJECTED)}
    u, p = (_paper("20", "k=20", "GD", column) for column in ("sPGD_u", "sPGD_p"))
    yield _checked(
        ours[UNPROJECTED] < ours[PROJECTED] and code[UNPROJECTED] < code[PROJECTED] and p < u,
        f"On l_inf-trained networks, the paper finds that the projected gradient is stronger: robust accuracy of GD is "
        f"{p:.1f} % with it and {u:.1f} % with the unprojected one. On prn18-linf the unprojected gradient is "
        f"stronger: {ours[UNPROJECTED]:.1f} %, against {ours[PROJECTED]:.1f} % ({_length(linf, PROJECTED)} steps). The "
        f"authors' code gives the same order there ({code[UNPROJECTED]:.1f} % and {code[PROJECTED]:.1f} %, "
        f"{_length(linf, f'official {PROJECTED}')} steps), so the reason is the network or the number of steps, not "
        f"our implementation ([table]({ANNEAL})).",
    )
    left, steps = _structures("small-strades", PATCH)
    best = min(value for name, value in left.items() if name.startswith("spgd"))
    rs, spgd = (_paper("struct", "cifar10, 1 patch 5x5", "sTRADES-l0", column) for column in ("RS", "sPGD_p"))
    yield _checked(
        left[RANDOM] < best and spgd < rs,
        f"With a 5x5 patch, the paper finds that sPGD is much stronger than Sparse-RS (robust accuracy {spgd:.1f} % "
        f"and {rs:.1f} %). In short runs on small-strades, Sparse-RS is stronger: {left[RANDOM]:.1f} % after "
        f"{2 * steps} queries, against {left[f'{PROJECTED}, pace paper']:.1f} % after {steps} steps of sPGD, or "
        f"{best:.1f} % with larger step sizes. The paper's step sizes are meant for 10,000 steps ([table]({ANNEAL})).",
    )
    redraws = load("deviations-prn18-strades")
    kept, never = (_variant("deviations-prn18-strades", variant) for variant in ("as shipped", "m: never redraw"))
    paper = table("ab_pgd").cells["robust accuracy"]["Fast-EG-l1"]
    yield _checked(
        abs(kept - never) < 2,
        f"Redrawing the mask helps little here, but a lot in the paper, where robust accuracy of Fast-EG-l1 is "
        f"{paper['+ redraws']:.1f} % with redraws and {paper['+ continuous mask']:.1f} % without them after 10,000 "
        f"steps. After {redraws['steps']} steps we find {kept:.1f} % and {never:.1f} % on {redraws['model']} "
        f"({redraws['images']:,} images; [variants]({VARIANTS})).",
    )
    multiple = made()["training-multi-eps"]
    here, paper = multiple.row("here"), multiple.row("paper")
    cifar = {run["variant"]: 100 * run["robust"]["300"] for run in load("training-ablation")["runs"]}
    once, three, six = cifar["k pixels"], next(iter(cifar.values())), cifar["up to 6 k pixels"]
    yield _checked(
        here["6x"] < here["1x"] and once < six < three,
        f"In the paper, training with 6 k pixels is best: robust accuracy is {paper['6x']:.1f} %, against "
        f"{paper['1x']:.1f} % with k pixels. Here it is not. On 8x8 digits we find {here['6x']:.1f} % with 6 k and "
        f"{here['1x']:.1f} % with k ([Table XIV]({multiple.link})); on CIFAR-10, trained against SparseAnneal, "
        f"{six:.1f} % with 6 k, {three:.1f} % with 3 k and {once:.1f} % with k "
        "([ablation](training.md#what-each-ingredient-gives)).",
    )
    gtsrb, theirs = _saa("gtsrb-strades", (12, "pixel")), _later("gtsrb-strades")
    _, _, sample = load("train-gtsrb-strades")["data"].partition("32x32: ")
    yield _checked(
        gtsrb.percent < theirs - 10,
        f"On GTSRB at 32x32 with k = 12, our sTRADES model has a robust accuracy of {gtsrb.percent:.1f} %, far below "
        f"the {theirs:.1f} % of the authors' later work. We have only a sample of the data: {sample} "
        f"([training]({TRAINING})).",
    )


def _compared() -> Iterator[tuple[bool, str]]:
    """Findings of the paper and whether they hold in the record with most images; nothing where there is none."""
    found = made()
    if (parts := found.get("components")) and any(parts.row("here").values()):
        here, paper = parts.row("here"), parts.row("paper")
        before, after = "+ decomposition", "+ continuous mask"
        yield (
            here[after] < here[before] - 5,
            f"The continuous mask makes sPGD stronger in the paper: robust accuracy is {paper[before]:.1f} % without "
            f"it and {paper[after]:.1f} % with it. On {parts.model} we find {here[before]:.1f} % and "
            f"{here[after]:.1f} % ({parts.images}, {parts.steps:,} steps; [Table IX]({parts.link})).",
        )
    if (alpha := found.get("alpha")) and any(alpha.row("here").values()):
        here, paper = alpha.row("here"), alpha.row("paper")
        three = [_shares([row[value] for value in ("1/16", "1/4", "1")]) for row in (here, paper)]
        yield (
            max(here.values()) - min(here.values()) < 5,
            f"The step size alpha matters little in the paper: with 1/16, 1/4 and 1, robust accuracy is {three[1]}. On "
            f"{alpha.model} it is {three[0]} ({alpha.images}, {alpha.steps:,} steps; [Table X]({alpha.link})).",
        )
    if one := found.get("ratio"):
        few = [share for k in (1, 2, 3) for _, share in ratios(one, k)]
        yield (
            min(few) > 0.95,
            f"Omega'_0, which sPGD bounds, stays close to Omega_0: in the paper their mean ratio is above 0.95 for "
            f"k < 5. On {one.model} it is at least {min(few):.2f} up to k = 3; at k = 5 it is "
            f"{' and '.join(f'{share:.2f} (patches of {name})' for name, share in ratios(one, 5))} ({one.images}; "
            f"[Figure 1]({one.link})).",
        )
    yield from _large(found)
    yield from _detection_scores()
    if one := found.get("watermarks"):
        falls = {}
        for row in one.values["numbers"]:
            if row["column"] == "sAA" and row["here"] is not None:
                falls.setdefault(row["section"], []).append(row["here"])
        yield (
            all(values == sorted(values, reverse=True) for values in falls.values()),
            f"With watermarks, robust accuracy under sAA falls as eps grows. On {one.model}, with eps = 8, 16, 32 and "
            "64 of 255: "
            + "; ".join(f"{name.partition(',')[0]} {_shares(values)}" for name, values in falls.items())
            + f" ({one.images}, {one.steps:,} steps; [Table IV]({one.link})).",
        )
    if one := found.get("runtime"):
        times = {row["column"]: row for row in one.values["numbers"] if row["section"] == "times the time of sPGD_u"}
        slower = [name for name in ("CS", "RS", "SF", "PGD0", "SAIF") if times[name]["here"] > 1]
        longer = [f"{name} {times[name]['here']:.1f} times as long" for name in slower]
        yield (
            len(slower) == 5,
            f"In the paper every other attack takes longer than sPGD. On {one.model}, the following do: "
            f"{', '.join(longer) or 'none'}. sAA, as a cascade, takes {times['sAA']['here']:.1f} times as long (paper: "
            f"{times['sAA']['paper']:.1f} times; {one.images}; [Table V]({one.link})).",
        )
    if one := found.get("transfer"):
        whole = {name: _transferred(one, "all steps on the source", name) for name in ("sPGD_p", "sPGD_u", "RS")}
        early = _transferred(one, "early stop on the source", "sPGD_u")
        theirs = statistics.mean(table("trans").cells["success rate"]["sPGD_u"].values())
        yield (
            max(whole["sPGD_p"], whole["sPGD_u"]) > whole["RS"],
            f"sPGD transfers better than Sparse-RS in the paper. Here the mean success rate on other networks is "
            f"{whole['sPGD_u']:.1f} % for sPGD unprojected, {whole['sPGD_p']:.1f} % for sPGD projected and "
            f"{whole['RS']:.1f} % for Sparse-RS. If the attack stops as soon as it fools the source, it is "
            f"{early:.1f} % for sPGD unprojected; the paper, which does not say whether it stops, has "
            f"{theirs:.1f} % ({one.images} of {one.record['data']}; [Table VI]({one.link})).",
        )


def _large(found: dict[str, Made]) -> Iterator[tuple[bool, str]]:
    """Networks without defence at 224x224."""
    if one := found.get("imagenet"):
        here, paper = one.row("here"), one.row("paper")
        yield (
            here["sAA"] < 10 and here["sPGD_p"] < here["RS"],
            "At 224x224, 200 pixels are enough to fool a network without defence on nearly every image: in the paper, "
            f"robust accuracy under sAA is {paper['sAA']:.1f} % (RN-34, 100 classes). On {one.model} it is "
            f"{here['sAA']:.1f} %; {here['sPGD_p']:.1f} % under sPGD projected, {here['sPGD_u']:.1f} % unprojected, "
            f"{here['RS']:.1f} % under Sparse-RS, {here['anneal']:.1f} % under SparseAnneal, {here['saa+']:.1f} % "
            f"under saa+ ({one.images}, {one.steps:,} steps, {one.queries:,} queries; the paper's attacks have 10,000; "
            f"[Table II]({one.link})).",
        )
    if one := found.get("structured-imagenet"):
        told, holds = [], []
        for block in accuracy.STRUCTURED_LARGE:
            cells = [one.value(block.section, "Vanilla", column) for column in ("RS", "sPGD_p", "anneal")]
            here = [value for value in cells if value is not None]
            if len(here) == len(cells):
                paper = [_paper("struct", block.section, "Vanilla", column) for column in ("RS", "sPGD_p")]
                holds.append(here[1] < here[0])
                told.append(f"{_shares(here)} with {block.section.partition(', ')[2]} (paper: {_shares(paper)})")
        yield (
            all(holds),
            "At 224x224, sPGD projected is stronger than Sparse-RS on rows and patches in the paper. On "
            f"{one.model}, robust accuracy under Sparse-RS, sPGD projected and, not in the paper, SparseAnneal is "
            f"{'; '.join(told)} ({one.images}, {one.steps:,} steps, {one.queries:,} queries; "
            f"[Table III]({one.link})).",
        )


def _detection_scores() -> Iterator[tuple[bool, str]]:
    """Detection and segmentation under all attacks."""
    for one in every_made().get("detection", ()):
        for task, model in one.places.items():
            here, paper = map_scores(one, task, "l0_1600"), table("yolo").cells[task]["l0_1600"]
            yield (
                here["sPGD"] < min(here["RS"], here["SAIF"]),
                f"In {task} with 1,600 pixels, sPGD reduces mAP50-95 more than Sparse-RS and SAIF in the paper: to "
                f"{paper['sPGD']:.1f}, {paper['RS']:.1f} and {paper['SAIF']:.1f}, from {paper['clean']:.1f}. On "
                f"{model} it is {here['sPGD']:.1f}, {here['RS']:.1f} and {here['SAIF']:.1f}, and {here['anneal']:.1f} "
                f"under SparseAnneal, from {here['clean']:.1f} ({one.images}, {one.steps} steps, {one.queries} "
                f"queries; [Table VII]({one.link})).",
            )


def ratios(one: Made, k: int) -> list[tuple[str, float]]:
    """Figure 1 at one k, by size of patches and images."""
    rows = [row for row in one.values["numbers"] if row["section"] == MEAN and row["column"] == f"k={k}"]
    return [(row["row"], row["here"]) for row in rows]


def _shares(values: list[float]) -> str:
    return ", ".join(f"{value:.1f} %" for value in values)


def _transferred(one: Made, section: str, attack: str) -> float:
    rows = [row for row in one.values["numbers"] if (row["section"], row["row"]) == (section, attack)]
    return statistics.mean(row["here"] for row in rows)


def _unseen() -> Iterator[str]:
    name, other, paper = "anneal-prn18-fast-ls", "anneal-others-prn18-fast-ls", load("saa-prn18-fast-ls-2000")
    saa, runs = _saa("cifar10-fast-ls").percent, [run for run in load(name)["runs"] if run["attack"] == "anneal"]
    ours = min(_lowest(one, "anneal") for one in (name, "anneal-steps-15-prn18-fast-ls"))
    yield _checked(
        ours < saa / 2,
        "sAA, the paper's ensemble, overestimates the robustness of networks trained against sPGD. On prn18-fast-ls "
        f"it reports a robust accuracy of **{saa:.1f} %** with {2 * paper['steps'] + paper['queries']:,} steps and "
        f"queries. SparseAnneal reduces it to {_after(name, 'anneal', EARLY):.1f} % with {EARLY} steps (mean of "
        f"{len(runs)} seeds) and to **{ours:.1f} %** with {_length(name, 'anneal'):,} (the lowest "
        f"of six runs; {runs[0]['images']:,} images; [table]({ANNEAL})).",
    )
    own, theirs = _plus("cifar10-anneal-searched"), [_plus(f"subject-{one}") for one in ("sat", "strades", "anneal")]
    yield _checked(
        own.percent > 1.5 * ours and theirs[0].share < theirs[1].share < theirs[2].share,
        f"Training against SparseAnneal helps: prn18-anneal keeps {own.percent:.1f} % under `saa+` (worst of two "
        f"seeds), {_plus('cifar10-anneal').percent:.1f} % if no batch of the training is attacked by random search, "
        f"prn18-fast-ls {ours:.1f} % under SparseAnneal. The small networks show the same. Under `saa` and "
        "`saa+`, robust accuracy is "
        f"{', '.join(f'{_saa(one.recipe).percent:.1f} and {one.percent:.1f} % for {one.recipe}' for one in theirs)} "
        f"([training]({TRAINING}), [subjects]({SUBJECTS})).",
    )
    apgd, cluster = _lowest(other, "l1-apgd"), _lowest(other, "cluster-rs")
    near = [strongest(RESULTS, f"cifar10-{one}", (20, "pixel")) for one in ("strades-long", "strades-sn")]
    fallen = [f"{_name(low.recipe)} from {_saa(low.recipe).percent:.1f} to {low}" for low in near if low]
    yield _checked(
        max(apgd, cluster) < saa and all(low and low.attack != "sAA" for low in near),
        f"Other attacks confirm this: l1-APGD reduces robust accuracy of this network to {apgd:.1f} %, Cluster-RS to "
        f"{cluster:.1f} %. The robust accuracy of other networks falls as well: {', '.join(fallen)} "
        f"([training]({TRAINING})).",
    )
    plain = load(usual := "anneal-prn18-plain-16")
    left = {run["attack"]: _lowest(usual, run["attack"]) for run in plain["runs"]}
    best = min(left[UNPROJECTED], left[PROJECTED])
    yield _checked(
        left["saa+"] < left["cluster-rs"] < left["anneal"] < best,
        f"On a plain network, {plain['model']} with k = {plain['k']}, robust accuracy is {left['anneal']:.1f} % under "
        f"SparseAnneal and {best:.1f} % under sPGD with {_length(usual, 'anneal'):,} steps, {left['cluster-rs']:.1f} % "
        f"under Cluster-RS with {_length(usual, 'cluster-rs'):,} queries and {left['saa+']:.1f} % under `saa+` "
        f"([table]({ANNEAL})).",
    )
    if gaps := _gaps():
        (_, model, saa, plus), one = max(gaps), made()["unstructured"]
        yield (
            f"In Table I with k = 20, robust accuracy under saa+ is lower than under sAA on "
            f"{sum(each[0] > 0 for each in gaps)} of our {len(gaps)} models. The difference is largest on {model}: "
            f"{saa:.1f} % and {plus:.1f} % ({one.images}, {one.steps:,} steps, {one.queries:,} queries; "
            f"[table]({one.link}))."
        )
    patch, row = (_structures("prn18-fast-ls", pattern)[0] for pattern in (PATCH, ROW))
    best, best0 = (min(value for one, value in each.items() if one != "anneal") for each in (patch, row))
    yield _checked(
        patch["anneal"] < best and row["anneal"] < best0,
        f"On structured budgets at equal cost, SparseAnneal reduces robust accuracy of prn18-fast-ls to "
        f"{patch['anneal']:.1f} % with a 5x5 patch, sPGD and Sparse-RS to {best:.1f} % at best; with a row, it is "
        f"{row['anneal']:.1f} % and {best0:.1f} % ([table]({ANNEAL})).",
    )
    mark, _ = _structures("small-strades", "a watermark: a disc of 18x18 within 16/255")
    others = min(value for one, value in mark.items() if one != "anneal")
    yield _checked(
        mark["anneal"] < others,
        f"A watermark within 16/255 reduces robust accuracy of small-strades to {mark['anneal']:.1f} % with "
        f"SparseAnneal and to {others:.1f} % with sPGD at larger step sizes ([table]({ANNEAL})).",
    )
    runs = load("anneal-prn18-linf-15")["runs"]
    attacks = ("anneal", UNPROJECTED, PROJECTED, "saa+")
    left = {one: statistics.mean(run["left"] / 10 for run in runs if run["attack"] == one) for one in attacks}
    yield _checked(
        left["saa+"] < left["anneal"] < left[UNPROJECTED] + 0.5 < left[PROJECTED],
        f"On l_inf-trained networks SparseAnneal is not stronger than sPGD in long runs. With 1,000 steps on "
        f"prn18-linf-15, robust accuracy is {left['anneal']:.1f} % under SparseAnneal, {left[UNPROJECTED]:.1f} % under "
        f"sPGD unprojected and {left[PROJECTED]:.1f} % projected. They break different images, which is why `saa+`, "
        f"the standard evaluation, runs all of them: it reaches {left['saa+']:.1f} % ([table]({ANNEAL})).",
    )


def _gaps() -> list[tuple[float, str, float, float]]:
    """By how much saa+ is lower than sAA at k = 20, with the model and both, where Table I has them."""
    one, found = made().get("unstructured"), []
    for role, model in one.places.items() if one else ():
        saa, plus = (one.value("k=20", role, column) for column in ("sAA", "saa+"))
        if saa is not None and plus is not None:
            found.append((saa - plus, model, saa, plus))
    return found


def map_scores(one: Made, task: str, row: str) -> dict[str, float]:
    """mAP50-95 in percent, clean and under each attack that was measured; {}: none was."""
    numbers = [each for each in one.values["numbers"] if (each["section"], each["row"]) == (task, row)]
    found = {each["column"]: each["here"] for each in numbers if each["here"] is not None}
    return found if found.keys() > {"clean"} else {}


def _checked(true: bool, statement: str) -> str:
    if not true:
        raise ValueError(f"the records say otherwise now; write this statement anew: {statement}")
    return statement


def _name(recipe: str) -> str:
    return OWN.get(recipe, recipe.replace("cifar10", "prn18"))


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
