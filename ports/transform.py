"""The port for transforms of a document's text before tokenization."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Transform(ABC):
    """Changes or drops a document: a filter, a map or an augmentation.

    - Pure: equal texts give equal results, independent of earlier calls and of the process; the randomness of an
      augmentation derives from the text itself.
    - Valid Unicode gives valid Unicode; an empty result drops the document, as None does.
    - ``fingerprint`` identifies the transform, its options and its version: cached tokens depend on it, and a run can
      only be resumed with the same transforms.
    - Usable from several threads at once.
    - An exception concerns one document only; the caller treats it as a record that cannot be used.
    """

    @abstractmethod
    def __call__(self, text: str) -> str | None:
        """Return the text to train on, or None to drop the document."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the transform, the same in every process."""
