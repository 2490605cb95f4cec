"""What is done to a document's text before it is tokenized."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Transform(ABC):
    """Changes or leaves out a document: a filter, a map or an augmentation.

    - Pure: equal texts give equal results, whatever came before and in whichever process; an augmentation draws from
      the text itself.
    - Valid Unicode gives valid Unicode; an empty text leaves the document out, as None does.
    - ``fingerprint`` identifies what it does, its options and its version: tokens that are kept depend on it, and a run
      is resumed with the same ones only.
    - Usable from several threads at once.
    - An exception is about the one document: whoever reads treats it as a record that cannot be used.
    """

    @abstractmethod
    def __call__(self, text: str) -> str | None:
        """Return the text to train on, or None to leave the document out."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the transform, the same in every process."""
