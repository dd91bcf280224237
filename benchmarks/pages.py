"""Write the parts of the pages that come from records: python benchmarks/pages.py [--check]

README.md and the pages of docs/ have comments that name a template. The text after such a comment, up to a comment that
begins with "end" or to the end of the page, is made from the template with numbers from the records. Figures that are
drawn from records are written too. --check writes nothing and fails if a page does not match the records.

A template can call every public function of the modules in HELPERS; those whose first parameter is `records` get the
records. An integer is shown as 1,000, another number with one decimal, None as a dash. A line that begins with spaces
continues the line above it. `{% do holds(...) %}` fails if the records no longer support a statement of the text.
"""

import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from inspect import isfunction, signature
from types import ModuleType
from typing import Any

import anneal_page
import cost_model
import jinja2
import lookups
import minimum_norm_page
import models
import paper
import records as origins
from provenance import ROOT
from records import Record, Records

from sparsepgd import tables, zoo
from sparsepgd.reproduce.recipe import facts

HELPERS = (origins, lookups, models, paper, anneal_page, cost_model, minimum_norm_page)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEMPLATES, IMAGES = ROOT / "benchmarks" / "templates", ROOT / "docs" / "images"
WRITTEN = re.compile(
    r"(<!-- written by benchmarks/pages\.py from benchmarks/templates/(\S+), do not edit -->\n)(.*?)(?=<!-- end|\Z)",
    re.DOTALL,
)


def render(template: str, records: Records) -> str:
    """Render a template of benchmarks/templates."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        extensions=["jinja2.ext.do"],
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=shown,
    )
    environment.filters |= {
        "f": format,
        "percent": lambda share: 100 * share,
        "mean": statistics.fmean,
        "joined": joined,
    }
    environment.globals |= {name: one for module in HELPERS for name, one in helpers(module, records)}
    environment.globals |= {one.__name__: one for one in (table, pivot, listed, facts, zoo.Figure, min, max, zip)}
    cards = [zoo.card(name) for name in sorted(zoo.bundled_names())]
    cards += [zoo.card(name, ROOT / "weights") for name in zoo.FULL_SIZE]
    environment.globals |= {"records": records, "made": records.made, "cards": cards}
    return re.sub(r"\n +(?=\S)", " ", environment.get_template(template).render())


def helpers(module: ModuleType, records: Records) -> Iterator[tuple[str, Any]]:
    for name, one in vars(module).items():
        if isfunction(one) and one.__module__ == module.__name__ and not name.startswith("_"):
            yield name, partial(one, records) if next(iter(signature(one).parameters), "") == "records" else one


def shown(value: Any) -> Any:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}" if isinstance(value, float) else value


def joined(values: Iterable[Any], between: str = ", ") -> str:
    return between.join(str(shown(value)) for value in values)


def table(header: str, rows: Iterable[Iterable[Any]]) -> str:
    return tables.markdown(header.split(" | "), [[str(shown(cell)) for cell in row] for row in rows])


def pivot(rows: Iterable[Record], row: str, column: str, value: str) -> str:
    """A table with a line for each value of `row` and a column for each of `column`; lists are shown as their means."""
    cells = {(one[row], one[column]): one[value] for one in rows}
    means = {place: statistics.fmean(each) if isinstance(each, list) else each for place, each in cells.items()}
    names, columns = (list(dict.fromkeys(each)) for each in zip(*cells, strict=True))
    return table(" | ".join([row, *columns]), [[name, *(means.get((name, one)) for one in columns)] for name in names])


def listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def written(page: str, records: Records) -> str:
    """A page with its parts rendered again."""
    return WRITTEN.sub(lambda part: part[1] + render(part[2], records), page)


def figures(records: Records) -> dict[str, bytes]:
    """The figures drawn from records, by file name."""
    return paper.drawn(records) | minimum_norm_page.curves(records) | anneal_page.figure(records)


def main() -> str | None:
    records, check, old = Records.read(), "--check" in sys.argv, []
    for page in PAGES:
        text = written(before := page.read_text(), records)
        old += [page.name] if text != before else []
        if not check and text != before:
            page.write_text(text)
    for name, data in figures(records).items() if not check else ():
        (IMAGES / name).write_bytes(data)
    return f"not what the records say: {', '.join(old)}; run python benchmarks/pages.py" if check and old else None


if __name__ == "__main__":
    sys.exit(main())
