"""The progress of transformers while it loads weights."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from transformers.utils import logging

from holdfast.domain.phase import Amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.domain.phase import ShowPhase


@contextmanager
def loading_shown(show: ShowPhase) -> Iterator[None]:
    """Pass the number of loaded tensors to ``show`` within the block, in place of transformers' own bars."""

    def hook(factory: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        items = arguments[0] if arguments else options.get("iterable")
        if items is None or not hasattr(items, "__len__"):
            return factory(*arguments, **options)
        return _ShownItems(items, str(options.get("desc") or "Loading"), show)

    before = logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


@final
class _ShownItems:
    """An iterable with the methods of a bar of tqdm that transformers calls, which do nothing."""

    def __init__(self, items: Any, phase: str, show: ShowPhase) -> None:
        self._items = items
        self._phase = phase[:1].lower() + phase[1:]
        self._show = show

    def __iter__(self) -> Iterator[Any]:
        total = len(self._items)
        for number, item in enumerate(self._items):
            self._show(self._phase, Amount(number, total, "tensors"))
            yield item

    def __getattr__(self, _: str) -> Callable[..., None]:
        return _nothing


def _nothing(*_: object, **_options: object) -> None:
    pass
