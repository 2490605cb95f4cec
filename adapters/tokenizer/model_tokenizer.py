"""Tokenizers of model folders and of models on the hub, as published and as transformers makes them."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.adapters.tokenizer import hf_core as core
from holdfast.adapters.tokenizer.chat_template import files_beside
from holdfast.adapters.tokenizer.document_frame import CONFIG, TOKEN_NAMES, config_in, token_named
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenizers import Tokenizer

    from holdfast.ports.tokenizer import Tokenizer as TokenizerPort

_FILE = "tokenizer.json"
_CLASS = "PreTrainedTokenizerFast"  # it takes the file as it is
_PROBES = (
    *("born in 1999, paid 3,000,000.5 times", "It's he'LL we've", " one  two   three    ", "line\n\n\tlast \r\n"),
    *(
        "e\u0301 \u00e9 \ufb01 \u2126 \uff21",
        "Größe ÄÖ 你好 世界 Привет 👩\u200d🚀",
        "HTTPServer fooBar x_y",
        "a\u00a0b\u200bc\u2028d",
    ),
    *("def f(x):\n    return x**2  # ok", "", " ", "\n"),
)


class TokenizerSource(NamedTuple):
    """A folder or a name on the hub at ``path``, with its revision; ``name`` is what the user wrote."""

    path: str
    revision: str | None
    name: str

    def load(self, *, follows_model: bool) -> Any:
        """Return what ``AutoTokenizer`` makes of it; raises ``ConfigurationError`` if that cannot encode."""
        # takes three seconds, torch included, and is not needed for a tokenizer.json
        from transformers import AutoTokenizer

        from holdfast.adapters.shared.network.hub import reached, refusal

        try:
            options = {"revision": self.revision, **reached(self.path, self.revision)}
            model = AutoTokenizer.from_pretrained(self.path, trust_remote_code=False, **options)
            _check_has_files(model)
        except ConfigurationError:
            raise
        except Exception as error:  # its errors have no common type
            reason = refusal(error, self.path) or (str(error).strip() or type(error).__name__).splitlines()[0]
            msg = (
                f"the tokenizer {self.name} cannot be loaded ({reason}): name a tokenizer.json, a folder with a "
                "tokenizer or a model on the Hugging Face hub whose tokenizer needs no code of its own"
            )
            if follows_model:
                msg = (
                    f"the model {self.name} comes with no tokenizer that can be loaded ({reason}): set tokenizer.path "
                    "to the tokenizer that the model was trained with"
                )
            raise ConfigurationError(msg) from error
        if not getattr(model, "is_fast", False):
            msg = (
                f"the tokenizer {self.name} exists in Python only, which is too slow: use one that has a tokenizer.json"
            )
            raise ConfigurationError(msg)
        core.size_of(model.backend_tokenizer, self.name)
        return model

    def text_of(self, file: str) -> str | None:
        """Return the text of ``file`` that is published there, None if there is none."""
        from transformers.utils import cached_file

        from holdfast.adapters.shared.network.hub import reached

        options = {"revision": self.revision, **reached(self.path, self.revision)}
        cached = cached_file(self.path, file, **options, _raise_exceptions_for_missing_entries=False)
        return None if cached is None else Path(cached).read_text(encoding="utf-8")

    def config(self) -> Mapping[str, object]:
        """Return the published configuration of the tokenizer, empty if there is none."""
        config: Mapping[str, object] = json.loads(self.text_of(CONFIG) or "{}")
        return config


def published_parts(source: TokenizerSource, model: Any, report: Callable[[str], object]) -> dict[str, Any]:
    """Return the arguments for a tokenizer that encodes as the ``tokenizer.json`` of ``source`` says.

    ``model`` is what ``AutoTokenizer`` makes of it: its classes build parts of the encoding anew, while models are
    trained with the file that is published beside them. ``report`` receives a difference with an example. Without such
    a file, as where there is only that of SentencePiece, ``model`` decides.
    """
    parts, serialized = parts_of(model), source.text_of(_FILE)
    if serialized is None:
        return parts
    own, theirs = (core.load_core(each, source.name) for each in (serialized, parts["serialized"]))
    if _is_same(own, theirs):
        return parts
    if (example := _difference(own, theirs)) is not None:
        report(
            f"AutoTokenizer and the tokenizer.json of {source.name} differ, on {example}; tokenizer.json is used, as "
            "models are published with it: set tokenizer.loader=transformers to encode as AutoTokenizer does"
        )
    files = _files_as_published(parts["files"], own)
    if problem := _misread(files, own, source):
        report(problem)
    end_of_text = parts["end_of_text"] if own.token_to_id(parts["end_of_text"] or "") is not None else None
    return {"serialized": own.to_str(), "end_of_text": end_of_text, "files": files}


def _is_same(own: Tokenizer, theirs: Tokenizer) -> bool:
    prints = [core.fingerprint_of(each, 0, [each.encode("a").ids]) for each in (own, theirs)]
    return prints[0] == prints[1]


def _difference(own: Tokenizer, theirs: Tokenizer) -> str | None:
    """Return a text with the tokens of both, None if all probes have equal ids."""
    for probe in _PROBES:
        encoded = [each.encode(probe, add_special_tokens=True) for each in (theirs, own)]
        if encoded[0].ids != encoded[1].ids:
            by_library, by_file = (" ".join(each.tokens) for each in encoded)
            return f"{probe!r}: {by_library!r} by AutoTokenizer, {by_file!r} by the file"
    return None


def _files_as_published(files: Mapping[str, bytes], own: Tokenizer) -> Mapping[str, bytes]:
    strange = [name for name in TOKEN_NAMES if own.token_to_id(token_named(config_in(files), name) or "") is None]
    config = {name: value for name, value in config_in(files).items() if name not in ("auto_map", *strange)}
    content = json.dumps({**config, "tokenizer_class": _CLASS}, indent=2, ensure_ascii=False)
    return {**files, _FILE: own.to_str(pretty=True).encode(), CONFIG: content.encode()}


def _misread(files: Mapping[str, bytes], own: Tokenizer, source: TokenizerSource) -> str | None:
    """Return a sentence if ``AutoTokenizer`` reads ``files`` beside a model of that type otherwise than ``own``."""
    from transformers import AutoTokenizer

    kind = json.loads(source.text_of("config.json") or "{}").get("model_type")
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_bytes(content)
        (Path(folder) / "config.json").write_text(json.dumps({} if kind is None else {"model_type": kind}))
        read = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    theirs = core.load_core(read.backend_tokenizer.to_str(), source.name)
    if _difference(own, theirs) is None:
        return None
    return (
        f"AutoTokenizer builds the tokenizer of every {kind} anew, and will do so with those of the checkpoints: load "
        f"them by {_CLASS}.from_pretrained"
    )


def check_written(tokenizer: TokenizerPort) -> None:
    """Raise ``ConfigurationError`` if ``AutoTokenizer`` cannot load what ``tokenizer`` writes, or encodes otherwise."""
    from transformers import AutoTokenizer

    name, remedy = type(tokenizer).__name__, "let its method write give a tokenizer.json and a tokenizer_config.json"
    with TemporaryDirectory() as folder:
        tokenizer.write(Path(folder))
        try:
            loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            _check_has_files(loaded)
            clause = _otherwise_encoded(tokenizer, loaded)
        except Exception as error:  # its errors have no common type
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            msg = f"AutoTokenizer cannot load the files that the tokenizer {name} writes ({reason}): {remedy}, as the "
            msg += "checkpoints of the run are of no use without them"
            raise ConfigurationError(msg) from error
    if clause is not None:
        msg = f"the files that the tokenizer {name} writes are those of another tokenizer, as AutoTokenizer loads them "
        msg += f"and {clause}: {remedy} that encode as it does"
        raise ConfigurationError(msg)


def _otherwise_encoded(tokenizer: TokenizerPort, loaded: Any) -> str | None:
    """Return a clause on how ``loaded``, of transformers, differs from ``tokenizer``, None if it does not."""
    if loaded.eos_token_id != tokenizer.end_of_text:
        return f"its eos_token has the id {loaded.eos_token_id}, not {tokenizer.end_of_text}"
    for probe in _PROBES:
        try:
            own = tokenizer.encode([probe]).ids.tolist()
        except Exception:  # noqa: BLE001, S112  it may be one for other texts, such as those of genes
            continue
        if loaded(probe, add_special_tokens=False, split_special_tokens=True)["input_ids"] != own:
            return f"gives other ids for {probe!r}"
    return None


def _check_has_files(model: Any) -> None:
    # as transformers returns for a folder without a tokenizer, for some types of models
    if getattr(model, "is_fast", False) and not set(model.get_vocab()) - set(model.all_special_tokens):
        msg = "there are no files of a tokenizer"
        raise ValueError(msg)


def parts_of(model: Any) -> dict[str, Any]:
    """Return the arguments for a tokenizer that encodes as ``model`` of transformers does.

    Raises ``ConfigurationError`` if its files cannot be written again, as into checkpoints.
    """
    usual = next((token for token in core.USUAL_ENDS if token in model.get_vocab()), None)
    if model.eos_token is None and usual is not None:
        model.add_special_tokens({"eos_token": usual})
    with TemporaryDirectory() as folder:
        try:
            model.save_pretrained(folder)
        except ValueError as error:  # half of a surrogate pair in a text, or a template whose name leads elsewhere
            msg = f"the tokenizer {model.name_or_path} cannot be written into checkpoints ({error}): use another one"
            raise ConfigurationError(msg) from error
        saved = sorted(file for file in Path(folder).rglob("*") if file.is_file())
        files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in saved}
    files[CONFIG] = _readable_config(config_in(files))
    return {"serialized": model.backend_tokenizer.to_str(), "end_of_text": model.eos_token, "files": files}


def _readable_config(config: Mapping[str, Any]) -> bytes:
    """Return the file of ``config`` in words that transformers 4 knows as well as 5, without those on this machine."""
    fields = {name: value for name, value in config.items() if name not in ("is_local", "local_files_only")}
    if fields.get("tokenizer_class") == "TokenizersBackend":
        fields["tokenizer_class"] = _CLASS
    if isinstance(fields.get("extra_special_tokens"), list):
        fields["additional_special_tokens"] = fields.pop("extra_special_tokens")
    return json.dumps(fields, indent=2, ensure_ascii=False).encode()


def parts_of_file(file: Path, name: str) -> dict[str, Any]:
    """Return the arguments for a tokenizer that encodes as ``file``, a ``tokenizer.json``, says."""
    try:
        end_of_text = _configured_end(file.with_name("tokenizer_config.json"))
        return {
            "serialized": file.read_text(encoding="utf-8"),
            "end_of_text": end_of_text,
            "beside": files_beside(file),
        }
    except (OSError, ValueError) as error:
        msg = f"the tokenizer {name} cannot be read ({error}): name a tokenizer.json"
        raise ConfigurationError(msg) from error


def _configured_end(file: Path) -> str | None:
    if not file.is_file():
        return None
    token = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
    content: str | None = token["content"] if isinstance(token, dict) else token
    return content
