"""A report as one HTML file that needs nothing else: tables, and plots as SVG inside."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment as Templates
from jinja2 import FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bench.load.environment import Environment

_TEMPLATES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class PageTable:
    """Cells are plain text. A row's first cell is its name; its class colours it."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    classes: Sequence[str] = ()
    """One per row: better, worse or empty."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One SVG."""

    title: str
    svg: str


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report; the environment is added at its end."""

    title: str
    lead: str
    tables: Sequence[PageTable]
    plots: Sequence[Plot]


def write_page(file: Path, page: Page, environment: Environment) -> None:
    templates = Templates(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    text = templates.get_template("page.html.jinja").render(
        title=page.title,
        lead=page.lead,
        tables=[*page.tables, _environment_table(environment)],
        plots=[(plot.title, Markup(plot.svg)) for plot in page.plots],
    )
    file.write_text(text)


def _environment_table(environment: Environment) -> PageTable:
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    rows = [
        ("processor", environment.cpu_model),
        ("instructions", " ".join(environment.cpu_flags)),
        ("cores", str(environment.num_cores)),
        ("memory", f"{environment.memory_mib:,} MiB"),
        ("GPUs", "; ".join(environment.gpus) or "none"),
        ("kernel", environment.kernel),
        ("Python", environment.python),
        ("packages", packages),
        ("commit", environment.commit),
    ]
    return PageTable("Environment", ("", ""), rows)
