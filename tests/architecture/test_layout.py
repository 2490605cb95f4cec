from __future__ import annotations

import tomllib

from tests.support.rules.layout_rules import (
    adapters_without_contract,
    folders_without_init,
    forgotten_methods,
    imports_without_prefix,
    misnamed_adapters,
    open_adapters,
    port_names,
    ports_without_memory,
    ports_without_suite,
    quiet_defaults,
    spelt_run_files,
    strange_imports,
)
from tests.support.rules.source_tree import PACKAGES, ROOT, modules_under, project, refuse

_NOT_SHIPPED = {"benchmarks", "examples", "holdfast", "scripts", "tests"}


def test_the_core_imports_only_what_is_listed():
    """Domain, ports and application stand on the standard library, numpy and each other, downwards."""
    remedy = "not on the allow-list: put it behind a port, in an adapter (see docs/architecture.md, Imports)"
    refuse(strange_imports(project()), remedy=remedy)


def test_every_folder_of_code_is_a_package():
    """No folder is invisible to the import contracts for want of an __init__.py."""
    remedy = "has no __init__.py, so the import contracts skip it: add one with a one-line docstring"
    refuse(folders_without_init(module.path for module in project()), remedy=remedy)


def test_the_packages_are_the_same_everywhere():
    """The folders of code, the wheel, the import contracts and these rules name the same packages."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {path.parent.name for path in ROOT.glob("[!.]*/*.py")} - _NOT_SHIPPED
    assert folders == set(PACKAGES), "a new folder of code: name it in PACKAGES or in _NOT_SHIPPED of these tests"
    links = {path.name: path.resolve() for path in (ROOT / "holdfast").iterdir() if path.is_symlink()}
    assert links == {name: ROOT / name for name in PACKAGES}, "link the folder in holdfast/"
    assert settings["tool"]["importlinter"]["root_package"] == "holdfast"
    assert set(settings["tool"]["mypy"]["files"]) == {"holdfast", "benchmarks"}


def test_unit_tests_mirror_the_source():
    """Each folder of tests/unit is called as the package that its tests are about."""
    folders = {path.parent.relative_to(ROOT / "tests/unit") for path in (ROOT / "tests/unit").rglob("test_*.py")}
    strange = [f"tests/unit/{folder}" for folder in folders if not (ROOT / folder / "__init__.py").is_file()]
    refuse(strange, remedy="is the folder of no package: move its tests to that of what they test")


def test_nothing_is_imported_twice():
    """Every import of the product, its tests and its examples names the package ``holdfast``, never a folder alone."""
    modules = [*project(), *modules_under("holdfast", "tests", "benchmarks", "examples", "scripts")]
    refuse(imports_without_prefix(modules), remedy="is another module than holdfast's: write holdfast. before it")


def test_adapters_are_final():
    """Whatever answers a port is wrapped, never subclassed."""
    refuse(open_adapters(project()), remedy="can be subclassed: decorate it with typing.final")


def test_adapters_are_called_what_the_configuration_calls_them():
    """The adapter that `state_store.kind: disk` names is DiskStateStore in adapters/state_store/disk.py."""
    refuse(misnamed_adapters(project()), remedy="rename the class to <Kind><Port>, or the file to its kind")


def test_every_port_has_an_in_memory_adapter():
    """Each port can be had without a file, a network or a device, so that no test needs a mock."""
    refuse(ports_without_memory(project()), remedy="write adapters/<port>/memory.py with the class Memory<Port>")


def test_every_port_has_a_contract_suite():
    """Each port's promise is written as tests under the port's own file name."""
    refuse(ports_without_suite(project()), remedy="write ports/testing/<port>.py with the class <Port>Contract")


def test_every_adapter_is_held_to_its_contract():
    """No adapter is used that the contract suite of its port has not run."""
    remedy = "subclass <Port>Contract for the adapter, its fixture building it (see CONTRIBUTING.md)"
    refuse(adapters_without_contract(project(), modules_under("tests")), remedy=remedy)


def test_ports_are_abstract_throughout():
    """No wrapper of a port inherits an answer that the wrapped adapter would have given differently."""
    remedy = "is not abstract: make it so, and answer it for simple adapters in ports/basic.py"
    refuse(quiet_defaults(project()), remedy=remedy)


def test_forwarding_bases_forward_everything():
    """A method that a port gets reaches the wrapped adapter, or the port's forwarding base is incomplete."""
    refuse(forgotten_methods(project()), remedy="is not passed on: call the same method of self.inner")


def test_ports_are_found():
    """The rules on ports see the ports there are."""
    assert {"data_source", "event_bus", "state_store"} <= set(port_names(project()))


def test_the_files_of_a_run_are_named_once():
    """Only ``RunLayout`` spells the names of the files in a run folder."""
    refuse(spelt_run_files(project()), remedy="spells the name of a file of a run folder: take it from RunLayout")
