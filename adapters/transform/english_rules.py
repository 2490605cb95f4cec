"""Rules by which spaCy's blank English pipeline splits text into words, as data.

The source is spaCy 3.8 (MIT license): ``char_classes.py``, ``punctuation.py``, ``tokenizer_exceptions.py``,
``en/punctuation.py`` and ``en/tokenizer_exceptions.py`` in its package ``spacy.lang``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# code points in hexadecimal: one alone, a range, or every second one of a range ("/2")
_UNCASED = (
    "591-5f4 620-64a 66e-6d5 6e5-6ff 750-77f 8a0-8bd 900-9ff b80-cff d80-dff 1100-137f 2e80-2fdf 2ff0-30ff 31c0-31ef "
    "3200-4dbf 4e00-9fff ac00-d7af f900-faff fb1d-fbb1 fbd3-fd3d fd50-fdc7 fdf0-fdfb fe30-fe4f fe70-fefc 1ee00-1eebb "
    "1f200-1f2ff 20000-2a6df 2a700-2ebef 2f800-2fa1f"
)
_LOWER = (
    "61-7a df-f6 f8-ff 101-137/2 138-148/2 149-177/2 17a-17e/2 17f-180 183 185 188 18c-18d 192 195 199-19b 19e "
    "1a1-1a5/2 1a8 1aa-1ab 1ad 1b0 1b4 1b6 1b9-1ba 1bd-1bf 1c6 1c9 1cc-1dc/2 1dd-1ef/2 1f0 1f3 1f5 1f9-233/2 234-239 "
    "23c 23f-240 242 247-24f/2 250-2af 3ac-3af 3b1-3c9 3cc-3ce 430-451 453-45a 45c-45d 491 497 4a3 4af 4bb 4d9 4e9 "
    "1d00-1d25 1d6b-1d77 1d79-1d9a 1e01-1e95/2 1e96-1e9d 1e9f-1eff/2 2c61 2c65-2c66 2c68-2c6c/2 2c71 2c73-2c74 "
    "2c76-2c7b a723-a72f/2 a730-a731 a733-a771/2 a772-a778 a77a a77c a77f-a787/2 a78c a78e a791 a793-a795 a797-a7a9/2 "
    "a7af a7b5-a7b9/2 a7fa ab30-ab5a ab60-ab64 ff41-ff5a"
)
_UPPER = (
    "41-5a c0-d6 d8-de 100-136/2 139-147/2 14a-178/2 179-17d/2 181-182 184 186-187 189-18b 18e-191 193-194 196-198 "
    "19c-19d 19f-1a0 1a2-1a6/2 1a7 1a9 1ac 1ae-1af 1b1-1b3 1b5 1b7-1b8 1bc 1c4 1c7 1ca 1cd-1db/2 1de-1ee/2 1f1 1f4 "
    "1f6-1f8 1fa-232/2 23a-23b 23d-23e 241 243-246 248-24e/2 386 388-38a 38c 38e-38f 391-3a9 400-401 403-40a 40c-40d "
    "410-42f 490 496 4a2 4ae 4ba 4d8 4e8 1e00-1e94/2 1e9e-1efe/2 2c60 2c62-2c64 2c67-2c6d/2 2c6e-2c70 2c72 2c75 "
    "2c7e-2c7f a722-a72e/2 a732-a76e/2 a779-a77d/2 a77e-a786/2 a78b a78d a790 a792 a796-a7aa/2 a7ab-a7ae a7b0-a7b4 "
    "a7b6 a7b8 ff21-ff3a"
)
_TITLECASE = "1bb 1c5 1c8 1cb 1f2"
_ICONS = (
    "a6 a9 ae b0 482 58d-58e 60e-60f 6de 6e9 6fd-6fe 7f6 9fa b70 bf3-bf8 bfa c7f d4f d79 f01-f03 f13 f15-f17 f1a-f1f "
    "f34-f38/2 fbe-fc5 fc7-fcc fce-fcf fd5-fd8 109e-109f 1390-1399 1940 19de-19ff 1b61-1b6a 1b74-1b7c 2100-2101 "
    "2103-2106 2108-2109 2114 2116-2117 211e-2123 2125-2129/2 212e 213a-213b 214a 214c-214d 214f 218a-218b 2195-2199 "
    "219c-219f 21a1-21a2 21a4-21a5 21a7-21ad 21af-21cd 21d0-21d1 21d3 21d5-21f3 2300-2307 230c-231f 2322-2328 "
    "232b-237b 237d-239a 23b4-23db 23e2-2426 2440-244a 249c-24e9 2500-25b6 25b8-25c0 25c2-25f7 2600-266e 2670-2767 "
    "2794-27bf 2800-28ff 2b00-2b2f 2b45-2b46 2b4d-2b73 2b76-2b95 2b98-2bc8 2bca-2bfe 2ce5-2cea 2e80-2e99 2e9b-2ef3 "
    "2f00-2fd5 2ff0-2ffb 3004 3012-3013 3020 3036-3037 303e-303f 3190-3191 3196-319f 31c0-31e3 3200-321e 322a-3247 "
    "3250 3260-327f 328a-32b0 32c0-32fe 3300-33ff 4dc0-4dff a490-a4c6 a828-a82b a836-a837 a839 aa77-aa79 fdfd ffe4 "
    "ffe8 ffed-ffee fffc-fffd 10137-1013f 10179-10189 1018c-1018e 10190-1019b 101a0 101d0-101fc 10877-10878 10ac8 "
    "1173f 16b3c-16b3f 16b45 1bc9c 1d000-1d0f5 1d100-1d126 1d129-1d164 1d16a-1d16c 1d183-1d184 1d18c-1d1a9 "
    "1d1ae-1d1e8 1d200-1d241 1d245 1d300-1d356 1d800-1d9ff 1da37-1da3a 1da6d-1da74 1da76-1da83 1da85-1da86 1ecac "
    "1f000-1f02b 1f030-1f093 1f0a0-1f0ae 1f0b1-1f0bf 1f0c1-1f0cf 1f0d1-1f0f5 1f110-1f16b 1f170-1f1ac 1f1e6-1f202 "
    "1f210-1f23b 1f240-1f248 1f250-1f251 1f260-1f265 1f300-1f3fa 1f400-1f6d4 1f6e0-1f6ec 1f6f0-1f6f9 1f700-1f773 "
    "1f780-1f7d8 1f800-1f80b 1f810-1f847 1f850-1f859 1f860-1f887 1f890-1f8ad 1f900-1f90b 1f910-1f93e 1f940-1f970 "
    "1f973-1f976 1f97a 1f97c-1f9a2 1f9b0-1f9b9 1f9c0-1f9c2 1f9d0-1f9ff 1fa60-1fa6d"
)
# separated by spaces
_PUNCTUATION = (
    "\u2026 \u2026\u2026 , : ; ! ? \xbf \u061f \xa1 ( ) [ ] { } < > _ # * & \u3002 \uff1f \uff01 \uff0c \u3001 "
    "\uff1b \uff1a \uff5e \xb7 \u0964 \u060c \u06d4 \u061b \u066a"
)
_QUOTES = (
    "' \" \u201d \u201c ` \u2018 \xb4 \u2019 \u201a , \u201e \xbb \xab \u300c \u300d \u300e \u300f \uff08 \uff09 "
    "\u3014 \u3015 \u3010 \u3011 \u300a \u300b \u3008 \u3009 \u2329 \u232a \u27e6 \u27e7"
)
_CURRENCY = (
    "$ \xa3 \u20ac \xa5 \u0e3f US$ C$ A$ \u20bd \ufdfc \u20b4 \u20a0 \u20a1 \u20a2 \u20a3 \u20a4 \u20a5 \u20a6 "
    "\u20a7 \u20a8 \u20a9 \u20aa \u20ab \u20ad \u20ae \u20af \u20b0 \u20b1 \u20b2 \u20b3 \u20b5 \u20b6 \u20b7 "
    "\u20b8 \u20b9 \u20ba \u20bb \u20bc \u20be \u20bf"
)
_UNITS = (
    "km km\xb2 km\xb3 m m\xb2 m\xb3 dm dm\xb2 dm\xb3 cm cm\xb2 cm\xb3 mm mm\xb2 mm\xb3 ha \xb5m nm yd in ft kg g "
    "mg \xb5g t lb oz m/s km/h kmh mph hPa Pa mbar mb MB kb KB gb GB tb TB T G M K % \u043a\u043c "
    "\u043a\u043c\xb2 \u043a\u043c\xb3 \u043c \u043c\xb2 \u043c\xb3 \u0434\u043c \u0434\u043c\xb2 "
    "\u0434\u043c\xb3 \u0441\u043c \u0441\u043c\xb2 \u0441\u043c\xb3 \u043c\u043c \u043c\u043c\xb2 "
    "\u043c\u043c\xb3 \u043d\u043c \u043a\u0433 \u0433 \u043c\u0433 \u043c/\u0441 \u043a\u043c/\u0447 "
    "\u043a\u041f\u0430 \u041f\u0430 \u043c\u0431\u0430\u0440 \u041a\u0431 \u041a\u0411 \u043a\u0431 \u041c\u0431 "
    "\u041c\u0411 \u043c\u0431 \u0413\u0431 \u0413\u0411 \u0433\u0431 \u0422\u0431 \u0422\u0411 "
    "\u0442\u0431\u0643\u0645 \u0643\u0645\xb2 \u0643\u0645\xb3 \u0645 \u0645\xb2 \u0645\xb3 \u0633\u0645 "
    "\u0633\u0645\xb2 \u0633\u0645\xb3 \u0645\u0645 \u0645\u0645\xb2 \u0645\u0645\xb3 \u0643\u0645 "
    "\u063a\u0631\u0627\u0645 \u062c\u0631\u0627\u0645 \u062c\u0645 \u0643\u063a \u0645\u0644\u063a "
    "\u0643\u0648\u0628 \u0627\u0643\u0648\u0627\u0628"
)
_HYPHENS = "- \u2013 \u2014 -- --- \u2014\u2014 ~"


def _characters(*ranges: str) -> str:
    """Return the inside of a character class of ``re``."""
    found = []
    for each in " ".join(ranges).split():
        first, _, last = each.partition("-")
        last, _, step = last.partition("/")
        if step:
            found.append("".join(map(chr, range(int(first, 16), int(last, 16) + 1, int(step)))))
        else:
            found.append(chr(int(first, 16)) + (f"-{chr(int(last, 16))}" if last else ""))
    return "".join(found)


def _escaped(words: str) -> Sequence[str]:
    return [re.escape(word) for word in words.split()]


_lower = _characters(_LOWER, _UNCASED)
_upper = _characters(_UPPER, _UNCASED)
_alpha = _characters(_LOWER, _UPPER, _TITLECASE, _UNCASED)
_quotes = "".join(_QUOTES.split())
_icons = f"[{_characters(_ICONS)}]"
_ellipses = [r"\.\.+", "\u2026"]
_marks = [*_escaped(_PUNCTUATION), *_ellipses, *_escaped(_QUOTES)]

# (?<=[...]) before a full stop at the end: spaCy's class also holds the characters of "|(?:)", by which it is written
_BEFORE_STOP = f"0-9{_lower}%\xb2\\-+|(?:){''.join(_escaped(_PUNCTUATION))}{_quotes}"

# suffixes wherever they stand, and the ends of no longer suffix
SINGLE_SUFFIXES = frozenset(f"{_PUNCTUATION}{_QUOTES}\u2014\u2013") - frozenset(" \u2026")
PREFIX = re.compile(
    "|".join(["\xa7", "%", "=", "\u2014", "\u2013", r"\+(?![0-9])", *_marks, *_escaped(_CURRENCY), _icons])
)
SUFFIX = re.compile(
    "(?:{})$".format(
        "|".join(
            [
                *_marks,
                _icons,
                *("'s", "'S", "\u2019s", "\u2019S", "\u2014", "\u2013"),
                r"(?<=[0-9])\+",
                "(?<=\xb0[FfCcKk])\\.",
                f"(?<=[0-9])(?:{'|'.join(_escaped(_CURRENCY))})",
                f"(?<=[0-9])(?:{'|'.join(_escaped(_UNITS))})",
                rf"(?<=[{_BEFORE_STOP}])\.",
                rf"(?<=[{_upper}][{_upper}])\.",
            ]
        )
    )
)
INFIX = re.compile(
    "|".join(
        [
            *_ellipses,
            _icons,
            r"(?<=[0-9])[+\-*^](?=[0-9-])",
            rf"(?<=[{_lower}{_quotes}])\.(?=[{_upper}{_quotes}])",
            rf"(?<=[{_alpha}]),(?=[{_alpha}])",
            rf"(?<=[{_alpha}0-9])(?:{'|'.join(_escaped(_HYPHENS))})(?=[{_alpha}])",
            rf"(?<=[{_alpha}0-9])[:<>=/](?=[{_alpha}])",
        ]
    )
)
# by Diego Perini (MIT license), https://gist.github.com/dperini/729294, with spaCy's changes
_LABEL = r"[A-Za-z0-9\u00a1-\uffff]"
URL = re.compile(
    r"(?:(?:[\w+\-.]{2,})://)?(?:\S+@)?(?:"
    r"(?!(?:10|127)(?:\.\d{1,3}){3})(?!(?:169\.254|192\.168)(?:\.\d{1,3}){2})"
    r"(?!172\.(?:1[6-9]|2\d|3[0-1])(?:\.\d{1,3}){2})(?:[1-9]\d?|1\d\d|2[01]\d|22[0-3])"
    r"(?:\.(?:1?\d{1,2}|2[0-4]\d|25[0-5])){2}(?:\.(?:[1-9]\d?|1\d\d|2[0-4]\d|25[0-4]))|"
    rf"(?:(?:{_LABEL}[A-Za-z0-9\u00a1-\uffff_-]{{0,62}})?{_LABEL}\.)+(?:[{_lower}]{{2,63}})"
    r")(?::\d{2,5})?(?:[/?#]\S*)?$"
)
