"""Builds the encoder that turns records into documents of token ids, and the chat template that it uses."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from holdfast.adapters.document_encoder.chat import ChatDocumentEncoder
from holdfast.adapters.document_encoder.completion import CompletionDocumentEncoder
from holdfast.adapters.document_encoder.preference import PreferenceDocumentEncoder
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.tokenizer.stock_templates import STOCK_TEMPLATES, StockTemplate, literal
from holdfast.domain.data.data_files import FIRST_RULES, LATEST_RULES
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import expanded
from holdfast.ports.tokenizer import HasChatTemplate, ShowsSpecialTokens, TemplateChoice, Tokenizer, ids_around

if TYPE_CHECKING:
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.ports.document_encoder import DocumentEncoder
    from holdfast.ports.tokenizer import ChatTemplate


def build_encoder(data: FeedSettings, tokenizer: Tokenizer) -> DocumentEncoder:
    """Return the encoder of the records of ``data``; ``tokenizer`` has the chat template in the settings."""
    match data.task:
        case "text":
            return TextDocumentEncoder(tokenizer)
        case "completion":
            return CompletionDocumentEncoder(tokenizer)
        case "chat" | "preference":
            template, keeps_reasoning = template_in_use(data, tokenizer), data.chat.reasoning == "keep"
            assert template is not None, "the tokenizer was to get a template"
            if data.task == "preference":
                return PreferenceDocumentEncoder(template, tokenizer, keeps_reasoning=keeps_reasoning)
            return ChatDocumentEncoder(
                template, tokenizer, train_on=data.chat.train_on, keeps_reasoning=keeps_reasoning
            )


def with_chat_template(tokenizer: Tokenizer, data: FeedSettings, rules: int = LATEST_RULES) -> Tokenizer:
    """Return ``tokenizer`` with the chat template in the settings, which is written with it; unchanged without chats.

    Raises ``ConfigurationError`` if there is no template.
    """
    if not data.has_conversations:
        return tokenizer
    if not isinstance(tokenizer, HasChatTemplate):
        msg = (
            f"the tokenizer takes no chat template, which data.task={data.task} needs: use one in Hugging Face's format"
        )
        raise ConfigurationError(msg)
    stock = _template_named(data.chat.template)
    day = date.fromisoformat(data.chat.template_date)
    source, tokens = (None, ()) if stock is None else stock
    if data.chat.template in STOCK_TEMPLATES and isinstance(tokenizer, ShowsSpecialTokens):
        source = f"{literal(tokenizer.decode_all(ids_around(tokenizer)[0]))}{source}"  # others write it themselves
    templated: Tokenizer = tokenizer.with_template(
        TemplateChoice(source, data.chat.template_options or {}, day, tokens, checks_prompts=rules > FIRST_RULES)
    )
    return templated


def template_in_use(data: FeedSettings, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the chat template of a run on conversations, None for other runs."""
    return tokenizer.chat_template if data.has_conversations and isinstance(tokenizer, HasChatTemplate) else None


def is_masked(encoder: DocumentEncoder) -> bool:
    """Return whether ``encoder`` may train on some tokens only."""
    return not isinstance(encoder, TextDocumentEncoder)


def _template_named(name: str | None) -> StockTemplate | None:
    if name is None or name in STOCK_TEMPLATES:
        return None if name is None else STOCK_TEMPLATES[name]
    try:
        return StockTemplate(expanded(name).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        msg = (
            f"data.chat.template is {name}, which cannot be read ({reason}): set it to {', '.join(STOCK_TEMPLATES)} or "
            "a file with a template"
        )
        raise ConfigurationError(msg) from error
