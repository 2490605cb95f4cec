from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tomllib

import pytest

from holdfast.bootstrap.adapter_choice.part_overrides import PORTS
from holdfast.configs.settings_catalog import settings_by_name
from tests.support.rules.layout_rules import port_names
from tests.support.rules.source_tree import ROOT, Module, camel, last_name, project, refuse

_BLOCK = re.compile(r"^```python\n# (?P<path>\S+\.py)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)(?P<target>[^)#\s]+)")
_PATH = re.compile(r"`(?P<path>(?:[\w.]+/)+[\w.]*)`")
_TELL_FIGURES = ("application/handlers/record_metrics.py", "application/handlers/watchdog.py")
_OF_A_RUN = (
    "averages/",
    "build/",
    "checkpoints/",
    "optimizer/",
    "quarantine/",
    "shares/",
    "superseded/",
    "tensorboard/",
    "wandb/",
    "profile/",
    "post-mortem/",
    "heartbeats/",
    "stacks/",
    "suites/",
    ".tmp/",
    ".trash/",
    "holdfast/",
    "runs/",
    "text/",
    "tokens/",
)


def _documents():
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in _paths()}


def _paths():
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def _read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def _subclasses(path, base):
    tree = Module(path, _read(path)).tree
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and base in map(last_name, node.bases)]


def test_links_lead_somewhere():
    """Every relative link in a document names a file that is there."""
    dead = [
        f"{path}: {target}"
        for path, text in _documents().items()
        for target in (match["target"] for match in _LINK.finditer(text))
        if not (ROOT / path).parent.joinpath(target).exists()
    ]
    refuse(dead, remedy="leads nowhere: correct the link")


def test_lines_are_wrapped():
    """Hand-written lines of a page have at most 120 columns, but for tables, code, links, headings and pictures."""
    free = re.compile(r"\||#|!\[|\[[^\]]+\]: |<!--| {4}")
    made = re.compile(r"^(```.*?^```|<!-- generated.*?^<!-- end -->)$", re.MULTILINE | re.DOTALL)
    pages = {"README.md", "CONTRIBUTING.md", *(path for path in _documents() if path.startswith("docs/"))}
    long = [
        f"{path}: {line[:60]}"
        for path in sorted(pages - {"docs/benchmarks.md"})  # which the benchmarks write
        for line in made.sub("", _read(path)).splitlines()
        if len(line) > 120 and not free.match(line)
    ]
    refuse(long, remedy="has more than 120 columns: wrap the paragraph")


def test_named_files_exist():
    """Every path of the repository that the hand-written documents name is there."""
    named = [
        (path, match["path"])
        for path in (
            "CONTRIBUTING.md",
            "docs/architecture.md",
            "docs/reference.md",
            "docs/dependencies.md",
            "docs/glossary.md",
        )
        for match in _PATH.finditer(_read(path))
        if not match["path"].startswith(_OF_A_RUN)
    ]
    made_up = "adapters/monitor/csv.py"  # the adapter that CONTRIBUTING.md adds
    missing = [f"{path}: {name}" for path, name in named if name != made_up and not (ROOT / name).exists()]
    refuse(missing, remedy="is not there: correct the path")


def test_concepts_are_found():
    """The table of docs/architecture.md that tells where to find it leads to a file for each of 30 concepts or more."""
    table = _read("docs/architecture.md").split("\n## Find it\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?P<concept>[^|]+) \| `(?P<path>[^`|]+)` \|$", table, re.MULTILINE)
    assert len(rows) >= 30
    assert len({concept for concept, _ in rows}) == len(rows) == table.count("\n|") - 2
    refuse((f"{concept}: {path}" for concept, path in rows if not (ROOT / path).is_file()), remedy="correct the file")


def test_contributing_names_every_group_of_entry_points():
    """CONTRIBUTING.md has a row for each group in which another package may offer something, and no other."""
    modules = [module for module in project() if module.path.startswith("bootstrap/")]
    calls = [node for module in modules for node in module.nodes(ast.Call) if last_name(node.func) == "load_plugin"]
    groups = {node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)} | {*PORTS}
    named = set(re.findall(r"^\| `holdfast\.(\w+)` \|", _read("CONTRIBUTING.md"), re.MULTILINE))
    refuse(groups - named, remedy="is a group of entry points: give it a row in CONTRIBUTING.md")
    refuse(named - groups, remedy="is no group of entry points: delete its row in CONTRIBUTING.md")


def test_the_generated_parts_agree_with_the_code():
    """The parts of docs/ that are made from the code are those that scripts/reference_pages.py makes of it now."""
    outdated = runpy.run_path(str(ROOT / "scripts/reference_pages.py"))["outdated"]()
    refuse((path.relative_to(ROOT).as_posix() for path in outdated), remedy="differs from the code: run make reference")


def test_each_generated_part_has_one_place():
    """Each part that scripts/reference_pages.py makes stands on one page of docs/, and no page has another one."""
    begin = re.compile(r"^<!-- generated: (\S+) -->$", re.MULTILINE)
    places = [name for text in _documents().values() for name in begin.findall(text)]
    assert sorted(places) == sorted(runpy.run_path(str(ROOT / "scripts/reference_pages.py"))["BLOCKS"])


@pytest.mark.parametrize(("path", "base"), [("domain/events.py", "Event"), ("domain/commands.py", "Command")])
def test_the_reference_names_events_and_commands(path, base):
    """docs/events.md has a row for each event and each command."""
    reference = _read("docs/events.md")
    missing = [name for name in _subclasses(path, base) if f"\n| `{name}` |" not in reference]
    refuse(missing, remedy="has no row in docs/events.md")


def test_the_reference_names_metrics():
    """docs/metrics.md has a row for each figure that a monitor gets."""
    recorder = Module("application/handlers/record_metrics.py", _read("application/handlers/record_metrics.py"))
    others = [Module(path, _read(path)) for path in _TELL_FIGURES]
    dicts = [node for module in (recorder, *others) for node in module.nodes(ast.Dict)]
    keys = {key.value for node in dicts for key in node.keys if isinstance(key, ast.Constant)}
    keys |= {node.slice.value for node in recorder.nodes(ast.Subscript) if isinstance(node.slice, ast.Constant)}
    keys = {key for key in keys if isinstance(key, str)}
    reference = _read("docs/metrics.md")
    assert "loss" in keys
    missing = (key for key in keys if f"\n| `{key}` |" not in reference)
    refuse(missing, remedy="has no row in docs/metrics.md: add it to domain/training/metric_catalog.py")


def test_the_reference_names_exit_codes():
    """docs/exit-codes.md has a row for each exit code that the command line's help names."""
    listed = re.search(r"exit codes:\n(.*?)\"\"\"", _read("bootstrap/process/exit_codes.py"), re.DOTALL)
    assert listed, "bootstrap/process/exit_codes.py no longer explains its exit codes"
    codes = re.findall(r"\b\d{1,3}\b", listed[1])
    reference = _read("docs/exit-codes.md")
    assert codes
    missing = (code for code in codes if f"\n| {code} |" not in reference)
    refuse(missing, remedy="has no row in docs/exit-codes.md: give its member of ExitCode a docstring")


def test_the_reference_names_settings():
    """docs/settings.md has a row for each setting."""
    reference = _read("docs/settings.md")
    named = set(re.findall(r"^\| `([\w.]+)[ `]", reference, re.MULTILINE))
    missing = (name for name in settings_by_name() if name not in named)
    refuse(missing, remedy="has no row in docs/settings.md")


def test_the_reference_names_ports_and_their_methods():
    """docs/ports.md has a section for each port, which names each method that its adapters implement."""
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", _read("docs/ports.md"), re.DOTALL | re.MULTILINE))
    methods = {
        (camel(port), node.name)
        for port in port_names(project())
        for node in Module(port, _read(f"ports/{port}.py")).nodes(ast.FunctionDef)
        if any(last_name(each) == "abstractmethod" for each in node.decorator_list)
    }
    assert len(methods) > 50
    line = re.compile(r"^- `(\w+)[(:]", re.MULTILINE)
    named = {(port, name) for port, text in sections.items() for name in line.findall(text)}
    missing = (f"{port}.{name}" for port, name in methods - named)
    refuse(missing, remedy="has no line in docs/ports.md: give the method a docstring")


def test_the_readme_is_short_and_has_the_two_commands():
    """README.md has at most 120 lines, and its two commands stand on lines of their own in blocks of code."""
    lines = _read("README.md").splitlines()
    assert len(lines) <= 120
    for command in ("pip install -e . && python -m application train", "pip install -e '.[test]' && pytest"):
        number = lines.index(command)
        assert (lines[number - 1], lines[number + 1]) == ("```", "```"), command


def test_each_claim_of_the_comparison_has_its_source():
    """Each cell of the comparison in README.md has a link, or says that nothing was found about the other project."""
    readme = _read("README.md")
    lines = readme.split("\n## Comparison\n")[1].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    cells = [(row[0].strip(), cell.strip()) for row in rows[2:] for cell in row[1:]]
    assert len(rows) > 8
    assert {len(row) for row in rows} == {len(rows[0])}
    bare = (f"{row}: {cell}" for row, cell in cells if not re.search(r"\][(\[]", cell) and cell != "not documented")
    refuse(bare, remedy="has no source: link to it, or write that it is not documented")
    used = re.findall(r"\]\[([\w-]+)\]", readme)
    assert set(used) == set(re.findall(r"^\[([\w-]+)\]: https://", readme, re.MULTILINE))


def test_the_picture_names_every_port():
    """docs/architecture.md has a row for each port, which links to it."""
    text = _read("docs/architecture.md")
    rows = {port: f"| [`{camel(port)}`](../ports/{port}.py) |" for port in port_names(project())}
    refuse((port for port, row in rows.items() if row not in text), remedy="has no row in docs/architecture.md, Ports")


def test_every_dependency_has_its_reason():
    """docs/dependencies.md names each dependency of pyproject.toml, and no other."""
    settings = tomllib.loads(_read("pyproject.toml"))["project"]
    groups = [settings["dependencies"], *settings["optional-dependencies"].values()]
    wanted = {re.match(r"[\w.-]+", entry)[0] for group in groups for entry in group} - {"holdfast-lm"}
    page = _read("docs/dependencies.md").partition("## Tested versions")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    refuse(wanted - named, remedy="has no line in docs/dependencies.md: what for, and why not our own code")
    refuse(named - wanted, remedy="is no longer a dependency: delete its line in docs/dependencies.md")


def test_the_license_of_every_package_is_listed():
    """docs/dependencies.md lists each package that a run may need, with the extras that need it, and no other."""
    project = tomllib.loads(_read("pyproject.toml"))["project"]
    wanted = {re.match(r"[\w.-]+", entry)[0]: set() for entry in project["dependencies"]}
    for extra in project["optional-dependencies"].keys() - {"bench", "dev", "docs", "test"}:
        for entry in project["optional-dependencies"][extra]:
            wanted.setdefault(re.match(r"[\w.-]+", entry)[0], set()).add(extra)
    required = _licenses("Required packages", r"()")
    optional = _licenses("Optional packages", r" ([\w, -]+) \|")
    assert required | optional == {name: ", ".join(sorted(extras)) for name, extras in wanted.items()}
    assert not required.keys() & optional.keys()


def test_the_page_on_installation_lists_each_python():
    """docs/installation.md has a row for each version of Python that pyproject.toml names, and for no other."""
    project = tomllib.loads(_read("pyproject.toml"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert named
    assert re.findall(r"^\| (3\.\d+) \|", _read("docs/installation.md"), re.MULTILINE) == named
    assert project["requires-python"] == f">={named[0]}"


def test_the_code_of_others_has_its_version():
    """The first line of uPlot in the wheel names the version that the page on dependencies names."""
    for path in ("bootstrap/web/static/uplot.js", "bootstrap/web/static/uplot.css"):
        [version] = re.findall(r"uPlot [\d.]+\d", _read(path).partition("\n")[0])
        assert set(re.findall(r"uPlot [\d.]+\d", _read("docs/dependencies.md"))) == {version}


def _licenses(section, last):
    """Return the last column of a table of docs/dependencies.md by the packages of the first; each has a license."""
    table = _read("docs/dependencies.md").partition(f"### {section}\n")[2].partition("\n### ")[0]
    rows = re.findall(rf"^\| `([\w.-]+)` \| [^|]+ \| [^|]+ \|{last}$", table, re.MULTILINE)
    assert len(rows) == table.count("\n| `")
    return {name: ", ".join(sorted(note.split(", "))) for name, note in rows}


def test_quoted_code_is_the_code():
    """The code that docs/architecture.md shows stands in the file that it names, line by line."""
    blocks = list(_BLOCK.finditer(_read("docs/architecture.md")))
    assert blocks
    for block in blocks:
        assert block["code"] in _read(block["path"]), f"{block['path']} has changed: quote it anew"


def test_the_adapter_in_contributing_works(tmp_path):
    """The adapter that CONTRIBUTING.md shows passes the contract suite as it is printed there."""
    for block in _BLOCK.finditer(_read("CONTRIBUTING.md")):
        (tmp_path / block["path"]).write_text(block["code"], encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["--rootdir", tmp_path, tmp_path]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert re.search(r"\d+ passed", outcome.stdout)
