"""The tables of docs/cost.md, and the model of a large run, from the records."""

import math
import statistics

from records import Record, file_of, load

import sparsepgd as sp
from sparsepgd.evaluation import QUERIES, STEPS
from sparsepgd.tables import markdown

Range = tuple[float, float]
IMAGES, CHUNK, ENTRIES, GPUS = 50_000, 200, 3 * 224 * 224, (1, 8, 64)  # of the large run
CPU, GPU, BARE = "cost-cpu", "growth-prn18-strades", "speed-prn18-strades"
RATIO, RATIO_LARGE = "ratio-prn18-fast-ls", "large-resnet34"
RATIO_CPU, RATIO_BF16 = "ratio-cpu-small-strades", "ratio-cpu-small-strades-bf16"
COLD, PHASES = "cold-prn18-fast-ls", "cold-phases-prn18-fast-ls"
ANNEAL, QUERY = "anneal-prn18-fast-ls", "anneal-others-prn18-fast-ls"


def of(name: str, what: str) -> dict[int, Record]:
    return {row["value"]: row for row in load(name)["rows"] if row["what"] == what}


def line(of_count: dict[int, float]) -> Range:
    """By least squares: for each, and at none."""
    each, none = statistics.linear_regression(list(of_count), list(of_count.values()))
    return each, none


def growth() -> str:
    """One quantity at a time, on a GPU and on a CPU."""
    cpu, gpu, rows = load(CPU), load(GPU), []
    for what in ("images", "k", "image side", "classes", "batch size"):
        for name, where in ((GPU, "H200"), (CPU, "CPU core")):
            if found := of(name, what):
                us = ", ".join(f"{row['us']:,.{1 if name == GPU else 0}f}" for row in found.values())
                held = ", ".join(f"{row['memory'] / 1e9:.1f}" for row in found.values()) if name == GPU else ""
                rows.append([what, where, ", ".join(f"{value:,}" for value in found), us, held])
    above = ["", "on", "values", "us an evaluation", "GB of GPU memory"]
    ratio = statistics.mean(row["ratio"] for row in load(BARE)["spgd"]["attacks"] if row["ratio"])
    return (
        f"{markdown(above, rows)}\n\n"
        f"sPGD without early stop. H200: PreActResNet-18, {gpu['steps']} steps, {gpu['precision']}, compiled "
        f"({file_of(GPU)}); a full step takes {ratio:.2f} times the bare gradient ({file_of(BARE)}). CPU: "
        f"{cpu['steps']} steps on the network of `small-plain`, for the number of images on one of two layers; "
        f"{cpu['hardware']}, one thread, processor time; other work on the machine made differences of up to "
        f"a third ({file_of(CPU)}).\n"
    )


def steps() -> str:
    """A step beside the bare model, and the first call of a process beside the authors' code."""
    bare, jobs, phases = load(RATIO), load(COLD)["jobs"], load(PHASES)["jobs"]["phases spgd"]
    cpu, quick, large, rows = load(RATIO_CPU), load(RATIO_BF16)["rows"][0], load(RATIO_LARGE), []
    for where, record in (("H200", bare), ("H200, 224x224", large), ("CPU core", cpu)):
        for row in record["rows"]:
            us = [f"{row[one]:,.{0 if record is cpu else 1}f}" for one in ("us", "bare us")]
            rows.append([row["attack"], where, *us, f"{row['ratio']:.2f}"])
    ours, theirs = (jobs[name] for name in ("plain again", "official"))
    times = [theirs[call]["seconds"] / ours[call]["seconds"] for call in ("first", "second")]
    lost = {name: seconds - phases["second"]["phases"].get(name, (0,))[0] for name, (seconds, _) in
            phases["first"]["phases"].items()}  # fmt: skip
    lost["what else torch does for the first time"] = phases["first"]["rest"] - phases["second"]["rest"]
    most = sorted(lost.items(), key=lambda one: -one[1])[:5]
    return (
        f"{markdown(['attack', 'on', 'us an image and step', 'the model alone, us', 'ratio'], rows)}\n\n"
        f"{bare['hardware']}, {bare['model']}, {bare['images']:,} images at a time, {bare['precision']}, not compiled; "
        f"the model alone is forward and backward, for Sparse-RS and Cluster-RS forward only ({file_of(RATIO)}). CPU: "
        f"{cpu['model']}, a far smaller network, {cpu['images']} images at a time ({file_of(RATIO_CPU)}). This "
        f"processor has instructions for bf16: with `--precision bf16` a step of {quick['attack']} takes "
        f"{quick['us']:,.0f} us ({file_of(RATIO_BF16)}). That is not the default, because results would depend on the "
        "processor. 224x224: "
        f"ResNet-34 with random weights, k = {large['k']}, {large['rows'][0]['batch']} images at a time, the default "
        f"({large['rows'][0]['memory'] / 1e9:.0f} GB of memory, {file_of(RATIO_LARGE)}).\n\n"
        f"In a new process, sPGD with 300 steps on 1,000 images takes {ours['first']['seconds']:.1f} s, the authors' "
        f"code {theirs['first']['seconds']:.1f} s: {times[0]:.1f} times as long. A second call takes "
        f"{ours['second']['seconds']:.1f} and {theirs['second']['seconds']:.1f} s, {times[1]:.1f} times as long "
        f"({file_of(COLD)}). The first process on a machine also compiles our GPU kernels, beside the search, which "
        "takes some seconds more. The goal of 4 times in a new process is missed. What a first call takes longer than "
        "a second one, in seconds: "
        f"{'; '.join(f'{LOST.get(name, name)} {seconds:.2f}' for name, seconds in most)} ({file_of(PHASES)}).\n"
    )


LOST = {  # phases of benchmarks/cold.py in plain words
    "float32: forward passes": "float32 libraries",
    "lean copy: compared": "half-precision libraries",
    "waiting for the kernels": "loading our kernels",
    "trial of fp16": "the first gradient",
    "steps: eager": "the first steps",
    "float32: verification, besides the model": "verification without the model",
}


def passes() -> str:
    """What saa+ of the default length took."""
    rows = []
    for row in load(CPU)["passes"]:
        left = ", ".join(f"{name} {share:.1%}" for name, share in row["left"].items())
        rows.append([row["model"], f"{row['images']}", left, *(f"{passes:.0f}" for passes in each(row))])
    return markdown(["model", "images", "right after each member", "passes with gradient", "queries"], rows) + "\n"


def each(row: Record) -> Range:
    """Passes with gradient and without, for an image."""
    return row["backwards"] / row["images"], (row["forwards"] - row["backwards"]) / row["images"]


def most(steps: int, queries: int) -> Range:
    """The same of an image that withstands everything."""
    members = sp.SparseAutoAttack(sp.Budget(k=1), steps, queries, version="standard").members
    gradient, none = (sum(one.evaluations for one in members if one.needs_gradient == kind) for kind in (True, False))
    return gradient, none


def workers() -> str:
    found = {count: row["seconds"] for count, row in of(CPU, "workers").items()}
    start, work = line(found)
    rows = [
        ["seconds, all together", *(f"{seconds:.0f}" for seconds in found.values())],
        [f"{start:.1f} W + {work:.0f}", *(f"{start * count + work:.0f}" for count in found)],
        [f"{start:.1f} + {work:.0f} / W", *(f"{start + work / count:.0f}" for count in found)],
    ]
    return markdown(["workers", *map(str, found)], rows) + "\n"


def memory() -> str:
    run, whole = (
        line({n: row["memory"] for n, row in of(CPU, what).items()})[0] for what in ("images of a run", "images")
    )
    pixels, size = 4 * 3 * 32 * 32, 4 * ENTRIES * IMAGES / 1e9
    merged = round(size * run / pixels, -1)
    (read,) = of(CPU, "pictures").values()
    count = read["value"]
    return (
        f"On the host, an image takes {pixels / 1e3:.0f} kB at 32x32 and {4 * ENTRIES / 1e3:.0f} kB at 224x224. "
        f"`attack(model, x, y)` on a CPU took {whole / pixels:.0f} times the memory of its images. A run with a folder "
        f"and `--chunk 200` took {run / pixels:.0f} times ({file_of(CPU)}): for {IMAGES:,} images of 224x224 that is "
        f"at least {size:.0f} GB for each worker and about {merged:.0f} GB for the first, which merges the chunks. "
        "Pictures of a folder are in memory twice while they are read. If a node has less, evaluate parts of the "
        "images, each with its own `--out`. "
        f"Reading a JPEG file of {read['memory'] / count / 1e3:.0f} kB took {1e3 * read['seconds'] / count:.1f} ms, so "
        f"{IMAGES:,} take each worker about {IMAGES * read['seconds'] / count / 60:.0f} minutes of a core, however "
        "many workers there are.\n"
    )


def parameters() -> dict[str, tuple[Range, str, str]]:
    """Of the model: seconds or a ratio, from and to; what it is; where it is from."""
    images = of(GPU, "images")
    _, start = line({count: row["seconds"] for count, row in images.items()})
    query = next(row for row in load(QUERY)["runs"] if row["attack"] == "cluster-rs")
    bare = next(row["us"] for row in load(BARE)["spgd"]["bare"] if row["work"] == "forward")
    slow = max(row["seconds"] / row["forwards"] for row in load(ANNEAL)["runs"])
    small, large = load(CPU)["networks"]
    ratio = sorted(large[what] / small[what] for what in ("multiply-adds", "outputs"))
    return {
        "a": ((start, start), "seconds that an attack takes besides its images", file_of(GPU)),
        "g": (
            (images[10_000]["us"] / 1e6, slow),
            "a pass with gradient of PreActResNet-18 at 32x32: sPGD with full batches, SparseAnneal from start to end",
            f"{file_of(GPU)}, {file_of(ANNEAL)}",
        ),
        "f": (
            (bare / 1e6, query["seconds"] / query["forwards"]),
            "a query: the bare forward pass, Cluster-RS from start to end",
            f"{file_of(BARE)}, {file_of(QUERY)}",
        ),
        "r": (
            (ratio[0], ratio[1]),
            f"ResNet-50 at 224x224 to PreActResNet-18 at 32x32: {large['multiply-adds'] / 1e9:.2f} against "
            f"{small['multiply-adds'] / 1e9:.2f} billion multiply-adds, {large['outputs'] / 1e6:.1f} against "
            f"{small['outputs'] / 1e6:.1f} million outputs of layers",
            file_of(CPU),
        ),
    }


def constants() -> str:
    rows = []
    for name, ((low, high), what, where) in parameters().items():
        value = f"{low:.2f} s" if name == "a" else f"{low:.1f} to {high:.1f}"
        if name in "gf":
            value = f"{1e6 * low:.1f} to {1e6 * high:.1f} us"
        rows.append([name, value, what, where])
    return markdown(["", "value", "what", "record"], rows) + "\n"


def large() -> str:
    """All validation images of ImageNet."""
    a, g, f, r = (value for value, _, _ in parameters().values())
    weak, trained = load(CPU)["passes"]
    cases = {
        f"most images fall early, as with {weak['model']}": each(weak),
        f"as with {trained['model']}, an l0-trained model": each(trained),
        "the most: no image falls": most(STEPS, QUERIES),
        "the most with `--steps 10000 --queries 10000`": most(10_000, 10_000),
    }
    rows = []
    for name, (gradient, none) in cases.items():
        chunk = [4 * a[i] + CHUNK * r[i] * (gradient * g[i] + none * f[i]) for i in (0, 1)]
        cells = [span(*(math.ceil(IMAGES / CHUNK / gpus) * one for one in chunk)) for gpus in GPUS]
        rows.append([name, f"{gradient:,.0f}", f"{none:,.0f}", *cells])
    return (
        constants() + "\n" + markdown(["", "B", "Q", *(f"{gpus} GPU{'s' * (gpus > 1)}" for gpus in GPUS)], rows) + "\n"
    )


def span(low: float, high: float) -> str:
    unit, name = next((unit, name) for unit, name in ((3600, "h"), (60, "min"), (1, "s")) if high >= 2 * unit)
    return " to ".join(f"{float(f'{value / unit:.2g}'):g}" for value in (low, high)) + f" {name}"


TABLES = {table.__name__: table for table in (steps, growth, passes, workers, memory, large)}
