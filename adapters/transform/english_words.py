"""A splitter of English text into words, which gives the words of spaCy's blank English pipeline."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import chain, product
from typing import TYPE_CHECKING, Generic, TypeVar, final

from holdfast.adapters.transform.text_statistics import SENTENCE_ENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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


# parts are separated by "|"; each word of _SPLIT also stands with an apostrophe and with an upper-case first letter
_WHOLE = (
    "' \\\") <space> '' C++ \u2014 \\t \\n \xe4. \xf6. \xfc. "
    ":) :-) :)) :-)) :))) :-))) (: (-: =) (= :] :-] [: [-: [= =] :o) (o: :} :-} 8) 8-) (-8 ;) ;-) (; (-; :( :-( :(( "
    ":-(( :((( :-((( ): )-: =( >:( :') :'-) :'( :'-( :/ :-/ =/ =| :| :-| ]= =[ :1 :P :-P :p :-p :O :-O :o :-o :0 :-0 "
    ":() >:o :* :-* :3 :-3 =3 :> :-> :X :-X :x :-x :D :-D ;D ;-D =D xD XD xDD XDD 8D 8-D ^_^ ^__^ ^___^ >.< >.> <.< "
    "._. ;_; -_- -__- v.v V.V v_v V_V o_o o_O O_o O_O 0_o o_0 0_0 o.O O.o O.O o.o 0.0 o.0 0.o @_@ <3 <33 <333 </3 "
    "(^_^) (-_-) (._.) (>_<) (*_*) (\xac_\xac) \u0ca0_\u0ca0 \u0ca0\ufe35\u0ca0 (\u0ca0_\u0ca0) \xaf\\(\u30c4)/\xaf "
    "(\u256f\xb0\u25a1\xb0\uff09\u256f\ufe35\u253b\u2501\u253b ><(((*> "
    "doin doin' Doin Doin' goin goin' Goin Goin' nothin nothin' Nothin Nothin' nuthin nuthin' Nuthin Nuthin' ol ol' "
    "Ol Ol' somethin somethin' Somethin Somethin' lovin lovin' Lovin Lovin' havin havin' Havin Havin' em 'em ll 'll "
    "nuff 'nuff 'S 's \u2018S \u2018s and/or w/o 're 'Cause 'cause 'cos 'Cos 'coz 'Coz 'cuz 'Cuz 'bout ma'am Ma'am "
    "o'clock O'clock Mt. Ak. Ala. Apr. Ariz. Ark. Aug. Calif. Colo. Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. "
    "Jan. Jul. Jun. Kan. Kans. Ky. La. Mar. Mass. Mich. Minn. Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Nov. "
    "Oct. Okla. Ore. Pa. S.C. Sep. Sept. Tenn. Va. Wash. Wis. 'd a.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. "
    "Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. Mr. Mrs. Ms. p.m. Ph.D. Prof. Rep. Rev. Sen. St. vs. "
    "v.s."
)
_SPLIT = (
    "y'|all y|all how|'d|'y How|'d|'y not|'ve not|ve Not|'ve Not|ve can|not Can|not gon|na Gon|na got|ta Got|ta "
    "let|'s Let|'s c'm|on C'm|on \xb0|c|. \xb0|f|. \xb0|k|. \xb0|C|. \xb0|F|. \xb0|K|."
)
_ANY = "'ll 'll|'ve 'd 'd|'ve"
_ENDINGS = {
    "i": f"{_ANY} 've 'm 'm|a",
    "you we they": f"{_ANY} 've 're",
    "he she it": f"{_ANY} 's",
    "who what when where why how there": f"{_ANY} 's 're 've",
    "that this": f"{_ANY} 's",
    "these those": f"{_ANY} 're 've",
    "ca do does did had may need ought sha wo": "n't n't|'ve",
    "could might must should would": "n't n't|'ve 've",
    "ai are is was were have has dare": "n't",
}
# they are words of their own
_EXCLUDED = "Ill ill Its its Hell hell Shell shell Shed shed were Were Well well Whore whore"


@cache
def exceptions() -> Mapping[str, tuple[str, ...]]:
    """Return the parts of each exception by its spelling; the parts make up the word."""
    parts: list[tuple[str, ...]] = [(word,) for word in _WHOLE.split()]
    parts += [(f"{letter}.",) for letter in "abcdefghijklmnopqrstuvwxyz"]
    parts += [tuple(word.split("|")) for word in _SPLIT.split()]
    parts += [(str(hour), half) for hour, half in product(range(1, 13), ("a.m.", "am", "p.m.", "pm"))]
    parts += _contractions()
    found = {"".join(each): each for each in parts}
    for word in found.keys() & _EXCLUDED.split():
        del found[word]
    # spaCy's expand_exc
    curly = {word.replace("'", "\u2019"): tuple(p.replace("'", "\u2019") for p in each) for word, each in found.items()}
    return found | curly


def _contractions() -> Iterator[tuple[str, ...]]:
    for words, endings in _ENDINGS.items():
        for word, ending in product(words.split(), endings.split()):
            for first in (word, word.title()):
                yield (first, *ending.split("|"))
                yield (first, *ending.replace("'", "").split("|"))


_MOST_ENTRIES = 100_000
_MOST_CHARACTERS = 128
_END = 16  # characters, more than the longest suffix has, apart from full stops, with what stands before it
_LETTERS = re.compile(r"[A-Za-z]+")
# shortcuts, which do not change the result: no infix and no URL, and no prefix, in these
_NO_INFIX = re.compile(r"[A-Za-z0-9_']+")
_NO_PREFIX = frozenset("BDEFGHIJKLMNOPQRSTVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_SPACE = re.compile(r"(\s+)")
_DIGIT = re.compile("[0-9]")
_EXCEPTIONS = exceptions()
_LONGEST = max(map(len, _EXCEPTIONS))
_Value = TypeVar("_Value")


@final
class PieceTable(dict[str, _Value], Generic[_Value]):
    """Values of ``function`` by its argument, a piece of text without white space.

    It remembers up to 200,000 pieces of at most 128 characters, fewer if they are long, some 60 MB: when it is half
    full, the older half is given up. Usable from several threads at once, if the function is pure.
    """

    def __init__(self, function: Callable[[str], _Value]) -> None:
        super().__init__()
        self._function = function
        self._older: Mapping[str, _Value] = {}
        self._size = 0

    def __missing__(self, piece: str) -> _Value:
        if len(piece) > _MOST_CHARACTERS:
            return self._function(piece)
        if self._size >= _MOST_ENTRIES:
            self._older, self._size = self.copy(), 0
            self.clear()
        self._size += 1 + len(piece) // 16
        older = self._older
        self[piece] = value = older[piece] if piece in older else self._function(piece)
        return value


def words_of(text: str) -> list[str]:
    """Return the words of ``text`` in order; punctuation marks are words of their own, white space is left out.

    The text is cut at white space, then prefixes, suffixes and infixes are cut off each piece, as spaCy does.
    A difference from spaCy: each piece is split by itself. In spaCy an emoticon with a space inside, as in ``:) )``, is
    no emoticon, and the mark before the space is no part of a shorter emoticon.
    """
    return list(chain.from_iterable(map(_WORDS.__getitem__, text.split())))


def words_of_piece(piece: str) -> tuple[str, ...]:
    """Return the words of ``piece``, which has no white space."""
    return _WORDS[piece]


def count_sentences(text: str) -> int:
    """Return the number of sentences of ``text`` as spaCy's ``sentencizer`` counts them, at least 1.

    A sentence ends before the first word that is no punctuation after a word that is a full stop or the like.
    White space other than a single space is such a word too.
    """
    sentences, is_over = 1, False
    for piece in filter(None, _SPACE.split(text)):
        for word in (piece,) if piece.isspace() else _WORDS[piece]:
            if word in SENTENCE_ENDS:
                is_over = True
            elif is_over and word != " " and not _is_punctuation(word):
                is_over = False
                sentences += 1
    return sentences


def _is_punctuation(word: str) -> bool:
    return all(unicodedata.category(character)[0] == "P" for character in word)


def _split(piece: str) -> tuple[str, ...]:
    if piece in _EXCEPTIONS:
        return _EXCEPTIONS[piece]
    if _LETTERS.fullmatch(piece):
        return (piece,)
    return _with_exceptions(tuple(_cut(piece, _EXCEPTIONS)))


_WORDS = PieceTable(_split)


def _cut(piece: str, whole: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the words of ``piece`` by the rules for affixes; what is left is looked up in ``whole``.

    This is ``_split_affixes`` and ``_attach_tokens`` of spacy/tokenizer.pyx.
    """
    words: list[str] = []
    suffixes: list[str] = []
    first, last = 0, len(piece)
    while first < last and not (last - first <= _LONGEST and piece[first:last] in whole):
        prefix = None if piece[first] in _NO_PREFIX else PREFIX.match(piece, first, last)
        start = prefix.end() if prefix else first
        if prefix and last - start <= _LONGEST and piece[start:last] in whole:
            words.append(piece[first:start])
            first = start
            break
        stop = _start_of_suffix(piece, start, last)
        if stop < last and stop - first <= _LONGEST and piece[first:stop] in whole:
            suffixes.append(piece[stop:last])
            last = stop
            break
        if start == first and stop == last:
            break
        if prefix:
            words.append(piece[first:start])
        if stop < last:
            suffixes.append(piece[stop:last])
        first, last = start, stop
    if first < last:
        words += _middle(piece[first:last], whole)
    if suffixes:
        words += reversed(suffixes)
    return words


def _start_of_suffix(piece: str, first: int, last: int) -> int:
    if first == last:
        return last
    end = piece[last - 1]
    if end in SINGLE_SUFFIXES:
        return last - 1
    if end in "0123456789":
        return last
    if end.isascii() and end.isalpha() and not _DIGIT.search(piece, first, last) and piece[last - 2] not in "'\u2019":
        return last  # neither a unit behind a number nor a genitive
    stops = last
    while stops > first and piece[stops - 1] == ".":
        stops -= 1
    start = max(first, stops - _END)
    suffix = SUFFIX.search(piece[start:last])
    return start + suffix.start() if suffix else last


def _middle(text: str, whole: Mapping[str, tuple[str, ...]]) -> Sequence[str]:
    if text in whole:
        return whole[text]
    if _NO_INFIX.fullmatch(text) or ("." in text and URL.match(text)):
        return (text,)
    words: list[str] = []
    start = 0
    for infix in INFIX.finditer(text):
        if infix.start():
            words += filter(None, (text[start : infix.start()], infix.group()))
            start = infix.end()
    if start < len(text):
        words.append(text[start:])
    return words


def _with_exceptions(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``words`` with those that the rules cut from an exception as the exception says.

    The longest exceptions come first. This is ``_apply_special_cases`` of spacy/tokenizer.pyx.
    """
    cuts, lengths = _exceptions_cut()
    if lengths.keys().isdisjoint(words):
        return words
    spans = [
        (first, first + length)
        for first in range(len(words))
        for length in lengths.get(words[first], ())
        if first + length <= len(words) and words[first : first + length] in cuts
    ]
    if not spans:
        return words
    chosen, seen = {}, set[int]()
    for first, last in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):
        if first not in seen and last - 1 not in seen:
            chosen[first] = last
        seen.update(range(first, last))
    changed: list[str] = []
    first = 0
    while first < len(words):
        last = chosen.get(first, first + 1)
        changed += cuts[words[first:last]] if first in chosen else words[first:last]
        first = last
    return tuple(changed)


@cache
def _exceptions_cut() -> tuple[Mapping[tuple[str, ...], tuple[str, ...]], Mapping[str, set[int]]]:
    """Return the parts of exceptions by the words that the rules make of them, and the lengths by the first word."""
    cuts = {}
    lengths: dict[str, set[int]] = {}
    for word, parts in exceptions().items():
        if PREFIX.match(word) or INFIX.search(word) or SUFFIX.search(word):
            cut = tuple(_cut(word, {}))
            cuts[cut] = parts
            lengths.setdefault(cut[0], set()).add(len(cut))
    return cuts, lengths
