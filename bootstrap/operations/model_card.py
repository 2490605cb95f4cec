"""The model card of an export: what was trained on what, how good it is, and how to make it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.files.regular_file import read_regular
from holdfast.bootstrap.operations.repeat_command import repeat_command
from holdfast.bootstrap.operations.report_facts import base_model_facts, data_facts
from holdfast.bootstrap.operations.report_sections import Table, escaped, table_lines
from holdfast.configs.secret_masking import mask_text
from holdfast.configs.strict_yaml import read_yaml, write_yaml
from holdfast.domain.training.export_format import ExportKind
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.bootstrap.operations.export_files import Exported, ExportOrder

CARD = "README.md"
UNKNOWN = "unknown"

_FENCE = "---"


def model_card(record: Mapping[str, Any], order: ExportOrder, exported: Exported, *, name: str, repeat: str) -> str:
    """Return the card of ``exported`` in Markdown, with the fields that the Hugging Face hub reads, without secrets.

    ``record`` is that of the run called ``name``, and ``repeat`` the command that exports the same again. Equal
    arguments give equal text.
    """
    lines = [
        *_fields(record, order),
        f"# {escaped(name)}",
        "",
        f"Trained with Holdfast. {exported.num_bytes:,} bytes, as `{order.format}`.",
        "",
        *_model(record, order, exported),
        *_data(record),
        *_evaluation(order, exported),
        *_licences(record, order),
        *_commands(record, repeat),
    ]
    return mask_text("\n".join(lines))


def _fields(record: Mapping[str, Any], order: ExportOrder) -> Iterator[str]:
    base = base_model_facts(record["settings"]).get("path")
    tags = ["holdfast", *({ExportKind.GGUF: ["gguf"], ExportKind.TORCHAO: ["torchao"]}.get(order.format.kind, []))]
    fields: dict[str, object] = {
        "license": order.license or UNKNOWN,
        **({} if order.format.kind is ExportKind.GGUF else {"library_name": "transformers"}),
        "pipeline_tag": "text-generation",
        "tags": tags,
        **({} if base is None or Path(str(base)).exists() else {"base_model": base}),
    }
    yield _FENCE
    yield from (f"{key}: {write_yaml(value)}" for key, value in fields.items())
    yield from (_FENCE, "")


def _model(record: Mapping[str, Any], order: ExportOrder, exported: Exported) -> Iterator[str]:
    base = base_model_facts(record["settings"])
    sparsity = None
    if order.sparsity is not None:
        share = "" if exported.zeros is None else f", {exported.zeros:.1%} zeros when read back"
        sparsity = f"{order.sparsity} by magnitude, in linear layers{share}"
    rows = [
        ("kind", base.get("kind")),
        ("begun from", base.get("path") or "random weights"),
        ("revision", base.get("revision")),
        ("adapters", ("merged" if order.merged else "not merged") if record["settings"]["model"].get("lora") else None),
        ("sparsity", sparsity),
    ]
    yield from _section("Model", ("", ""), [(key, str(value)) for key, value in rows if value is not None])


def _place_of(source: Mapping[str, Any]) -> str:
    place = source.get("path", source.get("kind"))
    return ", ".join(map(str, place)) if isinstance(place, list) else str(place)


def _data(record: Mapping[str, Any]) -> Iterator[str]:
    data = data_facts(record)
    places = [(each["name"] or data["label"] or "data", _place_of(each)) for each in data["sources"]]
    yield from _section("Data", ("source", "place"), places)
    rows = [
        (
            each["id"],
            each["name"],
            f"{each['totals']['documents']:,}" if each["is_there"] else UNKNOWN,
            f"{each['totals']['tokens']:,}" if each["is_there"] else UNKNOWN,
            ", ".join(each.get("steps", ())),
        )
        for each in data["versions"]
    ]
    if rows:
        yield from (*table_lines(Table(("version", "dataset", "documents", "tokens", "steps"), rows)), "")
    else:
        yield from ("The run recorded no version of its data.", "")


def _evaluation(order: ExportOrder, exported: Exported) -> Iterator[str]:
    if exported.change is None:
        reason = "No loss was compared." if order.is_checked else "The export was not read back."
        yield from ("## Evaluation", "", reason, "")
        return
    change = exported.change
    measured = "other documents" if order.data.is_named else "documents that were held out of training"
    rows = [
        ("original", f"{change.before:.4f}", ""),
        (str(order.format), f"{change.after:.4f}", f"{change.increase:+.2%}"),
    ]
    yield from _section("Evaluation", ("weights", "loss in nats/token", "change"), rows)
    yield from (f"Measured on {change.num_targets:,} tokens of {measured}, in the export as transformers reads it.", "")


def _licences(record: Mapping[str, Any], order: ExportOrder) -> Iterator[str]:
    base = base_model_facts(record["settings"]).get("path")
    rows = [("this model", order.license or UNKNOWN)]
    rows += [] if base is None else [(f"base model {base}", _licence_of(expanded(str(base))))]
    rows += [(f"data {each['name'] or _place_of(each)}", UNKNOWN) for each in data_facts(record)["sources"]]
    yield from _section("Licences", ("part", "licence"), rows)
    yield from ("Holdfast does not know the licences of data: replace `unknown` before you publish the model.", "")


def _licence_of(base: Path) -> str:
    """Return the licence in the card of the model folder ``base``, if there is one."""
    try:
        text = read_regular(base / CARD).decode()
        fields = read_yaml(text.removeprefix(f"{_FENCE}\n").partition(f"\n{_FENCE}\n")[0])
    except (OSError, ValueError):
        return UNKNOWN
    license_name = fields.get("license") if isinstance(fields, dict) else None
    return license_name if isinstance(license_name, str) else UNKNOWN


def _commands(record: Mapping[str, Any], repeat: str) -> Iterator[str]:
    training = repeat_command(record["settings"])
    yield from ("## Commands", "")
    yield from (f"    {line}" for line in f"{training.command}\n{repeat}".splitlines())
    yield ""
    if training.lack is not None:
        yield from (f"{escaped(training.lack)}.", "")


def _section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"## {title}", "")
    yield from (*table_lines(Table(header, rows)), "")
