from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.rules.code_rules import (
    LONGEST_FILE,
    LONGEST_FUNCTION,
    MOST_LOOKUPS,
    MOST_PARAMETERS,
    catch_alls,
    container_parameters,
    crowded_constructors,
    early_starts,
    leftovers,
    long_files,
    long_functions,
    lookups_by_name,
    undocumented,
    unsafe_code,
)
from tests.support.rules.source_tree import ROOT, modules_under, project, refuse, within
from tests.support.rules.testing_rules import hasty_tests, toothless_tests, wordless_tests

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_functions_are_short():
    """No function is longer than a screen."""
    refuse(long_functions(project()), remedy=f"over {LONGEST_FUNCTION} lines: name its parts as functions of their own")


def test_files_are_short():
    """No file is longer than a reader keeps in mind."""
    refuse(long_files(project()), remedy=f"over {LONGEST_FILE} lines: two things want to live apart; make two files")


def test_programs_start_at_the_end_of_their_module():
    """A module that is run finds all of its own names."""
    refuse(early_starts(project()), remedy="starts before the names below it are there: move it to the end")


def test_constructors_take_few_parameters():
    """No class is built from more parts than its reader can hold together."""
    remedy = f"over {MOST_PARAMETERS} parameters: a value object is missing; group what belongs together"
    refuse(crowded_constructors(project()), remedy=remedy)


def test_only_the_run_takes_the_container():
    """What a function needs but a stage of the run is passed to it by name: the container is no locator of services."""
    refuse(container_parameters(project()), remedy="takes the container: pass the parts that it uses")


def test_parts_are_rarely_asked_by_name():
    """Bootstrap knows its parts by their types; few attributes of libraries are looked up by name."""
    remedy = f"over {MOST_LOOKUPS} getattr or hasattr in bootstrap: make it a property or method of the port"
    refuse(lookups_by_name(project()), remedy=remedy)


def test_code_cannot_run_what_it_reads():
    """Nothing in the packages unpickles, evaluates or hands text to a shell."""
    remedy = (
        "runs what it reads: use safetensors or JSON for state, yaml.safe_load for YAML, argument lists for processes, "
        "and trust_remote_code=False, allow_pickle=False, shell=False written out"
    )
    refuse(unsafe_code(project()), remedy=remedy)


def test_only_the_prefetch_thread_catches_everything():
    """KeyboardInterrupt and SystemExit pass through all code but the one place that raises them again elsewhere."""
    refuse(catch_alls(project()), remedy="catches too much: name the errors, or end the block with a bare raise")


def test_what_the_core_offers_is_documented():
    """Every public module, class and function of domain, ports and application says what it is for."""
    core = within(project(), "domain", "ports", "application")
    refuse(undocumented(core), remedy="says nothing about itself: give it a docstring of one sentence")


def test_no_work_is_left_behind_in_words():
    """Nothing in the repository carries a note to finish it later."""
    refuse(leftovers(_texts()), remedy="is unfinished by its own word: finish it or delete the note")


def test_tests_say_the_rule_they_prove():
    """Every test has a docstring of one sentence."""
    refuse(wordless_tests(_test_modules()), remedy="needs a docstring of exactly one sentence: the rule it proves")


def test_tests_can_fail():
    """Every test asserts something."""
    refuse(toothless_tests(_test_modules()), remedy="asserts nothing: assert what the rule says, or delete the test")


def test_no_default_test_fails_on_a_busy_machine():
    """No test of a default run asserts that something took less than some seconds."""
    remedy = "takes longer on a busy machine: count what is done, or mark the test slow"
    refuse(hasty_tests(_test_modules()), remedy=remedy)


def _test_modules():
    return [*modules_under("tests"), *modules_under("ports/testing")]


def _texts() -> Iterator[tuple[str, str]]:
    for pattern in ("*.md", "*.toml", "*.yaml", "Makefile", ".ci/run", "docs/**/*.md", "configs/**/*.yaml"):
        for path in ROOT.glob(pattern):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for module in (*project(), *modules_under("tests", "benchmarks", "examples")):
        yield module.path, module.text
