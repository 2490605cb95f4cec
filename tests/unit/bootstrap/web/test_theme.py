"""The colours of pages and reports."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

CSS = files("holdfast.bootstrap.web").joinpath("static", "theme.css").read_text(encoding="utf-8")
LIGHT = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", CSS.partition(":root {")[2].partition("}")[0]))
DARK = dict(
    re.findall(r"--([\w-]+): (#[0-9a-f]{6});", CSS.partition(':root[data-theme="dark"] {')[2].partition("}")[0])
)
THEMES = [pytest.param(LIGHT, id="light"), pytest.param(DARK, id="dark")]
SERIES = [f"series-{number}" for number in range(1, 9)]
# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB
SIGHTS = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(color):
    values = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    high, low = sorted((linear(each) @ [0.2126, 0.7152, 0.0722] for each in (one, other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def oklab(rgb):
    """Return Björn Ottosson's coordinates, in which distances are those that people see; 0.02 is just noticeable."""
    lms = np.cbrt(
        np.array(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        )
        @ rgb
    )
    return (
        np.array(
            [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ]
        )
        @ lms
    )


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_lines_stand_out(theme):
    """WCAG 2.2, AA: 4.5 to 1 for text on both backgrounds, 3 to 1 for lines and marks."""
    for back in ("back", "panel"):
        for text in ("text", "soft", "good", "warning", "error", "accent"):
            assert contrast(theme[text], theme[back]) >= 4.5, (text, back)
    for name in (*SERIES, "focus"):
        assert contrast(theme[name], theme["back"]) >= 3.0, name
    assert contrast(theme["on-accent"], theme["accent"]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", SIGHTS)
def test_the_colours_of_lines_differ_for_everyone(theme, sight):
    """Any two of the eight colours differ by several just noticeable differences, with any form of colour blindness."""
    seen = {name: oklab(np.clip(SIGHTS[sight] @ linear(theme[name]), 0, 1)) for name in SERIES}
    for one, other in combinations(SERIES, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 0.09, (one, other)


def test_the_dark_colours_are_the_same_by_system_and_by_choice():
    """The system's dark mode and the button give the same page."""
    system = CSS.partition("@media (prefers-color-scheme: dark)")[2].partition("} }")[0]
    assert dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", system)) == DARK
    assert LIGHT.keys() == DARK.keys()
