from __future__ import annotations

import pytest

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
from tests.support.rules.layout_rules import (
    adapters_without_contract,
    folders_without_init,
    forgotten_methods,
    imports_without_prefix,
    misnamed_adapters,
    open_adapters,
    ports_without_memory,
    ports_without_suite,
    quiet_defaults,
    spelt_run_files,
    strange_imports,
)
from tests.support.rules.naming_rules import questions, shared_class_names
from tests.support.rules.source_tree import Module
from tests.support.rules.testing_rules import hasty_tests, toothless_tests, wordless_tests

_PORT = Module("ports/clock.py", "class Clock: ...")
_ADAPTER = "from holdfast.ports.clock import Clock\n@final\nclass WallClock(Clock): ..."
_NAMES = ", ".join(f"name{number}" for number in range(MOST_PARAMETERS + 1))
_FIELDS = "".join(f"    name{number}: int\n" for number in range(MOST_PARAMETERS + 1))


def _statements(count: int) -> str:
    return "".join("    pass\n" for _ in range(count))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (long_functions, "domain/a.py", f"def f():\n{_statements(LONGEST_FUNCTION)}"),
        (long_files, "domain/a.py", "\n" * (LONGEST_FILE + 1)),
        (early_starts, "adapters/a.py", 'if __name__ == "__main__":\n    serve()\nclass A: ...'),
        (crowded_constructors, "domain/a.py", f"class A:\n    def __init__(self, *, {_NAMES}): ..."),
        (crowded_constructors, "domain/a.py", f"@dataclass(frozen=True)\nclass A:\n{_FIELDS}"),
        (container_parameters, "bootstrap/stages/a.py", "def f(settings, *, container): ..."),
        (lookups_by_name, "bootstrap/a.py", "getattr(a, 'b', None)\n" * (MOST_LOOKUPS + 1)),
        (unsafe_code, "adapters/a.py", "import pickle"),
        (unsafe_code, "adapters/a.py", "from pickle import loads"),
        (unsafe_code, "adapters/a.py", "torch.load(path, weights_only=True)"),
        (unsafe_code, "adapters/a.py", "from torch import load"),
        (unsafe_code, "adapters/model_factory/loaded_weights.py", "torch.load(path)"),
        (unsafe_code, "adapters/model_factory/loaded_weights.py", "torch.load(path, weights_only=False)"),
        (unsafe_code, "adapters/a.py", "yaml.load(text, Loader=yaml.SafeLoader)"),
        (unsafe_code, "adapters/a.py", "eval(text)"),
        (unsafe_code, "adapters/a.py", "exec(text)"),
        (unsafe_code, "adapters/a.py", "os.system(text)"),
        (unsafe_code, "adapters/a.py", "subprocess.run(text, shell=True)"),
        (unsafe_code, "adapters/a.py", "AutoConfig.from_pretrained(path, trust_remote_code=trust)"),
        (unsafe_code, "adapters/a.py", "AutoConfig.from_pretrained(path, trust_remote_code=self._trusts_code)"),
        (unsafe_code, "adapters/model_factory/huggingface.py", "AutoConfig.from_pretrained(trust_remote_code=True)"),
        (unsafe_code, "adapters/a.py", "np.load(path, allow_pickle=True)"),
        (catch_alls, "adapters/a.py", "try: f()\nexcept BaseException: pass"),
        (catch_alls, "adapters/a.py", "try: f()\nexcept: pass"),
        (catch_alls, "adapters/a.py", "with suppress(BaseException): f()"),
        (catch_alls, "application/data/prefetch.py", "try: f()\nexcept BaseException: pass\n" * 2),
        (undocumented, "domain/a.py", "def f(): ..."),
        (undocumented, "domain/a.py", '"""A file."""\ndef f(): ...'),
        (undocumented, "domain/a.py", '"""A file."""\nclass A:\n    """A class."""\n    def f(self): ...'),
        (strange_imports, "domain/a.py", "def f():\n    import torch"),
        (strange_imports, "domain/a.py", "from . import budget"),
        (strange_imports, "domain/a.py", "import holdfast.ports.monitor"),
        (strange_imports, "ports/a.py", "import pytest"),
        (strange_imports, "ports/testing/a.py", "import torch"),
        (strange_imports, "application/a.py", "import typing_extensions"),
        (strange_imports, "application/a.py", "import holdfast.bootstrap.cli.main"),
        (imports_without_prefix, "tests/test_a.py", "import ports.monitor"),
        (imports_without_prefix, "domain/a.py", "def f():\n    from domain.batch import Batch"),
        (open_adapters, "adapters/clock/wall.py", _ADAPTER.replace("@final\n", "")),
        (wordless_tests, "tests/test_a.py", "def test_a(): assert x"),
        (wordless_tests, "tests/test_a.py", 'def test_a():\n    """One. And another."""\n    assert x'),
        (
            wordless_tests,
            "tests/test_a.py",
            'class TestA:\n    def test_a(self):\n        """No end"""\n        assert x',
        ),
        (toothless_tests, "tests/test_a.py", 'def test_a():\n    """It runs."""\n    f()'),
        (toothless_tests, "tests/test_a.py", "def helper(): ...\ndef test_a(): helper()"),
        (hasty_tests, "tests/test_a.py", "def test_a():\n    assert time.monotonic() - began < 2"),
        (hasty_tests, "tests/test_a.py", "def test_a():\n    assert 1 < process_time() - began <= 2"),
        (hasty_tests, "tests/test_a.py", "def test_a():\n    took = time.time() - began\n    assert 2.5 > took"),
        (hasty_tests, "tests/test_a.py", "SOON = 5\ndef test_a():\n    assert time.monotonic() - began < SOON"),
    ],
)
def test_a_violation_is_seen(rule, path, text):
    """Each rule on single files tells of code that breaks it."""
    violations = list(rule([Module(path, text)]))
    assert violations
    assert all(violation.startswith(path) for violation in violations)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (long_functions, "domain/a.py", f"def f():\n{_statements(LONGEST_FUNCTION - 1)}"),
        (long_files, "domain/a.py", "\n" * LONGEST_FILE),
        (early_starts, "adapters/a.py", 'class A: ...\nif __name__ == "__main__":\n    serve()'),
        (crowded_constructors, "domain/a.py", f"class A:\n    def f(self, {_NAMES}): ..."),
        (container_parameters, "bootstrap/adapter_choice/table.py", "def f(container): ..."),
        (lookups_by_name, "bootstrap/a.py", "hasattr(a, 'b')\n" * MOST_LOOKUPS),
        (lookups_by_name, "adapters/a.py", "hasattr(a, 'b')\n" * (MOST_LOOKUPS + 1)),
        (unsafe_code, "adapters/a.py", "network.eval()\nre.compile(x)\nyaml.safe_load(x)\nload_file(x)"),
        (unsafe_code, "adapters/a.py", "AutoConfig.from_pretrained(path, trust_remote_code=False)"),
        (unsafe_code, "adapters/model_factory/loaded_weights.py", "torch.load(path, weights_only=True)"),
        (catch_alls, "adapters/a.py", "try: f()\nexcept BaseException:\n    undo()\n    raise"),
        (catch_alls, "application/data/prefetch.py", "try: f()\nexcept BaseException: pass"),
        (
            undocumented,
            "domain/a.py",
            '"""A file."""\ndef _f(): ...\nclass A:\n    """A."""\n    @override\n    def f(self): ...',
        ),
        (
            strange_imports,
            "domain/a.py",
            "import numpy as np\nfrom collections import abc\nfrom holdfast.domain.data.cursor import Cursor",
        ),
        (strange_imports, "ports/testing/a.py", "import hypothesis\nimport pytest"),
        (strange_imports, "application/__main__.py", "from holdfast.bootstrap.cli.main import main"),
        (strange_imports, "adapters/a/b.py", "import torch"),
        (imports_without_prefix, "adapters/a.py", "import holdfast.ports.monitor\nimport portsmouth"),
        (open_adapters, "adapters/clock/wall.py", _ADAPTER),
        (wordless_tests, "tests/test_a.py", 'def test_a():\n    """A rule, e.g. `This one`."""\n    assert x'),
        (toothless_tests, "tests/test_a.py", "def helper():\n    assert x\ndef test_a(): helper()"),
        (hasty_tests, "tests/test_a.py", "def test_a():\n    assert 0.2 <= time.monotonic() - began < 60"),
        (hasty_tests, "tests/test_a.py", "def test_a():\n    while time.monotonic() - began < 2: assert x < 3"),
        (hasty_tests, "tests/test_a.py", "@pytest.mark.slow\ndef test_a():\n    assert time.monotonic() - began < 2"),
        (hasty_tests, "tests/test_a.py", "pytestmark = [pytest.mark.slow]\ndef f():\n    assert time.time() - x < 2"),
        (toothless_tests, "tests/test_a.py", "def test_a():\n    with pytest.raises(ValueError): f()"),
    ],
)
def test_what_is_allowed_is_left_alone(rule, path, text):
    """No rule complains of code that keeps it, up to its very limit."""
    assert list(rule([Module(path, text)])) == []


@pytest.mark.parametrize(
    ("text", "is_question"),
    [
        ('"""What is made of several settings."""', True),
        ('"""Whether, and when."""', True),
        ('"""Whatever."""', False),
        ('"""Writes checkpoints."""', False),
        ("x = 1", False),
    ],
)
def test_a_docstring_that_opens_with_a_question_is_seen(text, is_question):
    """The docstring of a module says what the module is, and not that it answers a question."""
    assert list(questions([Module("domain/a.py", text)])) == (["domain/a.py"] if is_question else [])


def test_a_name_of_two_classes_is_seen():
    """Each of two classes of one name is told with its module, and a class inside another has a name of its own."""
    modules = [Module("domain/a.py", "class Rows: ..."), Module("domain/b.py", "class Rows: ...")]
    assert list(shared_class_names(modules)) == ["domain/a.py Rows", "domain/b.py Rows"]
    assert not list(shared_class_names([modules[0], Module("domain/b.py", "class B:\n    class Rows: ...")]))


def test_a_note_to_finish_later_is_seen():
    """A leftover is told with its line, and a longer word that contains it is not one."""
    note = "todo".upper()
    assert list(leftovers([("a.md", f"fine\n# {note}: finish")])) == [f"a.md:2 says {note}"]
    assert not list(leftovers([("a.md", f"{note}S and me{note}")]))


def test_a_folder_without_init_is_seen():
    """A folder of code that is no package is told, also when only a folder below it has files."""
    assert list(folders_without_init(["domain/__init__.py", "domain/a.py"])) == []
    assert set(folders_without_init(["domain/a.py"])) == {"domain"}
    assert set(folders_without_init(["a/__init__.py", "a/b/c/__init__.py"])) == {"a/b"}


@pytest.mark.parametrize(
    ("path", "name", "is_right"),
    [
        ("adapters/clock/wall.py", "WallClock", True),
        ("adapters/clock/wall/hands.py", "WallClock", True),
        ("adapters/clock/jsonl.py", "JSONLClock", True),
        ("adapters/clock/water_driven.py", "WaterDrivenClock", True),
        ("adapters/clock/wall.py", "ClockOnWall", False),
        ("adapters/clock/water.py", "WallClock", False),
    ],
)
def test_names_of_adapters_follow_their_files(path, name, is_right):
    """The class in adapters/<port>/<kind> that answers the port is <Kind><Port>, whatever its capitals."""
    adapter = Module(path, _ADAPTER.replace("WallClock", name))
    assert (list(misnamed_adapters([_PORT, adapter])) == []) is is_right


def test_a_port_without_memory_adapter_or_suite_is_seen():
    """A port lacks something until a class in the right file answers it and a suite bears its name."""
    memory = Module("adapters/clock/memory.py", _ADAPTER.replace("Wall", "Memory"))
    suite = Module("ports/testing/clock.py", "class ClockContract: ...")
    assert list(ports_without_memory([_PORT, memory])) == []
    assert list(ports_without_memory([_PORT, Module("adapters/clock/memory.py", "class MemoryClock: ...")]))
    assert list(ports_without_suite([_PORT, suite])) == []
    assert list(ports_without_suite([_PORT, Module("ports/testing/watch.py", suite.text)]))


@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        ("class TestWallClock(ClockContract): ...", True),
        ("class TestQuick(ClockContract):\n    def clock(self): return WallClock()", True),
        ("class Base(ClockContract): ...\nclass TestWallClock(Base): ...", True),
        ("class TestWallClock: ...", False),
        ("class TestWaterClock(ClockContract): ...", False),
    ],
)
def test_an_adapter_without_contract_is_seen(text, is_held):
    """An adapter counts as tested only where a subclass of its port's suite is about it."""
    adapter = Module("adapters/clock/wall.py", _ADAPTER)
    tests = [Module("tests/contracts/test_clock.py", text)]
    assert (list(adapters_without_contract([_PORT, adapter], tests)) == []) is is_held


_TWO = "class Clock(ABC):\n    @abstractmethod\n    def now(self): ...\n"
_FORWARDING = "class ForwardingClock(Clock):\n    def now(self):\n        return self.inner.now()\n"


def test_a_port_with_a_default_is_seen():
    """Every method of a port is abstract, and the bases beside the ports may answer them."""
    default = "    def zone(self):\n        return None\n"
    assert list(quiet_defaults([Module("ports/clock.py", _TWO)])) == []
    assert list(quiet_defaults([Module("ports/basic.py", _TWO + default)])) == []
    assert list(quiet_defaults([Module("ports/clock.py", _TWO + default)])) == ["ports/clock.py:4 Clock.zone"]


@pytest.mark.parametrize(
    ("port", "base", "forgotten"),
    [
        (_TWO, _FORWARDING, []),
        (_TWO + "    @abstractmethod\n    def zone(self): ...\n", _FORWARDING, ["zone"]),
        (_TWO, _FORWARDING.replace("self.inner.now", "self.inner.later"), ["now"]),
        ("class Base(ABC):\n    def zone(self): ...\n" + _TWO.replace("ABC", "Base"), _FORWARDING, ["zone"]),
    ],
)
def test_a_method_that_is_not_forwarded_is_seen(port, base, forgotten):
    """A forwarding base passes on each method of its port, and of what that inherits, to the same method."""
    modules = [Module("ports/clock.py", port), Module("ports/forwarding/clock.py", base)]
    assert list(forgotten_methods(modules)) == [
        f"ports/forwarding/clock.py:1 ForwardingClock.{name}" for name in forgotten
    ]


def test_the_name_of_a_run_file_is_seen_outside_the_layout():
    """A path that is joined with a name of ``RunLayout`` elsewhere in bootstrap is reported, any other is not."""
    layout = Module("bootstrap/run_folder/layout.py", 'events = root / "events.jsonl"')
    spelt = Module("bootstrap/operations/a.py", 'path = run / "events.jsonl"')
    other = Module("bootstrap/operations/b.py", 'path = run / "config.json"')
    assert list(spelt_run_files([layout, spelt, other])) == ["bootstrap/operations/a.py:1 events.jsonl"]
