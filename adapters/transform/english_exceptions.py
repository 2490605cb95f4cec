"""Words that spaCy's blank English pipeline splits, or leaves whole, against its rules for affixes.

The source is spaCy 3.8 (MIT license): ``tokenizer_exceptions.py`` and ``en/tokenizer_exceptions.py`` in its package
``spacy.lang``.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
