"""The content of a report in sections of texts and tables, which HTML and Markdown show alike."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.run_reading.formatting import duration, moment, number
from holdfast.configs.error_messages import one_line
from holdfast.domain.sizes import counted, shown_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.bootstrap.operations.report_facts import Facts

    Rows = Sequence[Sequence[str]]

MOST_ROWS = 200
_BETWEEN = ("\n--------\n", False)  # the documents of a row
_LONGEST = 2_000
_INCIDENTS = {
    "starts": "starts of the run",
    "crashes": "crashes under the supervisor",
    "failures": "starts that ended with an error",
    "roll_backs": "roll-backs",
    "memory_retries": "retries after running out of memory",
    "dropped_updates": "dropped updates",
    "rejected_records": "records left out",
    "failed_saves": "failed saves",
    "failed_archives": "failed copies to the archive",
    "damaged_checkpoints": "damaged checkpoints",
    "stalls": "times without progress",
    "waits_for_data": "waits for data",
    "data_drifts": "drifts of the data",
    "handler_failures": "failures of handlers or monitors",
}
_TIMES = {
    "compute": "training steps that count",
    "start_up": "start-up",
    "data": "waiting for data",
    "save": "saving",
    "evaluation": "evaluation",
    "recovery": "recovery",
    "restart": "between a crash and the next start",
    "lost": "steps taken again",
}


def run_sections(facts: Facts) -> list[ReportSection]:
    """Return the sections on one run, without its curves; empty ones are left out."""
    sections = [
        ReportSection("What happened", [*_incidents(facts)]),
        ReportSection("Data", [*_data(facts)]),
        ReportSection("What is trained on", [*_supervision(facts)]),
        ReportSection("Evaluations", [*_evaluations(facts)]),
        ReportSection("Samples", [*_samples(facts)]),
        ReportSection("Use of time", [*_goodput(facts)]),
        ReportSection("Checkpoints", [*_checkpoints(facts)]),
        ReportSection("Settings that differ from the defaults", [*_changed_settings(facts)]),
        ReportSection("Choices of the run", [*_decisions(facts)]),
        ReportSection("All settings", [*_settings(facts)], is_folded=True),
        ReportSection("Lineage", [*_lineage(facts)]),
        ReportSection("Environment", [*_environment(facts)]),
        ReportSection("The command that repeats it", [*_repeat(facts)]),
    ]
    return [section for section in sections if section.parts]


def overview(runs: Sequence[Facts]) -> Table:
    """Return the facts about each run in a column; of one run without its state and its main figures."""
    shown = {name: value for name, value in _OVERVIEW.items() if len(runs) > 1 or name not in ("state", *_FIRST)}
    rows = [(name, *(value(facts) for facts in runs)) for name, value in shown.items()]
    header = ("", *names_of(runs)) if len(runs) > 1 else ("", "")
    return Table(header, [row for row in rows if any(cell != "-" for cell in row[1:])])


def main_figures(facts: Facts) -> list[tuple[str, str]]:
    """Return the figures of one run that a reader looks at first; those that it lacks are left out."""
    sections = [(name, _OVERVIEW[name](facts)) for name in _FIRST]
    return [(name, value) for name, value in sections if value != "-"]


def differences(runs: Sequence[Facts]) -> ReportSection | None:
    """Return the settings in which ``runs`` differ, None if there are none."""
    values = [{each["name"]: each["value"] for each in facts["settings"]} for facts in runs]
    names = list(dict.fromkeys(name for each in values for name in each))
    rows = [
        (name, *cells)
        for name in names
        if name not in ("run.name", "run.dir") and len(set(cells := [_or_unset(each, name) for each in values])) > 1
    ]
    return ReportSection("Settings that differ", [Table(("setting", *names_of(runs)), rows)]) if rows else None


def names_of(runs: Sequence[Facts]) -> list[str]:
    """Return a name for each run: the shortest end of its path that no other run has if they have the same name."""
    names = [str(facts["name"]) for facts in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({facts['path']})" for name, facts in zip(names, runs, strict=True)
    ]


def verdict(facts: Facts) -> str:
    """Return a sentence on the state of a run."""
    step, budget = facts["figures"]["step"], facts["figures"]["budget"]
    whole = budget.get("steps") if isinstance(budget, dict) else None
    at = "before its first step" if step is None else f"at step {step:,}" + (f" of {whole:,}" if whole else "")
    tokens = facts["figures"]["tokens"]
    return f"{facts['state']} {at}" + (f", {tokens:,} tokens" if tokens is not None else "")


_FIRST = ("loss", "last evaluation", "best evaluation", "goodput", "time", "parameters")
_OVERVIEW: dict[str, Callable[[Facts], str]] = {
    "state": verdict,
    "loss": lambda facts: number(facts["figures"]["loss"]),
    "last evaluation": lambda facts: number(facts["figures"]["eval_loss"]),
    "best evaluation": lambda facts: _best(facts["figures"]["best_evaluation"]),
    "parameters": lambda facts: number(facts["figures"]["parameters"]),
    "goodput": lambda facts: f"{facts['goodput']['share']:.1%}" if facts["goodput"]["starts"] else "-",
    "time": lambda facts: duration(facts["goodput"]["wall_seconds"]) if facts["goodput"]["starts"] else "-",
    "data": lambda facts: ", ".join(f"{each['name']} {each['id']}" for each in facts["data"]["versions"]) or "-",
    "started (UTC)": lambda facts: moment(facts["started"]),
    "last sign of life (UTC)": lambda facts: moment(facts["last_sign_of_life"]),
    "folder when written": lambda facts: str(facts["path"]),
    "id": lambda facts: str(facts["id"] or "-"),
}


def _best(evaluation: Mapping[str, Any] | None) -> str:
    if evaluation is None:
        return "-"
    metric = evaluation["metric"]
    name = "" if metric == "eval_loss" else f" {metric.removeprefix('eval_').replace('_', ' ')}"
    return f"{number(evaluation[metric])}{name} at step {evaluation['step']:,}"


def _incidents(facts: Facts) -> Iterator[Part]:
    if facts["explanation"]:
        yield Code("\n".join(facts["explanation"]))
    found = [(words, f"{facts['incidents'][name]:,}") for name, words in _INCIDENTS.items() if facts["incidents"][name]]
    if found:
        yield Table(("", "number"), found, frozenset({1}))
    if rules := facts["incidents"]["rejected_by_rule"]:
        yield Table(("records left out by", "number"), [(name, f"{n:,}") for name, n in rules.items()], frozenset({1}))
    if events := facts["events"]:
        shown = events[-MOST_ROWS:]
        rows = [(moment(each["time"]), _cell(each["step"]), one_line(each["text"], _LONGEST)) for each in shown]
        yield Table(("time (UTC)", "step", "event"), rows, frozenset({1}), [each["level"] for each in shown])
        yield from _rest(events, shown, "event")
    if restarts := facts["restarts"]:
        columns = ("time", "cause", "code", "step", "durable_step", "lost_steps")
        crashes = [[_cell(each.get(name)) for name in columns] for each in restarts[-MOST_ROWS:]]
        yield Table(("crash (UTC)", "cause", "exit code", "last step", "checkpoint", "lost steps"), crashes)


def _data(facts: Facts) -> Iterator[Part]:
    data = facts["data"]
    columns = [
        name for name in ("name", "kind", "path", "weight", "split") if any(s.get(name) for s in data["sources"])
    ]
    if columns:
        yield Table(columns, [[_cell(source.get(name)) for name in columns] for source in data["sources"]])
    pairs = [("read as", _cell(data["mode"])), ("label", _cell(data["label"])), ("files", _cell(data["num_files"]))]
    trained = facts["figures"]["tokens"]
    pairs += [("tokens trained on", "-" if trained is None else f"{trained:,}")]
    yield Table(("", ""), [pair for pair in pairs if pair[1] != "-"])
    if versions := data["versions"]:
        header = ("version", "name", "documents", "tokens", "records", "dropped", "source", "parents", "created (UTC)")
        yield Table(header, [_version_row(each) for each in versions], frozenset({2, 3, 4, 5, 6}))
        steps = [(each["id"], step) for each in versions if each["is_there"] for step in each["steps"]]
        if steps:
            yield Table(("version", "step between the source and the tokens"), steps)


def _supervision(facts: Facts) -> Iterator[Part]:
    """Yield which tokens are trained on, with rows of the data, for runs on conversations."""
    if (supervision := facts["supervision"]) is None:
        return
    yield from supervision["sentences"]
    if len(sources := supervision["sources"]) > 1:
        rows = [(name, f"{each['supervised']:,}", f"{each['tokens']:,}") for name, each in sources.items()]
        yield Table(("source", "tokens trained on", "tokens"), rows, frozenset({1, 2}))
    for row in supervision["rows"]:
        documents = [[(text, is_trained) for text, is_trained in document] for document in row]
        yield Marked([part for place, each in enumerate(documents) for part in ([_BETWEEN] * bool(place) + each)])


def _version_row(version: Mapping[str, Any]) -> Sequence[str]:
    if not version["is_there"]:
        return (version["id"], version["name"], *["-"] * 5, "no longer in the cache", "-")
    totals = version["totals"]
    return (
        version["id"],
        version["name"],
        f"{totals['documents']:,}",
        f"{totals['tokens']:,}",
        "-" if totals["records"] is None else f"{totals['records']:,}",
        f"{sum(totals['drops'].values()):,}",
        shown_size(totals["num_bytes"]),
        ", ".join(version["parents"]) or "-",
        moment(version["created"]),
    )


def _evaluations(facts: Facts) -> Iterator[Part]:
    rows = facts["evaluations"]
    if not rows:
        return
    named = dict.fromkeys(name for row in rows for name in row if name != "step")
    names = sorted(named, key=lambda name: name != "eval_loss")
    header = ["step", *(name.removeprefix("eval_").replace("_", " ") for name in names)]
    shown = rows[-MOST_ROWS:]
    cells = [[number(row.get(name)) for name in ("step", *names)] for row in shown]
    yield Table(header, cells, frozenset(range(len(header))))
    yield from _rest(rows, shown, "evaluation")


def _samples(facts: Facts) -> Iterator[Part]:
    """Yield the texts of the last evaluation that wrote some, as earlier ones are of a model that knew less."""
    samples = facts["samples"]
    newest = [each for each in samples if each.get("step") == samples[0].get("step")]
    if newest:
        yield f"After step {_cell(newest[0].get('step'))}, each prompt with its continuation:"
    for sample in reversed(newest):
        yield Code(f"{sample.get('prompt', '')}{sample.get('text', '')}")
    if more := len(samples) - len(newest):
        yield f"{counted(more, 'earlier text')} not shown; --json has the newest."


def _goodput(facts: Facts) -> Iterator[Part]:
    goodput = facts["goodput"]
    if not goodput["starts"] or not goodput["wall_seconds"]:
        return
    wall = goodput["wall_seconds"]
    yield f"Goodput {goodput['share']:.1%} of {duration(wall)} in {counted(goodput['starts'], 'start')}."
    parts = [(words, goodput["seconds"].get(kind, 0.0)) for kind, words in _TIMES.items()]
    yield Shares([(words, seconds / wall, duration(seconds)) for words, seconds in parts if seconds > 0])


def _checkpoints(facts: Facts) -> Iterator[Part]:
    if rows := facts["checkpoints"]:
        header = ("step", "tokens", "reason", "saved (UTC)", "size", "state", "also", "loss", "eval loss")
        yield Table(header, [_checkpoint_row(each) for each in rows[:MOST_ROWS]], frozenset({0, 1, 4, 7, 8}))
        yield from _rest(rows, rows[:MOST_ROWS], "checkpoint")
        yield "Names and sizes of the files were compared, not contents, which the command inspect compares."


def _checkpoint_row(checkpoint: Mapping[str, Any]) -> Sequence[str]:
    also = [name for name in ("best", "pinned", "archived", "encrypted") if checkpoint[f"is_{name}"]]
    return (
        _cell(checkpoint["step"]),
        _cell(checkpoint["tokens"]),
        _cell(checkpoint["reason"]),
        moment(checkpoint["saved"]),
        shown_size(checkpoint["bytes"]),
        checkpoint["state"],
        ", ".join(also) or "-",
        number(checkpoint["loss"]),
        number(checkpoint["eval_loss"]),
    )


def _changed_settings(facts: Facts) -> Iterator[Part]:
    if changed := [each for each in facts["settings"] if each["is_changed"]]:
        rows = [
            (each["name"], _value(each["value"]), _value(each["default"]), _cell(each["origin"])) for each in changed
        ]
        columns = ("setting", "value", "default", "origin")
        with_origin = len(columns) - all(each["origin"] is None for each in changed)
        yield Table(columns[:with_origin], [row[:with_origin] for row in rows])


def _settings(facts: Facts) -> Iterator[Part]:
    rows = [(each["name"], _value(each["value"]), "yes" if each["is_changed"] else "") for each in facts["settings"]]
    yield Table(("setting", "value", "differs from the default"), rows)


def _decisions(facts: Facts) -> Iterator[Part]:
    if chosen := [each for each in facts["settings"] if each["chosen"] is not None]:
        rows = [(each["name"], _cell(each["chosen"]), _cell(each["reason"])) for each in chosen]
        yield Table(("setting", "choice", "reason"), rows)


def _lineage(facts: Facts) -> Iterator[Part]:
    lineage = facts["lineage"]
    rows = [(f"model {name}", _value(value)) for name, value in lineage["model"].items()]
    rows += [(f"fingerprint of {name}", _cell(value)) for name, value in lineage["facts"].items()]
    if rows:
        yield Table(("", ""), rows)
    if history := [each for each in lineage["history"] if isinstance(each, dict)]:
        shown = [(moment(each.get("time")), _without_time(each)) for each in history[-MOST_ROWS:]]
        yield Table(("time (UTC)", "change"), shown)


def _without_time(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {_value(value)}" for name, value in entry.items() if name != "time")


def _environment(facts: Facts) -> Iterator[Part]:
    if not (environments := facts["environments"]):
        return
    last = environments[-1]
    rows = [(name, _value(value)) for name, value in last.items() if not isinstance(value, dict)]
    for group in ("versions", "variables"):
        rows += [(name, _value(value)) for name, value in last.get(group, {}).items()]
    yield Table(("", "last start"), rows)
    hosts = list(dict.fromkeys(str(each.get("host")) for each in environments))
    if len(hosts) > 1:
        yield f"Earlier starts ran on {', '.join(hosts[:-1])}."


def _repeat(facts: Facts) -> Iterator[Part]:
    yield Code(facts["repeat"]["command"])
    yield "In the folder of this run the command continues the run; with --fresh it begins a new one."
    if facts["repeat"]["lack"] is not None:
        yield f"Note: {facts['repeat']['lack']}."


def _rest(all_rows: Sequence[Any], shown: Sequence[Any], noun: str) -> Iterator[str]:
    if (more := len(all_rows) - len(shown)) > 0:
        yield f"{counted(more, f'further {noun}')} not shown; --json has all."


def _or_unset(values: Mapping[str, Any], name: str) -> str:
    return _value(values[name]) if name in values else "(not set)"


def _value(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value), _LONGEST)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _value(value)


@final
@dataclass(frozen=True, slots=True)
class Table:
    """A table; the columns in ``numbers`` hold numbers. ``levels`` are words for the colours of the rows."""

    header: Sequence[str]
    rows: Rows
    numbers: frozenset[int] = frozenset()
    levels: Sequence[str] = ()


@final
@dataclass(frozen=True, slots=True)
class Code:
    """Text in the form in which it stands, such as a command."""

    text: str


@final
@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a whole: the name, the share from 0 to 1 and the amount of each, in words."""

    parts: Sequence[tuple[str, float, str]]


@final
@dataclass(frozen=True, slots=True)
class Marked:
    """A text to show as it is; the parts that are marked are trained on."""

    parts: Sequence[tuple[str, bool]]


Part = str | Table | Code | Shares | Marked


@final
@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of a report; ``is_folded`` if a reader rarely needs it."""

    title: str
    parts: Sequence[Part] = field(default_factory=tuple)
    is_folded: bool = False


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&])")


def markdown_report(runs: Sequence[Facts]) -> str:
    """Return the report on ``runs``; their texts are escaped, so that none of them is read as Markdown or HTML."""
    return "\n".join(_lines(runs))


def _lines(runs: Sequence[Facts]) -> Iterator[str]:
    names = names_of(runs)
    yield f"# {escaped(' and '.join(names))}"
    yield ""
    if len(runs) == 1:
        yield f"{escaped(verdict(runs[0]))}."
        yield ""
        yield from _part(Table(("", ""), main_figures(runs[0])))
    yield from _part(overview(runs))
    if len(runs) > 1 and (section := differences(runs)) is not None:
        yield from _section(section, 2)
    for name, facts in zip(names, runs, strict=True):
        if len(runs) > 1:
            yield f"## {escaped(name)}"
            yield ""
        for section in run_sections(facts):
            yield from _section(section, 2 if len(runs) == 1 else 3)


def _section(section: ReportSection, level: int) -> Iterator[str]:
    yield f"{'#' * level} {escaped(section.title)}"
    yield ""
    for part in section.parts:
        yield from _part(part)


def _part(part: Part) -> Iterator[str]:
    match part:
        case str():
            yield escaped(part)
        case Code(text):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
            yield from (fence, text, fence)
        case Marked(parts):
            yield from _part(Code("".join(f"[[{text}]]" if is_marked else text for text, is_marked in parts)))
            return
        case Shares(parts):
            rows = [(name, amount, f"{share:.1%}") for name, share, amount in parts]
            yield from table_lines(Table(("", "time", "share"), rows, frozenset({1, 2})))
        case Table():
            yield from table_lines(part)
    yield ""


def table_lines(table: Table) -> Iterator[str]:
    """Yield ``table`` as lines of Markdown, its texts escaped."""
    yield f"| {' | '.join(map(escaped, table.header))} |"
    yield f"|{'|'.join('--:' if column in table.numbers else '---' for column in range(len(table.header)))}|"
    yield from (f"| {' | '.join(map(escaped, row))} |" for row in table.rows)


def escaped(text: str) -> str:
    """Return ``text`` on one line, with a backslash before each character that means something in Markdown."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
